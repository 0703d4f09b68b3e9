"""What the scenario engine decides, on hand-made records in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from elastic_harness.history.events import (
    ExpectationMet,
    FaultEffective,
    FaultFired,
    FaultHealed,
    FaultIneffective,
    LogMatched,
)
from elastic_harness.scenario.engine import RunPhase
from elastic_harness.scenario.holds import HOLD_LIMIT_S
from elastic_harness.scenario.messages import ArmHold, DisarmHold, WakeAt, WatchLog

from pytest_elastic.errors import UsageError
from pytest_elastic.events.model import CoordinatorStarted, RoundSealed
from tests.unit.scenario.bench import Bench, scenario

CRASH = {"at": {"step": 3, "rank": 1}, "id": "crash", "kill": "rank 1"}


def running(*timeline: Mapping[str, Any], **more: object) -> Bench:
    """Return a bench with two nodes of one worker each, in their first world."""
    bench = Bench(scenario(*timeline, **more))
    bench.start_nodes("n1", "n2")
    bench.form("n1", "n2")
    return bench


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
    assert any("took longer" in decision.reason for decision in bench.engine.decisions)


def test_a_step_of_a_certain_round_waits_for_that_round() -> None:
    """`round: 2` leaves the same step of the first world alone."""
    bench = running({**CRASH, "at": {"step": 3, "rank": 1, "round": 2}})
    bench.hold(1, 3)
    assert bench.fired == []
    assert bench.released == [1]
    bench.form("n1", "n2")
    bench.hold(1, 3)
    assert bench.fired == ["crash"]


def test_a_hold_that_came_late_still_counts_and_the_decision_says_so() -> None:
    """The probe holds a rank at the next step when the order came after the step."""
    bench = running(CRASH)
    bench.hold(1, 5)
    assert bench.fired == ["crash"]
    assert bench.engine.decisions[-1].reason == "rank 1 is held after step 5, asked for 3"


# --- other triggers ---------------------------------------------------------------------


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


def test_a_fault_after_a_heal_waits_for_the_heal() -> None:
    """`after: cut.healed`."""
    bench = running(
        {"at": "1s", "id": "cut", "partition": "n2", "for": "5s"},
        {"after": "cut.healed", "id": "kill", "kill": "rank 1"},
    )
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
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


def test_a_repeated_fault_fires_at_its_draws_and_only_the_first_must_happen() -> None:
    """`every` fires as chaos#1, chaos#2 …; the job may end in between."""
    bench = running({"every": {"mtbf": "5s", "max": 3}, "id": "chaos", "kill": "random"})
    delays = bench.engine._plan.entries[0].delays_s
    bench.pass_time(delays[0] + 0.001)
    assert bench.fired == ["chaos#1"]
    bench.prove("chaos#1")
    bench.end_job()
    assert bench.facts(FaultIneffective) == []


# --- faults -----------------------------------------------------------------------------


def test_a_fault_is_recorded_before_it_is_ordered_with_its_targets() -> None:
    """Nothing it causes can come before it in the history."""
    bench = running({"at": "1s", "id": "x", "kill": {"worker": "rank 0", "signal": "SIGTERM"}})
    bench.pass_time(1)
    fact = bench.facts(FaultFired)[0]
    assert (fact.id, fact.fault) == ("x", "kill")
    assert fact.parameters == {"worker": "rank 0", "signal": "SIGTERM"}
    kinds = [type(answer).__name__ for answer in bench.answers]
    assert kinds.index("RecordEvent") < kinds.index("Fire")


def test_a_selector_that_means_nobody_makes_the_fault_ineffective_with_the_reason() -> None:
    """There is no rank 1 when n2 is gone."""
    bench = running({"at": "1s", "id": "x", "kill": "rank 1"})
    bench.lose(1)
    bench.pass_time(1)
    assert bench.fired == []
    assert "means nobody now" in bench.facts(FaultIneffective)[0].reason


def test_chance_chooses_the_same_for_the_same_seed_and_entry() -> None:
    """Seeds matter, and nothing else."""

    def choice(seed: int) -> tuple[str, ...]:
        bench = Bench(scenario({"at": "1s", "id": "x", "crash": "random 2"}, nodes=5), seed=seed)
        bench.start_nodes("n1", "n2", "n3", "n4", "n5")
        bench.pass_time(1)
        return bench.targets("x")

    assert choice(3) == choice(3)
    assert len({choice(seed) for seed in range(20)}) > 3


def test_the_store_host_is_where_the_newest_coordinator_is() -> None:
    """After a succession, `store host` means the successor."""
    bench = running({"at": "2s", "id": "x", "crash": "store host"})
    for term, node in ((1, "n1"), (2, "n2")):
        bench.see(
            CoordinatorStarted(
                term=term, address="10.77.0.1", port=29400, quorum="majority", reason="test"
            ),
            node=node,
        )
    bench.pass_time(2)
    assert bench.targets("x") == ("n2",)


def test_a_fault_is_healed_after_its_time_and_once() -> None:
    """`for` counts from when it is in force."""
    bench = running({"at": "1s", "id": "cut", "partition": "n2", "for": "3s"})
    bench.pass_time(1.5)
    bench.in_force("cut", proof_needs_job=True)
    bench.pass_time(2.9)
    assert bench.healed == []
    bench.pass_time(0.1)
    assert bench.healed == ["cut"]
    bench.undo("cut")
    bench.undo("cut")
    bench.pass_time(5)
    assert bench.healed == ["cut"]
    assert bench.facts(FaultHealed) == [FaultHealed(id="cut", by="schedule")]


def test_a_fault_is_healed_when_its_until_comes_true() -> None:
    """`until` is a condition like any other, counted from when the fault is in force."""
    bench = running(
        {
            "at": "1s",
            "id": "cut",
            "partition": "n2",
            "until": {"stable": {"world_size": 1, "steps": 2}},
        }
    )
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench._pids.clear()
    bench.form("n1")
    bench.steps(1)
    assert bench.healed == []
    bench.steps(1)
    assert bench.healed == ["cut"]


def test_a_heal_action_heals_by_id_and_is_no_fault_itself() -> None:
    """`heal: cut` orders the heal and leaves no fault facts of its own."""
    bench = running(
        {"at": "1s", "id": "cut", "partition": "n2", "until": "end"},
        {"after": "cut + 2s", "id": "mend", "heal": "cut"},
    )
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.pass_time(2)
    assert bench.healed == ["cut"]
    bench.undo("cut")
    assert bench.facts(FaultHealed) == [FaultHealed(id="cut", by="action")]
    assert [fact.id for fact in bench.facts(FaultFired)] == ["cut"]


def test_a_fault_healed_by_the_teardown_is_recorded_even_after_the_end() -> None:
    """The history shows that what was broken was given back."""
    bench = running({"at": "1s", "id": "cut", "partition": "n2", "until": "end"})
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    bench.end_job()
    bench.undo("cut")
    assert bench.facts(FaultHealed) == [FaultHealed(id="cut", by="teardown")]


def test_effect_and_failure_are_recorded_once() -> None:
    """The first word on a fault holds."""
    bench = running({"at": "1s", "id": "x", "kill": "rank 0"})
    bench.pass_time(1)
    bench.prove("x")
    bench.prove("x")
    bench.disprove("x")
    assert bench.facts(FaultEffective) == [FaultEffective(id="x", evidence="seen")]
    assert bench.facts(FaultIneffective) == []


def test_a_fault_that_never_fired_is_said_to_be_ineffective_unless_it_is_optional() -> None:
    """What the scenario wanted to happen has to happen."""
    bench = running(
        {"at": {"step": 30, "rank": 1}, "id": "must", "kill": "rank 1"},
        {"at": {"step": 31, "rank": 1}, "id": "may", "kill": "rank 1", "optional": True},
    )
    bench.steps(3)
    bench.end_job()
    facts = bench.facts(FaultIneffective)
    assert [fact.id for fact in facts] == ["must"]
    assert "rank 1 was not seen to complete step 30" in facts[0].reason
    assert "step 3" in facts[0].reason


# --- clauses ----------------------------------------------------------------------------


def test_a_round_that_forms_in_time_meets_its_clause() -> None:
    """`{round: 2, within: 10s, after: crash}`."""
    bench = running(CRASH, expect={"eventually": [{"round": 2, "within": "10s", "after": "crash"}]})
    bench.hold(1, 3)
    bench.prove("crash")
    bench.lose(0, 1)
    assert bench.verdict("eventually[0]") == "open"
    bench.pass_time(1)
    bench.form("n1", "n2")
    assert bench.verdict("eventually[0]") == "valid"
    assert bench.facts(ExpectationMet)[0].clause == "round 2 within 10s after crash"


def test_a_clause_that_is_not_met_in_time_ends_the_run_and_says_what_was_seen() -> None:
    """Early: nobody waits for the limit."""
    bench = running(CRASH, expect={"eventually": [{"round": 2, "within": "10s", "after": "crash"}]})
    bench.hold(1, 3)
    bench.prove("crash")
    bench.lose(1)
    bench.pass_time(10)
    assert bench.end is not None
    assert bench.end.outcome == "unmet"
    assert bench.end.reason == (
        "round 2 within 10s after crash: not in time; last seen: round 1 with 2 ranks"
    )


def test_a_world_size_asks_for_a_new_world_or_for_steps_that_began_since() -> None:
    """A world that stood before the fault proves nothing by standing."""
    clause = {"world_size": 2, "within": "10s", "after": "cut.healed"}
    cut = {"at": "1s", "id": "cut", "partition": "n2", "for": "2s"}
    bench = running(cut, expect={"eventually": [clause]})
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    bench.pass_time(2)
    bench.undo("cut")
    assert bench.verdict("eventually[0]") == "open"
    bench.steps(1)
    assert bench.verdict("eventually[0]") == "valid"


def test_a_state_is_not_taken_for_met_while_its_fault_is_still_being_injected() -> None:
    """Steps between the order and the effect are the old world's."""
    replace = {"at": "1s", "id": "swap", "replace": "n2"}
    clause = {"world_size": 2, "within": "10s", "after": "swap"}
    bench = running(replace, expect={"eventually": [clause]})
    bench.pass_time(1)
    assert bench.fired == ["swap"]
    bench.steps(1)
    assert bench.verdict("eventually[0]") == "open"
    bench.in_force("swap")
    assert bench.verdict("eventually[0]") == "open"
    bench.form("n1", "n2")
    assert bench.verdict("eventually[0]") == "valid"


def test_an_event_counts_from_the_order_of_its_fault_on() -> None:
    """What a fault causes may be seen before the fault is proven."""
    clause = {"event": "worker_gone", "rank": 1, "within": "10s", "after": "crash"}
    bench = running(CRASH, expect={"eventually": [clause]})
    bench.hold(1, 3)
    bench.lose(1)
    assert bench.verdict("eventually[0]") == "valid"


def test_progress_counts_steps_of_every_rank_that_began_since() -> None:
    """Ten steps by one rank are none."""
    clause = {"progress": {"steps": 3}, "within": "10s", "after": "x"}
    bench = running({"at": "1s", "id": "x", "kill": "rank 0"}, expect={"eventually": [clause]})
    bench.steps(5)
    bench.pass_time(0.5)
    bench.prove("x")
    bench.steps(3, ranks=1)
    assert bench.verdict("eventually[0]") == "open"
    bench.steps(3)
    assert bench.verdict("eventually[0]") == "valid"


def test_a_clause_open_at_the_end_of_the_job_is_not_met() -> None:
    """The job that ended cannot form a round any more."""
    bench = running(expect={"eventually": [{"round": 2, "within": "50s"}]})
    bench.end_job()
    assert bench.verdict("eventually[0]") == "invalid"
    assert "the job ended first" in bench.reason("eventually[0]")


def test_a_clause_whose_fault_never_took_effect_is_unknown() -> None:
    """Its time never began: there is nothing to be right or wrong about."""
    bench = running(CRASH, expect={"eventually": [{"round": 2, "within": "5s", "after": "crash"}]})
    bench.end_job()
    assert bench.verdict("eventually[0]") == "unknown"


def test_an_event_that_must_never_be_seen_ends_the_run() -> None:
    """And one that must be seen sometimes is judged at the end."""
    bench = running(
        expect={"never": [{"event": "worker_gone"}], "sometimes": [{"event": "lease_lost"}]}
    )
    bench.lose(0)
    assert bench.end is not None
    assert bench.end.outcome == "unmet"
    assert bench.verdict("never[0]") == "invalid"
    assert bench.verdict("sometimes[0]") == "invalid"


def test_clauses_only_a_checker_knows_are_left_to_it() -> None:
    """`split_brain` is no event."""
    bench = running(expect={"never": ["split_brain"], "sometimes": ["rank_reassigned"]})
    assert bench.engine.clauses == ()


def test_lines_that_a_checker_will_look_for_are_watched_for() -> None:
    """`log_contains` is judged after the run, on what was recorded during it."""
    bench = running(
        expect={
            "finally": [{"log_contains": "boom"}],
            "never": [{"log_contains": {"pattern": "bang", "node": "n1"}}],
        }
    )
    assert bench.all_of(WatchLog) == [
        WatchLog(pattern="boom"),
        WatchLog(pattern="bang", node="n1"),
    ]


# --- the end ----------------------------------------------------------------------------


def test_the_run_ends_when_the_job_has_ended() -> None:
    """With success, if every launcher says so."""
    bench = running()
    bench.end_job(0)
    assert bench.end is not None
    assert bench.end.outcome == "succeeded"
    assert bench.engine.phase is RunPhase.ENDED


def test_a_launcher_that_fails_makes_the_job_failed() -> None:
    """Exit codes are what every launcher has."""
    bench = running()
    bench.end_job(1)
    assert bench.end is not None
    assert bench.end.outcome == "failed"


def test_a_launcher_that_a_fault_ended_says_nothing_about_the_job() -> None:
    """The rest of the job succeeded, and nobody waits for the dead."""
    bench = running({"at": "1s", "id": "x", "crash": "n2"})
    bench.pass_time(1)
    bench.stop_node("n2")
    bench.prove("x")
    bench.exit_launcher("n1", 0)
    assert not bench.is_over
    bench.pass_time(1.1)
    assert bench.end is not None
    assert bench.end.outcome == "succeeded"
    assert dict(bench.end.exit_codes) == {"n1": 0, "n2": -9}


def test_the_launcher_of_a_replaced_node_counts_again() -> None:
    """It is another launcher."""
    bench = running({"at": "1s", "id": "x", "replace": "n2"})
    bench.pass_time(1)
    bench.stop_node("n2")
    bench.start_nodes("n2")
    bench.prove("x")
    bench.exit_launcher("n1", 0)
    bench.exit_launcher("n2", 1)
    bench.pass_time(1.1)
    assert bench.end is not None
    assert bench.end.outcome == "failed"


def test_a_node_cut_off_until_the_end_does_not_count_and_one_that_heals_does() -> None:
    """`until: end` says that it will not be back."""
    for until, outcome in (({"until": "end"}, "succeeded"), ({"for": "1s"}, "failed")):
        bench = Bench(
            scenario({"at": "1s", "id": "cut", "partition": {"isolate": "n3"}, **until}, nodes=3)
        )
        bench.start_nodes("n1", "n2", "n3")
        bench.pass_time(1)
        bench.in_force("cut", proof_needs_job=True)
        bench.prove("cut")
        bench.pass_time(2)
        for name, code in (("n1", 0), ("n2", 0), ("n3", 1)):
            bench.exit_launcher(name, code)
        bench.pass_time(1.1)
        assert bench.end is not None
        assert bench.end.outcome == outcome, until


def test_a_job_that_everybody_left_in_order_is_drained() -> None:
    """No launcher counts, and all ended with success."""
    bench = running({"at": "1s", "id": "x", "leave": "all"})
    bench.pass_time(1)
    bench.prove("x")
    bench.end_job(0)
    assert bench.end is not None
    assert bench.end.outcome == "drained"


def test_a_job_all_of_whose_launchers_were_killed_is_over_once_that_is_proven() -> None:
    """And it failed."""
    bench = running({"at": "1s", "id": "x", "kill_agent": "all"})
    bench.pass_time(1)
    bench.exit_launcher("n1", -9)
    bench.exit_launcher("n2", -9)
    bench.pass_time(2)
    assert not bench.is_over
    bench.prove("x")
    bench.pass_time(0.5)
    assert bench.end is not None
    assert bench.end.outcome == "failed"


def test_a_job_whose_only_node_reboots_is_not_over_in_between() -> None:
    """A launcher that is about to be started again is waited for."""
    bench = Bench(scenario({"at": "1s", "id": "x", "reboot": "n1"}, nodes=1))
    bench.start_nodes("n1")
    bench.pass_time(1)
    bench.stop_node("n1")
    bench.in_force("x")
    bench.pass_time(5)
    assert not bench.is_over
    bench.start_nodes("n1")
    bench.prove("x")
    bench.pass_time(5)
    assert not bench.is_over
    bench.exit_launcher("n1", 0)
    bench.pass_time(0.5)
    assert bench.end is not None
    assert bench.end.outcome == "succeeded"


def test_a_job_that_does_not_end_meets_the_limit() -> None:
    """The last line says how far it got."""
    bench = running(limit="20s")
    bench.steps(2)
    bench.pass_time(20)
    assert bench.end is not None
    assert bench.end.outcome == "limit"
    assert bench.end.reason == (
        "the job did not end within 20s: round 1, 2 of 2 ranks (2 alive), step 2"
    )


def test_what_is_still_broken_is_healed_once_nothing_is_left_to_come() -> None:
    """Then, and not before, the clauses of `finally` have their time."""
    bench = running(
        {"at": "1s", "id": "cut", "partition": "n2"},
        expect={
            "eventually": [{"world_size": 1, "within": "10s", "after": "cut"}],
            "finally": [{"job": "succeeded", "within": "5s"}],
        },
    )
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    bench.pass_time(2)
    assert bench.healed == []
    bench._pids.clear()
    bench.form("n1")
    assert bench.healed == ["cut"]
    assert bench.engine.phase is RunPhase.CALM
    bench.pass_time(3)
    bench.undo("cut")
    bench.pass_time(4.9)
    assert not bench.is_over
    bench.pass_time(0.2)
    assert bench.end is not None
    assert bench.end.reason == (
        "finally job: succeeded: the job had not ended 5s after the last heal"
    )


def test_a_clause_after_the_automatic_heal_is_judged_in_the_calm() -> None:
    """`after: cut.healed` may mean the heal that comes by itself."""
    bench = running(
        {"at": "1s", "id": "cut", "partition": "n2"},
        expect={"eventually": [{"world_size": 2, "within": "10s", "after": "cut.healed"}]},
    )
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    assert bench.healed == ["cut"]
    bench.undo("cut")
    bench.form("n1", "n2")
    assert bench.verdict("eventually[0]") == "valid"


# --- a running test adds to it ----------------------------------------------------------


def test_a_running_test_adds_entries_and_clauses() -> None:
    """`elastic_chaos.at(...)`, `job.wait_for_round(...)`."""
    bench = Bench(scenario(), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.form("n1", "n2")
    bench.add(id="crash", at={"step": 3, "rank": 1}, kill="rank 1")
    assert bench.all_of(ArmHold)[-1].step == 3
    bench.hold(1, 3)
    bench.prove("crash")
    bench.wait_for("w1", round=2, within="10s", after="crash")
    bench.form("n1", "n2")
    assert bench.verdict("w1") == "valid"


def test_a_time_that_a_running_test_gives_counts_from_when_it_is_given() -> None:
    """`at="2s"`, added 5 s into the run, is 7 s into the run."""
    bench = Bench(scenario(), is_open=True)
    bench.start_nodes("n1")
    bench.form("n1")
    bench.pass_time(5)
    bench.add(id="x", at="2s", kill="rank 0")
    assert bench.fired == []
    bench.pass_time(2)
    assert bench.fired == ["x"]


def test_nothing_is_healed_by_itself_while_the_timeline_is_open() -> None:
    """The test that broke it decides."""
    bench = Bench(scenario(nodes=2), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.add(id="cut", at="0s", partition="n2")
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    bench.pass_time(3)
    assert bench.healed == []
    bench.add(id="mend", at="0s", heal="cut")
    assert bench.healed == ["cut"]


def test_an_entry_cannot_take_the_id_of_another() -> None:
    """Ids are how clauses and heals find them."""
    bench = running(CRASH)
    with pytest.raises(UsageError, match="'crash' already"):
        bench.add(id="crash", at="1s", kill="rank 0")


def test_entries_without_an_id_are_called_by_their_place() -> None:
    """Those added later go on counting."""
    bench = Bench(scenario({"at": "1s", "kill": "rank 0"}), is_open=True)
    bench.add(at="1s", kill="rank 0")
    assert [entry.id for entry in bench.engine.entries] == ["entry-1", "entry-2"]
