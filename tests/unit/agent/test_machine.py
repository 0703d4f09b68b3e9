"""The agent's machine: rounds, stopping, leaving and the end, in plain values and virtual time."""

from __future__ import annotations

import dataclasses
import signal

import pytest

from pytest_elastic.agent import messages as m
from pytest_elastic.agent.phases import Phase
from pytest_elastic.agent.worker_group import GROUP_GRACE_S
from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.model import Failure
from tests.unit.agent.machine_bench import (
    FAILURE_GRACE_S,
    GRACE_S,
    KILL_TIMEOUT_S,
    LEAVE_TIMEOUT_S,
    Bench,
    assignment,
)


def test_group_rank_0_opens_a_fresh_worker_store_and_reports_it() -> None:
    """An order to open a store is performed, and its address goes back."""
    bench = Bench()
    bench.notice(ports.OpenStore(round=3, world_size=4))
    assert m.OpenWorkerStore(round=3) in bench.orders
    assert m.Close(before_round=2) in bench.orders, "the store of the round before stays bound"
    bench.give(m.StoreReady(round=3, address="10.0.0.1", port=4000))
    assert bench.asked() == [ports.StoreOpened(round=3, address="10.0.0.1", port=4000)]
    bench.give(m.StoreBroken(round=3, reason="no port"))
    assert bench.asked() == [ports.StoreFailed(round=3, reason="no port")]


def test_workers_start_when_the_round_is_committed() -> None:
    """A committed round is started once, and the facts say with which ranks."""
    bench = Bench()
    bench.notice(ports.StartWorkers(assignment=assignment()))
    assert m.Start(assignment=assignment()) in bench.orders
    bench.give(m.Started(round=1, pids=(100, 101), start="warm", start_reason="because"))
    (fact,) = bench.facts()
    assert isinstance(fact, events.WorkersStarted)
    assert fact.ranks == (0, 1)
    assert bench.machine.phase is Phase.RUNNING


def test_a_worker_that_began_again_is_a_fact_and_goes_on() -> None:
    """Its process is the same: the group is told of no end."""
    bench = Bench()
    bench.run_round()
    late = m.VariableChange(round=1, local_rank=1, pid=101, variable="OMP_NUM_THREADS", obstacle="")
    bench.give(late)
    (fact,) = bench.facts()
    assert fact == events.VariableChanged(
        round=1, local_rank=1, rank=1, pid=101, variable="OMP_NUM_THREADS"
    )
    assert bench.machine.phase is Phase.RUNNING
    bench.give(dataclasses.replace(late, round=7))
    assert bench.facts() == [], "of a round that is not running"


def test_a_group_succeeds_when_its_last_worker_ends_with_status_0() -> None:
    """Success is reported once, with the last worker, and the node stays in the round."""
    bench = Bench()
    bench.run_round()
    bench.exit(0, 0)
    assert bench.asked() == []
    bench.exit(1, 0)
    assert bench.asked() == [ports.GroupSucceeded(round=1)]
    bench.give(m.GroupVanished(round=1))
    assert bench.asked() == [], "nobody ended the round"
    bench.notice(ports.JobOver(result="succeeded", reason="all groups ended"))
    assert bench.exits() == [(0, "succeeded")]
    assert bench.machine.phase is Phase.DONE


def test_a_failing_worker_ends_its_group_at_once_and_is_reported() -> None:
    """The siblings of a failed worker are stopped without waiting for anybody's order."""
    bench = Bench()
    bench.run_round()
    bench.give(
        m.WorkerExit(
            round=1, local_rank=1, pid=101, exit_code=-9, timestamp=1795000000, message="m"
        )
    )
    (request,) = bench.asked()
    assert isinstance(request, ports.GroupFailed)
    assert request.failures == (
        Failure(
            node="n1",
            rank=1,
            local_rank=1,
            pid=101,
            exit_code=-9,
            timestamp=1795000000,
            message="m",
            round=1,
        ),
    )
    assert bench.signalled() == [(signal.SIGTERM, "leaders"), (signal.SIGCONT, "all")]


def test_exits_after_the_stop_are_not_failures() -> None:
    """A sibling that dies of our SIGTERM is reported to nobody as a failure."""
    bench = Bench()
    bench.run_round()
    bench.exit(0, 1)
    bench.exit(1, -15)
    assert bench.asked() == []
    (fact,) = bench.facts()
    assert isinstance(fact, events.WorkerExited)
    assert fact.cause == "stopped"


def test_the_node_is_ready_for_the_next_round_when_no_process_is_left() -> None:
    """WorkersGone needs both: the stop order, and the last process gone."""
    bench = Bench()
    bench.run_round()
    bench.notice(ports.StopWorkers(round=1, grace_s=GRACE_S, reason="n2 failed"))
    assert bench.signalled() == [(signal.SIGTERM, "leaders"), (signal.SIGCONT, "all")]
    bench.exit(0, -15)
    bench.exit(1, -15)
    assert bench.asked() == []
    bench.give(m.GroupVanished(round=1))
    assert bench.asked() == [ports.WorkersGone(round=1)]
    assert bench.machine.phase is Phase.JOINING
    bench.run_round(2)
    assert bench.machine.running_round == 2


def test_a_group_that_failed_by_itself_waits_for_the_order_before_it_reports_gone() -> None:
    """A round ends for a node when the coordinator says so, also if its workers are long gone."""
    bench = Bench()
    bench.run_round()
    bench.exit(0, 1)
    bench.exit(1, -15)
    bench.give(m.GroupVanished(round=1))
    assert bench.asked() == []
    bench.notice(ports.StopWorkers(round=1, grace_s=GRACE_S, reason="rank 0 failed"))
    assert bench.asked() == [ports.WorkersGone(round=1)]


def test_stopping_goes_from_leaders_to_groups_to_kill_within_the_grace() -> None:
    """Workers that ignore SIGTERM: leaders first, whole groups before the end, SIGKILL at it."""
    bench = Bench()
    bench.run_round()
    bench.notice(ports.StopWorkers(round=1, grace_s=10.0, reason="a peer failed"))
    bench.pass_time(10.0 - GROUP_GRACE_S - 0.1)
    assert bench.signalled() == []
    bench.pass_time(0.2)
    assert bench.signalled() == [(signal.SIGTERM, "all"), (signal.SIGCONT, "all")]
    assert not bench.has_killed()
    bench.pass_time(GROUP_GRACE_S)
    assert bench.has_killed()


@pytest.mark.parametrize("path", ["worker fails", "ordered", "agent is told", "job ends"])
def test_every_way_of_stopping_takes_the_same_steps_within_its_grace(path: str) -> None:
    """Leaders, groups a second before the end, SIGKILL at the end; a stopped one can hear each."""
    bench = Bench()
    bench.run_round()
    grace_s, groups_s = GRACE_S, GROUP_GRACE_S
    if path == "worker fails":
        grace_s, groups_s = FAILURE_GRACE_S, 0.2 * FAILURE_GRACE_S
        bench.exit(1, 3)
    elif path == "ordered":
        bench.notice(ports.StopWorkers(round=1, grace_s=GRACE_S, reason="a node came"))
    elif path == "agent is told":
        bench.give(m.SignalArrived(signal=signal.SIGTERM, name="SIGTERM"))
    else:
        bench.notice(ports.JobOver(result="failed", reason="the budget is used up"))
    seen = [(0.0, bench.signalled(), bench.has_killed())]
    for until in (grace_s - groups_s - 0.1, grace_s - 0.1, grace_s + 0.1):
        bench.pass_time(100.0 + until - bench.now)
        seen.append((until, bench.signalled(), bench.has_killed()))
    assert [(signals, killed) for _, signals, killed in seen] == [
        ([(signal.SIGTERM, "leaders"), (signal.SIGCONT, "all")], False),
        ([], False),
        ([(signal.SIGTERM, "all"), (signal.SIGCONT, "all")], False),
        ([], True),
    ]


def test_what_leaders_leave_behind_is_ended_without_waiting_for_the_grace() -> None:
    """When all leaders have ended, their children get a second and not half a minute."""
    bench = Bench()
    bench.run_round()
    bench.notice(ports.StopWorkers(round=1, grace_s=GRACE_S, reason="a peer failed"))
    bench.exit(0, -15)
    bench.exit(1, -15)
    bench.pass_time(0.0)
    assert bench.signalled() == [(signal.SIGTERM, "all"), (signal.SIGCONT, "all")]
    bench.pass_time(GROUP_GRACE_S)
    assert bench.has_killed()


def test_a_drain_signals_leaders_and_leaves_when_they_are_gone() -> None:
    """SIGTERM announces the leave, gives the workers their grace, and exits with 128 + 15."""
    bench = Bench()
    bench.run_round()
    bench.give(m.SignalArrived(signal=signal.SIGTERM, name="SIGTERM"))
    (request,) = bench.asked()
    assert isinstance(request, ports.DrainRequested)
    assert bench.signalled() == [(signal.SIGTERM, "leaders"), (signal.SIGCONT, "all")]
    bench.exit(0, 0)
    bench.exit(1, 143)
    bench.give(m.GroupVanished(round=1))
    assert bench.asked() == [ports.WorkersGone(round=1)]
    bench.notice(ports.JobOver(result="drained", reason="left"))
    assert bench.exits() == [(143, "drained")]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_hint_of_the_scheduler_is_passed_on_to_the_leaders(number: signal.Signals) -> None:
    """SIGUSR1 and SIGUSR2 are for the program: the node stays, and none of its children hears."""
    bench = Bench()
    bench.give(m.SignalArrived(signal=number, name=number.name))
    assert bench.orders == [], "before there are workers there is nobody to tell"
    bench.run_round()
    bench.give(m.SignalArrived(signal=number, name=number.name))
    assert bench.orders == [m.Signal(round=1, signal=number, to="leaders")]
    assert bench.machine.phase is Phase.RUNNING
    bench.give(m.SignalArrived(signal=signal.SIGTERM, name="SIGTERM"))
    bench.give(m.SignalArrived(signal=number, name=number.name))
    assert not bench.has_killed(), "it is no second signal to leave"
    assert bench.signalled() == [(number, "leaders")]
    bench.give(m.GroupVanished(round=1))
    bench.give(m.SignalArrived(signal=number, name=number.name))
    assert bench.orders == []


def test_a_second_signal_while_draining_kills_at_once() -> None:
    """A second signal means: at once."""
    bench = Bench()
    bench.run_round()
    bench.give(m.SignalArrived(signal=signal.SIGTERM, name="SIGTERM"))
    bench.give(m.SignalArrived(signal=signal.SIGTERM, name="SIGTERM"))
    assert bench.has_killed()


def test_a_signal_before_the_first_round_ends_the_agent_even_if_nobody_answers() -> None:
    """Leaving needs no coordinator: without an answer the agent goes after a moment."""
    bench = Bench()
    bench.give(m.SignalArrived(signal=signal.SIGINT, name="SIGINT"))
    assert bench.exits() == []
    bench.pass_time(LEAVE_TIMEOUT_S)
    assert bench.exits() == [(130, "drained")]


def test_a_round_that_starts_while_draining_is_declined() -> None:
    """A commit that crossed the drain request starts nothing."""
    bench = Bench()
    bench.give(m.SignalArrived(signal=signal.SIGTERM, name="SIGTERM"))
    bench.notice(ports.StartWorkers(assignment=assignment()))
    assert bench.asked() == [ports.WorkersGone(round=1)]
    assert bench.machine.running_round is None


def test_lost_contact_holds_the_workers_and_contact_releases_them() -> None:
    """SIGSTOP at once, SIGCONT when the round is known to stand."""
    bench = Bench()
    bench.run_round()
    bench.notice(ports.HoldWorkers(round=1, reason="connection lost"))
    assert bench.signalled() == [(signal.SIGSTOP, "all")]
    bench.notice(ports.ReleaseWorkers(round=1))
    assert bench.signalled() == [(signal.SIGCONT, "all")]


def test_held_workers_that_are_stopped_are_continued_so_that_they_can_end() -> None:
    """A stopped process cannot handle SIGTERM."""
    bench = Bench()
    bench.run_round()
    bench.notice(ports.HoldWorkers(round=1, reason="connection lost"))
    bench.notice(ports.StopWorkers(round=1, grace_s=GRACE_S, reason="a peer failed"))
    assert bench.signalled() == [(signal.SIGTERM, "leaders"), (signal.SIGCONT, "all")]


def test_a_fence_kills_without_grace_and_the_node_may_come_back() -> None:
    """The round may go on without us: nothing of it may live here."""
    bench = Bench()
    bench.run_round()
    bench.notice(ports.Fence(round=1, reason="lease over"))
    assert bench.has_killed()
    bench.exit(0, -9)
    bench.exit(1, -9)
    bench.give(m.GroupVanished(round=1))
    assert bench.asked() == [ports.WorkersGone(round=1)]
    assert bench.machine.phase is Phase.JOINING


def test_a_lease_that_ran_out_in_the_keeper_is_reported_as_a_failure_of_the_group() -> None:
    """If the coordinator has not noticed anything, it must learn that the workers are dead."""
    bench = Bench()
    bench.run_round()
    bench.give(m.LeaseExpired(round=1))
    (request,) = bench.asked()
    assert isinstance(request, ports.GroupFailed)
    bench.exit(0, -9)
    assert bench.asked() == []


def test_a_lost_lease_is_told_once_whoever_notices_it_first() -> None:
    """Keeper and member look at the clock by themselves, a moment apart."""
    bench = Bench()
    bench.run_round()
    bench.give(m.LeaseExpired(round=1))
    assert any(isinstance(event, events.LeaseLost) for event in bench.facts())
    bench.notice(ports.Fence(round=1, reason="lease over"))
    assert not any(isinstance(event, events.LeaseLost) for event in bench.facts())


@pytest.mark.parametrize(
    ("result", "code"), [("succeeded", 0), ("failed", 1), ("refused", 2), ("lost", 3)]
)
def test_the_exit_code_tells_how_the_job_ended(result: str, code: int) -> None:
    """Each way to end has a code of its own."""
    bench = Bench()
    bench.notice(ports.JobOver(result=result, reason="because"))
    assert bench.exits() == [(code, result)]


def test_the_agent_stays_until_no_worker_is_left() -> None:
    """A lost job kills the workers, and the agent exits after them."""
    bench = Bench()
    bench.run_round()
    bench.notice(ports.JobOver(result="lost", reason="the coordinator is gone"))
    assert bench.has_killed()
    assert bench.exits() == []
    bench.give(m.GroupVanished(round=1))
    assert bench.exits() == [(3, "lost")]


def test_a_worker_that_cannot_be_killed_does_not_keep_the_agent_for_ever() -> None:
    """Uninterruptible sleep survives SIGKILL; the agent goes, its keeper goes on trying."""
    bench = Bench()
    bench.run_round()
    bench.notice(ports.JobOver(result="lost", reason="the coordinator is gone"))
    bench.pass_time(60.0)
    assert bench.exits() == [(3, "lost")]


def test_losing_the_keeper_ends_the_agent() -> None:
    """Without its keeper an agent can promise nothing about workers."""
    bench = Bench()
    bench.run_round()
    bench.give(m.KeeperGone(reason="killed by SIGKILL"))
    assert bench.exits() == [(3, "lost")]


def test_a_keeper_that_could_not_begin_is_a_wrong_command() -> None:
    """What is to be preloaded is the user's choice, and no retry makes it importable."""
    bench = Bench()
    bench.give(m.KeeperGone(reason="it ended with 2", has_begun=False))
    assert bench.exits() == [(2, "refused")]


def test_a_spare_starts_when_it_is_promoted() -> None:
    """Waiting at max_nodes is a phase of its own, and it ends with a round."""
    bench = Bench()
    bench.notice(ports.Spared(round=1))
    phases = [bench.machine.phase]
    bench.run_round(2)
    phases.append(bench.machine.phase)
    assert phases == [Phase.SPARE, Phase.RUNNING]


def test_a_failure_elsewhere_takes_nothing_from_the_grace_of_a_node_that_leaves() -> None:
    """Its workers save what they have; that others fail without them is no reason to be quicker."""
    bench = Bench()
    bench.run_round()
    bench.give(m.SignalArrived(signal=signal.SIGTERM, name="SIGTERM"))
    bench.notice(ports.StopWorkers(round=1, grace_s=FAILURE_GRACE_S, reason="rank 2 failed"))
    bench.pass_time(GRACE_S - 1)
    assert not bench.has_killed()
    bench.pass_time(1)
    assert bench.has_killed()


# --- what SIGKILL does not end -----------------------------------------------------------------


def stuck(bench: Bench) -> None:
    """Have a round stopped whose workers outlive SIGKILL."""
    bench.run_round()
    bench.exit(0, 1)
    bench.notice(ports.StopWorkers(round=1, grace_s=FAILURE_GRACE_S, reason="rank 0 failed"))
    bench.pass_time(FAILURE_GRACE_S + 1)
    assert bench.has_killed()


def test_a_node_whose_workers_outlive_a_kill_leaves_after_a_minute() -> None:
    """In uninterruptible sleep (a disk, a driver) nothing ends them: others wait for this node."""
    bench = Bench()
    stuck(bench)
    bench.pass_time(KILL_TIMEOUT_S - 2)
    assert not bench.exits()
    bench.pass_time(2)
    assert bench.asked() == [
        ports.DrainRequested(
            reason="processes of round 1 have outlived SIGKILL, so it cannot run another one",
            grace_s=0.0,
        ),
        ports.WorkersGone(round=1),
    ]
    bench.notice(ports.JobOver(result="drained", reason="left"))
    assert bench.exits() == [(3, "lost")]
    assert bench.stuck() == [(101,)]


def test_a_node_that_gives_up_waits_only_so_long_to_be_let_go() -> None:
    """Nobody answers: it goes, and says the same."""
    bench = Bench()
    stuck(bench)
    bench.pass_time(KILL_TIMEOUT_S)
    assert not bench.exits()
    bench.pass_time(LEAVE_TIMEOUT_S)
    assert bench.exits() == [(3, "lost")]
    assert bench.machine.wake_at() is None


def test_a_fence_changes_nothing_about_how_long_that_may_take() -> None:
    """The coordinator has given the node up meanwhile; it was killed before."""
    bench = Bench()
    stuck(bench)
    bench.notice(ports.Fence(round=1, reason="evicted"))
    bench.pass_time(KILL_TIMEOUT_S)
    bench.pass_time(LEAVE_TIMEOUT_S)
    assert bench.exits() == [(3, "lost")]


def test_a_lease_that_ran_out_is_no_other_case() -> None:
    """The keeper has killed them, and they are still there."""
    bench = Bench()
    bench.run_round()
    bench.give(m.LeaseExpired(round=1))
    bench.pass_time(KILL_TIMEOUT_S - 1)
    assert not bench.exits()
    bench.pass_time(2)
    bench.pass_time(LEAVE_TIMEOUT_S)
    assert bench.exits() == [(3, "lost")]
    assert bench.stuck() == [(100, 101)]


def test_whoever_signals_once_more_is_not_kept_waiting() -> None:
    """The first asks to leave, the second kills, the third gives up what is stuck."""
    bench = Bench()
    bench.run_round()
    term = m.SignalArrived(signal=signal.SIGTERM, name="SIGTERM")
    bench.give(term)
    bench.give(term)
    assert bench.has_killed()
    bench.pass_time(5)
    assert not bench.exits()
    bench.give(term)
    bench.pass_time(3)
    assert bench.exits() == [(3, "lost")]
    assert bench.stuck() == [(100, 101)]
    assert bench.machine.wake_at() is None


def test_a_node_that_may_leave_and_cannot_end_its_workers_says_so() -> None:
    """Told that it may go, it has not gone in order: that is no exit code of a signal."""
    bench = Bench()
    bench.run_round()
    bench.give(m.SignalArrived(signal=signal.SIGTERM, name="SIGTERM"))
    bench.notice(ports.JobOver(result="drained", reason="left"))
    bench.pass_time(GRACE_S + KILL_TIMEOUT_S)
    assert bench.exits() == [(3, "lost")]
    assert bench.stuck() == [(100, 101)]


def test_a_kill_that_ends_them_in_time_is_a_stop_as_any_other() -> None:
    """Memory of a GPU may take the most of a minute to be given back."""
    bench = Bench()
    stuck(bench)
    bench.pass_time(KILL_TIMEOUT_S - 5)
    bench.exit(1, -9)
    bench.give(m.GroupVanished(round=1, killed=(101,)))
    assert ports.WorkersGone(round=1) in bench.asked()
    bench.pass_time(KILL_TIMEOUT_S)
    assert not bench.exits()
