"""The agent's own machine in a played world, with a played keeper below it.

The `PlayedAgent` says what any agent is expected to do; here the real one does it, so that a run
also shrinks the distance between the two. What is played is the keeper: it starts, signals and
kills processes that are nothing but a number each, and holds the deadline of the lease.
"""

from __future__ import annotations

import signal

from elastic_simulation.process import START_S, PlayedAgent, Process
from pytest_elastic.agent import messages as a
from pytest_elastic.agent.machine import AgentMachine
from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.follower.departure import leave_timeout_s
from pytest_elastic.workers import messages as w

__all__ = ["MachineAgent"]


class MachineAgent(PlayedAgent):
    """An agent that is driven by `AgentMachine`."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        config = process.world.config
        self.machine = AgentMachine(
            node=process.name,
            shutdown_timeout_s=config.shutdown_timeout_s,
            failure_grace_s=config.failure_grace_s,
            kill_timeout_s=config.kill_timeout_s,
            leave_timeout_s=leave_timeout_s(config),
        )
        self._alive: list[int] = []  # local ranks
        self._is_told_to_end = False
        self._has_exited = False

    # --- the machine -------------------------------------------------------------------------

    def notice(self, notice: ports.Notice) -> None:
        """Hand a notice to the machine."""
        if self._has_exited:
            return  # the node serves the others, its agent's part is over
        self.note(notice)
        if isinstance(notice, ports.JobOver):
            self.over = notice
        if isinstance(notice, ports.StopWorkers):
            self.stop_orders.append(notice)
        self._give(notice)

    def take(self, given: object) -> None:
        """Step the machine now; the process calls this when it is not frozen."""
        assert isinstance(given, a.AgentInput), f"{given} is not for an agent"
        for command in self.machine.step(given, self.process.now()):
            self._perform(command)
        self._wake()

    def _give(self, given: a.AgentInput) -> None:
        self.process.feed("agent", given)

    def _wake(self) -> None:
        at = self.machine.wake_at()
        if at is not None:
            # A hair later, so that no rounding of clocks makes it early for ever.
            self._later(self.process.until(at) + 1e-6, lambda: self._give(a.TimePassed()))

    def _perform(self, command: a.AgentCommand) -> None:
        if isinstance(command, ports.Request):
            self._ask(command)
            return
        match command:
            case a.Start(assignment=assignment):
                assert not self.is_running, "workers start beside workers"
                self.assignment = assignment
                slots = assignment.roster[assignment.group_rank].slots
                self._alive = list(range(slots))
                self.is_running, self.is_held, self._is_told_to_end = True, False, False
                self.is_hung = self.is_stopping = False
                started = w.WorkersRunning(
                    round=assignment.round,
                    pids=tuple(self._pid(rank) for rank in self._alive),
                    start="warm",
                    start_reason="",
                )
                self._later(START_S, lambda: self._give(started))
            case w.SignalGroup(round=round_, signal=number):
                self._signal(round_, number)
            case w.KillGroup(round=round_):
                self._later(self.kill_s, lambda: self._end_all(round_, -signal.SIGKILL))
            case w.ExtendLease(until=until):
                self._set_lease(until)
            case a.OpenWorkerStore(round=round_):
                self._later(0.005, lambda: self._answer_store(round_))
            case a.Exit():
                self._exit(command)
            case a.Close() | Event():
                pass

    def _answer_store(self, round_: int) -> None:
        if self.store_problem:
            self._give(ports.StoreFailed(round=round_, reason=self.store_problem))
        elif self.opens_stores:
            name, port = self.process.name, 20000 + round_
            self._give(ports.StoreOpened(round=round_, address=name, port=port))

    def _exit(self, command: a.Exit) -> None:
        self._has_exited = True
        if self.over is None:
            # It does not wait for others: the driver serves them only after `JobOver`.
            self.over = ports.JobOver(result=command.result, reason=command.reason)
            self._later(0.0, self._go)
        else:
            self._later(0.0, self._leave)

    def _go(self) -> None:
        self.die("its agent has exited")
        self.process.world.go(self.process)

    # --- the keeper and its workers ----------------------------------------------------------

    def _pid(self, local_rank: int) -> int:
        return 4000 + local_rank

    def _signal(self, round_: int, number: int) -> None:
        if number == signal.SIGSTOP:
            self.is_held = self.is_running
        elif number == signal.SIGCONT:
            self.is_held = False
            if self._is_told_to_end:
                self._end_soon(round_)
        else:
            self._is_told_to_end = True
            self.is_stopping = True
            if not self.is_held and not self.is_hung:
                self._end_soon(round_)

    def _end_soon(self, round_: int) -> None:
        self._later(self.stop_s, lambda: self._end_unless_held(round_))

    def _end_unless_held(self, round_: int) -> None:
        if not self.is_held and not self.is_hung:
            self._end_all(round_, -signal.SIGTERM)

    def _end_all(self, round_: int, exit_code: int) -> None:
        """Let all processes of a round be gone."""
        if self.assignment is None or self.assignment.round != round_ or not self.is_running:
            return
        ended, self._alive = self._alive, []
        self.is_running = self.is_held = self.is_stopping = False
        for local_rank in ended:
            self._exited(round_, local_rank, exit_code)
        self._give(w.GroupGone(round=round_))
        if exit_code != 0:
            self._tell_peers(round_)

    def _exited(self, round_: int, local_rank: int, exit_code: int) -> None:
        self._give(
            a.WorkerExit(
                round=round_,
                local_rank=local_rank,
                pid=self._pid(local_rank),
                exit_code=exit_code,
            )
        )

    def _lose_lease(self) -> None:
        if self.assignment is not None:
            round_ = self.assignment.round
            self._give(w.LeaseRanOut(round=round_))
            self._end_all(round_, -signal.SIGKILL)

    # --- what a test does to it --------------------------------------------------------------

    def _report_failure(self, exit_code: int) -> None:
        """Let one worker end with a status that is not 0."""
        if self.is_running and self._alive and self.assignment is not None and not self.is_stopping:
            local_rank = self._alive.pop(0)
            self._exited(self.assignment.round, local_rank, exit_code)
            self._tell_peers(self.assignment.round)

    def succeed(self) -> None:
        """Let all workers end with status 0."""
        if self.progresses and self.assignment is not None:
            self.succeeded = self.assignment
            self._end_all(self.assignment.round, 0)

    def drain(self, grace_s: float, takes_s: float = 0.1) -> None:
        """Send SIGTERM to the agent; the workers need `takes_s` to end, or as long as to stop."""
        self.stop_s = takes_s
        self._give(a.SignalArrived(signal=signal.SIGTERM, name="SIGTERM"))

    def die(self, how: str | None) -> None:
        """Everything on the node is gone."""
        super().die(how)
        self._alive = []
