"""When a held rank is too late for the step that it was to be held at, and when it may go on."""

from __future__ import annotations

import pytest
from elastic_harness.scenario.engine.holds import why_past
from elastic_harness.scenario.engine.messages import TimeStoodStill, WakeAt
from elastic_harness.scenario.triggers import AtStep

from tests.unit.scenario.bench import CRASH, running


@pytest.mark.parametrize(
    ("done", "resumed_at", "asked_at", "step", "held", "why"),
    [
        # There was no worker, or another one, when the step was asked for.
        ((1, 2), None, None, 3, 3, None),
        ((1, 2), None, ("other", 9), 3, 3, None),
        ((1, 2, 3), None, None, 3, 4, "had done step 3 before the order"),
        ((1, 2, 3), None, ("other", 2), 3, 4, "had done step 3 before the order"),
        # The order was on its way for one step at most.
        ((1, 2), None, ("same", 2), 3, 3, None),
        ((1, 2, 3), None, ("same", 2), 3, 4, None),
        ((1, 2, 3, 4), None, ("same", 2), 3, 5, "had done step 4 before the order"),
        ((1, 2, 3), None, ("same", 3), 3, 4, "was at step 3 already when step 3 was asked for"),
        ((1, 2, 3, 4), None, ("same", 4), 3, 5, "was at step 4 already when step 3 was asked for"),
        # It goes on where an earlier worker was.
        ((), 5, None, 5, 6, "began round 1 after step 5: step 5 was past"),
        ((), 6, None, 5, 7, "began round 1 after step 6: step 5 was past"),
        ((), 5, None, 5, 5, None),
        ((6,), 5, ("same", 2), 5, 7, None),
        # A script that says only some steps.
        ((), 4, None, 5, 6, None),
        ((), None, None, 1, 2, None),
    ],
)
def test_a_rank_is_too_late_if_it_went_on_after_the_step(
    done: tuple[int, ...],
    resumed_at: int | None,
    asked_at: tuple[str, int] | None,
    step: int,
    held: int,
    why: str | None,
) -> None:
    """By more than the one step that an order may be on its way for."""
    bench = running()
    if resumed_at is not None:
        bench.resume(1, resumed_at)
    for number in done:
        bench.step(1, number)
    pid = bench._pids[1]
    found = bench.engine.run.worlds.worker_of(pid)
    assert found is not None
    asked = None if asked_at is None else (pid if asked_at[0] == "same" else pid + 1, asked_at[1])
    past = why_past(*found, AtStep(step=step, rank=1), held, asked_at=asked)
    assert (past is None) == (why is None), past
    assert why is None or why in str(past)


def test_a_rank_is_held_for_an_entry_of_its_own_only() -> None:
    """Not for one of another rank, of a later step, or of a time."""
    other = {"at": {"step": 3, "rank": 0}, "id": "other", "kill": "rank 0"}
    later = {"at": {"step": 9, "rank": 1}, "id": "later", "kill": "rank 1"}
    timed = {"at": "1s", "id": "timed", "kill": "rank 1"}
    bench = running(other, later, timed)
    bench.pass_time(1)
    bench.hold(0, 4)
    bench.hold(1, 4)
    assert bench.fired == ["timed", "other"]
    assert bench.released == [1]
    bench.hold(1, 9)
    bench.hold(1, 10)
    assert bench.fired == ["timed", "other", "later"]
    assert bench.released == [1]
    bench.hold(1, 8)
    assert bench.released == [1, 1]


def test_ranks_are_held_for_ten_seconds_at_most_and_longer_if_time_stood_still() -> None:
    """Each from when it was held; the engine asks to be woken for the first."""
    other = {"at": {"step": 3, "rank": 0}, "id": "other", "kill": "rank 0"}
    bench = running(CRASH, other)
    began = bench.now
    bench.hold(1, 3)
    bench.pass_time(4)
    bench.hold(0, 3)
    assert bench.all_of(WakeAt)[-1].at == began + 10.0
    bench.now += 20
    bench.give(TimeStoodStill(seconds=20.0))
    assert bench.released == []
    bench.pass_time(5.9)
    assert bench.released == []
    bench.pass_time(0.1)
    assert bench.released == [1]
    bench.pass_time(4)
    assert bench.released == [1, 0]
