"""Storms through pytest: what a seed draws is written down, shown, and had again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.place import Called, Place, scenario

# Counts to 60 and says so; begins where its rank was before.
STEPS = """
    import os, time
    from elastic_harness.observe import report_step
    mark = os.path.join(os.environ["ELASTIC_CHECKPOINT_DIR"], os.environ["RANK"])
    done = int(open(mark).read()) if os.path.exists(mark) else 0
    while done < 60:
        time.sleep(0.02)
        done += 1
        with open(mark + ".new", "w") as file:
            file.write(str(done))
        os.replace(mark + ".new", mark)
        report_step(done)
"""

TESTS = """
    import pytest

    def drawn(faker):
        return faker.fault_plan(nodes=4, seconds=5)

    def test_a_faker_of_the_user_draws_faults(faker):
        faker.seed_instance(5)
        plan = drawn(faker)
        faker.seed_instance(5)
        assert drawn(faker) == plan

    def test_in_python(elastic_job):
        job = elastic_job("steps.py", nodes=2, max_restarts=3)
        storm = job.storm(faults=["kill", "exit"], max=3, over="500ms")
        assert 2 <= len(storm) <= 3
        assert job.wait().succeeded
        assert job.check("recovered").verdict.is_valid
        assert job.restarts >= 1

    def test_named_and_too_late(elastic_job):
        job = elastic_job("steps.py", nodes=2, max_restarts=3)
        job.storm(faults=["kill"], max=1, over="100s", id="mine")
        assert job.wait().succeeded

    def test_too_much(elastic_job):
        elastic_job("steps.py", nodes=2, max_restarts=1).storm(max=3)
"""

# Both fail at the end, so that their traces are kept.
STORMY = """
    storm: {faults: [worker], max: 3, over: 500ms}
    expect: {finally: [{world_sizes: [2, 2, 2, 2, 2, 2, 2, 2, 2]}]}
"""
PICKS = """
    timeline: [{id: hit, at: {step: 5}, kill: random}]
    expect: {finally: [{world_sizes: [2, 2, 2, 2, 2, 2, 2, 2, 2]}]}
"""
CHECKS = """
    timeline:
    - {id: half, at: {step: 30, rank: 1}, check: [ranks, {world_sizes: [2]}]}
    - {id: later, at: {step: 40, rank: 1}, check: [{restarts: 3}]}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a folder with storms in it."""
    place = Place(tmp_path_factory.mktemp("storms"))
    place.add_ini()
    place.add("steps.py", STEPS)
    place.add("test_some.py", TESTS)
    for name, body in (("stormy", STORMY), ("picks", PICKS), ("checks", CHECKS)):
        text = scenario(name, body, script="steps.py", max_restarts=3)
        place.add(f"{name}.elastic.yaml", text)
    return place


@pytest.fixture(scope="module")
def called(place: Place) -> Called:
    """Run all of them once."""
    called = place.pytest("-rA", "-p", "faker.contrib.pytest.plugin", "--elastic-seed=11")
    assert called.code == pytest.ExitCode.TESTS_FAILED, called.out
    return called


def run_of(place: Place, name: str) -> Path:
    """Return the newest run directory of a test."""
    runs = [place.folder / ".elastic" / run for run in place.runs if name in run]
    return max(runs, key=lambda path: path.stat().st_mtime_ns)


def targets_of(run: Path) -> list[Any]:
    """Return whom the faults of a run have hit, by rank and node."""
    lines = (run / "history.jsonl").read_text().splitlines()
    texts = re.findall(r'"rank \d+ \(n\d+', "\n".join(ln for ln in lines if "fault_fired" in ln))
    return sorted(texts)


def test_each_comes_out_as_it_should(called: Called) -> None:
    """A job with enough restarts weathers its storm; a `faker` knows faults without being told."""
    assert called.outcomes == {
        "test_a_faker_of_the_user_draws_faults": "PASSED",
        "test_in_python": "PASSED",
        "test_named_and_too_late": "FAILED",
        "test_too_much": "FAILED",
        "stormy": "FAILED",
        "picks": "FAILED",
        "checks": "FAILED",
    }
    wanted = "a storm of up to 3 faults can use up the 1 restarts of this job"
    assert wanted in called.about("test_too_much")
    late = called.about("test_named_and_too_late")
    assert "UNKNOWN: faults_effective\n  mine-storm: none of its 1 faults took effect" in late


def test_a_storm_fails_by_what_was_asked_for_and_by_nothing_else(called: Called) -> None:
    """The job itself succeeded and recovered; the command repeats it by the seed."""
    about = called.about("stormy")
    assert re.findall(r"^(INVALID|UNKNOWN): (\w+)", about, re.MULTILINE) == [
        ("INVALID", "world_sizes")
    ]
    assert re.search(
        r"again +pytest stormy.elastic.yaml::stormy --elastic-seed=11$", about, re.MULTILINE
    )


def test_a_check_in_the_timeline_shows_where_it_stands(called: Called) -> None:
    """The first one held, the second ended the run."""
    about = called.about("checks")
    assert "INVALID: check: restarts: 3" in about
    assert "checks.elastic.yaml:8:" in about
    assert "0 restarts, 3 were expected" in about


@pytest.mark.parametrize("name", ["picks", pytest.param("stormy", marks=pytest.mark.slow)])
def test_a_replay_has_the_same_plan_to_the_byte_and_hits_the_same(
    called: Called, place: Place, name: str
) -> None:
    """By the commands that the failures printed, which name the plan where chance has chosen."""
    first = run_of(place, name)
    found = re.search(rf"^ *again +(pytest {name}.*)$", called.about(name), re.MULTILINE)
    assert found is not None, called.out
    assert ("--elastic-replay" in found[1]) == (name == "picks")
    again = place.pytest(*shlex.split(found[1])[1:])
    assert again.code == pytest.ExitCode.TESTS_FAILED, again.out
    second = run_of(place, name)
    assert second != first
    assert (second / "plan.json").read_bytes() == (first / "plan.json").read_bytes()
    if name == "picks":
        assert targets_of(second) == targets_of(first) != []


# Fails with any one of its faults; and one that fails whatever is done to it.
NEEDS_ONE = """
    storm: {seed: 3, faults: [kill, exit], max: 4, steps: 20}
    expect: {finally: [{restarts: 0}]}
"""
IN_PYTHON = """
    def test_in_python(elastic_job):
        job = elastic_job("steps.py", nodes=1, max_restarts=2)
        job.storm(faults=["kill"], max=2, steps=10)
        assert job.wait().outcome == "drained"
"""
NEEDS_NONE = """
    storm: {faults: [kill], max: 2, steps: 20}
    expect: {finally: [{world_sizes: [2, 2, 2, 2, 2, 2, 2, 2, 2]}]}
"""


def test_a_failed_storm_is_shrunk_to_the_faults_that_it_takes(tmp_path: Path) -> None:
    """Within a number of runs; the command that is printed repeats the smallest."""
    place = Place(tmp_path)
    place.add_ini()
    place.add("steps.py", STEPS.replace("60", "30"))
    for name, body in (("one", NEEDS_ONE), ("none", NEEDS_NONE)):
        text = scenario(name, body, script="steps.py", max_restarts=4)
        place.add(f"{name}.elastic.yaml", text)
    place.add("test_some.py", IN_PYTHON)
    called = place.pytest("-rA", "--elastic-shrink=6", "--elastic-cluster=process")
    names = ("one", "none", "test_in_python")
    assert called.outcomes == dict.fromkeys(names, "FAILED"), called.out
    assert "shrunk         not tried: the storm is one that a" in called.about("test_in_python")
    about = called.about("none")
    assert "shrunk         fails with no fault (1 more runs); the first run: .elastic/" in about
    about = called.about("one")
    assert "INVALID: restarts: 0" in about
    shrunk = re.search(r"^shrunk +fails with 1 of (\d) faults: (storm-\d) \(", about, re.MULTILINE)
    assert shrunk is not None, about
    assert len([run for run in place.runs if run.startswith("one.")]) == 2, (
        "the first one, and the smallest"
    )
    found = re.search(r"^ *again +(pytest one.*)$", about, re.MULTILINE)
    assert found is not None
    assert "--elastic-replay=.elastic/" in found[1]
    again = place.pytest(*shlex.split(found[1])[1:])
    assert again.code == pytest.ExitCode.TESTS_FAILED, again.out
    history = (run_of(place, "one.elastic.yaml-one") / "history.jsonl").read_text()
    fired = {line for line in history.splitlines() if '"fault_fired"' in line}
    assert len([line for line in fired if f'"{shrunk[2]}"' in line]) == 1
    assert "INVALID: restarts: 0" in again.out
