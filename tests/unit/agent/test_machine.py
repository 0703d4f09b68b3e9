"""The agent's machine: rounds, stopping, leaving and the end, in plain values and virtual time."""

from __future__ import annotations

import signal

import pytest
from msgspec.structs import replace

from pytest_elastic.agent import messages as m
from pytest_elastic.agent.phases import Phase
from pytest_elastic.agent.worker_group import GROUP_GRACE_S
from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.model import Failure
from pytest_elastic.workers import messages as w
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
    opened = ports.StoreOpened(round=3, address="10.0.0.1", port=4000)
    failed = ports.StoreFailed(round=3, reason="no port")
    for answer in (opened, failed):
        bench.give(answer)
        assert bench.asked() == [answer]


def test_workers_start_when_the_round_is_committed() -> None:
    """A committed round is started once, and the facts say with which ranks."""
    bench = Bench()
    bench.notice(ports.StartWorkers(assignment=assignment()))
    assert m.Start(assignment=assignment()) in bench.orders
    bench.give(w.WorkersRunning(round=1, pids=(100, 101), start="warm", start_reason="because"))
    (fact,) = bench.facts()
    assert isinstance(fact, events.WorkersStarted)
    assert fact.ranks == (0, 1)
    assert bench.machine.phase is Phase.RUNNING


def test_a_worker_that_began_again_is_a_fact_and_goes_on() -> None:
    """Its process is the same: the group is told of no end."""
    bench = Bench()
    bench.run_round()
    late = w.VariableChanged(
        round=1, local_rank=1, pid=101, variable="OMP_NUM_THREADS", obstacle=""
    )
    bench.give(late)
    (fact,) = bench.facts()
    assert fact == events.VariableChanged(
        round=1, local_rank=1, rank=1, pid=101, variable="OMP_NUM_THREADS"
    )
    assert bench.machine.phase is Phase.RUNNING
    bench.give(replace(late, round=7))
    assert bench.facts() == [], "of a round that is not running"


def test_a_group_succeeds_when_its_last_worker_ends_with_status_0() -> None:
    """Success is reported once, with the last worker, and the node stays in the round."""
    bench = Bench()
    bench.run_round()
    bench.exit(0, 0)
    assert bench.asked() == []
    bench.exit(1, 0)
    assert bench.asked() == [ports.GroupSucceeded(round=1)]
    bench.give(w.GroupGone(round=1))
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
    bench.give(w.GroupGone(round=1))
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
    bench.give(w.GroupGone(round=1))
    assert bench.asked() == []
    bench.notice(ports.StopWorkers(round=1, grace_s=GRACE_S, reason="rank 0 failed"))
    assert bench.asked() == [ports.WorkersGone(round=1)]


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
    bench.give(w.GroupGone(round=1))
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
    assert bench.orders == [w.SignalGroup(round=1, signal=number, to="leaders")]
    assert bench.machine.phase is Phase.RUNNING
    bench.give(m.SignalArrived(signal=signal.SIGTERM, name="SIGTERM"))
    bench.give(m.SignalArrived(signal=number, name=number.name))
    assert not bench.has_killed(), "it is no second signal to leave"
    assert bench.signalled() == [(number, "leaders")]
    bench.give(w.GroupGone(round=1))
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
    bench.give(w.GroupGone(round=1))
    assert bench.asked() == [ports.WorkersGone(round=1)]
    assert bench.machine.phase is Phase.JOINING


def test_a_lease_that_ran_out_in_the_keeper_is_reported_as_a_failure_of_the_group() -> None:
    """If the coordinator has not noticed anything, it must learn that the workers are dead."""
    bench = Bench()
    bench.run_round()
    bench.give(w.LeaseRanOut(round=1))
    (request,) = bench.asked()
    assert isinstance(request, ports.GroupFailed)
    bench.exit(0, -9)
    assert bench.asked() == []


def test_a_lost_lease_is_told_once_whoever_notices_it_first() -> None:
    """Keeper and member look at the clock by themselves, a moment apart."""
    bench = Bench()
    bench.run_round()
    bench.give(w.LeaseRanOut(round=1))
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
    bench.give(w.GroupGone(round=1))
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


@pytest.mark.parametrize("how", ["told to stop", "fenced after that", "lease ran out"])
def test_a_node_that_gives_up_waits_only_so_long_to_be_let_go(how: str) -> None:
    """Nobody answers: it goes, and says the same, whatever its workers were killed for."""
    bench = Bench()
    if how == "lease ran out":
        bench.run_round()
        bench.give(w.LeaseRanOut(round=1))
    else:
        stuck(bench)
    if how == "fenced after that":
        bench.notice(ports.Fence(round=1, reason="evicted"))
    bench.pass_time(KILL_TIMEOUT_S)
    assert not bench.exits()
    assert bench.machine.wake_at() == pytest.approx(bench.now + LEAVE_TIMEOUT_S, abs=1.0)
    bench.pass_time(LEAVE_TIMEOUT_S)
    assert bench.exits() == [(3, "lost")]
    assert bench.machine.wake_at() is None


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
    bench.give(w.GroupGone(round=1, killed=(101,)))
    assert ports.WorkersGone(round=1) in bench.asked()
    bench.pass_time(KILL_TIMEOUT_S)
    assert not bench.exits()


# --- what came too late, twice, or of another round ----------------------------------------------


def test_what_is_said_of_no_round_that_runs_here_changes_nothing() -> None:
    """Before the first round, of another one, and of one that is gone."""
    exited = m.WorkerExit(round=1, local_rank=0, pid=100, exit_code=1)
    said: list[m.AgentInput] = [
        w.WorkersRunning(round=1, pids=(100, 101), start="warm", start_reason=""),
        exited,
        w.GroupGone(round=1),
        w.LeaseRanOut(round=1),
        ports.HoldWorkers(round=1, reason="contact is lost"),
        ports.ReleaseWorkers(round=1),
    ]
    fresh, another, gone = Bench(), Bench(), Bench()
    another.run_round(2)
    gone.run_round()
    gone.give(w.GroupGone(round=1))
    for given in said:
        for bench in (fresh, another, gone):
            bench.give(given)
            assert bench.orders == []
    twice = Bench()
    twice.run_round()
    twice.give(exited)
    twice.give(exited)
    assert twice.orders == []


@pytest.mark.parametrize("round_", [None, 2])
def test_a_round_that_does_not_run_here_is_gone_at_once(round_: int | None) -> None:
    """It was given up before it was started, or is to be killed."""
    bench = Bench()
    if round_ is not None:
        bench.run_round(round_)
    bench.notice(ports.StopWorkers(round=1, grace_s=GRACE_S, reason="n2 failed"))
    assert bench.orders == [ports.WorkersGone(round=1)]
    bench.notice(ports.Fence(round=1, reason="the lease ran out"))
    assert bench.orders == [ports.WorkersGone(round=1)]


def test_workers_are_held_once_and_released_only_if_they_are_held() -> None:
    """What a user has stopped is not continued by the way."""
    bench = Bench()
    bench.run_round()
    bench.notice(ports.ReleaseWorkers(round=1))
    assert bench.orders == []
    bench.notice(ports.HoldWorkers(round=1, reason="contact is lost"))
    bench.notice(ports.HoldWorkers(round=1, reason="contact is lost"))
    assert bench.orders == []


def test_an_agent_exits_once() -> None:
    """Whatever comes after that."""
    bench = Bench()
    bench.notice(ports.JobOver(result="succeeded", reason="because"))
    assert bench.exits() == [(0, "succeeded")]
    for _ in range(2):
        bench.notice(ports.JobOver(result="failed", reason="because"))
        assert bench.orders == []


# --- facts and moments ---------------------------------------------------------------------------


def test_a_start_closes_the_stores_of_rounds_before_the_last_one() -> None:
    """Also on a node that opens none any more; and it says what the round is."""
    bench = Bench()
    bench.notice(ports.StartWorkers(assignment=assignment(5)))
    assert m.Close(before_round=4) in bench.orders
    assert bench.facts() == [
        events.RoundCommitted(
            round=5,
            term=1,
            roster=("n1", "n2"),
            group_rank=0,
            world_size=4,
            restart_count=0,
            master_addr="10.0.0.1",
            master_port=4000,
        )
    ]


@pytest.mark.parametrize(
    ("code", "number", "cause"), [(0, 0, "exited"), (3, 0, "failed"), (-9, 9, "failed")]
)
def test_the_end_of_a_worker_is_told_by_status_or_by_signal(
    code: int, number: int, cause: str
) -> None:
    """A status is no signal."""
    bench = Bench()
    bench.run_round()
    bench.exit(1, code)
    fact = next(iter(bench.facts()))
    assert isinstance(fact, events.WorkerExited)
    assert (fact.rank, fact.exit_code, fact.signal, fact.cause) == (1, code, number, cause)
    assert bench.machine.phase is (Phase.STOPPING if code else Phase.RUNNING)


def test_how_long_stopping_took_is_told_in_milliseconds() -> None:
    """From the order until no process was left."""
    bench = Bench()
    bench.run_round()
    bench.notice(ports.StopWorkers(round=1, grace_s=GRACE_S, reason="n2 failed"))
    bench.now += 1.23456
    bench.give(w.GroupGone(round=1, killed=(7,), strays=("python",)))
    (fact,) = bench.facts()
    assert fact == events.WorkersStopped(round=1, duration_s=1.235, killed=(7,), strays=("python",))


def test_a_lease_that_ran_out_names_the_first_rank_of_the_node() -> None:
    """As killed by its keeper, and the leader is told that nothing else has failed."""
    bench = Bench()
    second = replace(assignment(), group_rank=1)
    bench.notice(ports.StartWorkers(assignment=second))
    bench.give(w.LeaseRanOut(round=1))
    (request,) = bench.asked()
    assert request == ports.GroupFailed(
        round=1,
        failures=(
            Failure(
                node="n1",
                rank=2,
                local_rank=0,
                pid=0,
                exit_code=-9,
                message="workers were killed: the lease ran out before contact was renewed",
                round=1,
            ),
        ),
        is_lease_over=True,
    )
    assert bench.machine.phase is Phase.STOPPING


@pytest.mark.parametrize("before", ["are stopped", "have ended", "leave"])
def test_a_lease_that_runs_out_while_workers_end_is_no_failure(before: str) -> None:
    """They were told to, or had succeeded; a node that leaves goes on leaving."""
    bench = Bench()
    bench.run_round()
    if before == "are stopped":
        bench.notice(ports.StopWorkers(round=1, grace_s=GRACE_S, reason="n2 failed"))
    elif before == "have ended":
        bench.succeed()
    else:
        bench.give(m.SignalArrived(signal=signal.SIGTERM, name="SIGTERM"))
    bench.give(w.LeaseRanOut(round=1))
    assert bench.asked() == []
    assert bench.machine.phase is (Phase.DRAINING if before == "leave" else Phase.STOPPING)


@pytest.mark.parametrize("what", ["are told to end", "are killed", "have ended"])
def test_to_be_woken_early_changes_nothing(what: str) -> None:
    """Each step has its moment: groups, the kill, and giving up."""
    bench = Bench()
    bench.run_round()
    if what == "are told to end":
        bench.notice(ports.StopWorkers(round=1, grace_s=GRACE_S, reason="n2 failed"))
    elif what == "are killed":
        bench.notice(ports.Fence(round=1, reason="the lease ran out"))
    else:
        bench.succeed()
    at = bench.machine.wake_at()
    bench.give(m.TimePassed())
    assert (bench.orders, bench.machine.wake_at()) == ([], at)


def test_what_workers_leave_behind_by_themselves_has_half_a_second_before_it_is_told() -> None:
    """The standard library's own helpers end by themselves in milliseconds."""
    bench = Bench()
    bench.run_round()
    bench.succeed()
    bench.pass_time(0.4)
    assert bench.orders == []
    bench.pass_time(0.2)
    assert bench.signalled() == [(signal.SIGTERM, "all"), (signal.SIGCONT, "all")]


def test_a_kill_is_not_put_off_by_another_one() -> None:
    """A fence comes half a minute after the job's end has killed them."""
    bench = Bench()
    bench.run_round()
    bench.notice(ports.JobOver(result="lost", reason="because"))
    bench.now += 0.5 * KILL_TIMEOUT_S
    bench.notice(ports.Fence(round=1, reason="the lease ran out"))
    assert bench.machine.wake_at() == 100.0 + KILL_TIMEOUT_S


# --- leaving without workers ---------------------------------------------------------------------


def left_alone() -> Bench:
    """Return a node whose workers have succeeded and are gone, and that was told to leave."""
    bench = Bench()
    bench.run_round()
    bench.succeed()
    bench.give(w.GroupGone(round=1))
    bench.give(m.SignalArrived(signal=signal.SIGINT, name="SIGINT"))
    return bench


def test_a_node_without_workers_leaves_when_it_may_or_after_a_moment() -> None:
    """There is nothing to signal or to kill."""
    bench = left_alone()
    assert bench.signalled() == []
    bench.pass_time(LEAVE_TIMEOUT_S - 0.1)
    assert bench.orders == []
    bench.pass_time(0.2)
    assert bench.exits() == [(130, "drained")]
    assert bench.stuck() == [()]
    told = left_alone()
    told.notice(ports.JobOver(result="drained", reason="left"))
    assert told.exits() == [(130, "drained")]


def test_a_second_signal_without_workers_ends_the_agent_at_once() -> None:
    """Nothing is left to wait for."""
    bench = left_alone()
    bench.give(m.SignalArrived(signal=signal.SIGINT, name="SIGINT"))
    assert bench.exits() == [(130, "drained")]
    assert not bench.has_killed()


def test_a_node_that_the_rendezvous_let_go_by_itself_exits_as_if_by_sigterm() -> None:
    """It was not signalled."""
    bench = Bench()
    bench.notice(ports.JobOver(result="drained", reason="left"))
    assert bench.exits() == [(143, "drained")]


def test_a_node_that_leaves_waits_a_moment_once_its_workers_are_gone() -> None:
    """For the leader to let it go; its workers' grace has nothing to do with that."""
    bench = Bench()
    bench.run_round()
    bench.give(m.SignalArrived(signal=signal.SIGTERM, name="SIGTERM"))
    bench.pass_time(2.0)
    bench.give(w.GroupGone(round=1))
    bench.pass_time(LEAVE_TIMEOUT_S - 0.1)
    assert bench.orders == []
    bench.pass_time(0.2)
    assert bench.exits() == [(143, "drained")]


def test_the_end_of_the_job_stops_nothing_where_no_worker_is_left() -> None:
    """A failed job is told to nodes whose workers had ended, too."""
    bench = Bench()
    bench.run_round()
    bench.succeed()
    bench.give(w.GroupGone(round=1))
    bench.notice(ports.JobOver(result="failed", reason="because"))
    assert [type(each) for each in bench.orders] == [m.Exit]


def test_a_signal_after_the_end_of_the_job_kills_what_is_left() -> None:
    """They were told to end when the job did; the signal asks for the second time."""
    bench = Bench()
    bench.run_round()
    bench.notice(ports.JobOver(result="succeeded", reason="because"))
    bench.give(m.SignalArrived(signal=signal.SIGTERM, name="SIGTERM"))
    assert bench.has_killed()
    assert bench.asked() == []


def test_workers_that_outlive_a_kill_do_not_change_how_the_job_ended() -> None:
    """Its result is known; nothing has to be asked for any more."""
    bench = Bench()
    bench.run_round()
    bench.notice(ports.JobOver(result="failed", reason="because"))
    bench.pass_time(GRACE_S + KILL_TIMEOUT_S)
    assert (bench.exits(), bench.asked()) == ([(1, "failed")], [])
    assert bench.stuck() == [(100, 101)]


def test_an_agent_whose_keeper_is_gone_knows_of_nothing_that_is_stuck() -> None:
    """What becomes of its workers is the keeper's tombstone to say."""
    bench = Bench()
    bench.run_round()
    bench.give(m.KeeperGone(reason="killed by SIGKILL"))
    assert bench.stuck() == [()]
