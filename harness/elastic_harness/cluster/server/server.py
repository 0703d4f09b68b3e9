"""The cluster server: a warm interpreter that makes nodes by forking.

It is pid 1 of the cluster's pid namespace, in mount and ipc namespaces of its own, with a tmpfs as
scratch; the switch and every node are its descendants. It obeys one connection, pytest's, and ends
with it. Forks happen in `run`, between two turns of the loop, where no callback is on the stack.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from elastic_harness.cluster import process_table
from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.cluster.disks.layers import DiskLayers
from elastic_harness.cluster.limits.node_limits import NodeLimits
from elastic_harness.cluster.node import namespace as ns
from elastic_harness.cluster.node.init import close_all_but, keep_for_ever, watch_children
from elastic_harness.cluster.server import stale_resources
from elastic_harness.cluster.server.node_table import STEP_LIMIT_S, ForkOrder, NodeTable
from elastic_harness.cluster.server.scratch import Scratch
from elastic_harness.conversation import Answer, Conversation, Reply
from elastic_harness.future import Future, Steps, run
from elastic_harness.network.switch import SwitchRole
from pytest_elastic.boot import sharing
from pytest_elastic.boot.role import Program, Role
from pytest_elastic.channel import JsonObject
from pytest_elastic.loop import Loop

__all__ = ["ClusterServer", "ServerPlan"]

# Nine times the share of other processes, which is more than it ever asks for.
_NICE = -10
# The kernel shares processors out between sessions first, where it groups processes by these. The
# switch's session is the server's; launchers have sessions of their own.
_OF_THE_SESSION = "/proc/self/autogroup"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """What a server is told at its start. `addresses` is "10.77.0" or, without networks, "127.x.y".

    `supervisor_fd` is a pidfd: the server ends when that process does.
    """

    tag: str
    is_isolated: bool
    addresses: str
    supervisor_fd: int


class ClusterServer:
    """Make, break and end nodes as told."""

    def __init__(self, control: socket.socket, plan: ServerPlan) -> None:
        self._control_socket = control
        self._plan = plan
        self._to_fork: deque[ForkOrder] = deque()
        self._switch: Conversation | None = None
        self._switch_pid = 0

    # --- the process --------------------------------------------------------------------------

    def run(self) -> Role | Program:
        """Serve; returns in forked children only, with what they are to be."""
        plan = self._plan
        if plan.is_isolated:
            ns.die_with_parent(signal.SIGKILL)
            ns.enter_server_namespaces()
        else:
            ns.become_subreaper()
        self._scratch = Scratch(plan.tag, is_isolated=plan.is_isolated)
        self._loop = Loop()
        self._loop.watch(plan.supervisor_fd, on_readable=self._end)
        watch_children(self._loop, self._reap)
        self._control = Conversation(
            self._loop,
            self._control_socket,
            on_request=self._obey,
            on_closed=lambda _: self._end(),
        )
        self._nodes = NodeTable(
            self._loop,
            self._scratch,
            tag=plan.tag,
            addresses=plan.addresses,
            is_isolated=plan.is_isolated,
            fork=self._to_fork.append,
            tell=self._control.tell,
        )
        self._limits = NodeLimits(self._loop, self._nodes, is_isolated=plan.is_isolated)
        self._disks = DiskLayers(self._loop, self._nodes, fork=self._to_fork.append)
        self._nodes.on_killed = self._disks.end
        if plan.is_isolated:
            self._start_switch()
        # What a server has imported and made since it was warm stays for good, too.
        sharing.freeze()
        while True:
            if self._to_fork:
                role = self._fork(self._to_fork.popleft())
                if role is not None:
                    return role
            # One fork a turn: a node that is built already is not to wait for sixty more forks.
            self._loop.run_once(0.0 if self._to_fork else None)

    def _fork(self, order: ForkOrder) -> Role | None:
        pid = os.fork()
        if pid:
            order.theirs.close()
            order.on_forked(pid)
            return None
        for conversation in self._conversations():
            conversation.abandon()
        for other in self._to_fork:
            other.own.close()
            other.theirs.close()
        order.own.close()
        self._loop.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        close_all_but(order.theirs.fileno())
        keep_for_ever(self)
        return order.role

    def _conversations(self) -> list[Conversation]:
        known = [self._control, self._switch, *(node.connection for node in self._nodes)]
        known += self._disks.conversations
        return [conversation for conversation in known if conversation is not None]

    def _start_switch(self) -> None:
        own, theirs = socket.socketpair()
        self._switch = Conversation(self._loop, own, on_closed=lambda _: None)
        self._nodes.switch = self._switch

        def on_forked(pid: int) -> None:
            self._switch_pid = pid

        self._to_fork.append(ForkOrder(FirstServed(SwitchRole(theirs)), own, theirs, on_forked))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._switch_pid:
                self._control.tell("lost", {"reason": f"the switch ended with status {status}"})
                self._end()
            self._nodes.on_child(pid, status)
            self._disks.on_child(pid)

    def _end(self) -> None:
        """End everything: with a pid namespace the kernel does it, else the supervisor."""
        os._exit(0)

    # --- orders -------------------------------------------------------------------------------

    def _obey(self, op: str, fields: JsonObject, fds: list[int], reply: Reply) -> None:
        reply.when_done(run(self._loop, self._carry_out(op, fields, fds)))
        for fd in fds:
            os.close(fd)

    def _carry_out(self, op: str, fields: JsonObject, fds: list[int]) -> Steps[Answer]:
        try:
            return (yield from self._answer(op, fields, fds))
        except OSError as error:
            raise ClusterError(f"cannot {op.replace('_', ' ')}: {error}") from error

    def _answer(self, op: str, fields: JsonObject, fds: list[int]) -> Steps[Answer]:
        match op:
            case "hello":
                return self._greet()
            case "start_node":
                return (yield from self._nodes.start(fields))
            case "add_remote_node":
                return (yield from self._nodes.add_remote(fields))
            case "end_node":
                return (yield from self._nodes.end(fields["name"], fields["how"]))
            case "node":
                node = self._nodes.find(fields["name"])
                return (yield from node.call(fields["order"], fields["fields"]))
            case "set_names":
                return (yield from self._nodes.set_names(fields))
            case "pause_node":
                return (yield from self._limits.pause(fields["name"]))
            case "resume_node":
                return (yield from self._limits.resume(fields["name"]))
            case "limit_node":
                return self._limits.limit(fields["name"], fields["of"], fields["most"])
            case "read_limits":
                return self._limits.read(fields["name"])
            case "disk":
                return (yield from self._disks.obey(fields["order"], fields))
            case "network":
                return (yield from self._ask_switch(fields["order"], fields["fields"], fds))
            case "drops_of_ended":
                return Answer(fields={"dropped": self._nodes.drops_of_ended})
            case "reset":
                return (yield from self._reset(fields["seed"]))
            case "close":
                self._loop.call_soon(self._end)
                return Answer()
        raise ClusterError(f"the cluster server does not know how to '{op}'")

    def _greet(self) -> Answer:
        own = [os.getpid(), *([self._switch_pid] if self._switch_pid else [])]
        scratch = stale_resources.scratch_folder(self._plan.tag)
        told = {"tag": self._plan.tag, "scratch": scratch}
        return Answer(fields=told, fds=[os.pidfd_open(pid) for pid in own])

    def _ask_switch(self, op: str, fields: JsonObject, fds: Sequence[int] = ()) -> Future[Answer]:
        if self._switch is None:
            raise ClusterError("this cluster has no network of its own")
        return self._switch.call(op, fields, timeout_s=STEP_LIMIT_S, fds=fds)

    def _reset(self, seed: str) -> Steps[Answer]:
        """End all nodes, reset what is left, and prove that nothing else is."""
        yield from self._nodes.end_all()
        yield from self._disks.end_all()
        ports: Sequence[str] = ()
        if self._switch is not None:
            try:
                answer = yield from self._ask_switch("reset", {"seed": seed})
            except ClusterError as error:
                raise ClusterError(f"cannot reset the cluster: {error.message}") from error
            ports = answer.fields["ports"]
        self._nodes.forget_names()
        pids = [row.pid for row in process_table.descendants(os.getpid())]
        left = [pid for pid in pids if pid != self._switch_pid]
        if left or ports:
            raise ClusterError(
                f"cannot reset the cluster: processes {left}, devices {ports} are left"
            )
        return Answer()


class FirstServed:
    """A role whose process is preferred to others, where the kernel lets us: the switch's.

    Where sixty nodes start their workers at once, everything that runs gets a sixtieth of a
    processor. The switch would be held back with the rest, and each packet with it, for longer than
    a lease.
    """

    def __init__(self, role: Role) -> None:
        self._role = role

    def run(self) -> Role | Program:
        """Take precedence, and go on as the role itself."""
        with contextlib.suppress(OSError), open(_OF_THE_SESSION, "w", encoding="ascii") as file:
            file.write(str(_NICE))
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        return self._role
