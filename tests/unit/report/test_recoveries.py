"""Recoveries, steps lost, goodput and places, on recorded runs and on stories."""

from __future__ import annotations

import os

import pytest
from elastic_harness.history.history import History
from elastic_harness.report.progress import PlaceRow, goodput, places, steps_lost
from elastic_harness.report.recoveries import Recovery, recoveries
from elastic_harness.report.timeline import timeline_html

from pytest_elastic.events.model import Event, StopOrdered
from tests.judge.mutants import RECORDED, load
from tests.unit.history.story import Story


def recorded(name: str, *without: type[Event]) -> History:
    """Return a recorded run, without the records of some kinds."""
    records = load(os.path.join(RECORDED, f"{name}.jsonl.gz"))
    return History.of(each for each in records if not isinstance(each.event, without))


def seconds(recovery: Recovery) -> dict[str, float | None]:
    """Return the phases by name, in seconds from the start."""
    return {
        phase.name: None if phase.at is None else round(phase.at - recovery.start, 3)
        for phase in recovery.phases
    }


def test_the_waterfall_of_a_killed_worker_shown_whole() -> None:
    """All phases of a recorded recovery, in order, with what they rest on."""
    (recovery,) = recoveries(recorded("crash-resume"))
    assert recovery.title == "round 1 to round 2, 1.401 s"
    assert seconds(recovery) == {
        "fault": 0.0,
        "effective": 0.0,
        "noticed": 0.029,
        "stopped": 0.911,
        "sealed": 0.912,
        "spawned": 1.024,
        "process group": 1.401,
        "first step": 1.401,
    }
    assert [phase.detail for phase in recovery.phases][:5] == [
        "crash: kill rank 1 (n1, pid 7122)",
        "rank 1 (n1, pid 7122) gone",
        "n1: rank 1 failed",
        "last: rank 3 on n2",
        "n1, n2",
    ]


def test_a_round_that_ends_without_a_fault_is_counted_from_when_that_was_noticed() -> None:
    """The second recovery of a run is the return of a node; it has no fault."""
    first, second = recoveries(recorded("isolated-node-heals"))
    assert (first.from_round, first.to_round, second.to_round) == (1, 2, 3)
    assert seconds(first)["effective"] == 0.116
    assert seconds(second)["fault"] is None
    assert seconds(second)["noticed"] == 0.0
    assert seconds(second)["first step"] == 0.907


def test_what_a_launcher_does_not_say_is_not_recorded() -> None:
    """Other launchers record nothing: what the workers and the kernel show is left."""
    story = Story(nodes=1).round(1, ["n1"], round=None).steps(1, 1, 2).fault("crash", works=False)
    story.gone(1).wait(1).round(2, ["n1"], round=None)
    (recovery,) = recoveries(story.history)
    known = {name for name, at in seconds(recovery).items() if at is not None}
    assert known == {"fault", "stopped", "spawned"}
    page = timeline_html(story.history)
    assert page.count("not recorded") == 5


def test_a_run_that_never_recovered_has_a_waterfall_that_breaks_off() -> None:
    """The last round was broken, and no other followed."""
    story = Story(nodes=1).round(1, ["n1"]).steps(1, 1, 2).fault("crash").gone(1).wait(1)
    (recovery,) = recoveries(story.end("limit").history)
    assert recovery.title == "round 1, and no other"
    assert [name for name, at in seconds(recovery).items() if at is not None] == [
        "fault",
        "effective",
        "stopped",
    ]


def test_of_several_faults_the_last_before_the_launcher_noticed_is_the_one() -> None:
    """A fault that comes while the job recovers already has not begun that recovery."""
    story = Story(nodes=1).round(1, ["n1"]).steps(1, 1, 1).fault("early").wait(1).fault("one")
    story.wait(0.5).tell("agent", "n1", StopOrdered(round=1, reason="rank 0 failed"))
    story.fault("late").gone(1).round(2, ["n1"])
    (recovery,) = recoveries(story.history)
    assert recovery.phases[0].detail.startswith("one: ")


def test_phases_begin_where_the_one_before_ended_in_time() -> None:
    """A proof that comes after the launcher has noticed is no longer than its own part."""
    (recovery,) = recoveries(recorded("spare-promoted"))
    by_name = {phase.name: phase for phase in recovery.phases}
    noticed, effective = by_name["noticed"], by_name["effective"]
    assert noticed.at is not None
    assert effective.at is not None
    assert noticed.at < effective.at
    assert recovery.begin_of(effective) == noticed.at
    assert recovery.begin_of(noticed) == recovery.start


def test_goodput_is_the_share_of_rank_seconds_in_steps_that_counted() -> None:
    """Steps that were done again count once, the time between rounds counts as lost."""
    story = Story(nodes=1).round(1, ["n1"])
    for step in range(1, 6):
        story.wait(0.99).step(1, 0, step)
    story.gone(1).wait(3.99).round(2, ["n1"]).resume(2, 0, 3)
    for step in range(4, 7):
        story.wait(0.99).step(2, 0, step)
    history = story.finish(2).history
    found = goodput(history)
    assert found is not None
    # Steps 2 and 3 of round 1, steps 5 and 6 of round 2; the first of each has no known length.
    assert found.useful_s == pytest.approx(4.0, abs=0.1)
    assert found.total_s == pytest.approx(12.0, abs=0.1)
    assert steps_lost(history) == "2 in 1 resume"


def test_goodput_is_not_known_without_global_steps() -> None:
    """Steps that are counted per process do not say which of them were done again."""
    story = Story(nodes=1).round(1, ["n1"]).step(1, 0, None).step(1, 0, None)
    history = story.gone(1).round(2, ["n1"]).step(2, 0, None).finish(2).history
    assert goodput(history) is None
    assert steps_lost(history).startswith("not known: steps are counted per process")
    assert "goodput: not known" in timeline_html(history)


def test_the_table_of_places_has_a_row_for_each_local_rank_and_a_column_for_each_round() -> None:
    """Where a node had no worker of a round the cell is empty."""
    titles, rows = places(recorded("node-leaves"))
    assert titles == ["round 1: 3 ranks", "round 2: 2 ranks"]
    assert rows[0] == PlaceRow(
        node="n1", local_rank=0, cells=("rank 0: steps 1-12, ended", "rank 0: steps 13-50, ended")
    )
    assert rows[2] == PlaceRow(node="n3", local_rank=0, cells=("rank 2: steps 1-12, ended", ""))
