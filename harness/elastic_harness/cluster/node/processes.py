"""The processes on nodes, held by pidfds: what was started, what runs, and signals to them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from elastic_harness.cluster import process_table
from elastic_harness.cluster.cluster import ProcessHandle, ProcessInfo
from pytest_elastic.boot.descriptors import open_pidfd

__all__ = ["NodeProcesses", "list_processes", "send_signal"]


class NodeProcesses:
    """The processes that were started through a cluster and have not ended."""

    def __init__(self, on_exited: Callable[[ProcessHandle], None]) -> None:
        self._on_exited = on_exited
        self._running: dict[tuple[str, int], ProcessHandle] = {}
        self._last_id = 0

    def adopt(self, node: str, node_pid: int, pidfd: int) -> ProcessHandle:
        """Take note of a process that was started."""
        self._last_id += 1
        handle = self._running[node, node_pid] = ProcessHandle(
            node=node,
            id=self._last_id,
            pid=process_table.pid_of_pidfd(pidfd),
            node_pid=node_pid,
            pidfd=pidfd,
        )
        return handle

    def on_exited(self, node: str, node_pid: int, exit_code: int) -> None:
        """Take note of an end, and report it."""
        handle = self._running.pop((node, node_pid), None)
        if handle is not None:
            handle.exit_code = exit_code
            os.close(handle.pidfd)
            handle.pidfd = -1
            self._on_exited(handle)

    def on_node_gone(self, node: str) -> None:
        """Take note of the end of a node: whatever it ran was killed with it."""
        for name, node_pid in list(self._running):
            if name == node:
                self.on_exited(name, node_pid, -signal.SIGKILL)


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
            node_pid=row.pids[-1],
            node_ppid=node_pids.get(row.ppid, row.ppid if pid_namespace is None else 0),
            command=process_table.command_of(row.pid),
            started_at=row.started_at,
            state=row.state,
        )
        for row in rows
        if row.pid != init
    ]
    return tuple(sorted(found, key=lambda info: info.node_pid))


def send_signal(process: ProcessHandle | ProcessInfo, signum: int) -> bool:
    """Send a signal to exactly this process, never to a later one of its number."""
    if isinstance(process, ProcessHandle):
        return _signal_pidfd(process.pidfd, signum)
    try:
        pidfd = open_pidfd(process.pid)
    except ProcessLookupError:
        return False
    try:
        row = process_table.row_of(process.pid)
        is_same = row is not None and row.started_at == process.started_at
        return is_same and _signal_pidfd(pidfd, signum)
    finally:
        os.close(pidfd)


def _signal_pidfd(pidfd: int, signum: int) -> bool:
    if pidfd < 0:
        return False
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signum)
        return True
    return False
