"""The processes of nodes that are on this machine: what was started, what runs, how it ends.

A process is signalled and watched by a pidfd, never by its number alone. How a process ended, Linux
tells the holder of a pidfd once its parent has taken note (PIDFD_GET_INFO with PIDFD_INFO_EXIT,
Linux 6.15). On older kernels nothing tells it here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from elastic_harness.cluster import process_table
from elastic_harness.cluster.process import ProcessHandle, ProcessInfo, ProcessRef, is_running
from elastic_harness.future import Future, settled
from pytest_elastic.boot.descriptors import open_pidfd
from pytest_elastic.loop import Loop

__all__ = ["LocalProcesses", "list_processes", "listening_inodes", "listens_at"]

# struct pidfd_info, as of its first version: the mask first, the wait status last.
_INFO: Final = struct.Struct("<QQ12i")
_GET_INFO: Final = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
_EXIT: Final = 1 << 3
# A pidfd does not tell when a dead process is reaped, so that is looked at; some never are.
_REAPED_S: Final = 1.0
_LOOK_S: Final = 0.02
_LISTENING: Final = "0A"


@dataclass(slots=True, kw_only=True)
class _Watch:
    """A process that is watched until it ends."""

    pidfd: int
    died_at: float | None = None
    ended: Future[int | None] = field(default_factory=Future)


class LocalProcesses:
    """What runs on nodes; `on_exited` hears of the ends of what was started through the cluster."""

    def __init__(self, loop: Loop, on_exited: Callable[[ProcessHandle], None]) -> None:
        self._loop = loop
        self._on_exited = on_exited
        self._running: dict[tuple[str, int], ProcessHandle] = {}
        self._watched: dict[ProcessRef, _Watch] = {}
        self._last_id = 0

    # What was started

    def adopt(self, node: str, node_pid: int, pidfd: int) -> ProcessHandle:
        """Note a process that was started; its descriptor is closed."""
        self._last_id += 1
        pid = process_table.pid_of_pidfd(pidfd)
        row = process_table.row_of(pid)
        # What was read is of this very process if that was still there afterwards.
        is_there = row is not None and process_table.pid_of_pidfd(pidfd) == pid
        os.close(pidfd)
        handle = self._running[node, node_pid] = ProcessHandle(
            node=node,
            id=self._last_id,
            pid=pid,
            node_pid=node_pid,
            start_time=row.start_ticks if row is not None and is_there else 0,
        )
        return handle

    def on_exited(self, node: str, node_pid: int, exit_code: int) -> None:
        """Note an end, and report it."""
        handle = self._running.pop((node, node_pid), None)
        if handle is not None:
            handle.exit_code = exit_code
            self._on_exited(handle)

    def on_node_gone(self, node: str) -> None:
        """Note the end of a node: whatever it ran was killed with it."""
        for name, node_pid in list(self._running):
            if name == node:
                self.on_exited(name, node_pid, -signal.SIGKILL)
        for process in [each for each in self._watched if each.node == node]:
            self._end_watch(process)

    # What runs

    def signal(self, process: ProcessRef, signum: int) -> bool:
        """Send a signal to exactly this process, never to a later one of its number."""
        try:
            pidfd = open_pidfd(process.pid)
        except (OSError, OverflowError):
            return False
        try:
            if is_running(self.state(process)):
                signal.pidfd_send_signal(pidfd, signum)
                return True
        except ProcessLookupError:
            pass
        finally:
            os.close(pidfd)
        return False

    def state(self, process: ProcessRef) -> str:
        """Return the letter of /proc/PID/stat, "" once that very process has ended."""
        row = process_table.row_of(process.pid)
        is_it = row is not None and process.start_time in (0, row.start_ticks)
        return row.state if row is not None and is_it else ""

    def ended(self, process: ProcessRef) -> Future[int | None]:
        """Watch how a process ends."""
        if process in self._watched:
            return self._watched[process].ended
        try:
            pidfd = open_pidfd(process.pid)
        except (OSError, OverflowError):
            return settled(None)
        # The descriptor is of that very process only if it is there after it was opened.
        if not self.state(process):
            os.close(pidfd)
            return settled(None)
        watch = self._watched[process] = _Watch(pidfd=pidfd)
        self._loop.watch(pidfd, on_readable=lambda: self._on_dead(process))
        return watch.ended

    def close(self) -> None:
        """Watch nothing any more."""
        for process in tuple(self._watched):
            self._end_watch(process)

    def _on_dead(self, process: ProcessRef) -> None:
        watch = self._watched.get(process)
        if watch is None:
            return
        self._loop.unwatch(watch.pidfd)
        if watch.died_at is None:
            watch.died_at = self._loop.now()
        is_told, code = _told_end(watch.pidfd)
        if is_told or code is not None or self._loop.now() >= watch.died_at + _REAPED_S:
            self._end_watch(process)
        else:
            self._loop.call_at(self._loop.now() + _LOOK_S, lambda: self._on_dead(process))

    def _end_watch(self, process: ProcessRef) -> None:
        watch = self._watched.pop(process)
        _, code = _told_end(watch.pidfd)
        self._loop.unwatch(watch.pidfd)
        os.close(watch.pidfd)
        watch.ended.settle(code)


def _told_end(pidfd: int) -> tuple[bool, int | None]:
    """Return whether nothing more will be told, and how a process ended, if that is told."""
    info = bytearray(_INFO.pack(_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except ProcessLookupError:
        return False, None
    except OSError:
        return True, None
    mask, *_, status = _INFO.unpack(info)
    return bool(mask & _EXIT), os.waitstatus_to_exitcode(status) if mask & _EXIT else None


def list_processes(node: str, init: int, pid_namespace: int | None) -> tuple[ProcessInfo, ...]:
    """List a node's processes but its init: those of its pid namespace, else its descendants."""
    if pid_namespace is None:
        rows = process_table.descendants(init)
    else:
        rows = process_table.processes_in(pid_namespace)
    node_pids = {row.pid: row.pids[-1] for row in rows}
    found = [
        ProcessInfo(
            node=node,
            pid=row.pid,
            session=row.session,
            start_time=row.start_ticks,
            node_pid=row.pids[-1],
            node_ppid=node_pids.get(row.ppid, row.ppid if pid_namespace is None else 0),
            command=process_table.command_of(row.pid),
            state=row.state,
        )
        for row in rows
        if row.pid != init
    ]
    return tuple(sorted(found, key=lambda info: info.node_pid))


def listens_at(pid: int, port: int) -> bool:
    """Tell whether a process holds a socket that listens at a port of its network."""
    inodes = {
        inode
        for table in ("tcp", "tcp6")
        for inode in listening_inodes(f"/proc/{pid}/net/{table}", port)
    }
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd") if inodes else ():
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:[") and target[len("socket:[") : -1] in inodes:
                    return True
    return False


def listening_inodes(table: str, port: int) -> set[str]:
    """Return the sockets that listen at a port, by /proc/net/tcp or tcp6."""
    found = set()
    with contextlib.suppress(OSError), open(table) as lines:
        for line in lines:
            fields = line.split()
            is_listening = len(fields) > 9 and fields[3] == _LISTENING
            if is_listening and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found
