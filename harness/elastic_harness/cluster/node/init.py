"""Pid 1 of a node: it starts what it is told to, reaps all processes, and reports exits.

A launcher must never be pid 1 itself: an init ignores every signal it has no handler for. When the
connection to the server ends, so does this process, and the kernel ends the node with it; without a
pid namespace it first kills its descendants, which it adopts as their parents end.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from elastic_harness.cluster import process_table
from elastic_harness.cluster.node import namespace as ns
from elastic_harness.cluster.node.names import NodeNames
from elastic_harness.cluster.node.program import ProgramRole
from elastic_harness.cluster.node.world import NodePlan, build
from elastic_harness.cluster.server import stale_resources
from elastic_harness.conversation import Conversation, Reply
from pytest_elastic.boot.role import Program, Role
from pytest_elastic.channel import JsonObject
from pytest_elastic.loop import Loop

__all__ = ["NodeInit", "NodeSetup", "close_all_but", "keep_for_ever", "watch_children"]

_KEPT_ALIVE: list[object] = []


def close_all_but(*kept: int) -> None:
    """Close every descriptor above the standard streams that a fork has brought along."""
    low = 3
    for fd in sorted(kept):
        os.closerange(low, fd)
        low = max(low, fd + 1)
    os.closerange(low, 1 << 20)


def watch_children(loop: Loop, on_child: Callable[[], None]) -> None:
    """Call back, in the loop, whenever a child may have ended."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def drain() -> None:
        os.read(read, 4096)
        on_child()

    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    loop.watch(read, on_readable=drain)


def keep_for_ever(thing: object) -> None:
    """Keep an object of the parent's from being collected: it would close a descriptor of ours."""
    _KEPT_ALIVE.append(thing)


class NodeSetup:
    """The short-lived process that makes a node's namespaces; its child is the node's pid 1."""

    def __init__(self, control: socket.socket, plan: NodePlan) -> None:
        self._control = control
        self._plan = plan

    def run(self) -> Role | Program:
        """Make the namespaces and fork; returns in the child only."""
        init = NodeInit(self._control, self._plan)
        if not self._plan.is_isolated:
            return init
        try:
            ns.unshare(ns.NODE_NAMESPACES)
            pid = os.fork()
        except OSError as error:
            init.fail(error)
            os._exit(1)
        if pid:
            os._exit(0)
        return init


class NodeInit:
    """Serve one node until it is to end."""

    def __init__(self, control: socket.socket, plan: NodePlan) -> None:
        self._control = control
        self._plan = plan
        self._to_start: deque[tuple[JsonObject, Reply]] = deque()
        self._running: set[int] = set()
        self._starting: dict[int, list[int]] = {}
        self._cgroups: list[int] = []
        self._names: NodeNames | None = None

    def fail(self, error: OSError) -> None:
        """Tell the server that this node cannot be built."""
        self._open_control(Loop()).tell("build_failed", {"error": str(error)})

    def run(self) -> Role | Program:
        """Build the node and serve it; returns in a process that is to be something else."""
        self._loop = Loop()
        self._conversation = self._open_control(self._loop)
        fds = []
        try:
            if self._plan.is_isolated:
                made = build(self._plan)
                fds.append(made.device)
                self._names = NodeNames(self._loop, made.names)
            else:
                ns.become_subreaper()
            fds.append(os.pidfd_open(os.getpid()))
        except OSError as error:
            self._conversation.tell("build_failed", {"error": str(error)})
            os._exit(1)
        watch_children(self._loop, self._reap)
        pid_namespace = os.stat("/proc/self/ns/pid").st_ino
        self._conversation.tell("built", {"pid_namespace": pid_namespace}, fds)
        for fd in fds:
            os.close(fd)
        return self._serve()

    def _serve(self) -> Role | Program:
        # Forks happen here, where no callback is on the stack: the child returns from this frame.
        while True:
            self._loop.run_once(None)
            while self._to_start:
                role = self._start(*self._to_start.popleft())
                if role is not None:
                    return role

    def _open_control(self, loop: Loop) -> Conversation:
        return Conversation(
            loop, self._control, on_request=self._obey, on_closed=lambda _: self._end()
        )

    def _obey(self, op: str, fields: JsonObject, fds: list[int], reply: Reply) -> None:
        match op:
            case "spawn":
                self._to_start.append((fields, reply))
            case "open_socket":
                kind = socket.SOCK_DGRAM if fields["datagram"] else socket.SOCK_STREAM
                with socket.socket(socket.AF_INET, kind) as sock:
                    reply.done({}, [sock.fileno()])
            case "show_names":
                self._show_names(fields, reply)
            case "names_asked":
                reply.done({"asked": self._names.asked if self._names else {}})
            case "signal_all":
                self._signal_all(fields["signum"])
                reply.done()
            case "overlay":
                self._mount_overlay(fields["path"], reply)
            case "join_cgroups":
                self._cgroups.extend(fds)
                reply.done()
            case "count_drops":
                reply.done({"dropped": _dropped_by_device()})
            case "end":
                self._end()
            case _:
                reply.failed(f"a node does not know how to '{op}'")

    def _show_names(self, fields: JsonObject, reply: Reply) -> None:
        if self._names is None:
            reply.failed("this node has no names of its own")
            return
        try:
            shown = self._names.show(fields["served"])
        except OSError as error:
            reply.failed(f"cannot change the names of a node: {error}")
        else:
            reply.done({"hosts": shown})

    def _start(self, fields: JsonObject, reply: Reply) -> Role | None:
        """Fork a process; in the child, return what it is to be."""
        told, tell = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            return self._become(fields, tell)
        os.close(tell)
        self._running.add(pid)
        self._starting[pid] = []
        pidfd = os.pidfd_open(pid)

        def on_started() -> None:
            # The pipe was closed by the execution of the program, or says what was in its way.
            text = os.read(told, 4096).decode(errors="replace")
            self._loop.unwatch(told)
            os.close(told)
            if text:
                self._running.discard(pid)
                reply.failed(text)
            else:
                reply.done({"node_pid": pid}, [pidfd])
            os.close(pidfd)
            for status in self._starting.pop(pid):
                self._report(pid, status)

        self._loop.watch(told, on_readable=on_started)
        return None

    def _become(self, fields: Mapping[str, Any], tell: int) -> Role:
        self._conversation.abandon()
        self._loop.close()
        keep_for_ever(self)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        close_all_but(tell, *self._cgroups)
        for cgroup in self._cgroups:
            os.write(cgroup, b"0")
            os.close(cgroup)
        return ProgramRole(fields, tell)

    def _reap(self) -> None:
        # Without namespaces its /dev/shm is the machine's.
        isolated = self._plan.is_isolated
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG) if isolated else stale_resources.reap()
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._starting:
                self._starting[pid].append(status)
            else:
                self._report(pid, status)

    def _report(self, pid: int, status: int) -> None:
        if pid in self._running:
            self._running.discard(pid)
            exit_code = os.waitstatus_to_exitcode(status)
            self._conversation.tell("exited", {"node_pid": pid, "exit_code": exit_code})

    @staticmethod
    def _mount_overlay(path: str, reply: Reply) -> None:
        """Mount a file system over a directory; the receiver of its descriptor has to serve it."""
        try:
            fds = ns.mount_served(path)
        except OSError as error:
            reply.failed(str(error))
            return
        reply.done({}, fds)
        for fd in fds:
            os.close(fd)

    def _signal_all(self, signum: int) -> None:
        """Signal every process of the node but this one, those being forked included."""
        if self._plan.is_isolated:
            # One act of the kernel under one lock: a fork either sees the signal or is seen by it.
            try:
                os.kill(-1, signum)
            except OSError as error:
                if error.errno != errno.ESRCH:
                    raise
            return
        done: set[tuple[int, int]] = set()
        while True:
            rows = process_table.descendants(os.getpid())
            new = [row for row in rows if (row.pid, row.start_ticks) not in done]
            if not new:
                return
            for row in new:
                done.add((row.pid, row.start_ticks))
                try:
                    os.kill(row.pid, signum)
                except ProcessLookupError:
                    continue

    def _end(self) -> None:
        """End the node. In a pid namespace the kernel kills the rest as this process ends."""
        if not self._plan.is_isolated:
            while process_table.descendants(os.getpid()):
                self._signal_all(signal.SIGKILL)
                self._reap()
        os._exit(0)


def _dropped_by_device() -> int:
    """Return how many packets this node's device dropped because the switch did not take them."""
    with open("/proc/net/dev") as table:
        for line in table:
            name, _, numbers = line.partition(":")
            if name.strip() == "eth0":
                return int(numbers.split()[11])
    return 0
