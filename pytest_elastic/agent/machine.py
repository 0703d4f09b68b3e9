"""One node's part in a job, decided here and performed elsewhere.

The machine stands between its rendezvous, which says when a round starts and ends, and its keeper,
which owns the worker processes. It promises:

- Workers of a round start only after the rendezvous committed it, and never while a process of an
  earlier round is left.
- Every way of stopping goes through the same steps, within the same grace: leaders first, so that
  they can checkpoint although they have DataLoader children; then whole groups; then SIGKILL.
- A worker that fails ends the group at once: the round cannot go on without it.
- The agent exits only when no worker process is left, or when even SIGKILL has not helped.

    JOINING ──► RUNNING ──► STOPPING ──► JOINING      a round, and the way to the next
       │ ▲         │           │
       ▼ │         ▼           ▼
     SPARE      DRAINING ─► DONE / FAILED             leaving, or the end of the job
"""

from __future__ import annotations

import signal

from msgspec.structs import replace
from typing_extensions import assert_never

from pytest_elastic.agent import messages as m
from pytest_elastic.agent.outcome import EXIT_CODES
from pytest_elastic.agent.phases import ALLOWED, Phase
from pytest_elastic.agent.ranks import worker_ranks, world_size
from pytest_elastic.agent.worker_group import WorkerGroup
from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.model import Assignment, Failure
from pytest_elastic.workers import messages as w

__all__ = ["PASSED_ON", "AgentMachine"]

# After another signal that comes when they were killed already.
_HURRIED_S = 2.0

# What schedulers send as a hint (Slurm's --signal): the program decides what to do about it, while
# torchrun ends the job.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class AgentMachine:
    """Decides for one node. `step` is the only way to change it.

    Durations in seconds: `failure_grace_s` is what workers may take to end after one of them
    failed, `shutdown_timeout_s` otherwise; `kill_timeout_s`, what SIGKILL may take (a process that
    gives back the memory of a GPU takes the most of a minute); `leave_timeout_s`, what the
    rendezvous may take to let this node go.
    """

    def __init__(
        self,
        *,
        node: str,
        shutdown_timeout_s: float,
        failure_grace_s: float,
        kill_timeout_s: float,
        leave_timeout_s: float,
    ) -> None:
        self.phase = Phase.JOINING
        self._node = node
        self._shutdown_timeout_s = shutdown_timeout_s
        self._failure_grace_s = failure_grace_s
        self._kill_timeout_s = kill_timeout_s
        self._leave_timeout_s = leave_timeout_s
        self._group: WorkerGroup | None = None
        # How the agent will exit, once no worker is left or what is left cannot be killed.
        self._ending: m.Exit | None = None
        self._drain_signal: int | None = None
        self._leave_by: float | None = None
        self._has_exited = False
        self._out: list[m.AgentCommand] = []

    def step(self, given: m.AgentInput, now: float) -> tuple[m.AgentCommand, ...]:
        """Take one input at `now` (seconds, CLOCK_BOOTTIME); return what to do, in order."""
        self._handle(given, now)
        self._exit_when_possible()
        out, self._out = tuple(self._out), []
        return out

    def wake_at(self) -> float | None:
        """Return when `TimePassed` is wanted, or None."""
        if self._has_exited:
            return None
        moments = (
            None if self._group is None else self._group.wake_at(),
            self._leave_by,
        )
        return min((at for at in moments if at is not None), default=None)

    @property
    def running_round(self) -> int | None:
        """The round whose processes exist here, if any."""
        return None if self._living is None else self._living.round

    @property
    def _living(self) -> WorkerGroup | None:
        """The group, if processes of it exist."""
        return None if self._group is None or self._group.is_gone else self._group

    def _handle(self, given: m.AgentInput, now: float) -> None:
        if self._has_exited:
            return
        if isinstance(given, ports.Notice):
            self._on_notice(given, now)
            return
        match given:
            case w.WorkersRunning():
                self._on_started(given)
            case w.VariableChanged():
                self._on_variable_change(given)
            case m.WorkerExit():
                self._on_worker_exit(given, now)
            case w.GroupGone():
                self._on_group_vanished(given, now)
            case w.LeaseRanOut(round=round_):
                self._on_lease_expired(round_, now)
            case m.KeeperGone(reason=reason, has_begun=has_begun):
                self._on_keeper_gone(reason, "lost" if has_begun else "refused")
            case ports.StoreOpened() | ports.StoreFailed():
                self._out.append(given)
            case m.SignalArrived():
                self._on_signal(given, now)
            case m.TimePassed():
                self._on_time(now)
            case _:
                assert_never(given)

    def _become(self, phase: Phase) -> None:
        if phase is self.phase:
            return
        assert phase in ALLOWED[self.phase], f"an agent cannot go from {self.phase} to {phase}"
        self.phase = phase

    def _on_notice(self, notice: ports.Notice, now: float) -> None:
        match notice:
            case ports.OpenStore(round=round_):
                self._out.append(m.Close(before_round=round_ - 1))
                self._out.append(m.OpenWorkerStore(round=round_))
            case ports.StartWorkers(assignment=assignment):
                self._on_start(assignment)
            case ports.StopWorkers():
                self._on_stop(notice, now)
            case ports.HoldWorkers(round=round_, reason=reason):
                self._on_hold(round_, reason)
            case ports.ReleaseWorkers(round=round_):
                self._on_release(round_)
            case ports.LeaseExtended(until=until):
                self._out.append(w.ExtendLease(until=until))
            case ports.Fence(round=round_, reason=reason):
                self._on_fence(round_, reason, now)
            case ports.Spared():
                if self.phase in (Phase.JOINING, Phase.SPARE):
                    self._become(Phase.SPARE)
            case ports.PeerDraining():
                pass  # a fact for the log; the rendezvous has stated it
            case ports.JobOver():
                self._on_job_over(notice, now)
            case _:
                assert_never(notice)

    def _on_start(self, assignment: Assignment) -> None:
        if self.phase is Phase.DRAINING:
            self._out.append(ports.WorkersGone(round=assignment.round))
            return
        assert self.running_round is None, (
            f"round {assignment.round} starts while round {self.running_round} has processes left"
        )
        if self.phase in (Phase.DONE, Phase.FAILED):
            return
        self._become(Phase.RUNNING)
        self._group = WorkerGroup(assignment)
        self._out.append(m.Close(before_round=assignment.round - 1))
        self._out.append(
            events.RoundCommitted(
                round=assignment.round,
                term=assignment.term,
                roster=tuple(entry.name for entry in assignment.roster),
                group_rank=assignment.group_rank,
                world_size=world_size(assignment),
                restart_count=assignment.restart_count,
                master_addr=assignment.store_address,
                master_port=assignment.store_port,
            )
        )
        self._out.append(m.Start(assignment=assignment))

    def _on_stop(self, notice: ports.StopWorkers, now: float) -> None:
        group = self._group
        if group is None or group.round != notice.round:
            # The round was never started here (it was given up between seal and commit).
            self._out.append(ports.WorkersGone(round=notice.round))
            return
        self._out.append(events.StopOrdered(round=notice.round, reason=notice.reason))
        group.is_order_seen = True
        if self.phase is Phase.RUNNING:
            self._become(Phase.STOPPING)
        if group.is_gone:
            self._finish_round(group)
        elif self.phase is not Phase.DRAINING:  # there they have their own grace, and its end
            self._end_group(group, notice.grace_s, signal.SIGTERM, now)

    def _on_hold(self, round_: int, reason: str) -> None:
        group = self._running(round_)
        if group is None or group.is_held:
            return
        group.is_held = True
        self._signal(group, signal.SIGSTOP, "all")
        self._out.append(events.WorkersHeld(round=round_, reason=reason))

    def _on_release(self, round_: int) -> None:
        group = self._running(round_)
        if group is None or not group.is_held:
            return
        self._continue(group)
        self._out.append(events.WorkersReleased(round=round_))

    def _on_fence(self, round_: int, reason: str, now: float) -> None:
        group = self._group
        if group is None or group.round != round_:
            self._out.append(ports.WorkersGone(round=round_))
            return
        group.is_order_seen = True
        if self.phase is Phase.RUNNING:
            self._become(Phase.STOPPING)
        if group.is_gone:
            self._finish_round(group)
            return
        self._tell_lease_lost(group, reason)
        self._kill(group, now)

    def _on_job_over(self, notice: ports.JobOver, now: float) -> None:
        if (group := self._living) is not None:
            if notice.result in ("lost", "refused"):
                self._kill(group, now)
            else:
                self._end_group(group, self._shutdown_timeout_s, signal.SIGTERM, now)
        self._ending = self._exit_by(notice.result, notice.reason)

    def _on_started(self, given: w.WorkersRunning) -> None:
        group = self._running(given.round)
        if group is None:
            return
        group.pids = given.pids
        self._out.append(
            events.WorkersStarted(
                round=given.round,
                pids=given.pids,
                ranks=tuple(ranks.rank for ranks in worker_ranks(group.assignment)),
                start=given.start,
                start_reason=given.start_reason,
            )
        )

    def _on_variable_change(self, given: w.VariableChanged) -> None:
        if (group := self._running(given.round)) is not None:
            self._out.append(
                events.VariableChanged(
                    round=given.round,
                    local_rank=given.local_rank,
                    rank=worker_ranks(group.assignment)[given.local_rank].rank,
                    pid=given.pid,
                    variable=given.variable,
                    obstacle=given.obstacle,
                )
            )

    def _on_worker_exit(self, given: m.WorkerExit, now: float) -> None:
        group = self._running(given.round)
        if group is None or given.local_rank in group.exit_codes:
            return
        group.exit_codes[given.local_rank] = given.exit_code
        rank = worker_ranks(group.assignment)[given.local_rank].rank
        cause = "stopped" if group.is_ending else "failed" if given.exit_code else "exited"
        self._out.append(
            events.WorkerExited(
                round=given.round,
                local_rank=given.local_rank,
                rank=rank,
                pid=given.pid,
                exit_code=given.exit_code,
                signal=max(-given.exit_code, 0),
                cause=cause,
                message=given.message,
                traceback=given.traceback,
            )
        )
        if cause == "failed":
            self._on_failure(group, given, rank, now)
        if group.has_ended:
            if not group.is_ending:
                self._out.append(ports.GroupSucceeded(round=group.round))
            # What its leaders left behind (DataLoader children, daemons) has no one to serve.
            group.end_leftovers(now)

    def _on_failure(self, group: WorkerGroup, given: m.WorkerExit, rank: int, now: float) -> None:
        failure = Failure(
            node=self._node,
            rank=rank,
            local_rank=given.local_rank,
            pid=given.pid,
            exit_code=given.exit_code,
            message=given.message,
            traceback=given.traceback,
            round=group.round,
            error_file=given.error_file,
            timestamp=given.timestamp,
        )
        self._out.append(ports.GroupFailed(round=group.round, failures=(failure,)))
        self._become(Phase.STOPPING)
        self._end_group(group, self._failure_grace_s, signal.SIGTERM, now)

    def _on_group_vanished(self, given: w.GroupGone, now: float) -> None:
        group = self._running(given.round)
        if group is None:
            return
        group.is_gone = True
        duration_s = round(group.ended_for_s(now), 3)
        self._out.append(
            events.WorkersStopped(
                round=given.round,
                duration_s=duration_s,
                killed=given.killed,
                strays=given.strays,
            )
        )
        if group.is_order_seen or self.phase is Phase.DRAINING:
            self._finish_round(group)
        if self.phase is Phase.DRAINING:
            self._leave_by = now + self._leave_timeout_s

    def _on_lease_expired(self, round_: int, now: float) -> None:
        group = self._running(round_)
        if group is None:
            return
        reason = "the lease ran out before contact was renewed"
        self._tell_lease_lost(group, reason)
        if not group.is_ending and not group.has_ended:
            own = worker_ranks(group.assignment)[0]
            failure = Failure(
                node=self._node,
                rank=own.rank,
                local_rank=0,
                pid=0,
                exit_code=-signal.SIGKILL,
                message=f"workers were killed: {reason}",
                round=round_,
            )
            self._out.append(
                ports.GroupFailed(round=round_, failures=(failure,), is_lease_over=True)
            )
        group.was_killed(now, within_s=self._kill_timeout_s)  # by the keeper
        if self.phase is Phase.RUNNING:
            self._become(Phase.STOPPING)

    def _tell_lease_lost(self, group: WorkerGroup, reason: str) -> None:
        if not group.is_lease_lost:
            group.is_lease_lost = True
            self._out.append(events.LeaseLost(round=group.round, reason=reason))

    def _on_keeper_gone(self, reason: str, result: str) -> None:
        """Give up this node's part: no program of the user's has failed, so it may be tried again.

        A keeper that could not begin will not, however often it is tried.
        """
        if self._group is not None:
            self._group.is_gone = True
        self._exit(self._exit_by(result, reason))

    def _on_signal(self, given: m.SignalArrived, now: float) -> None:
        group = self._living
        if given.signal in PASSED_ON:
            if group is not None:
                self._signal(group, given.signal, "leaders")
            return
        if self._drain_signal is not None or self._ending is not None:
            # The second signal: no more patience.
            if group is not None:
                self._kill(group, now, within_s=_HURRIED_S if group.is_killed else None)
            else:
                self._leave_by = now
                self._on_time(now)
            return
        self._drain_signal = given.signal
        self._become(Phase.DRAINING)
        reason = f"the agent received {given.name}"
        self._out.append(events.DrainStarted(reason=reason, grace_s=self._shutdown_timeout_s))
        self._out.append(ports.DrainRequested(reason=reason, grace_s=self._shutdown_timeout_s))
        if group is not None:
            self._end_group(group, self._shutdown_timeout_s, given.signal, now)
        else:
            self._leave_by = now + self._leave_timeout_s

    def _on_time(self, now: float) -> None:
        if (group := self._living) is not None:
            if group.is_stuck(now):
                self._give_up(group, now)
            elif group.is_kill_due(now):
                self._kill(group, now)
            elif group.are_groups_due(now):
                group.groups_were_told()
                self._signal(group, signal.SIGTERM, "all")
                if not group.is_held:
                    self._continue(group)
        if self._leave_by is not None and now >= self._leave_by and self._ending is None:
            reason = "left without permission: no leader answered"
            self._ending = self._exit_by("drained", reason)

    def _end_group(self, group: WorkerGroup, grace_s: float, signum: int, now: float) -> None:
        """Begin to end a group within `grace_s`, or hurry one that is ending already."""
        if not group.end_within(grace_s, now):
            return
        self._signal(group, signum, "leaders")
        # A debugger or a fault may have stopped it: a stopped process handles no signal, and would
        # cost its siblings the whole grace. What the rendezvous holds goes on only if it says so,
        # or if the node leaves: another round may run elsewhere (R5).
        if not (group.is_held and self.phase is Phase.RUNNING):
            self._continue(group)
        if group.has_ended:
            group.end_leftovers(now)

    def _kill(self, group: WorkerGroup, now: float, *, within_s: float | None = None) -> None:
        group.was_killed(now, within_s=self._kill_timeout_s if within_s is None else within_s)
        self._out.append(w.KillGroup(round=group.round))

    def _give_up(self, group: WorkerGroup, now: float) -> None:
        """Leave with what cannot be killed: this node is of no use, and others wait for it.

        They may go on without it: what was killed runs no code of the user's any more.
        """
        group.was_given_up()
        if self._ending is not None or self.phase is Phase.DRAINING:
            self._ending = self._ending or self._exit_by("lost", _stuck(group))
            return
        reason = f"{_stuck(group)}, so it cannot run another one"
        self._out.append(ports.DrainRequested(reason=reason, grace_s=0.0))
        self._out.append(ports.WorkersGone(round=group.round))
        self._leave_by = now + self._leave_timeout_s

    def _signal(self, group: WorkerGroup, number: int, to: str) -> None:
        self._out.append(w.SignalGroup(round=group.round, signal=number, to=to))

    def _continue(self, group: WorkerGroup) -> None:
        group.is_held = False
        self._signal(group, signal.SIGCONT, "all")

    def _finish_round(self, group: WorkerGroup) -> None:
        """Say that the node is ready for another round."""
        self._out.append(ports.WorkersGone(round=group.round))
        self._out.append(w.ExtendLease(until=None))
        if self.phase is Phase.STOPPING:
            self._become(Phase.JOINING)

    def _exit_when_possible(self) -> None:
        if self._ending is None or self._has_exited:
            return
        if self._living is None or self._living.is_given_up:
            self._exit(self._ending)

    def _exit(self, ending: m.Exit) -> None:
        left = self._living
        if left is not None and ending.result == "drained":
            ending = self._exit_by("lost", _stuck(left))
        self._become(Phase.DONE if ending.result in ("succeeded", "drained") else Phase.FAILED)
        self._has_exited = True
        self._out.append(replace(ending, stuck=() if left is None else left.pids_left))

    def _exit_by(self, result: str, reason: str) -> m.Exit:
        """Return how the agent exits by a result of `JobOver`."""
        # Who leaves ends as by the signal that it has obeyed.
        drained = 128 + (self._drain_signal or signal.SIGTERM)
        return m.Exit(code=EXIT_CODES.get(result, drained), result=result, reason=reason)

    def _running(self, round_: int) -> WorkerGroup | None:
        return self._living if self.running_round == round_ else None


def _stuck(group: WorkerGroup) -> str:
    return f"processes of round {group.round} have outlived SIGKILL"
