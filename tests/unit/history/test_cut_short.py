"""Jobs that their test ended before there was anything to see."""

from __future__ import annotations

from elastic_harness.history.checkers import bind
from elastic_harness.history.events import ProcessStarted, RunEnded

from pytest_elastic.events.model import WorkersStarted
from tests.unit.history.story import Story


def cut_short(*ended: str) -> Story:
    """Return a job of two nodes, of which one worker of two was heard when faults ended these."""
    story = Story()
    for node in ("n1", "n2"):
        story.tell("cluster", node, ProcessStarted(pid=3, role="launcher", argv=()))
    for rank, node in enumerate(("n1", "n2")):
        started = WorkersStarted(round=1, pids=(5,), ranks=(rank,), start="warm", start_reason="")
        story.tell("agent", node, started)
    story.hello(1, "n1", 0, 2)
    return story.tell("engine", "", RunEnded(outcome="failed", ended_by_faults=ended))


def test_a_job_that_its_test_ended_is_not_blamed_for_what_it_had_no_time_for() -> None:
    """However slow the machine was; and it is said who was never heard of."""
    membership, observed = bind("membership"), bind("workers_observed")
    story = cut_short("n1", "n2")
    assert membership.run(story.history).is_valid
    found = observed.run(story.history)
    assert found.is_valid
    assert (
        "rank 1 of round 1 was started on n2, which a fault ended, and never said" in found.reason
    )
    assert observed.run(cut_short("n2").history).is_valid
    assert not membership.run(cut_short("n2").history).is_valid, "n1 went on, and formed nothing"
    assert not observed.run(cut_short("n1").history).is_valid, "nobody had ended n2"


def test_a_job_that_its_test_stopped_before_anything_was_seen_is_valid() -> None:
    """There was no round to form, and the end of the run is the proof."""
    story = Story().tell("engine", "", RunEnded(outcome="stopped"))
    found = bind("membership").run(story.history)
    assert (found.is_valid, found.events) == (True, (2,)), found.reason
    assert "the test itself ended the run" in found.reason
