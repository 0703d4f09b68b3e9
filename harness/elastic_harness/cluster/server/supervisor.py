"""The outermost process of a cluster: it makes the server's pid namespace and outlives it briefly.

It is a child of pytest in a session of its own, holds nothing and decides nothing. When pytest or
the server ends, for whatever reason, it sees to it that nothing of the cluster is left: it kills
the server (with a pid namespace, the kernel then kills all the rest), removes what a kernel does
not remove, and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any

from elastic_harness.cluster import process_table
from elastic_harness.cluster.limits import cgroups
from elastic_harness.cluster.node import namespace as ns
from elastic_harness.cluster.server import stale_resources
from elastic_harness.cluster.server.server import ClusterServer, ServerPlan
from pytest_elastic.boot.role import Program, Role

__all__ = ["Supervisor", "leave_nothing"]

# Against processes that fork as fast as they can, everything was gone after 0.1 s.
_CLEANING_LIMIT_S = 10.0


class Supervisor:
    """Start the server, wait for an end, leave nothing: the first role of its interpreter."""

    def __init__(self, argument: Mapping[str, Any]) -> None:
        self._control = socket.socket(fileno=argument["control_fd"])
        self._owner_fd = int(argument["owner_fd"])
        self._is_isolated = bool(argument["is_isolated"])
        self._uses_user_namespace = bool(argument["uses_user_namespace"])
        self._addresses = str(argument["addresses"])

    def run(self) -> Role | Program:
        """Fork the server; returns in it only."""
        tag = cgroups.session_tag(os.getpid())
        stale_resources.remove_stale()
        own_fd = os.pidfd_open(os.getpid())
        ns.become_subreaper()
        if self._is_isolated:
            if self._uses_user_namespace:
                ns.enter_user_namespace()
            ns.unshare(ns.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            os.close(self._owner_fd)
            return ClusterServer(
                self._control,
                ServerPlan(
                    tag=tag,
                    is_isolated=self._is_isolated,
                    addresses=self._addresses,
                    supervisor_fd=own_fd,
                ),
            )
        self._control.close()
        os.close(own_fd)
        _let_go_of_code()
        self._wait_for_an_end(pid)
        leave_nothing(pid, tag)
        os._exit(0)

    def _wait_for_an_end(self, server: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # we go when pytest goes, and not before
        server_fd = os.pidfd_open(server)
        poll = select.poll()
        poll.register(self._owner_fd, select.POLLIN)
        poll.register(server_fd, select.POLLIN)
        poll.poll()
        os.close(server_fd)


def leave_nothing(server: int, tag: str) -> None:
    """Kill a server and what it has started, and remove what carries its session's tag."""
    deadline = time.monotonic() + _CLEANING_LIMIT_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(server, signal.SIGKILL)
    while time.monotonic() < deadline:
        # A process makes files until it is dead: what is found only counts after that.
        has_children = _reap()
        # A frozen process cannot die on version 1: removing the groups thaws them first.
        left = stale_resources.remove_session(tag)
        if not has_children and not left:
            return
        for row in process_table.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(row.pid, signal.SIGKILL)
        time.sleep(0.002)


def _reap() -> bool:
    """Collect children that have ended, and clocks they shared; tell whether any are left."""
    while True:
        try:
            pid, _ = stale_resources.reap()
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def _let_go_of_code() -> None:
    """Unmap code that this process has looked at and has done with; it comes back when asked for.

    Importing torch looks at 60 MB of its libraries. Forked processes map what they use themselves.
    """
    libc = ctypes.CDLL(None)
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    low = high = 0
    for words in map(str.split, lines):
        if "-" in words[0] and len(words) > 1:
            # A file's, and only to be executed.
            is_code = words[1] == "r-xp" and len(words) > 5 and words[5].startswith("/")
            low, high = (int(end, 16) for end in words[0].split("-")) if is_code else (0, 0)
        elif words[:2] == ["Anonymous:", "0"] and high:
            # Nothing in it is ours alone: what is read again is what was read before.
            libc.madvise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), mmap.MADV_DONTNEED)
