"""When the scenario engine fires and holds, on hand-made records in virtual time."""

from __future__ import annotations

import pytest
from elastic_harness.history.events import (
    FaultIneffective,
    LogMatched,
)
from elastic_harness.scenario.engine.holds import HOLD_LIMIT_S
from elastic_harness.scenario.engine.messages import ArmHold, DisarmHold, WakeAt, WatchLog

from pytest_elastic.events.model import RoundSealed
from tests.unit.scenario.bench import CRASH, Bench, running, scenario

# --- steps and holds --------------------------------------------------------------------


def test_a_rank_is_held_at_its_step_before_any_worker_can_say_hello() -> None:
    """The order to hold is the engine's first answer."""
    bench = Bench(scenario(CRASH))
    assert bench.all_of(ArmHold) == [ArmHold(entry_id="crash", step=3, rank=1)]


def test_a_fault_pinned_to_a_step_fires_when_its_rank_is_held_there() -> None:
    """Not at the step of another rank, not at another step."""
    bench = running(CRASH)
    bench.steps(2)
    bench.hold(0, 3)
    assert bench.fired == []
    bench.hold(1, 3)
    assert bench.fired == ["crash"]
    assert bench.targets("crash") == (f"rank 1 (n2, pid {bench._pids[1]})",)


def test_a_held_rank_is_released_only_once_the_fault_is_proven() -> None:
    """In force is not enough, unless only the running job can prove it."""
    bench = running({**CRASH, "kill": "rank 0"})
    bench.hold(1, 3)
    assert bench.released == []
    bench.in_force("crash")
    assert bench.released == []
    bench.prove("crash")
    assert bench.released == [1]
    assert [each.entry_id for each in bench.all_of(DisarmHold)] == ["crash"]


def test_a_held_rank_is_released_when_the_fault_is_known_to_have_failed() -> None:
    """Nobody waits for a fault that did nothing."""
    bench = running({**CRASH, "kill": "rank 0"})
    bench.hold(1, 3)
    bench.disprove("crash")
    assert bench.released == [1]


def test_a_held_rank_is_released_at_once_when_the_proof_needs_the_running_job() -> None:
    """Packets are dropped only if somebody sends them."""
    bench = running({"at": {"step": 3, "rank": 1}, "id": "cut", "partition": "n2"})
    bench.hold(1, 3)
    bench.in_force("cut", proof_needs_job=True)
    assert bench.released == [1]


def test_a_rank_held_for_nobody_is_released_at_once() -> None:
    """A hold of a step that runs again after a restart finds its fault long gone."""
    bench = running(CRASH)
    bench.hold(1, 3)
    bench.prove("crash")
    bench.lose(1)
    bench.form("n1", "n2")
    bench.hold(1, 3)
    assert bench.fired == ["crash"]
    assert bench.released == [1, 1]


def test_a_rank_is_never_held_longer_than_the_limit() -> None:
    """A fault that hangs must not bring the job's collectives to their timeout."""
    bench = running({**CRASH, "kill": "rank 0"})
    bench.hold(1, 3)
    bench.pass_time(HOLD_LIMIT_S + 0.1)
    assert bench.released == [1]


def test_a_step_of_a_certain_round_waits_for_that_round() -> None:
    """`round: 2` leaves the same step of the first world alone."""
    bench = running({**CRASH, "at": {"step": 3, "rank": 1, "round": 2}})
    bench.hold(1, 3)
    assert bench.fired == []
    assert bench.released == [1]
    bench.form("n1", "n2")
    bench.hold(1, 3)
    assert bench.fired == ["crash"]


def test_a_hold_whose_order_was_on_its_way_is_one_step_late() -> None:
    """It was asked for before the step, and the worker read it after: that is no other moment."""
    bench = running()
    bench.steps(2)
    bench.add(**CRASH)
    bench.steps(2)
    bench.hold(1, 4)
    assert bench.fired == ["crash"]
    assert bench.engine.entries[0].evidence == "rank 1 is held after step 4, asked for 3"


def test_a_script_that_says_only_some_steps_is_held_at_the_next_that_it_says() -> None:
    """It cannot be held at a step that it does not tell of."""
    bench = running(CRASH)
    bench.step(1, 2)
    bench.step(1, 10)
    bench.hold(1, 10)
    assert bench.fired == ["crash"]


def test_a_step_that_was_past_when_it_was_asked_for_does_not_fire() -> None:
    """What says step 3 and would get step 7 is not done in silence; the rank goes on at once."""
    bench = running()
    bench.steps(6)
    bench.add(**CRASH)
    bench.steps(1)
    bench.hold(1, 7)
    assert bench.fired == []
    assert bench.released == [1]
    (fact,) = bench.facts(FaultIneffective)
    assert fact.reason == ("it never fired: rank 1 was at step 6 already when step 3 was asked for")
    assert not fact.is_optional


def test_an_order_that_came_steps_too_late_does_not_fire() -> None:
    """It was asked for in time, and the job was faster."""
    bench = running()
    bench.steps(2)
    bench.add(**CRASH)
    bench.steps(4)
    bench.hold(1, 6)
    assert bench.fired == []
    (fact,) = bench.facts(FaultIneffective)
    assert "rank 1 had done step 5 before the order to hold it after step 3" in fact.reason


def test_a_round_that_resumes_beyond_the_step_does_not_fire() -> None:
    """`round: 2` of a step that the checkpoint is ahead of; optional, it is no finding."""
    for is_optional in (False, True):
        entry = {**CRASH, "at": {"step": 3, "rank": 1, "round": 2}, "optional": is_optional}
        bench = running(entry)
        bench.steps(5)
        bench.lose(0, 1)
        bench.form("n1", "n2")
        bench.resume(1, 4)
        bench.step(1, 5)
        bench.hold(1, 5)
        assert bench.fired == []
        (fact,) = bench.facts(FaultIneffective)
        assert fact.reason == "it never fired: rank 1 began round 2 after step 4: step 3 was past"
        assert fact.is_optional is is_optional


# --- other triggers --------------------------------------------------------------------


def test_a_fault_at_a_time_fires_at_that_time_of_the_run() -> None:
    """The engine asks to be woken then, and fires then."""
    bench = running({"at": "4s", "id": "late", "kill": "rank 0"})
    assert bench.all_of(WakeAt)[-1].at == 1004.0
    bench.pass_time(3.9)
    assert bench.fired == []
    bench.pass_time(0.1)
    assert bench.fired == ["late"]


def test_a_fault_after_another_waits_from_when_that_one_is_in_force() -> None:
    """`after: first + 3s` counts from the first one's effect, not from its order."""
    bench = running(
        {"at": "1s", "id": "first", "kill": "rank 0"},
        {"after": "first + 3s", "id": "second", "kill": "rank 1"},
    )
    bench.pass_time(2)
    bench.prove("first")
    bench.pass_time(2.9)
    assert bench.fired == ["first"]
    bench.pass_time(0.1)
    assert bench.fired == ["first", "second"]


@pytest.mark.parametrize("first", [{"join": ["n3"]}, {"reboot": "n2"}, {"replace": "n2"}])
@pytest.mark.parametrize("comes", [True, False])
def test_a_fault_after_nodes_that_start_waits_until_they_are_up(
    first: dict[str, object], *, comes: bool
) -> None:
    """They are not there yet when the fault is in force; where none comes, it never fires."""
    bench = running(
        {"at": "1s", "id": "first", **first},
        {"after": "first + 3s", "id": "second", "pause": {"node": "newest"}},
        nodes={"initial": 2, "min": 1, "max": 3},
    )
    bench.pass_time(1)
    bench.in_force("first", proof_needs_job=True)
    bench.pass_time(4)
    assert bench.fired == ["first"]
    if comes:
        bench.prove("first")
        bench.pass_time(2.9)
        assert bench.fired == ["first"]
        bench.pass_time(0.1)
        assert bench.fired == ["first", "second"]
    else:
        bench.disprove("first")
        assert bench.facts(FaultIneffective)[-1].reason == (
            "it never fired: it waits for first, which never took effect"
        )


@pytest.mark.parametrize("acts", [True, False])
def test_a_fault_after_a_heal_waits_for_the_heal(*, acts: bool) -> None:
    """`after: cut.healed`, also where it was not seen to act."""
    bench = running(
        {"at": "1s", "id": "cut", "partition": "n2", "for": "5s"},
        {"after": "cut.healed", "id": "kill", "kill": "rank 1"},
    )
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    (bench.prove if acts else bench.disprove)("cut")
    bench.pass_time(5)
    assert bench.healed == ["cut"]
    assert bench.fired == ["cut"]
    bench.undo("cut")
    assert bench.fired == ["cut", "kill"]


def test_a_fault_after_one_that_failed_never_fires_and_says_why() -> None:
    """Both are then known to have done nothing."""
    bench = running(
        {"at": "1s", "id": "first", "kill": "rank 0"},
        {"after": "first", "id": "second", "kill": "rank 1"},
    )
    bench.pass_time(1)
    bench.disprove("first")
    reasons = {fact.id: fact.reason for fact in bench.facts(FaultIneffective)}
    assert reasons == {
        "first": "nothing happened",
        "second": "it never fired: it waits for first, which never took effect",
    }


def test_a_fault_fires_when_an_event_with_these_fields_is_seen() -> None:
    """Other rounds and other nodes do not count."""
    bench = running(
        {
            "when": {"event": "round_sealed", "round": 2, "roster": ["n1"], "node": "n1"},
            "id": "x",
            "kill": "rank 0",
        }
    )

    def seal(round: int, node: str) -> None:
        bench.see(
            RoundSealed(
                round=round, term=1, roster=("n1",), spares=(), restart_count=0, reason="test"
            ),
            node=node,
        )

    seal(1, "n1")
    seal(2, "n2")
    assert bench.fired == []
    seal(2, "n1")
    assert bench.fired == ["x"]


def test_a_fault_fires_at_the_nth_event_when_a_count_is_given() -> None:
    """`count: 2` waits for the second one."""
    bench = running({"when": {"event": "worker_gone", "count": 2}, "id": "x", "kill": "n1"})
    bench.lose(0)
    assert bench.fired == []
    bench.form("n1", "n2")
    bench.lose(1)
    assert bench.fired == ["x"]


def test_a_fault_fires_when_the_world_is_stable() -> None:
    """All ranks of a world of that size have done that many steps in it."""
    bench = running(
        {"when": {"stable": {"world_size": 2, "steps": 3}}, "id": "x", "kill": "rank 0"}
    )
    bench.steps(2)
    bench.steps(1, ranks=1)
    assert bench.fired == []
    bench.steps(1)
    assert bench.fired == ["x"]


def test_a_fault_fires_at_a_log_line_and_the_runner_is_told_to_watch_for_it() -> None:
    """The pattern is matched by the runner; the engine compares patterns."""
    bench = running({"when": {"log": "loss is \\d", "node": "n2"}, "id": "x", "kill": "rank 0"})
    assert bench.all_of(WatchLog) == [WatchLog(pattern="loss is \\d", node="n2")]
    bench.see(LogMatched(pattern="loss is \\d", line="loss is 3"), node="n1")
    assert bench.fired == []
    bench.see(LogMatched(pattern="loss is \\d", line="loss is 3"), node="n2")
    assert bench.fired == ["x"]


CHAOS = {"every": {"mtbf": "5s", "max": 3}, "id": "chaos", "kill": "random"}


@pytest.mark.parametrize("is_optional", [False, True])
def test_of_a_repeated_fault_any_one_must_take_effect(*, is_optional: bool) -> None:
    """The first may come before the first worker, where there is nothing to kill."""
    failed = []
    for is_effective in (True, False):
        bench = Bench(scenario({**CHAOS, "optional": is_optional}))
        bench.start_nodes("n1")
        early, later = bench.engine._plan.entries[0].delays_s[:2]
        bench.pass_time(early + 0.001)
        assert bench.fired == []
        bench.form("n1")
        bench.pass_time(later)
        assert bench.fired == ["chaos#2"]
        if is_effective:
            bench.prove("chaos#2")
        bench.end_job()
        failed.append([each.id for each in bench.facts(FaultIneffective) if not each.is_optional])
    assert failed == [[], [] if is_optional else ["chaos"]]


def test_what_waits_for_a_repeated_fault_waits_for_the_first_that_acts() -> None:
    """Entries and clauses alike."""
    bench = Bench(
        scenario(
            CHAOS,
            {"after": "chaos + 1s", "id": "next", "pause": "rank 0"},
            expect={"eventually": [{"world_size": 1, "within": "5s", "after": "chaos"}]},
        )
    )
    bench.start_nodes("n1")
    early, later = bench.engine._plan.entries[0].delays_s[:2]
    bench.pass_time(early + 0.001)
    bench.form("n1")
    assert bench.verdict("eventually[0]") == "open"
    bench.pass_time(later)
    bench.prove("chaos#2")
    bench.form("n1")
    assert bench.verdict("eventually[0]") == "valid"
    bench.pass_time(1.001)
    assert bench.fired == ["chaos#2", "next"]


def test_a_repeated_check_needs_no_proof() -> None:
    """That it was made is enough."""
    bench = running({"every": CHAOS["every"], "id": "chaos", "check": ["agreement"]})
    bench.pass_time(bench.engine._plan.entries[0].delays_s[0] + 0.001)
    bench.give_verdicts("chaos#1", valid=True)
    bench.end_job()
    assert bench.facts(FaultIneffective) == []


def test_a_repeated_fault_fires_at_its_draws() -> None:
    """`every` fires as chaos#1, chaos#2 …; the job may end in between."""
    bench = running({"every": {"mtbf": "5s", "max": 3}, "id": "chaos", "kill": "random"})
    delays = bench.engine._plan.entries[0].delays_s
    bench.pass_time(delays[0] + 0.001)
    assert bench.fired == ["chaos#1"]
    bench.prove("chaos#1")
    bench.end_job()
    assert bench.facts(FaultIneffective) == []
