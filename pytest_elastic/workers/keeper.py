"""The keeper: parent of all workers of a node, and the one that leaves none behind.

It lives in its own session and outlives the agent: when the agent dies it kills
every descendant (it is a child subreaper, so `setsid` and double forks do not escape), then answers
on the agent's listening socket for a while that the agent and its workers are gone, and exits. It
also holds the node's lease, so that a frozen agent cannot leave workers running.

It is one thread and one loop. Orders that fork are obeyed between two turns of the loop, with no
frame of the loop below them: in the child, `run` returns what the child is to be.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
from collections import deque
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

from typing_extensions import assert_never

from pytest_elastic.boot import host, proc_title
from pytest_elastic.boot.descriptors import close_all_but, open_pidfd
from pytest_elastic.boot.interpreter import ignored_signals
from pytest_elastic.boot.role import Program, Role
from pytest_elastic.channel import Channel, JsonObject
from pytest_elastic.credentials import Credentials
from pytest_elastic.errors import InternalError
from pytest_elastic.events.model import EXEC_ASKED_FOR, NOT_OUR_PYTHON
from pytest_elastic.file_thread import FileThread
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.workers import messages, process_tree
from pytest_elastic.workers.group import Group
from pytest_elastic.workers.keeper_settings import KeeperSettings
from pytest_elastic.workers.messages import (
    CallStore,
    Dismiss,
    ExtendLease,
    GroupGone,
    InheritFolder,
    KeeperReady,
    KeepListener,
    KillGroup,
    LeaseRanOut,
    Order,
    SignalGroup,
    StartGroup,
    VariableChanged,
)
from pytest_elastic.workers.shared_memory import SharedMemoryHelpers, is_helper
from pytest_elastic.workers.spec import WorkerSpec
from pytest_elastic.workers.start import CANNOT_START, Worker, fork_worker
from pytest_elastic.workers.store.link import StoreLink
from pytest_elastic.workers.tombstone import Tombstone
from pytest_elastic.workers.warm import warmth

__all__ = ["KeeperRole"]

# How long the agent's folder may take to be removed: no keeper stays behind where it hangs.
_REMOVE_S = 3.0
# The agent's end is noticed by its pidfd; these come from the terminal and from people, who mean
# the agent. It drains; the keeper must outlive that.
_NOT_FOR_US = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)


class KeeperRole:
    """The keeper as a role; constructed from the fields of `KeeperSettings`."""

    def __init__(self, argument: Mapping[str, Any]) -> None:
        self._settings = KeeperSettings(**argument)
        self._orders: deque[tuple[Order, list[int]]] = deque()
        self._group: Group | None = None
        self._lease_until: float | None = None
        self._lease_timer: Timer | None = None
        self._tombstone: Tombstone | None = None
        self._folder: str | None = None  # of this agent alone
        self._ignored_signals: Sequence[int] = ()
        self._cold_reason = ""  # why nothing can be forked from this interpreter
        self._libraries: Mapping[str, Container[str]] = {}
        self._workers: dict[int, WorkerSpec] = {}  # of the newest group, by their first process
        self._reasons: dict[Sequence[str], str] = {}  # why a command is exec'ed from now on
        self._is_ending = False  # the agent is dead, or has dismissed us
        self._is_done = False  # and nothing is left to do but to exit

    def run(self) -> Role | Program:
        """Serve the agent; returns in forked children only."""
        close_all_but([self._settings.channel_fd])
        self._open()
        try:
            while True:
                self._loop.run()
                while self._orders:
                    order, fds = self._orders.popleft()
                    next_role = self._obey(order, fds)
                    if next_role is not None:
                        return next_role
        except BaseException:
            # Our own bug: the agent will see us go, and kills what we could not.
            process_tree.signal_all(signal.SIGKILL)
            raise

    # --- the start ---

    def _open(self) -> None:
        with contextlib.suppress(PermissionError):
            os.setsid()
        process_tree.become_subreaper()
        self._host = host.current()
        self._ignored_signals = (
            ignored_signals() if self._host is None else self._host.ignored_signals
        )
        for number in _NOT_FOR_US:
            signal.signal(number, signal.SIG_IGN)
        self._loop = Loop()
        self._watch_children()
        self._watch_notes()
        self._store = StoreLink(self._loop, report=self._report)
        self._helpers = SharedMemoryHelpers(self._loop, on_gone=self._exit_if_done)
        self._sweeper = process_tree.Sweeper(
            self._loop, reap=self._reap, on_swept=self._swept, spare=self._spared
        )
        self._channel = Channel(
            self._loop,
            socket.socket(fileno=self._settings.channel_fd),
            on_message=self._received,
            on_closed=lambda _: self._end(),
        )
        self._watch_agent()
        agent = self._settings.agent_pid
        proc_title.show([f"pytest-elastic: keeper of agent {agent}"], os.environ)
        self._cold_reason = _why_no_programs(self._host)
        if self._cold_reason:
            self._host = None
        elif self._host is not None:
            self._libraries = warmth.read_by_libraries(self._host)
        self._report(KeeperReady(pid=os.getpid(), cold_reason=self._cold_reason))

    def _watch_children(self) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake)

        def on_readable() -> None:
            os.read(reading, 4096)
            self._reap()
            self._sweeper.look()

        self._loop.watch(reading, on_readable=on_readable)

    def _watch_notes(self) -> None:
        """Have a pipe that warm workers write to, by its name below /proc: see `late_variables`."""
        self._notes, self._notes_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._loop.watch(self._notes, on_readable=self._read_notes)

    def _read_notes(self) -> None:
        try:
            notes = os.read(self._notes, 1 << 16).splitlines()
        except BlockingIOError:
            return
        for note in map(json.loads, notes):
            spec, variable = self._workers.get(note["pid"]), note["variable"]
            if spec is None or self._group is None:
                continue
            self._reasons[tuple(spec.command)] = (
                f"the program changes {variable} after a warm interpreter has read it"
            )
            self._report(
                VariableChanged(
                    round=self._group.round,
                    local_rank=spec.local_rank,
                    pid=note["pid"],
                    variable=variable,
                    obstacle=note["obstacle"],
                )
            )

    def _watch_agent(self) -> None:
        """Learn of the agent's death even where its end of the channel lives on in a child."""
        agent = self._settings.agent_pid
        try:
            pidfd = open_pidfd(agent)
        except ProcessLookupError:
            self._loop.call_soon(self._end)
            return
        # Compared after opening: it may have died, and its pid been taken, before that.
        if os.getppid() != agent:
            self._loop.call_soon(self._end)
            return

        def on_readable() -> None:
            self._loop.unwatch(pidfd)
            self._end()

        self._loop.watch(pidfd, on_readable=on_readable)

    # --- orders ---

    def _received(self, message: JsonObject, fds: list[int]) -> None:
        self._orders.append((messages.decode(message, Order), fds))
        self._loop.stop()

    def _obey(self, order: Order, fds: list[int]) -> Role | Program | None:
        """Carry out an order; something to be is returned in a forked child only."""
        if self._is_ending:
            return None
        match order:
            case StartGroup():
                return self._start_group(order)
            case CallStore():
                # A thread of a preloaded module may hold a lock, which a fork would keep for ever.
                return self._store.call(order, is_warm=not _why_no_programs(self._host))
            case SignalGroup():
                if self._group is not None and self._group.round == order.round:
                    self._group.send(order.signal, order.to, spare=self._spared)
            case KillGroup():
                if self._group is not None and self._group.round == order.round:
                    self._kill_group(self._group)
                else:
                    self._report(GroupGone(round=order.round))
            case ExtendLease():
                self._extend_lease(order.until)
            case KeepListener():
                key = bytes.fromhex(order.key)
                credentials = Credentials(key) if key else None
                self._tombstone = Tombstone(self._loop, fds.pop(), order.answer, credentials)
            case InheritFolder():
                self._folder = order.path
            case Dismiss():
                if self._tombstone is not None:
                    self._tombstone.close()
                self._tombstone = self._folder = None
                self._end()
            case _:
                assert_never(order)
        return None

    def _start_group(self, order: StartGroup) -> Program | None:
        if self._group is not None:
            raise InternalError(
                f"asked to start round {order.round} while round {self._group.round} has processes"
            )
        if self._is_lease_over():
            self._report(LeaseRanOut(round=order.round))
            self._report(GroupGone(round=order.round))
            return None
        self._read_notes()
        self._workers.clear()
        warm, reason = self._choose_start(order)
        libraries = self._libraries if warm else None
        group = self._group = Group(self._loop, order.round, report=self._report)
        workers: list[Worker] = []
        for spec in order.workers:
            try:
                worker = fork_worker(
                    spec,
                    libraries=libraries,
                    notes_fd=self._notes_end,
                    ignored_signals=self._ignored_signals,
                )
            except OSError as error:
                why = f"fork: {error.strerror}"
                worker = Worker(local_rank=spec.local_rank, exit_code=CANNOT_START, start_error=why)
            if isinstance(worker, Program):
                return worker
            self._workers[worker.pid] = spec
            workers.append(worker)
        group.begin(workers, start="warm" if warm else "exec", reason=reason)
        self._look_for_end()
        return None

    def _choose_start(self, order: StartGroup) -> tuple[bool, str]:
        if order.start == "exec":
            return False, EXEC_ASKED_FOR
        if self._host is None:
            others = [spec.command[0] for spec in order.workers if not spec.is_python]
            return False, f"{others[0]} {NOT_OUR_PYTHON}" if others else self._cold_reason
        # Looked at again: what was preloaded may have begun a thread meanwhile.
        if why := _why_no_programs(self._host):
            return False, why
        seen: dict[str, frozenset[str]] = {}
        for spec in order.workers:
            why = self._reasons.get(tuple(spec.command)) or warmth.why_cold(
                spec, self._host, warmth.look_around(spec, seen)
            )
            if why:
                return False, why
        return True, "nothing tells it from a fresh interpreter"

    # --- the lease ---

    def _extend_lease(self, until: float | None) -> None:
        self._lease_until = until
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        if until is not None:
            begin = until - self._settings.kill_margin_s
            self._lease_timer = self._loop.call_at(begin, self._lease_ran_out)

    def _is_lease_over(self) -> bool:
        until = self._lease_until
        return until is not None and self._loop.now() >= until - self._settings.kill_margin_s

    def _lease_ran_out(self) -> None:
        # The deadline is looked at again: an order to extend it may be waiting behind this timer.
        if self._group is not None and self._is_lease_over():
            self._report(LeaseRanOut(round=self._group.round))
            self._kill_group(self._group)

    # --- ends ---

    def _kill_group(self, group: Group) -> None:
        group.note_leftovers(spare=self._spared)
        self._sweeper.sweep()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            exit_code = os.waitstatus_to_exitcode(status)
            self._helpers.ended(pid)
            if not self._store.ended(pid, exit_code) and self._group is not None:
                self._group.ended(pid, exit_code, killed=self._sweeper.killed)
        self._look_for_end()

    def _look_for_end(self) -> None:
        """Report a group that has gone without being killed."""
        if (
            self._group is not None
            and self._group.has_ended
            and not self._sweeper.is_sweeping
            and not self._sweeper.are_any_left()
        ):
            self._group_gone(())

    def _swept(self) -> None:
        if self._group is not None:
            self._group_gone(self._sweeper.killed)
        if self._is_ending:
            if self._tombstone is None:
                self._may_exit()
            else:
                self._tombstone.show(self._settings.linger_s, on_over=self._may_exit)

    def _may_exit(self) -> None:
        """Exit, once no helper removes shared memory any more."""
        self._is_done = True
        self._helpers.limit()
        self._exit_if_done()

    def _exit_if_done(self) -> None:
        if self._is_done and not self._helpers.are_tidying:
            self._exit()

    def _exit(self) -> None:
        if (folder := self._folder) is not None:
            removal = FileThread()
            removal.do(lambda: shutil.rmtree(folder, ignore_errors=True))
            removal.wait(_REMOVE_S)
        os._exit(0)

    def _group_gone(self, killed: Collection[int]) -> None:
        assert self._group is not None, "only a group that was there can be gone"
        group, self._group = self._group, None
        group.forget()
        self._helpers.limit()
        gone = GroupGone(round=group.round, killed=tuple(killed), strays=tuple(group.strays))
        self._report(gone)

    def _end(self) -> None:
        """Kill everything, for the agent is dead or has asked for it; then exit."""
        if self._is_ending:
            return
        self._is_ending = True
        self._orders.clear()
        self._extend_lease(None)
        self._store.give_up()
        # A sweep that is under way spared the store service: it goes on without sparing it.
        self._sweeper.sweep()

    def _spared(self, pid: int) -> bool:
        return is_helper(pid) or (not self._is_ending and pid in self._store.pids)

    def _report(self, report: messages.Report) -> None:
        self._channel.send(messages.encode(report))


def _why_no_programs(warm_host: host.Host | None) -> str:
    """Say why no program can be forked from this interpreter; "" if one can."""
    if warm_host is None:
        return "the keeper is an ordinary interpreter"
    if warm_host.cannot_become:
        return warm_host.cannot_become
    tasks = len(os.listdir("/proc/self/task"))
    # A lock that another thread holds at the fork stays locked in the child for ever.
    return "" if tasks == 1 else f"the warm interpreter has {tasks} threads"


def _wake(_signal: int, _frame: object) -> None:
    """Exist, so that SIGCHLD is written to the wakeup descriptor."""
