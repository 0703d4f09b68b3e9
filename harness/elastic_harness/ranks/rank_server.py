"""The rank server: forked from pytest when its tests are collected, it forks ranks for each test.

A process that forks safely has one thread and has run no operation of torch. pytest itself, which
runs other tests, is no such process; the server is. It has imported what pytest has, and torch, and
only forks ranks, waits for them and reports.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from elastic_harness.cluster.node.namespace import become_subreaper, die_with_parent
from elastic_harness.cluster.process_table import descendants
from elastic_harness.ranks.rank_faults import RankFaults, Target
from elastic_harness.ranks.rank_process import STACKS_SIGNAL, StoreHost, run_rank
from elastic_harness.ranks.task import RankEnd, RankTask, Work
from pytest_elastic.errors import InternalError, Unavailable
from pytest_elastic.exit_codes import describe_exit

__all__ = ["RankServer"]

# Optimizers import the second when the first of them is made, which takes a second.
_PRELOAD = ("torch", "torch.distributed", "torch._dynamo")
# After one rank has failed: the others hear of it by their connections, and end or wait in vain.
_AFTER_FAILURE_S = 5.0
# How long a rank may take to show its stacks; one that is stopped shows none.
_STACKS_S = 2.0
_LOOK_AGAIN_S = 0.01
_STOP, _READY = "stop", "ready"
# Of importing torch, on a busy machine with a slow disk.
_START_S = 300.0


class RankServer:
    """From the side of pytest: construct it when `work` is known, then `run` tasks."""

    def __init__(self, work: Work, *, prepare: Callable[[], None]) -> None:
        """Fork the server, which calls `prepare` once: what that imports, no rank has to."""
        self._conn, other = Pipe()
        self._is_ready = False
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # what pytest has printed is not for each rank to print again
        self._pid = os.fork()
        if self._pid == 0:
            self._conn.close()
            _serve(other, work, prepare)
        other.close()

    def wait_until_ready(self) -> float:
        """Wait until the server has imported torch; return for how many seconds, 0 the next time.

        Raises InternalError if it cannot.
        """
        if self._is_ready:
            return 0.0
        began = time.monotonic()
        if not self._conn.poll(_START_S):
            raise InternalError(f"the rank server has not started within {_START_S:g} s")
        try:
            said = self._conn.recv()
        except (EOFError, OSError) as error:
            raise InternalError(f"the rank server has ended: {self._end()}") from error
        if said != _READY:
            raise InternalError(f"the rank server cannot go on: {said}")
        self._is_ready = True
        return time.monotonic() - began

    def run(self, task: RankTask) -> Sequence[RankEnd]:
        """Run the work on all ranks of a task and return how each ended, by rank.

        What interrupts the wait (Ctrl-C, a time-out) ends the ranks. Raises InternalError if the
        server has died, and Unavailable where ranks cannot reach each other.
        """
        self.wait_until_ready()
        try:
            self._conn.send(task)
            ends = self._conn.recv()
        except (EOFError, OSError) as error:
            raise InternalError(f"the rank server has ended: {self._end()}") from error
        except BaseException:
            self._conn.send(_STOP)
            while self._conn.recv() != _STOP:
                pass  # the task may have ended meanwhile
            raise
        if isinstance(ends, Unavailable):
            raise ends
        if isinstance(ends, str):
            raise InternalError(f"the rank server cannot go on: {ends}")
        return list(ends)

    def close(self) -> None:
        """End the server, and every process below it."""
        self._conn.close()
        self._end()

    def _end(self) -> str:
        if not self._pid:
            return "earlier"
        # It ends by itself when its connection does; what hangs is not waited for.
        poll = select.poll()
        pidfd = os.pidfd_open(self._pid)
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(_AFTER_FAILURE_S * 1000):
            os.kill(self._pid, signal.SIGKILL)
        os.close(pidfd)
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return f"exit code {os.waitstatus_to_exitcode(status)}"


@dataclass(slots=True)
class _Rank:
    number: int
    pid: int
    pidfd: int
    conn: Connection
    stacks_fd: int
    result: Any = None
    is_ready: bool = False
    is_paused: bool = False
    is_failure: bool = False
    overdue: str = ""
    ended_s: float = 0.0
    end: RankEnd | None = None


def _serve(conn: Connection, work: Work, prepare: Callable[[], None]) -> NoReturn:
    """Be the server, in a process that was forked from pytest and never returns to it."""
    code = 1
    try:
        die_with_parent(signal.SIGKILL)
        become_subreaper()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # pytest hears it, and says stop
        _preload()
        prepare()
        store = StoreHost()
        gc.collect()
        gc.freeze()  # a rank's collector does not write into every object that it shares
        # From here on the end of the connection says that pytest is gone: who is killed by the
        # kernel could not end what ranks have started.
        die_with_parent(0)
        conn.send(_READY)
        _obey(conn, work, store)
        code = 0
    except BaseException as error:  # noqa: BLE001 (pytest hears of it)
        with contextlib.suppress(OSError):
            conn.send(f"{type(error).__name__}: {error}")
    finally:
        _kill_below(os.getpid())
        os._exit(code)


def _preload() -> None:
    for name in _PRELOAD:
        importlib.import_module(name)
    # What each rank would do in its own copy, page by page, when it makes its process group.
    importlib.import_module("torch._dynamo.trace_rules").clear_lru_cache()


def _obey(conn: Connection, work: Work, store: StoreHost) -> None:
    while True:
        try:
            task = conn.recv()
        except EOFError:
            return
        if task != _STOP:
            try:
                port = store.renew(task.limit_s)
            except Unavailable as problem:
                conn.send(problem)
                continue
            run = _Run(task, work, port, conn)
            ends = run.until_all_have_ended()
            _end_orphans(spare=store.pid)
            conn.send(ends)
            if not run.is_stopped:
                continue
        conn.send(_STOP)


class _Run:
    """One task, from the first fork to the last end."""

    def __init__(self, task: RankTask, work: Work, store_port: int, parent: Connection) -> None:
        self._task = task
        self._parent = parent
        self._began = time.monotonic()
        self._left_s = task.limit_s
        self.is_stopped = False
        self._has_begun = False
        self._why = task.limit_of or f"the limit of {task.limit_s:g} s is over"
        self._faults = RankFaults(task.size, self._present)
        self._ranks = [self._fork(number, work, store_port) for number in range(task.size)]

    def _present(self) -> Mapping[int, Target]:
        return {
            rank.number: Target(rank.pid, rank.pidfd, rank.conn)
            for rank in self._ranks
            if rank.end is None
        }

    def _fork(self, number: int, work: Work, store_port: int) -> _Rank:
        conn, other = Pipe()
        stacks_fd = os.memfd_create("stacks")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                die_with_parent(signal.SIGKILL)
                conn.close()
                run_rank(
                    number,
                    self._task,
                    work,
                    store_port=store_port,
                    conn=other,
                    stacks_fd=stacks_fd,
                )
                code = 0
            except BaseException as error:  # noqa: BLE001 (told, not shown)
                with contextlib.suppress(OSError):
                    other.send(("broken", f"{type(error).__name__}: {error}"))
            finally:
                os._exit(code)
        other.close()
        return _Rank(number, pid, os.pidfd_open(pid), conn, stacks_fd)

    def until_all_have_ended(self) -> list[RankEnd]:
        """Wait for all ranks; those that exceed the limit show their stacks and are killed."""
        looked = time.monotonic()
        while running := [rank for rank in self._ranks if rank.end is None]:
            watched: list[Any] = [self._parent]
            for rank in running:
                watched.append(rank.pidfd)
                if not rank.conn.closed:
                    watched.append(rank.conn)
            is_paused = any(rank.is_paused for rank in running)
            waits_s = [None if is_paused else max(self._left_s, 0), self._faults.next_s]
            ready = wait(watched, min((each for each in waits_s if each is not None), default=None))
            now = time.monotonic()
            self._left_s -= 0 if is_paused else now - looked
            looked = now
            if self._parent in ready:
                self._stop(running)
            for rank in running:
                self._hear(rank, is_over=rank.pidfd in ready)
            self._let_begin()
            self._faults.look()
            if self._left_s <= 0:
                self._end_overdue()
        return [rank.end for rank in self._ranks if rank.end is not None]

    def _let_begin(self) -> None:
        """Let the work begin once every rank has its process group, or has ended without."""
        if self._has_begun or not all(rank.is_ready or rank.end for rank in self._ranks):
            return
        self._has_begun = True
        for rank in self._ranks:
            if rank.end is None:
                with contextlib.suppress(OSError):  # it has died meanwhile
                    rank.conn.send("begin")

    def _stop(self, running: Sequence[_Rank]) -> None:
        """Pytest says stop, or is gone."""
        for rank in running:
            os.kill(rank.pid, signal.SIGKILL)
        self._parent.recv()  # EOFError ends the server
        self.is_stopped = True

    def _hear(self, rank: _Rank, *, is_over: bool) -> None:
        while not rank.conn.closed and rank.conn.poll():
            try:
                kind, what = rank.conn.recv()
            except (EOFError, OSError):
                rank.conn.close()
                break
            if kind == "paused":
                rank.is_paused = what
            elif kind == "ready":
                rank.is_ready = True
            elif kind == "order":
                self._faults.take(rank.number, what)
            elif kind == "done":
                rank.result, rank.is_failure = what
                rank.ended_s = time.monotonic() - self._began
                self._faults.returned.add(rank.number)
            else:
                rank.overdue, rank.is_failure = what, True
            if rank.is_failure:
                self._hurry(rank)
        if is_over:
            self._note_end(rank)

    def _hurry(self, rank: _Rank) -> None:
        if self._left_s > _AFTER_FAILURE_S:
            self._left_s = _AFTER_FAILURE_S
            self._why = f"rank {rank.number} had failed {_AFTER_FAILURE_S:g} s before"

    def _note_end(self, rank: _Rank) -> None:
        _, status = os.waitpid(rank.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        died = describe_exit(code) if code else "ended before its test had (exit code 0)"
        if rank.overdue or (code == 0 and rank.result is not None):
            died = ""
        rank.end = RankEnd(
            rank=rank.number,
            died=died,
            ended_s=rank.ended_s or time.monotonic() - self._began,
            result=rank.result,
            overdue=rank.overdue,
            stacks=_text_in(rank.stacks_fd),
            asked=self._faults.why_ended(rank.number, code),
        )
        rank.conn.close()
        for fd in (rank.pidfd, rank.stacks_fd):
            os.close(fd)
        if died and not rank.end.asked:
            self._hurry(rank)

    def _end_overdue(self) -> None:
        running = [rank for rank in self._ranks if rank.end is None]
        for rank in running:
            paused = "was paused by this test; " if self._faults.has_paused(rank.number) else ""
            rank.overdue = rank.overdue or paused + self._why
            os.kill(rank.pid, STACKS_SIGNAL)
        self._faults.resume_all()
        deadline = time.monotonic() + _STACKS_S
        for rank in running:
            _wait_for_stacks(rank, deadline)
        for rank in running:
            os.kill(rank.pid, signal.SIGKILL)
        self._left_s = _AFTER_FAILURE_S  # to collect them


def _wait_for_stacks(rank: _Rank, deadline: float) -> None:
    """Wait until a rank has shown its stacks, or has ended, or shows none."""
    seen = -1
    while time.monotonic() < deadline:
        size = os.fstat(rank.stacks_fd).st_size
        if size and size == seen:
            return
        seen = size
        if wait([rank.pidfd], _LOOK_AGAIN_S):
            return


def _text_in(fd: int) -> str:
    return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")


def _end_orphans(spare: int) -> None:
    """Kill and collect what ended ranks have left, which belongs to this process now."""
    while left := _kill_below(os.getpid(), spare=spare):
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _kill_below(pid: int, *, spare: int = 0) -> list[int]:
    """Kill all descendants of a process but one; return their pids."""
    below = [row.pid for row in descendants(pid) if row.pid != spare]
    for each in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    return below
