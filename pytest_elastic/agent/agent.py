"""Performs what the agent's machine decides: one event loop, and no blocking call in it.

The agent owns three channels: to its keeper (workers, stores), to its rendezvous (other nodes),
and to event sinks. Everything that arrives becomes an input
of the machine; everything the machine returns is performed at once, in order.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace
from typing_extensions import assert_never

from pytest_elastic.agent import messages as m
from pytest_elastic.agent.machine import PASSED_ON, AgentMachine
from pytest_elastic.agent.program import PlannedRound, ProgramPlan
from pytest_elastic.agent.store_calls import StoreCalls
from pytest_elastic.events.model import AgentExited, Event
from pytest_elastic.exit_codes import signal_name
from pytest_elastic.file_work import FileWork
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.port_range import PortRange
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.model import Assignment
from pytest_elastic.workers import messages as w
from pytest_elastic.workers.error_file import read_error_file
from pytest_elastic.workers.keeper_client import Keeper
from pytest_elastic.workers.logs.folders import full_disk_of
from pytest_elastic.workers.process_tree import describe_process
from pytest_elastic.workers.spec import WorkerSpec

__all__ = ["Agent"]

# What folders may take to make, those of a round: then its workers run without.
_PREPARE_S = 10.0
# What a failed worker's error file may take to read, while all other nodes wait.
_DESCRIBE_S = 3.0
# Signals that end no worker. They are kept for workers that are still to be started.
_NOT_ENDING = frozenset({signal.SIGSTOP, signal.SIGCONT, *PASSED_ON})


class Agent:
    """One node's agent: what `machine` decides, it does."""

    def __init__(
        self,
        loop: Loop,
        *,
        machine: AgentMachine,
        own_address: Callable[[], str],
        worker_start: str,
        port_range: PortRange | None,
        plan: ProgramPlan,
        on_event: Callable[[Event], None],
        on_over: Callable[[ports.JobOver], None],
    ) -> None:
        self._loop = loop
        self._own_address = own_address
        self._worker_start = worker_start
        self._plan = plan
        self._on_event = on_event
        self._on_over = on_over
        self._machine = machine
        self._rendezvous: ports.Rendezvous | None = None
        self._keeper: Keeper | None = None
        self.stores = StoreCalls(loop, self._order, ports=port_range)
        self._worker_stores: dict[int, int] = {}  # round -> port
        self._files = FileWork(loop)
        self._preparing = 0  # the round whose workers are to be started
        self._orders_after: list[w.Order] = []  # for its workers
        self._round_plan: PlannedRound | None = None
        self._inputs: deque[m.AgentInput] = deque()
        self._timer: Timer | None = None
        self._is_open = False
        self._exit_code: int | None = None

    def run(self, rendezvous: ports.Rendezvous, keeper: Keeper) -> None:
        """Take part in the job until it is over for this node."""
        self._rendezvous, self._keeper = rendezvous, keeper
        limit_s = self._plan.open_limit_s
        self._files.call(
            self._plan.open,
            lambda _: self._on_open(),
            limit_s=limit_s,
            otherwise=lambda: self._plan.without_opening(limit_s),
        )
        try:
            self._loop.run()
        finally:
            self._files.close()

    def _on_open(self) -> None:
        if self._exit_code is not None:
            return
        if self._plan.own_folder is not None:
            self._order(w.InheritFolder(path=self._plan.own_folder))
        assert self._keeper is not None, "its files are made when the agent runs"
        # A node that joined before its stores could answer would be waited for by all others.
        self.stores.wake(on_done=self._on_stores_ready, work_done=self._keeper.work_done)

    def _on_stores_ready(self, error: str) -> None:
        if self._exit_code is not None:
            return
        if error:
            self.on_notice(
                ports.JobOver(result="lost", reason=f"this node cannot use torch's store: {error}")
            )
            return
        assert self._rendezvous is not None, "stores are woken when the agent runs"
        self._is_open = True
        self._rendezvous.open()

    def on_notice(self, notice: ports.Notice) -> None:
        """Take what the rendezvous says."""
        if isinstance(notice, ports.JobOver):
            self._on_over(notice)
        self._tell(notice)

    def on_report(self, report: w.Report) -> None:
        """Take what the keeper says."""
        match report:
            case w.KeeperReady():
                pass
            case w.WorkersRunning():
                assert self._round_plan is not None, "a round that runs was prepared"
                self._plan.round_started(self._round_plan)
                self._tell(report)
            case w.VariableChanged() | w.LeaseRanOut():
                self._tell(report)
            case w.WorkerEnded():
                self._on_worker_ended(report)
            case w.GroupGone():
                ended = partial(self._plan.round_ended, partial(self._tell, report))
                self._files.after(ended)
            case w.StoreAnswered():
                self.stores.on_answer(report)
            case w.StoreServiceLost():
                self._worker_stores.clear()  # the round's workers notice by themselves
                self.stores.on_service_lost()
            case _:
                assert_never(report)

    def on_signal(self, number: int) -> None:
        """Note a signal to this process (see `agent.signals`)."""
        self._tell(m.SignalArrived(signal=number, name=signal_name(number)))
        if self._exit_code is not None and number not in PASSED_ON:
            # The job is over here; other nodes may still ask how it ended, but not that long.
            self._loop.stop()

    def on_keeper_lost(self, reason: str, *, has_begun: bool) -> None:
        """Note that the keeper died, and that what was left below it has been killed."""
        self._tell(m.KeeperGone(reason=reason, has_begun=has_begun))

    def _tell(self, given: m.AgentInput) -> None:
        """Hand the machine an input, once all commands of the one before have been performed."""
        self._inputs.append(given)
        if len(self._inputs) > 1:
            return
        while self._inputs:
            for command in self._machine.step(self._inputs[0], self._loop.now()):
                self._perform(command)
            self._inputs.popleft()
        if self._timer is not None:
            self._timer.cancel()
        wake_at = self._machine.wake_at()
        if wake_at is not None:
            self._timer = self._loop.call_at(wake_at, lambda: self._tell(m.TimePassed()))

    def _perform(self, command: m.AgentCommand) -> None:
        if isinstance(command, ports.Request):
            self._request(command)
            return
        match command:
            case m.Start(assignment=assignment):
                self._prepare(assignment)
            case w.SignalGroup() | w.KillGroup():
                if command.round != self._preparing:
                    self._order(command)
                elif isinstance(command, w.SignalGroup) and command.signal in _NOT_ENDING:
                    self._orders_after.append(command)
                else:
                    self._forget_preparation()
            case w.ExtendLease():
                self._order(command)
            case m.OpenWorkerStore(round=round_):
                self.stores.open(
                    self._own_address(),
                    on_done=lambda port, error: self._on_store(round_, port, error),
                )
            case m.Close(before_round=before_round):
                for round_ in [r for r in self._worker_stores if r < before_round]:
                    self.stores.close(self._worker_stores.pop(round_))
            case Event():
                self._on_event(command)
            case m.Exit():
                self._exit(command)
            case _:
                assert_never(command)

    def _prepare(self, assignment: Assignment) -> None:
        """Make folders and the like, and then have the workers started."""
        self._preparing = assignment.round
        self._orders_after = []
        self._files.call(
            lambda: self._plan.prepare(assignment),
            lambda plan: self._start(assignment.round, plan),
            limit_s=_PREPARE_S,
            otherwise=lambda: self._plan.without_files(assignment),
        )

    def _start(self, round_: int, plan: PlannedRound) -> None:
        if self._preparing != round_:
            return  # it was over before it began here
        self._preparing = 0
        self._round_plan = plan
        self._order(w.StartGroup(round=round_, workers=plan.specs, start=self._worker_start))
        for order in self._orders_after:
            self._order(order)

    def _forget_preparation(self) -> None:
        """End a round none of whose workers was started yet."""
        round_, self._preparing = self._preparing, 0
        self._tell(w.GroupGone(round=round_))

    def _request(self, request: ports.Request) -> None:
        assert self._rendezvous is not None, "requests follow notices"
        if self._is_open:
            self._rendezvous.request(request)
        elif isinstance(request, ports.DrainRequested):
            self.on_notice(ports.JobOver(result="drained", reason="left before it had joined"))

    def _order(self, order: w.Order) -> None:
        assert self._keeper is not None, "orders follow notices"
        self._keeper.send(order)

    def _on_store(self, round_: int, port: int, error: str) -> None:
        if error:
            self._tell(ports.StoreFailed(round=round_, reason=error))
        else:
            self._worker_stores[round_] = port
            self._tell(ports.StoreOpened(round=round_, address=self._own_address(), port=port))

    def _exit(self, command: m.Exit) -> None:
        self._exit_code = command.code
        left = "; ".join(filter(None, map(describe_process, command.stuck)))
        reason = f"{command.reason} ({left})" if left else command.reason
        self._on_event(AgentExited(exit_code=command.code, reason=reason, stuck=command.stuck))
        assert self._rendezvous is not None, "an agent exits after it has begun"
        self._rendezvous.close(self._loop.stop)

    def _on_worker_ended(self, report: w.WorkerEnded) -> None:
        if report.exit_code == 0:
            self._files.after(lambda: self._tell(_as_exit(report, report.start_error)))
            return
        assert self._round_plan is not None, "workers end of a round that was prepared"
        spec = self._round_plan.specs[report.local_rank]
        self._files.call(
            lambda: _describe_exit(report, spec),
            self._tell,
            limit_s=_DESCRIBE_S,
            otherwise=lambda: _as_exit(
                report,
                f"{report.start_error or 'what it said of its end is not known'}: the file system "
                f"of its error file and its output gave no answer within {_DESCRIBE_S:g} s",
            ),
        )


def _describe_exit(report: w.WorkerEnded, spec: WorkerSpec) -> m.WorkerExit:
    """Add to a worker's failure what can be found out about it; reads files."""
    found = _as_exit(report, report.start_error)
    if spec.error_file and (error := read_error_file(spec.error_file)):
        found = replace(
            found,
            message=error.message,
            traceback=error.traceback,
            error_file=spec.error_file,
            timestamp=error.timestamp or found.timestamp,
        )
    if report.exit_code < 0 and report.was_out_of_memory and not found.message:
        found = replace(found, message="killed by the kernel: out of memory")
    outputs = (spec.stdout, spec.stderr, spec.error_file)
    full = next(filter(None, (full_disk_of(path) for path in outputs if path)), None)
    if full is not None:
        # What it said about its end may have had no room.
        said = f"{found.message}; " if found.message else ""
        found = replace(found, message=f"{said}the disk for its output is full: {full}")
    return found


def _as_exit(report: w.WorkerEnded, message: str) -> m.WorkerExit:
    return m.WorkerExit(
        round=report.round,
        local_rank=report.local_rank,
        pid=report.pid,
        exit_code=report.exit_code,
        message=message,
        timestamp=int(time.time()),
    )
