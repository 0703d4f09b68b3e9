"""Time that stands still, for a debugger, brings no deadline nearer."""

from __future__ import annotations

from elastic_harness.scenario.engine.messages import TimeStoodStill, WakeAt

from tests.unit.scenario.bench import Bench, scenario


def stand_still(bench: Bench, seconds: float) -> None:
    """Let time stand still for the engine, as a runner does."""
    bench.now += seconds
    bench.give(TimeStoodStill(seconds=seconds))


def test_the_limit_what_is_due_and_what_is_waited_for_move_along() -> None:
    """An entry due at 5 s fires after 5 s that were seen; so do heals, clauses and the limit."""
    bench = Bench(
        scenario(
            {"id": "late", "at": "5s", "pause": "rank 1", "for": "2s"},
            limit="60s",
            expect={"eventually": [{"round": 2, "within": "10s"}]},
        )
    )
    bench.start_nodes("n1", "n2")
    bench.form("n1", "n2")
    bench.pass_time(4)
    stand_still(bench, 1000)
    assert bench.fired == []
    assert bench.all_of(WakeAt)[-1].at == bench.now + 1
    bench.pass_time(1)
    assert bench.fired == ["late"]
    bench.in_force("late")
    bench.prove("late")
    stand_still(bench, 1000)
    assert bench.healed == []
    bench.pass_time(2)
    assert bench.healed == ["late"]
    assert not bench.is_over
    bench.pass_time(12.9)
    assert not bench.is_over
    bench.pass_time(0.2)
    assert bench.end is not None
    assert "not in time" in bench.end.reason, "twice the clause's 10 s that were seen"


def test_the_limit_is_counted_in_time_that_was_seen() -> None:
    """20 s, however long somebody looked at it."""
    bench = Bench(scenario(limit="20s"))
    bench.start_nodes("n1", "n2")
    bench.pass_time(10)
    stand_still(bench, 500)
    bench.pass_time(9.9)
    assert not bench.is_over
    bench.pass_time(0.2)
    assert bench.end is not None
    assert bench.end.outcome == "limit"
