"""What cannot be asked of a fault in Python: said in one line, before anything is started."""

from __future__ import annotations

import re

import pytest

from tests.plugin.place import Called, Place

# What a test asks for, and what it is told, where Python has its own way to ask. The rest is what a
# file may have wrong, and is told in the same words (`tests/unit/scenario/wrong_scenarios.txt`).
ASKED = {
    "no such fault": (
        'partitoin("n2")',
        "no action is called 'partitoin': did you mean 'partition'?",
    ),
    "no such rank": ('kill("rank 9")', "kill-1: there is no rank 9: the largest world has 2 ranks"),
    "healing what is not there": ('heal("it")', "heal-1: no entry of the timeline has the id 'it'"),
    "a wait without a unit": (
        'kill("rank 0") and job.wait_for_round(1, within="ten")',
        "within: 'ten' is not a duration",
    ),
    "a wait for nobody": (
        'kill("rank 0") and job.wait_for_round(1, after="kill-7")',
        "after='kill-7': this job has no fault 'kill-7'",
    ),
    "a value beside its own parameter": (
        'kill("rank 0", worker="rank 1")',
        "`kill` was given 'rank 0' beside parameters: as which one?",
    ),
}


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Called:
    """Ask for all of them once."""
    place = Place(tmp_path_factory.mktemp("bad"))
    place.add_ini()
    place.add_scripts()
    tests: list[str] = []
    for number, (asked, _) in enumerate(ASKED.values()):
        tests += [
            f"def test_{number:02}(elastic_job, elastic_chaos):",
            "    job = elastic_job('hello.py', nodes=2, proxies={'db': '127.0.0.1:9'})",
            f"    elastic_chaos.at('0s').{asked}",
            "    job.start()",
            "    assert False, 'not reached'",
        ]
    place.add("test_some.py", "\n".join(tests))
    return place.pytest("-rA", "--elastic-cluster=process")


@pytest.mark.parametrize("name", ASKED)
def test_what_cannot_be_is_said_before_anything_starts(called: Called, name: str) -> None:
    """By the line of the test that asked for it."""
    number = list(ASKED).index(name)
    about = called.about(f"test_{number:02}")
    assert len(about.splitlines()) < 20, about  # the test's line, and none of our frames
    assert "pydantic" not in about
    errors = re.findall(r"^E +(\S+: .*)$", about, re.MULTILINE)
    assert any(f"UsageError: {ASKED[name][1]}" in line for line in errors), about
    assert "not reached" not in "".join(errors)


def test_nothing_was_started_for_that(called: Called) -> None:
    """Not even a cluster."""
    assert "run directory" not in called.out
    assert set(called.outcomes.values()) == {"FAILED"}, called.out
