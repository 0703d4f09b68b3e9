"""When a run is over, and what a running test adds to it before that."""

from __future__ import annotations

import pytest
from elastic_harness.history.events import (
    ClausePlanned,
    FaultIneffective,
    FaultPlanned,
    NodeStarted,
    ProcessExited,
    WorkerFinished,
    WorkerRaised,
)
from elastic_harness.scenario.engine.engine import RunPhase
from elastic_harness.scenario.engine.messages import ArmHold, LaunchersExited, RecordEvent
from elastic_harness.scenario.planning.planner import make_plan

from pytest_elastic.errors import UsageError
from tests.unit.scenario.bench import CRASH, Bench, running, scenario

# --- the end --------------------------------------------------------------------


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


def test_a_launcher_that_had_ended_when_a_fault_came_counts() -> None:
    """Its node was stopped afterwards, and that is no excuse for how it had ended."""
    bench = running({"at": "1s", "id": "x", "crash": "n2"})
    bench.exit_launcher("n2", 1)
    bench.pass_time(1)
    bench.prove("x")
    bench.exit_launcher("n1", 0)
    bench.pass_time(1.1)
    assert bench.end is not None
    assert (bench.end.outcome, bench.end.ended_by_faults) == ("failed", ())


@pytest.mark.parametrize("is_in_force", [False, True])
def test_a_fault_that_did_nothing_excuses_no_launcher(*, is_in_force: bool) -> None:
    """The launcher failed by itself a moment before it was to be killed."""
    bench = running({"at": "1s", "id": "x", "kill_agent": "n2", "optional": True})
    bench.pass_time(1)
    if is_in_force:
        bench.in_force("x")
    bench.exit_launcher("n2", 1)
    bench.disprove("x", "the launcher on n2 ended with exit code 1")
    bench.exit_launcher("n1", 0)
    bench.pass_time(1.1)
    assert bench.end is not None
    assert (bench.end.outcome, bench.end.ended_by_faults) == ("failed", ())


@pytest.mark.parametrize(
    "when", [{"at": "1.1s"}, {"when": {"event": "process_exited", "node": "n2"}}]
)
def test_no_fault_fires_once_all_launchers_have_ended(when: dict[str, object]) -> None:
    """The run waits for their last lines only."""
    bench = running({**when, "id": "x", "crash": "n2"})
    bench.pass_time(1)
    bench.exit_launcher("n1", 0)
    bench.exit_launcher("n2", 0)
    bench.pass_time(1.1)
    assert bench.fired == []
    (said,) = bench.facts(FaultIneffective)
    assert said.reason == "it never fired: the job had ended"
    assert bench.end is not None
    assert (bench.end.outcome, bench.end.ended_by_faults) == ("succeeded", ())


@pytest.mark.parametrize("has_failed", [False, True])
def test_no_fault_that_was_drawn_fires_once_all_ranks_have_finished(*, has_failed: bool) -> None:
    """A node that came back after that would find no job; one that failed is to go on."""
    storm = {"seed": 1, "faults": ["worker"], "max": 3, "over": "5s"}
    bench = Bench(scenario(nodes=2, storm=storm))
    bench.start_nodes("n1", "n2")
    bench.form("n1", "n2")
    bench.steps(1)
    bench.give_verdicts("storm", valid=True)
    for rank in (0, 1):
        pid = bench._pids[rank]
        if has_failed:
            bench.see(WorkerRaised(pid=pid, rank=rank, error="RuntimeError", message="no"))
        bench.see(WorkerFinished(pid=pid, rank=rank))
    bench.pass_time(10)
    assert bool(bench.fired) == has_failed


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


@pytest.mark.parametrize(("exit_code", "outcome"), [(0, "drained"), (1, "failed")])
def test_a_job_that_everybody_left_in_order_is_drained(exit_code: int, outcome: str) -> None:
    """No launcher counts, and all ended as programs do that obey; else it failed."""
    bench = running({"at": "1s", "id": "x", "leave": "all"})
    bench.pass_time(1)
    bench.prove("x")
    bench.exit_launcher("n1", 0)
    bench.exit_launcher("n2", exit_code)
    bench.pass_time(0.5)
    assert bench.end is not None
    assert bench.end.outcome == outcome


def test_a_run_without_launchers_is_not_over() -> None:
    """They are about to be started; and a fault may come to a node that has none."""
    bench = Bench(scenario({"at": "1s", "id": "x", "crash": "n1"}, nodes=1))
    bench.see(NodeStarted(address="10.77.0.1", incarnation=1), node="n1")
    bench.see(ProcessExited(pid=7, role="launcher", exit_code=1), node="n1")
    bench.pass_time(2)
    assert bench.fired == ["x"]
    assert not bench.is_over


def test_a_job_of_whose_launchers_nothing_is_known_has_failed() -> None:
    """Its cluster says that they are gone, and none was seen."""
    bench = Bench(scenario(nodes=1))
    bench.give(LaunchersExited(exit_codes={}))
    assert bench.end is not None
    assert bench.end.outcome == "failed"


def test_nodes_are_known_with_the_launchers_that_run_there() -> None:
    """And the names of those that are gone, so that no newcomer takes them."""
    bench = running()
    bench.exit_launcher("n1", 0)
    bench.start_nodes("n3")
    bench.stop_node("n2")
    seen = bench.engine.run.situation(make_plan(scenario(), 1).seed)
    assert {node.name: node.launcher is not None for node in seen.nodes} == {
        "n1": False,
        "n3": True,
    }
    assert seen.used_names == ("n1", "n2", "n3")


def test_the_end_of_the_launcher_before_says_nothing_of_the_one_that_runs() -> None:
    """It may be told late."""
    bench = running({"at": "1s", "id": "x", "replace": "n2"})
    old = bench._launchers["n2"]
    bench.pass_time(1)
    bench.start_nodes("n2")
    bench.see(ProcessExited(pid=old, role="launcher", exit_code=-9), node="n2")
    bench.prove("x")
    bench.exit_launcher("n1", 0)
    bench.pass_time(1.1)
    assert not bench.is_over
    bench.exit_launcher("n2", 0)
    bench.pass_time(0.5)
    assert bench.end is not None
    assert dict(bench.end.exit_codes) == {"n1": 0, "n2": 0}


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
    assert bench.engine.phase is RunPhase.QUIESCENT
    bench.pass_time(3)
    bench.undo("cut")
    bench.pass_time(4.9)
    assert not bench.is_over
    bench.pass_time(0.2)
    assert bench.end is not None
    assert bench.end.reason == (
        "finally job: succeeded: the job had not ended 5s after the last heal"
    )


def test_a_clause_after_the_automatic_heal_is_judged_at_quiescence() -> None:
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


# --- a running test adds to it --------------------------------------------------------------------


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


@pytest.mark.parametrize("round", [1, 2])
@pytest.mark.parametrize("after", [None, "crash"])
def test_a_round_after_a_fault_formed_after_it(round: int, after: str | None) -> None:
    """One that was there when the fault fired says nothing about the job's recovery from it."""
    bench = Bench(scenario(), is_open=True)
    bench.start_nodes("n1", "n2")
    bench.form("n1", "n2")
    bench.pass_time(1)
    bench.add(id="crash", at={"step": 3, "rank": 1}, kill="rank 1")
    bench.hold(1, 3)
    bench.prove("crash")
    bench.wait_for("w1", round=round, within="10s", after=after)
    was_there = round == 1 and after is None
    assert bench.verdict("w1") == ("valid" if was_there else "open")
    bench.pass_time(1)
    bench.form("n1", "n2")
    assert bench.verdict("w1") == "valid"


@pytest.mark.parametrize("done", [0, 1])
def test_the_first_step_of_a_worker_that_has_done_none_is_not_past(done: int) -> None:
    """It is held when it comes, or after the next: the order may have been on its way."""
    bench = Bench(scenario(), is_open=True)
    bench.start_nodes("n1")
    bench.form("n1")
    bench.add(id="x", at={"step": 1, "rank": 0}, kill="rank 0")
    for number in range(1, done + 1):
        bench.step(0, number)
    bench.hold(0, done + 1)
    assert bench.fired == ["x"]


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


def test_what_a_test_asks_for_when_the_run_is_over_is_planned_and_never_fires() -> None:
    """It is recorded, and nothing is ordered; the teardown heals what the test would heal."""
    bench = running(is_open=True)
    bench.add(id="cut", at="0s", partition="n2")
    bench.in_force("cut", proof_needs_job=True)
    bench.prove("cut")
    bench.add(id="stop", at="0s", pause="rank 0")
    bench.prove("stop")
    bench.add(id="go-on", at="0s", heal="stop")
    bench.undo("stop")
    bench.end_job()
    ordered = [each for each in bench.answers if not isinstance(each, RecordEvent)]
    bench.add(id="mend", at="0s", heal="cut")
    bench.add(id="again", at="0s", heal="stop")
    bench.add(id="now", at="0s", kill="rank 1")
    bench.add(id="pinned", at={"step": 12, "rank": 0}, crash="n2")
    bench.add(id="look", at="0s", check=["ranks"])
    bench.add(id="vain", at="0s", heal="now")
    bench.add(id="chance", at="0s", kill="rank 1", optional=True)
    assert [each for each in bench.answers if not isinstance(each, RecordEvent)] == ordered
    planned = [each.id for each in bench.facts(FaultPlanned)]
    assert planned == ["cut", "stop", "now", "pinned", "chance"]
    assert bench.facts(ClausePlanned)[-1].key == "look[0]"
    said = bench.facts(FaultIneffective)
    assert [each.id for each in said] == ["now", "pinned", "look", "vain"]
    assert {each.reason for each in said} == {
        "it never fired: the run was over when it was asked for"
    }


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
