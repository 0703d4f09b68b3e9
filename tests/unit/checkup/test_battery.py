"""The battery: scenario files that the reader takes, made to the measure of a script."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from elastic_harness.checkup.battery import (
    BATTERY,
    Checkup,
    FaultTest,
    NotKnown,
    Unfit,
    reference_scenario,
    scenario_text,
)
from elastic_harness.checkup.measured import Checkpoints, Measured, measure
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.scenario.model import Scenario
from elastic_harness.scenario.reading.loader import load_text

from tests.cluster_bench import ROOT
from tests.unit.checkup.undisturbed import undisturbed
from tests.unit.checkup.written_battery import written

JOB: dict[str, Any] = {"module": "json.tool", "args": ["--steps=12", "a b"], "max_restarts": 3}


def seen(*, steps: int = 12, step_s: float = 1.0) -> Measured:
    """Return what was measured of a job on two ranks whose steps take so long."""
    found = measure(undisturbed(steps=steps).history, "succeeded", "", "train.py")
    return replace(found, seconds=step_s * steps, world_size=3)


def read(text: str) -> Scenario:
    """Read a scenario as a user's file is read; raises ScenarioError for the smallest mistake."""
    (loaded,) = load_text(text, "some/file.elastic.yaml", built_in_faults())
    return loaded.scenario


@pytest.mark.parametrize("test", BATTERY, ids=lambda test: test.name)
@pytest.mark.parametrize("steps", [10, 12, 400])
def test_each_test_is_a_scenario_file_without_a_mistake(test: FaultTest, steps: int) -> None:
    """With the job's own words, and a fault that comes before its end."""
    scenario = read(scenario_text(test, Checkup(job=JOB), seen(steps=steps)))
    assert (scenario.id, scenario.job.args) == (test.name, ("--steps=12", "a b"))
    assert scenario.timeline
    first = scenario.timeline[0].at
    if first is not None and not isinstance(first, float):
        assert first.step < steps


def test_the_run_without_any_fault_is_a_scenario_file_too() -> None:
    """It observes what the others are compared by."""
    scenario = read(reference_scenario(Checkup(job=JOB, nodes=2)))
    assert scenario.nodes.initial == 2
    assert {clause.name for clause in scenario.expect.finally_} >= {"parameters", "samples"}
    kept = read(reference_scenario(Checkup(job=JOB), seen()))
    assert [clause.name for clause in kept.expect.finally_] == ["job", "finished_at", "samples"]


def why_unfit(name: str, found: Measured, nodes: int = 3) -> str:
    """Return why a test cannot be made."""
    (test,) = (test for test in BATTERY if test.name == name)
    with pytest.raises(Unfit) as caught:
        scenario_text(test, Checkup(job=JOB, nodes=nodes), found)
    return str(caught.value)


def test_what_cannot_be_tested_is_said() -> None:
    """Nodes, time or checkpoints that are not there are no failures of the script."""
    blind = replace(seen(), checkpoints=None, unseen={"checkpoints": "none was seen"})
    assert why_unfit("killed-while-saving", blind) == "none was seen"
    assert why_unfit("checkpoint-torn", blind) == "none was seen"
    assert "--nodes=3" in why_unfit("rank0-host-lost", seen(), nodes=2)
    assert "--nodes=2" in why_unfit("node-silent", seen(), nodes=1)
    assert "before another one can join: give it" in why_unfit("down-and-up", seen(step_s=0.01))


def test_what_rests_on_checkpoints_that_may_have_been_missed_is_not_known() -> None:
    """A test that needs one is not made; and no number of lost steps is asked for."""
    unseen = {"checkpoints": "files were missed"}
    missed = replace(seen(), checkpoints=None, unseen=unseen, misses_files=True)
    for test in BATTERY:
        if test.name in ("killed-while-saving", "checkpoint-torn"):
            with pytest.raises(NotKnown, match="files were missed"):
                scenario_text(test, Checkup(job=JOB), missed)
        else:
            # A preempted job saves when it is told, and may not lose a step.
            assert ("steps_lost" in clauses(missed, test.name)) == (test.name == "preempted")


def test_the_fault_comes_between_two_checkpoints_and_not_behind_the_end_of_an_epoch() -> None:
    """Who resumes where an epoch begins does not show whether the place in the data was saved."""
    (kill, *_) = BATTERY
    job = seen(steps=60)
    assert job.checkpoints is not None
    # A file is seen when it is read of, which may be steps later: for some of them later still.
    for late, later in ((0, 0), (1, 0), (2, 0), (0, 3), (0, 4)):
        saved = tuple(step + late + later * (step == 30) for step in range(5, 60, 5))
        checkpoints = replace(job.checkpoints, steps=saved)
        job = replace(job, checkpoints=checkpoints, epoch_ends=frozenset(range(10, 60, 10)))
        first = read(scenario_text(kill, Checkup(job=JOB), job)).timeline[0].at
        assert first is not None
        assert not isinstance(first, float)
        resumes_at = (first.step - 1) // 5 * 5  # the step is held before it is saved
        assert resumes_at % 10 == 5


def test_the_fault_comes_late_rather_than_after_a_checkpoint_that_was_surely_in_an_epoch() -> None:
    """The one after a quarter of the job may have been seen late, and be that of an epoch's end."""
    (kill, *_) = BATTERY
    checkpoints = Checkpoints(written="ck", named="ck", steps=(30, 50), beside=0)
    job = replace(seen(steps=200), checkpoints=checkpoints, epoch_ends=frozenset({45}))
    text = scenario_text(kill, Checkup(job=JOB), job)
    assert "- at: {step: 65, rank: 2}" in text


def clauses(found: Measured, name: str = "worker-killed") -> list[str]:
    """Return the names of what a test asks for at the end."""
    (test,) = (test for test in BATTERY if test.name == name)
    asked = read(scenario_text(test, Checkup(job=JOB), found)).expect.finally_
    return [clause.name for clause in asked]


def test_clauses_ask_for_no_more_than_the_undisturbed_run_has_shown() -> None:
    """A script whose state or samples cannot be seen is not unknown for it in each row."""
    bare = replace(seen(), state=None, samples=None)
    assert clauses(bare) == ["job", "finished_at", "steps_lost"]
    assert clauses(seen()) == [
        "job", "finished_at", "steps_lost", "samples", "parameters", "optimizer",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("saved", "epochs", "allowed"),
    [
        ((10, 20, 31), {10, 20, 30}, 10 + 5 + 2),  # the last one is seen a step late
        ((10, 20, 30), {10, 20}, 10 + 5 + 2),
        ((10, 20, 30), set(), 10 + 5 + 2),  # where epochs end is not known
        ((10, 20, 30), {20}, 10 + 2),  # it saves after so many steps
        ((10, 20, 34, 40), {10, 20, 30, 40}, 10 + 2),  # only the last one may be of any step
    ],
)
def test_fewer_ranks_make_more_steps_of_an_epoch(
    saved: tuple[int, ...], epochs: Collection[int], allowed: int
) -> None:
    """A script that saves after each epoch does it after more of them, and may lose more."""
    job = replace(seen(steps=60), epoch_ends=frozenset(epochs))
    assert job.checkpoints is not None
    job = replace(job, checkpoints=replace(job.checkpoints, steps=saved))
    for name, steps in (("down-and-up", allowed), ("node-silent", 10 + 2)):
        (test,) = (test for test in BATTERY if test.name == name)
        text = scenario_text(test, Checkup(job=JOB), job)
        at_most = next(line for line in text.splitlines() if "steps_lost" in line)
        assert at_most.strip() == f"- steps_lost: {{at_most: {steps}}}"


@pytest.mark.parametrize(
    ("saved", "epochs", "steps"),
    [
        ((10, 20, 30, 40, 50), {20, 40}, {"worker-killed": 35, "worker-raises": 25}),
        ((10, 20, 30, 40, 50), {40}, {"worker-killed": 35, "worker-raises": 45}),
        ((10, 20, 30, 40, 50), {10, 40}, {"worker-killed": 35, "worker-raises": 45}),
        ((10, 20, 30, 40, 50), set(), {"worker-raises": 35, "worker-exits": 45}),
        ((10, 20, 30, 40, 55), set(), {"worker-killed": 35, "worker-exits": 45}),
        ((10, 20, 31, 55), {20, 31}, {"worker-killed": 15, "worker-raises": 25}),
        ((30, 58), set(), {"worker-killed": 45, "worker-exits": 45}),  # none is early enough
        ((58,), {58}, {"worker-killed": 33, "worker-raises": 33, "worker-exits": 33}),
    ],
)
def test_workers_fail_behind_different_checkpoints(
    saved: tuple[int, ...], epochs: Collection[int], steps: Mapping[str, int]
) -> None:
    """One at an epoch's end, where there is one; one later than the others, so of other parity."""
    checkpoints = Checkpoints(written="ck", named="ck", steps=saved, beside=0)
    found = replace(seen(steps=60), checkpoints=checkpoints, epoch_ends=frozenset(epochs))
    said = {}
    for name in steps:
        (test,) = (each for each in BATTERY if each.name == name)
        (entry,) = test.make(Checkup(job=JOB), found)
        said[name] = entry["at"]["step"]
    assert said == steps


@pytest.mark.parametrize(
    ("saved", "longer", "step"),
    [
        ((10, 20, 30, 40, 50, 60), 29, 45),  # the tests in the middle see it, at step 35
        ((10, 20, 30, 40, 50, 60), 30, 55),
        ((10, 20, 30, 40, 50, 60), 49, 55),
        ((10, 20, 30, 40, 50, 60), 50, 45),  # only the newest in time has it
        ((10, 20, 30, 40, 50, 60), None, 45),
        ((58,), 58, 34),
    ],
)
def test_a_worker_fails_where_names_that_are_sorted_as_text_cost_most(
    saved: tuple[int, ...], longer: int | None, step: int
) -> None:
    """`epoch_9` goes behind `epoch_10` then, and all that was done since is lost."""
    checkpoints = Checkpoints(written="ck", named="ck", steps=saved, beside=0, longer=longer)
    found = replace(seen(steps=62), checkpoints=checkpoints)
    (test,) = (each for each in BATTERY if each.name == "worker-exits")
    (entry,) = test.make(Checkup(job=JOB), found)
    assert entry["at"]["step"] == step


@pytest.mark.parametrize(
    ("test", "lost"),
    [
        ("worker-killed", 10),
        ("checkpoint-torn", 40),
        ("killed-while-saving", 30),
        ("down-and-up", 45),
    ],
)
def test_the_steps_that_may_be_lost_are_those_around_the_fault(test: str, lost: int) -> None:
    """Of one that comes at step 65 or 35; of a node that leaves early, those of any moment."""
    checkpoints = Checkpoints(written="ck", named="ck", steps=(10, 20, 30, 60, 70), beside=0)
    found = replace(seen(steps=100), checkpoints=checkpoints)
    (asked,) = (each for each in BATTERY if each.name == test)
    text = scenario_text(asked, Checkup(job=JOB), found)
    (line,) = (line for line in text.splitlines() if "steps_lost" in line)
    assert line.strip() == f"- steps_lost: {{at_most: {lost + 2}}}"


def test_a_job_whose_steps_are_not_known_is_not_valid_for_it() -> None:
    """One that begins again after each fault ends with the same, and has lost all that it did."""
    uncounted = replace(seen(), is_global=False)
    assert clauses(uncounted) == ["job", "steps_lost", "parameters", "optimizer"]
    assert clauses(uncounted, "slow-link") == [
        "job", "world_sizes", "samples", "parameters", "optimizer",
    ]  # fmt: skip


def test_fewer_ranks_may_make_more_steps() -> None:
    """A script that ends after so many epochs does, and one that ends after so many steps not."""
    (gone,) = (test for test in BATTERY if test.name == "node-silent")
    text = scenario_text(gone, Checkup(job=JOB), seen())
    assert "finished_at: {at_least: 12}" in text


def asked_of_samples(name: str, **uses: list[int]) -> Mapping[str, Any]:
    """Return what a test asks of the samples, of twelve of which each epoch used these."""
    job = replace(
        seen(steps=12),
        samples=(12, {epoch: Counter(used) for epoch, used in enumerate(uses.values())}),
    )
    (test,) = (test for test in BATTERY if test.name == name)
    text = scenario_text(test, Checkup(job=JOB), job)
    asked = yaml.safe_load(text)["expect"]["finally"]
    return next(clause["samples"] for clause in asked if "samples" in clause)


ALL = list(range(12))


@pytest.mark.parametrize(
    ("used", "same_ranks", "fewer_ranks"),
    [
        # Three ranks share twelve samples; of two, and of thirteen, one would be repeated.
        (ALL, {}, {"padding": 2}),
        # A sampler that fills up batches may repeat more: less than the five of a step.
        ([*ALL, 0, 1, 2], {"padding": 3}, {"padding": 4}),
        # `drop_last` leaves out less than the four of a step.
        (ALL[:11], {"dropped": 1}, {"padding": 2, "dropped": 3}),
    ],
)
def test_other_ranks_may_repeat_or_leave_out_others_of_an_epoch(
    used: list[int], same_ranks: Mapping[str, int], fewer_ranks: Mapping[str, int]
) -> None:
    """With the ranks of the undisturbed run, nothing but what that has shown."""
    asked = {"each_epoch": "exactly_once", "last_epoch": "may_be_cut"}
    found = {
        name: asked_of_samples(name, first=used, second=used, third=used, fourth=used)
        for name in ("worker-killed", "node-silent")
    }
    assert found == {
        "worker-killed": {**asked, **same_ranks},
        "node-silent": {**asked, **fewer_ranks},
    }


def test_writers_are_held_in_the_folder_of_the_checkpoint() -> None:
    """And from between two checkpoints on."""
    (test,) = (test for test in BATTERY if test.name == "killed-while-saving")
    text = scenario_text(test, Checkup(job=JOB), seen())
    assert "{writing: newest.pt.*, path: out, step: 7}" in text


def test_pages_name_tests_that_there_are() -> None:
    """A reader copies the command as it stands."""
    known = {test.name for test in BATTERY}
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        name
        for page in pages
        for words in re.findall(r"--only=([\w,-]+)", page.read_text(encoding="utf-8"))
        for name in words.split(",")
    }
    assert named <= known
    assert len(named) >= 9
    table = (ROOT / "docs" / "checkup.md").read_text(encoding="utf-8")
    assert {name for name in known if f"`{name}`" not in table} == set()


def test_what_jobs_are_asked_is_what_was_agreed() -> None:
    """A change of the file is a change of verdicts: to be read, line by line."""
    path = Path(__file__).with_name("battery.txt")
    told = "see `python -m tests.unit.checkup.written_battery`, and read what it changes"
    assert written() == path.read_text(encoding="utf-8"), told
