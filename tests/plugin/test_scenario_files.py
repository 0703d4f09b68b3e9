"""Scenario files as items: which there are, how they are chosen, and what is wrong with a file."""

from __future__ import annotations

import pytest

from tests.plugin.place import Place, scenario


def ids(out: str) -> list[str]:
    """Return what `--collect-only -q` lists."""
    return [line for line in out.splitlines() if "::" in line and not line.startswith(" ")]


def test_each_document_is_an_item_and_each_combination_of_a_matrix_one(place: Place) -> None:
    """`file.elastic.yaml::id`, in the order of the file; -k, -m and node ids choose among them."""
    place.add_scripts()
    place.add_ini("markers = nightly")
    matrix = "matrix: {seed: [7, 8], job.max_restarts: [0, 1]}\n"
    place.add(
        "two.elastic.yaml",
        f"{scenario('plain')}---\n{scenario('many')}{matrix}marks: [nightly]\n",
    )
    place.add("deeper/one.elastic.yaml", scenario("other", script="../hello.py"))
    every = ids(place.pytest("--collect-only", "-q").out)
    assert every == [
        "deeper/one.elastic.yaml::other",
        "two.elastic.yaml::plain",
        "two.elastic.yaml::many[seed=7,job.max_restarts=0]",
        "two.elastic.yaml::many[seed=7,job.max_restarts=1]",
        "two.elastic.yaml::many[seed=8,job.max_restarts=0]",
        "two.elastic.yaml::many[seed=8,job.max_restarts=1]",
    ]
    for arguments, chosen in (
        (["-k", "plain or other"], every[:2]),
        (["-m", "nightly"], every[2:]),
        (["two.elastic.yaml::many"], every[2:]),
        ([every[3]], every[3:4]),
    ):
        called = place.pytest("--collect-only", "-q", *arguments)
        assert ids(called.out) == chosen, arguments


def test_a_conftest_may_change_the_folder(place: Place) -> None:
    """Scripts and files are found by where they lie; what was given on the command line is seen."""
    place.add_scripts()
    place.add("conftest.py", 'import os\nos.chdir("/")\n')
    place.add("one.elastic.yaml", scenario("one"))
    called = place.pytest("one.elastic.yaml", "--elastic-cluster=process")
    assert "1 passed" in called.out, called.out


# A file each; what else can be wrong with one is in `tests/unit/scenario/wrong_scenarios.txt`.
WRONG = {
    "unknown key": (
        scenario("a") + "nodez: 3\n",
        "7:1: unknown key 'nodez' (did you mean 'nodes'?)",
        "nodez: 3",
    ),
    "unknown mark": (
        scenario("a", "marks: [nightly]"),
        "6:9: 'nightly' not found in `markers` configuration option",
        "nightly]",
    ),
    "empty": ("", "1:1: there is no scenario here: the file is empty", ""),
}


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what pytest says of a folder in which every file is wrong, and one is not."""
    place = Place(tmp_path_factory.mktemp("wrong"))
    place.add_ini("strict_markers = true")
    place.add_scripts()
    place.add("right.elastic.yaml", scenario("right"))
    for name, (text, _, _) in WRONG.items():
        place.add(f"{name.replace(' ', '-')}.elastic.yaml", text)
    (place.folder / "not-text.elastic.yaml").write_bytes(b"\xff\xfe\x00")
    called = place.pytest()
    assert called.code == pytest.ExitCode.INTERRUPTED, called.out
    assert f"{len(WRONG) + 1} errors during collection" in called.out
    assert "hello from" not in called.out, "nothing runs"
    assert "Traceback" not in called.out
    return called.out


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_shown_where_it_stands(collected: str, what: str) -> None:
    """`file:line:column: message`, the line, and a caret below the very place; said once."""
    _, message, rest_of_line = WRONG[what]
    name = f"{what.replace(' ', '-')}.elastic.yaml"
    lines = collected.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith(f"{name}:{message}")]
    assert lines[at - 1].strip("_ ") == f"ERROR collecting {name}"
    if rest_of_line:
        caret = lines[at + 2].index("^")
        assert lines[at + 2].strip() == "^"
        assert lines[at + 1][caret:].startswith(rest_of_line)
    following = lines[at + (3 if rest_of_line else 1)]
    assert following.startswith(("___", "===")), "nothing more is said about it"


def test_a_file_that_is_no_text_is_said_to_be_none(collected: str) -> None:
    """Without a traceback of the decoder."""
    assert "not-text.elastic.yaml:1:1: cannot be read: 'utf-8' codec can't decode" in collected
