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
from collections.abc import Callable
from dataclasses import dataclass

from elastic_harness.cluster import cgroups, process_table
from elastic_harness.cluster import namespace as ns
from elastic_harness.cluster.node_init import (
    NodeSetup,
    close_all_but,
    keep_for_ever,
    watch_children,
)
from elastic_harness.cluster.node_world import NodePlan, disk_path
from elastic_harness.cluster.scratch import Scratch
from elastic_harness.conversation import Answer, Conversation, Reply
from elastic_harness.network.switch import SwitchRole
from pytest_elastic.boot.role import Program, Role
from pytest_elastic.channel import JsonObject
from pytest_elastic.loop import Loop

__all__ = ["ClusterServer", "ServerPlan"]

# What a node may take to be built, to answer or to die. Measured: 15, 1 and 20 ms on an idle
# machine; what is left is for one that is overloaded many times over.
_STEP_LIMIT_S = 10.0
# How often a freezer is asked whether it is done: there is nothing to wait on in version 1.
_FREEZER_POLL_S = 0.001

OnDone = Callable[[str | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """What a server is told at its start. `addresses` is "10.77.0" or, without networks, "127.x.y".

    `supervisor_fd` is a pidfd: the server ends when that process does.
    """

    tag: str
    is_isolated: bool
    addresses: str
    supervisor_fd: int


class _Node:
    """What the server knows of a node that it is building, running or ending."""

    def __init__(self, name: str, index: int, incarnation: int, group: cgroups.NodeGroup) -> None:
        self.name = name
        self.index = index
        self.incarnation = incarnation
        self.group = group
        self.joined: set[str] = set()
        self.conversation: Conversation | None = None
        self.setup_pid = 0
        self.pidfd = -1
        self.pid = 0
        self.pid_namespace = 0
        self.on_built: OnDone | None = None
        self.on_gone: list[Callable[[], None]] = []
        self.is_dying = False


class ClusterServer:
    """Make, break and end nodes as told."""

    def __init__(self, control: socket.socket, plan: ServerPlan) -> None:
        self._control_socket = control
        self._plan = plan
        self._nodes: dict[str, _Node] = {}
        self._incarnations: dict[str, int] = {}
        self._to_fork: deque[tuple[Role, socket.socket, socket.socket, Callable[[int], None]]] = (
            deque()
        )
        self._switch: Conversation | None = None
        self._switch_pid = 0
        self._hierarchies = cgroups.find_hierarchies()

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
        if plan.is_isolated:
            self._start_switch()
        self._control = Conversation(
            self._loop,
            self._control_socket,
            on_request=self._obey,
            on_closed=lambda _: self._end(),
        )
        while True:
            while self._to_fork:
                role = self._fork(*self._to_fork.popleft())
                if role is not None:
                    return role
            self._loop.run_once(None)

    def _fork(
        self,
        role: Role,
        own: socket.socket,
        theirs: socket.socket,
        on_forked: Callable[[int], None],
    ) -> Role | None:
        pid = os.fork()
        if pid:
            theirs.close()
            on_forked(pid)
            return None
        for conversation in self._conversations():
            conversation.abandon()
        for _, *ends, _ in self._to_fork:
            for end in ends:
                end.close()
        own.close()
        self._loop.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        close_all_but(theirs.fileno())
        keep_for_ever(self)
        return role

    def _conversations(self) -> list[Conversation]:
        known = [self._control, self._switch, *(node.conversation for node in self._nodes.values())]
        return [conversation for conversation in known if conversation is not None]

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
            for node in list(self._nodes.values()):
                if node.pid == pid:
                    self._on_gone(node)
                elif node.setup_pid == pid and status and node.on_built is not None:
                    self._on_build_failed(node, f"its first process ended with status {status}")

    def _end(self) -> None:
        """End everything. With a pid namespace the kernel does it as this process ends."""
        os._exit(0)  # without one, the supervisor does it

    # --- orders -------------------------------------------------------------------------------

    def _obey(self, op: str, fields: JsonObject, fds: list[int], reply: Reply) -> None:
        try:
            self._obey_or_raise(op, fields, reply)
        except OSError as error:
            reply.failed(f"cannot {op.replace('_', ' ')}: {error}")

    def _obey_or_raise(self, op: str, fields: JsonObject, reply: Reply) -> None:
        match op:
            case "hello":
                self._greet(reply)
            case "start_node":
                self._start_node(fields, reply)
            case "end_node":
                self._end_node(fields["name"], fields["how"], reply)
            case "node":
                self._pass_on(fields, reply)
            case "pause_node":
                self._pause(self._nodes[fields["name"]], reply)
            case "resume_node":
                self._resume(self._nodes[fields["name"]], reply)
            case "limit_node":
                self._limit(self._nodes[fields["name"]], fields, reply)
            case "limit_disk":
                self._scratch.limit_disk(fields["name"], fields["bytes"])
                reply.done()
            case "network":
                self._ask_switch(fields["order"], fields["fields"], reply)
            case "reset":
                self._reset(fields["seed"], reply)
            case "close":
                reply.done()
                self._loop.call_soon(self._end)
            case _:
                reply.failed(f"the cluster server does not know how to '{op}'")

    def _greet(self, reply: Reply) -> None:
        own = [os.getpid(), *([self._switch_pid] if self._switch_pid else [])]
        fds = [os.pidfd_open(pid) for pid in own]
        reply.done({"tag": self._plan.tag}, fds)
        for fd in fds:
            os.close(fd)

    # --- starting -----------------------------------------------------------------------------

    def _start_switch(self) -> None:
        own, theirs = socket.socketpair()
        self._switch = Conversation(self._loop, own, on_closed=lambda _: None)

        def on_forked(pid: int) -> None:
            self._switch_pid = pid

        self._to_fork.append((SwitchRole(theirs), own, theirs, on_forked))

    def _start_node(self, fields: JsonObject, reply: Reply) -> None:
        name, index = fields["name"], fields["index"]
        if name in self._nodes:
            reply.failed(f"cannot start node '{name}': it is running")
            return
        incarnation = self._incarnations.get(name, 0) + 1
        address = f"{self._plan.addresses}.{index}"
        self._scratch.add_name(name, address)
        self._scratch.make_disk(name, size=fields["disk_bytes"], keep=fields["keep_disk"])
        self._incarnations[name] = incarnation
        group = cgroups.NodeGroup(self._plan.tag, f"{name}-{incarnation}", self._hierarchies)
        node = self._nodes[name] = _Node(name, index, incarnation, group)
        plan = NodePlan(
            name=name,
            index=index,
            address=address,
            is_isolated=self._plan.is_isolated,
            hosts=self._scratch.hosts,
            disk=self._scratch.disk(name),
            shared=fields["shared"],
            sysctls=fields["sysctls"],
        )

        def on_built(error: str | None) -> None:
            node.on_built = None
            if error is not None:
                reply.failed(f"cannot start node '{name}': {error}")
                return
            disk = disk_path(plan.shared) if plan.is_isolated else plan.disk
            facts = {"incarnation": incarnation, "pid_namespace": node.pid_namespace, "disk": disk}
            reply.done({**facts, "address": address}, [node.pidfd])

        node.on_built = on_built
        own, theirs = socket.socketpair()
        node.conversation = Conversation(
            self._loop,
            own,
            on_event=lambda event, told, fds: self._on_node_event(node, event, told, fds),
            on_closed=lambda reason: self._on_node_silent(node, reason),
        )

        def on_forked(pid: int) -> None:
            node.setup_pid = pid

        self._to_fork.append((NodeSetup(theirs, plan), own, theirs, on_forked))

    def _on_node_event(self, node: _Node, event: str, told: JsonObject, fds: list[int]) -> None:
        match event:
            case "built":
                self._on_built(node, told["pid_namespace"], fds)
            case "build_failed":
                self._on_build_failed(node, told["error"])
            case "exited":
                self._control.tell("exited", {**told, "node": node.name})

    def _on_built(self, node: _Node, pid_namespace: int, fds: list[int]) -> None:
        node.pidfd = fds.pop()
        node.pid = process_table.pid_of_pidfd(node.pidfd)
        node.pid_namespace = pid_namespace
        if node.is_dying:
            self._kill(node)
        if not fds or self._switch is None:
            if node.on_built is not None:
                node.on_built(None)
            return
        (device,) = fds

        def on_attached(answer: Answer) -> None:
            if node.on_built is not None:
                node.on_built(answer.error)

        self._switch.call(
            "attach",
            {"name": node.name, "octet": node.index},
            on_attached,
            timeout_s=_STEP_LIMIT_S,
            fds=[device],
        )
        os.close(device)

    def _on_build_failed(self, node: _Node, error: str) -> None:
        if self._nodes.get(node.name) is node:
            del self._nodes[node.name]
        if node.conversation is not None:
            node.conversation.close()
        if node.on_built is not None:
            node.on_built(error)

    def _on_node_silent(self, node: _Node, reason: str) -> None:
        if node.on_built is not None and node.pidfd < 0:
            self._on_build_failed(node, reason)

    # --- ending -------------------------------------------------------------------------------

    def _end_node(self, name: str, how: str, reply: Reply) -> None:
        """End a node: `stop` takes it off the network too, `cut` silences it before it dies."""
        node = self._nodes[name]

        def on_gone() -> None:
            if how == "crash" or self._switch is None:
                reply.done()
            else:
                self._ask_switch("detach", {"name": name}, reply)

        def kill(answer: Answer | None = None) -> None:
            if answer is not None and answer.error is not None:
                reply.failed(f"cannot silence node '{name}': {answer.error}")
                return
            node.on_gone.append(on_gone)
            self._kill(node)

        if how == "cut" and self._switch is not None:
            self._switch.call("darken", {"name": name}, kill, timeout_s=_STEP_LIMIT_S)
        else:
            kill()

    def _kill(self, node: _Node) -> None:
        node.is_dying = True
        if node.pidfd < 0:
            return
        if self._plan.is_isolated:
            signal.pidfd_send_signal(node.pidfd, signal.SIGKILL)
        else:
            _kill_tree(node.pid)
        if "freeze" in self._hierarchies and node.group.folders:
            node.group.freeze(frozen=False)

    def _kill_orphans(self) -> None:
        """End what a node without a pid namespace has left: it is ours now, as the subreaper's."""
        while True:
            inits = {pid for node in self._nodes.values() for pid in (node.pid, node.setup_pid)}
            orphans = [
                row
                for row in process_table.descendants(os.getpid())
                if row.ppid == os.getpid() and row.pid not in inits
            ]
            if not orphans:
                return
            for row in orphans:
                _kill_tree(row.pid)
            for row in orphans:
                os.waitpid(row.pid, 0)

    def _on_gone(self, node: _Node) -> None:
        """Forget a node whose pid 1 has been reaped: by then the kernel has ended all of it."""
        if self._nodes.get(node.name) is node:
            del self._nodes[node.name]
        if not self._plan.is_isolated:
            self._kill_orphans()
        os.close(node.pidfd)
        if node.conversation is not None:
            node.conversation.close()
        node.group.remove()
        if node.on_built is not None:
            node.on_built("it ended while it was being built")
        gone = {"node": node.name, "incarnation": node.incarnation, "asked": node.is_dying}
        self._control.tell("node_gone", gone)
        for callback in node.on_gone:
            callback()

    def _reset(self, seed: str, reply: Reply) -> None:
        waiting = list(self._nodes.values())

        def on_gone() -> None:
            if self._nodes:
                return
            if self._switch is not None:
                self._switch.call("reset", {"seed": seed}, on_reset, timeout_s=_STEP_LIMIT_S)
            else:
                on_reset(Answer())

        def on_reset(answer: Answer) -> None:
            self._scratch.clear()
            self._incarnations.clear()
            left = [row.pid for row in process_table.descendants(os.getpid())]
            left = [pid for pid in left if pid != self._switch_pid]
            ports = answer.fields.get("ports", [])
            if answer.error is not None or left or ports:
                reply.failed(
                    f"cannot reset the cluster: {answer.error or ''} processes {left},"
                    f" devices {ports} are left"
                )
            else:
                reply.done()

        for node in waiting:
            node.on_gone.append(on_gone)
            self._kill(node)
        if not waiting:
            on_gone()

    # --- what nodes and the switch do themselves ----------------------------------------------

    def _pass_on(self, fields: JsonObject, reply: Reply) -> None:
        conversation = self._nodes[fields["name"]].conversation
        assert conversation is not None, "a node that runs can be talked to"
        conversation.call(
            fields["order"],
            fields["fields"],
            lambda answer: _relay(answer, reply),
            timeout_s=_STEP_LIMIT_S,
        )

    def _ask_switch(self, op: str, fields: JsonObject, reply: Reply) -> None:
        if self._switch is None:
            reply.failed("this cluster has no network of its own")
            return
        self._switch.call(op, fields, lambda answer: _relay(answer, reply), timeout_s=_STEP_LIMIT_S)

    def _members(self, node: _Node) -> list[int]:
        """List the processes of a node, its init excluded, as this process numbers them."""
        if self._plan.is_isolated:
            rows = process_table.processes_in(node.pid_namespace)
        else:
            rows = process_table.descendants(node.pid)
        return [row.pid for row in rows if row.pid != node.pid and row.state != "Z"]

    def _join(self, node: _Node) -> None:
        """Bring all processes of a node into its groups, and have later ones start there."""
        new_folders = [folder for folder in node.group.folders if folder not in node.joined]
        if new_folders and node.conversation is not None:
            flags = os.O_WRONLY | os.O_CLOEXEC
            fds = [os.open(f"{folder}/cgroup.procs", flags) for folder in new_folders]
            # Orders to a node keep their sequence, so nothing is started outside after this.
            node.conversation.call(
                "join_cgroups", {}, lambda _: None, timeout_s=_STEP_LIMIT_S, fds=fds
            )
            for fd in fds:
                os.close(fd)
            node.joined.update(new_folders)
        moved: set[int] = set()
        while new := [pid for pid in self._members(node) if pid not in moved]:
            for pid in new:
                node.group.move(pid)
                moved.add(pid)

    def _resume(self, node: _Node, reply: Reply) -> None:
        if "freeze" not in self._hierarchies:
            self._signal_all(node, signal.SIGCONT, reply)
            return
        node.group.freeze(frozen=False)
        reply.done()

    def _signal_all(self, node: _Node, signum: int, reply: Reply) -> None:
        order = {"name": node.name, "order": "signal_all", "fields": {"signum": signum}}
        self._pass_on(order, reply)

    def _pause(self, node: _Node, reply: Reply) -> None:
        if "freeze" not in self._hierarchies:
            self._signal_all(node, signal.SIGSTOP, reply)
            return
        node.group.make("freeze")
        self._join(node)
        node.group.freeze(frozen=True)
        deadline = self._loop.now() + _STEP_LIMIT_S

        def look() -> None:
            if node.group.is_frozen():
                reply.done()
            elif self._loop.now() > deadline or node.is_dying:
                reply.failed(f"cannot pause node '{node.name}': its processes do not stand still")
            else:
                self._join(node)
                self._loop.call_at(self._loop.now() + _FREEZER_POLL_S, look)

        look()

    def _limit(self, node: _Node, fields: JsonObject, reply: Reply) -> None:
        if "cpu" in fields:
            node.group.limit_cpu(fields["cpu"])
        if "memory" in fields:
            node.group.limit_memory(fields["memory"])
        self._join(node)
        reply.done()


def _kill_tree(root: int) -> None:
    """Kill a process and its descendants; what they fork meanwhile becomes our child."""
    for pid in [root, *(row.pid for row in process_table.descendants(root))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _relay(answer: Answer, reply: Reply) -> None:
    if answer.error is not None:
        reply.failed(answer.error)
    else:
        told = {key: value for key, value in answer.fields.items() if key != "re"}
        reply.done(told, answer.fds)
    answer.close_fds()
