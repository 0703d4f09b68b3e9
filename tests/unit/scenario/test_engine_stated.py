"""What an engine states of its clauses, and what it still waits for before it heals and ends."""

from __future__ import annotations

import pytest
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.history.events import (
    ClauseJudged,
    ClausePlanned,
    FaultIneffective,
    FaultPlanned,
    RankReleased,
)
from elastic_harness.scenario.engine.engine import END_GRACE_S, EngineMachine, RunPhase
from elastic_harness.scenario.engine.messages import (
    DisarmHold,
    LaunchersExited,
    TimePassed,
    TimeStoodStill,
    WakeAt,
    WatchLog,
)
from elastic_harness.scenario.planning.planner import make_plan

from tests.unit.scenario.bench import CRASH, CUT, KILL, Bench, running, scenario

ROUND_2 = {"round": 2, "after": "x", "within": "5s"}


def judged(bench: Bench) -> list[tuple[str, str]]:
    """Return the clauses that were stated to be judged, in order, with what came out."""
    return [(each.key, each.outcome) for each in bench.facts(ClauseJudged)]


# --- what is stated -----------------------------------------------------------------------------


def test_what_is_planned_is_stated_before_anything_happens() -> None:
    """A history says what was to be judged, and which faults were to come."""
    bench = Bench(
        scenario(
            {**KILL, "optional": True},
            {"at": "2s", "id": "c", "check": ["agreement", {"restarts": 0}]},
            expect={
                "eventually": [ROUND_2],
                "never": [{"event": "worker_gone", "rank": 0}],
                "finally": [{"job": "succeeded"}],
            },
        )
    )
    planned = [each.key for each in bench.facts(ClausePlanned) if each.bucket != "default"]
    assert planned == ["never[0]", "eventually[0]", "finally[0]", "c[0]", "c[1]"]
    assert [(each.id, each.is_optional) for each in bench.facts(FaultPlanned)] == [("x", True)]
    many = {"id": "many", "every": {"mtbf": "5s", "max": 2}, "kill": "random"}
    for is_optional in (False, True):
        planned_too = Bench(scenario({**many, "optional": is_optional})).facts(FaultPlanned)
        assert [each.is_optional for each in planned_too] == [True, True]


def test_a_clause_is_stated_once_when_it_is_decided_and_an_open_one_at_the_end() -> None:
    """In the order in which they were decided."""
    bench = running(
        KILL, expect={"eventually": [ROUND_2], "never": [{"event": "worker_gone", "rank": 0}]}
    )
    bench.pass_time(1)
    bench.prove("x")
    assert judged(bench) == []
    bench.form("n1", "n2")
    assert judged(bench) == [("eventually[0]", "valid")]
    bench.steps(2)
    bench.end_job()
    bench.pass_time(1)
    assert judged(bench) == [("eventually[0]", "valid"), ("never[0]", "valid")]


def test_what_a_check_finds_is_stated_as_clauses_of_its_own() -> None:
    """Under the name of the entry, with a number."""
    bench = running({"at": "2s", "id": "c", "check": ["agreement", {"restarts": 0}]})
    bench.pass_time(2)
    bench.give_verdicts("c", valid=True)
    assert judged(bench) == [("c[0]", "valid"), ("c[1]", "valid")]


def test_each_end_that_came_too_late_is_stated_and_the_first_ends_the_run() -> None:
    """Patience gives it as much more time."""
    finals = [{"job": "succeeded", "within": "4s"}, {"restarts": 0, "within": "3s"}]
    bench = running(expect={"finally": finals}, patience=2)
    bench.pass_time(5.9)
    assert not bench.is_over
    bench.pass_time(0.1)
    assert judged(bench) == [("finally[1]", "invalid")]
    assert bench.end is not None
    assert bench.end.reason == ("finally restarts: 0: the job had not ended 6s after the last heal")


def test_of_ends_that_are_late_together_the_first_is_the_reason() -> None:
    """Both are stated."""
    finals = [{"job": "succeeded", "within": "3s"}, {"restarts": 0, "within": "3s"}]
    bench = running(expect={"finally": finals})
    bench.pass_time(3)
    assert judged(bench) == [("finally[0]", "invalid"), ("finally[1]", "invalid")]
    assert bench.end is not None
    assert bench.end.reason.startswith("finally job: succeeded")


def test_lines_that_entries_and_their_ends_wait_for_are_watched_for() -> None:
    """The runner looks for no other."""
    line = {"log": "begin"}
    bench = Bench(scenario({"when": line, "id": "x", "partition": "n2", "until": {"log": "end"}}))
    assert [order.pattern for order in bench.all_of(WatchLog)] == ["begin", "end"]


def test_a_storm_one_of_whose_faults_was_proven_is_none_that_did_nothing() -> None:
    """The others may have failed."""
    bench = running(storm={"seed": 1, "faults": ["worker"], "max": 3, "over": "5s"})
    bench.steps(1)
    bench.give_verdicts("storm", valid=True)
    bench.pass_time(10)
    first, *others = bench.fired
    bench.prove(first)
    for other in others:
        bench.disprove(other)
    bench.end_job()
    bench.pass_time(1)
    assert others
    assert "storm" not in {each.id for each in bench.facts(FaultIneffective)}


def test_a_storm_that_a_running_test_adds_has_to_do_something_too() -> None:
    """As one that was planned."""
    bench = running(is_open=True)
    bench.add(id="storm", at="0s", check=["ranks"])
    bench.give_verdicts("storm", valid=True)
    for number in (1, 2):
        bench.add(id=f"storm-{number}", after="storm + 5s", kill="rank 1", optional=True)
    bench.end_job()
    (said,) = bench.facts(FaultIneffective)
    assert said.reason == "none of its 2 faults took effect before the job ended"


@pytest.mark.parametrize("how", ["fired", "in force", "open", "nobody there"])
def test_a_storm_of_which_nothing_is_proven_did_nothing(how: str) -> None:
    """However each of its faults came to nothing."""
    bench = running(storm={"seed": 1, "faults": ["worker"], "max": 3, "over": "5s"})
    bench.steps(1)
    bench.give_verdicts("storm", valid=True)
    if how == "nobody there":
        bench.lose(0, 1)
    bench.pass_time(10)
    for id in bench.fired:
        if how == "in force":
            bench.in_force(id)
        if how != "open":
            bench.disprove(id)
    bench.end_job()
    bench.pass_time(1)
    (said,) = (each for each in bench.facts(FaultIneffective) if each.id == "storm")
    assert said.reason == "none of its 2 faults took effect before the job ended"


# --- what is waited for -------------------------------------------------------------------------


def test_nothing_is_healed_while_a_clause_may_still_be_met() -> None:
    """It is about what happens under the fault."""
    bench = running(
        CUT,
        {**KILL, "at": "4s"},
        expect={"eventually": [{"world_size": 2, "within": "3s", "after": "x"}]},
    )
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    bench.pass_time(3)
    bench.prove("x")
    assert bench.healed == []
    bench.form("n1", "n2")
    assert bench.healed == ["cut"]
    assert bench.engine.phase is RunPhase.QUIESCENT


def test_what_must_never_be_seen_keeps_nothing_broken() -> None:
    """It is open until the end."""
    bench = running(CUT, expect={"never": [{"event": "worker_gone", "rank": 0}]})
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    assert bench.healed == ["cut"]


def test_nothing_is_healed_before_it_was_seen_to_act() -> None:
    """Unless that turns out to have done nothing."""
    bench = running(CUT)
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.pass_time(5)
    assert bench.healed == []
    bench.disprove("cut")
    assert bench.healed == ["cut"]


def test_a_run_is_quiescent_once_what_heals_in_time_is_healed() -> None:
    """Not when that is ordered; and what heals when something happens is waited for."""
    until = {**CUT, "until": {"round": 2}}
    for cut, heal in (({**CUT, "for": "2s"}, None), (until, ("n1", "n2"))):
        bench = running(cut)
        bench.pass_time(1)
        bench.in_force("cut", proof_needs_job=True)
        bench.prove("cut")
        assert bench.healed == []
        bench.pass_time(2)
        if heal is not None:
            assert bench.healed == []
            bench.form(*heal)
        assert bench.healed == ["cut"]
        assert bench.engine.phase.value == "injecting"
        bench.undo("cut")
        assert bench.engine.phase.value == "quiescent"


def test_a_check_is_nothing_that_could_be_healed() -> None:
    """It was never in force."""
    bench = running(
        {"at": "1s", "id": "c", "check": ["agreement"]}, {"at": "2s", "id": "h", "heal": "c"}
    )
    bench.pass_time(1)
    bench.give_verdicts("c", valid=True)
    bench.pass_time(1)
    (said,) = bench.facts(FaultIneffective)
    assert said.reason == "heal: c: nothing of that was ever in force"


def test_an_engine_that_is_told_nothing_else_has_no_patience_and_adds_nothing() -> None:
    """Its limit is the scenario's, and an empty timeline is over at once."""
    engine = EngineMachine(make_plan(scenario(limit="5s"), 1), built_in_faults())
    asked = engine.step(TimePassed(), 100.0)
    assert engine.phase is RunPhase.QUIESCENT
    assert [each.at for each in asked if isinstance(each, WakeAt)] == [105.0]


def test_an_open_timeline_is_not_over_when_all_of_it_is_settled() -> None:
    """It is once it was closed."""
    bench = running(KILL, is_open=True)
    bench.pass_time(1)
    bench.disprove("x")
    assert bench.engine.phase.value == "injecting"
    bench.close()
    assert bench.engine.phase.value == "quiescent"


def test_the_time_in_which_a_job_is_to_end_begins_when_all_is_healed() -> None:
    """Not when that is ordered."""
    finals = [{"job": "succeeded", "within": "4s"}]
    bench = running(CUT, expect={"finally": finals}, patience=2)
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    for _ in range(4):
        bench.pass_time(5)
    assert bench.healed == ["cut"]
    assert not bench.is_over
    bench.undo("cut")
    assert bench.all_of(WakeAt)[-1].at == bench.now + 8
    bench.pass_time(8)
    assert bench.is_over


def test_a_round_that_formed_while_a_fault_was_injected_counts_once_it_is_in_force() -> None:
    """Nothing else needs to happen."""
    bench = running(KILL, expect={"eventually": [ROUND_2]})
    bench.pass_time(1)
    bench.form("n1", "n2")
    assert bench.verdict("eventually[0]") == "open"
    bench.in_force("x")
    assert bench.verdict("eventually[0]") == "valid"


def test_a_clause_after_a_fault_that_failed_is_not_waited_for() -> None:
    """It can never begin."""
    bench = running(CUT, {**KILL, "optional": True}, expect={"eventually": [ROUND_2]})
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    assert bench.healed == []
    bench.disprove("x")
    assert bench.healed == ["cut"]


def test_a_clause_after_one_of_several_waits_for_those_that_are_left() -> None:
    """The first firing failed, another is to come."""
    again = {"every": {"mtbf": "5s", "max": 2}, "id": "x", "kill": "rank 1", "optional": True}
    bench = running(CUT, again, expect={"eventually": [ROUND_2]})
    bench.pass_time(1)
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    for number in (1, 2):
        while f"x#{number}" not in bench.fired:
            bench.pass_time(0.1)
        assert bench.healed == []
        bench.disprove(f"x#{number}")
    assert bench.healed == ["cut"]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_fault_that_is_about_to_start_a_launcher_again_keeps_the_run_open(
    *, is_first: bool
) -> None:
    """Also beside one that is proven; one that was disproved starts nothing."""
    reboots = [{"at": "1s", "id": f"r{n}", "reboot": f"n{n}"} for n in (1, 2)]
    bench = running(*reboots)
    bench.pass_time(1)
    bench.stop_node("n1")
    bench.stop_node("n2")
    one, other = ("r1", "r2") if is_first else ("r2", "r1")
    for each in (one, other):
        bench.in_force(each)
    bench.prove(one)
    bench.pass_time(5)
    assert not bench.is_over
    bench.disprove(other)
    bench.pass_time(1)
    assert bench.is_over


def test_who_is_waiting_for_its_time_starts_no_launcher() -> None:
    """An entry that has not fired keeps no run open whose launchers were all killed."""
    kill = {"kill_agent": "all"}
    bench = running({"at": "1s", "id": "x", **kill}, {"at": "60s", "id": "y", "kill": "rank 0"})
    bench.pass_time(1)
    bench.exit_launcher("n1", -9)
    bench.exit_launcher("n2", -9)
    bench.prove("x")
    bench.pass_time(1)
    assert bench.is_over


def test_launchers_that_are_said_to_have_ended_end_the_run_at_once() -> None:
    """With the codes that are said, but for those that were seen."""
    bench = running()
    bench.exit_launcher("n1", 0)
    bench.give(LaunchersExited(exit_codes={"n1": 7, "n2": 3}))
    assert bench.end is not None
    assert dict(bench.end.exit_codes) == {"n1": 0, "n2": 3}
    assert bench.end.outcome == "failed"


def test_what_a_test_waits_for_in_vain_does_not_end_the_run() -> None:
    """It is told, and decides."""
    bench = Bench(scenario(), is_open=True)
    bench.start_nodes("n1")
    bench.form("n1")
    bench.wait_for("w", round=2, within="1s")
    bench.pass_time(30)
    assert bench.verdict("w") == "invalid"
    assert not bench.is_over


def test_a_run_ends_at_its_limit_and_asks_to_be_woken_for_each_time() -> None:
    """For the end of a fault, of the run's last lines, and of what is to end in time."""
    cut = {**CUT, "for": "2s"}
    bench = running(cut, expect={"finally": [{"job": "succeeded", "within": "7s"}]}, limit="20s")

    def asked() -> float:
        return bench.all_of(WakeAt)[-1].at - began

    began = bench.now
    bench.pass_time(1)
    bench.in_force("cut")
    bench.prove("cut")
    assert asked() == pytest.approx(3)
    bench.pass_time(2)
    bench.undo("cut")
    assert asked() == pytest.approx(10)
    bench.exit_launcher("n1", 0)
    bench.exit_launcher("n2", 0)
    assert asked() == pytest.approx(3 + END_GRACE_S)
    at_limit = running(limit="20s")
    at_limit.pass_time(20)
    assert at_limit.is_over


def test_time_that_stood_still_counts_for_no_end() -> None:
    """What is to end in time, and the last lines, have as much more time."""
    bench = running(expect={"finally": [{"job": "succeeded", "within": "3s"}]})
    bench.pass_time(2)
    bench.give(TimeStoodStill(seconds=10.0))
    bench.pass_time(10.9)
    assert not bench.is_over
    bench.exit_launcher("n1", 0)
    bench.exit_launcher("n2", 0)
    bench.now += 10.0
    bench.give(TimeStoodStill(seconds=10.0))
    assert not bench.is_over
    bench.pass_time(END_GRACE_S)
    assert bench.is_over


# --- ranks that are held ------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["its end", "itself"])
def test_a_held_rank_that_is_gone_is_not_released(by: str) -> None:
    """Another process may have its number by then."""
    bench = running(CRASH)
    bench.hold(1, 3)
    if by == "its end":
        bench.lose(1)
    else:
        bench.see(RankReleased(pid=bench._pids[1], rank=1, step=3))
    bench.prove("crash")
    bench.pass_time(60)
    assert bench.released == []


def test_ranks_are_held_for_an_entry_until_it_fires_and_that_is_ended_once() -> None:
    """While its fault is injected, too."""
    bench = running(CRASH)
    assert bench.all_of(DisarmHold) == []
    bench.hold(1, 3)
    assert bench.all_of(DisarmHold) == []
    bench.prove("crash")
    bench.steps(3)
    assert len(bench.all_of(DisarmHold)) == 1
    timed = running(KILL)
    timed.pass_time(1)
    timed.prove("x")
    assert timed.all_of(DisarmHold) == []


def test_the_end_of_a_run_releases_every_rank() -> None:
    """Its fault has not acted."""
    bench = running(CRASH)
    bench.hold(1, 3)
    assert bench.released == []
    bench.end_job(1)
    bench.pass_time(1)
    assert bench.released == [1]
