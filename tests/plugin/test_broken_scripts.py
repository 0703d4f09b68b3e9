"""Twelve wrong training scripts are caught by their clause, and their right twin passes."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.plugin.place import Called, Place

EXAMPLES = Path(__file__).parents[2] / "examples"
BROKEN = EXAMPLES / "broken"
RIGHT = "minimal.py"
# The clause that each of them breaks.
CAUGHT_BY = {
    "checkpoint_in_place": "INVALID: steps_lost: {at_most: 5}",
    "first_world_size": "INVALID: samples: {each_epoch: exactly_once}",
    "helper_left": "INVALID: no_strays",
    "learning_rate": "INVALID: learning_rate: follows_batch",
    "lonely_collective": "INVALID: ends_in_time",
    "optimizer_state": "INVALID: optimizer: same_as_uninterrupted",
    "own_disk": "INVALID: steps_lost: {at_most: 5}",
    "random_state": "INVALID: parameters: same_as_uninterrupted",
    "sampler_position": "INVALID: samples: {each_epoch: exactly_once}",
    "saved_too_late": "INVALID: steps_lost: {at_most: 0}",
    "sigterm_ignored": "INVALID: steps_lost: {at_most: 0}",
    "swallowed": "INVALID: finished_at: {step: 40}",
}
# An edit of some lines, so that a comparison of the two shows the mistake and nothing else.
MOST_LINES = 20


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Called:
    """Return what became of a pytest that ran them all, each beside the right one."""
    artifacts = tmp_path_factory.mktemp("artifacts")
    options = ["-rA", f"--elastic-artifacts={artifacts}", "-p", "no:cacheprovider"]
    return Place(BROKEN).pytest(
        ".", f"--rootdir={BROKEN}", "-c", "/dev/null", *options, limit_s=900
    )


@pytest.mark.parametrize("name", CAUGHT_BY)
def test_the_wrong_script_is_caught_and_the_right_one_passes(name: str, called: Called) -> None:
    """The same clauses for both; the wrong one fails by what it breaks, not by chance."""
    outcomes = {key: how for key, how in called.outcomes.items() if key.startswith(f"{name}[")}
    assert outcomes == {
        f"{name}[job.script={name}.py]": "FAILED",
        f"{name}[job.script=..-{RIGHT}]": "PASSED",
    }, called.out
    about = called.about(f"{name}[job.script={name}.py]")
    assert CAUGHT_BY[name] in about, about


def test_each_of_them_has_a_scenario_and_a_page_and_is_listed() -> None:
    """A script that nobody runs teaches nothing."""
    names = {path.stem for path in BROKEN.glob("*.py")}
    assert names == set(CAUGHT_BY)
    dashed = {name.replace("_", "-") for name in names}
    assert {path.name.partition(".")[0] for path in BROKEN.glob("*.elastic.yaml")} == dashed
    assert {path.stem for path in BROKEN.glob("*.md")} == {*dashed, "README"}
    index = (BROKEN / "README.md").read_text()
    assert all(f"({name}.md)" in index for name in dashed)


@pytest.mark.parametrize("name", CAUGHT_BY)
def test_a_wrong_script_differs_in_a_few_lines(name: str) -> None:
    """Else nobody would see what is wrong."""
    right, wrong = ((EXAMPLES / path).read_text() for path in (RIGHT, f"broken/{name}.py"))
    changed = [
        line
        for line in difflib.ndiff(right.splitlines(), wrong.splitlines())
        if line.startswith(("+ ", "- "))
    ]
    assert 2 <= len(changed) <= MOST_LINES
    assert any("wrong:" in line for line in changed), "it says where"
