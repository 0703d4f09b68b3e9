"""The nodes of a cluster server: how each is built, how it ends, and what is asked of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_harness.cluster import process_table
from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.cluster.limits import cgroups
from elastic_harness.cluster.node.init import NodeSetup
from elastic_harness.cluster.node.world import NodePlan, disk_path
from elastic_harness.cluster.server.scratch import Scratch
from elastic_harness.cluster.server.stale_resources import remove_clock_of
from elastic_harness.conversation import Answer, Conversation
from elastic_harness.future import Future, Steps, gather
from pytest_elastic.boot.role import Role
from pytest_elastic.channel import JsonObject
from pytest_elastic.loop import Loop

__all__ = ["STEP_LIMIT_S", "ForkOrder", "Node", "NodeTable"]

# What a node may take to be built, to answer or to die. Measured: 15, 1 and 5 ms on an idle
# machine; what is left is for one that is overloaded many times over.
STEP_LIMIT_S = 10.0
# Asking a node that is about to be killed must not keep it alive for long.
_LAST_WORD_LIMIT_S = 0.2


class Node:
    """What the server knows of a node that it is building, running or ending."""

    def __init__(self, name: str, incarnation: int, group: cgroups.NodeGroup) -> None:
        self.name = name
        self.incarnation = incarnation
        self.group = group
        self.joined: set[str] = set()  # the folders of groups that new processes start in
        self.connection: Conversation | None = None
        self.setup_pid = 0
        self.pidfd = -1
        self.pid = 0
        self.pid_namespace = 0
        self.built: Future[None] = Future()
        self.gone: Future[None] = Future()
        self.is_dying = False

    @property
    def conversation(self) -> Conversation:
        """The connection to its init."""
        assert self.connection is not None, "a node that runs can be talked to"
        return self.connection

    def call(
        self, op: str, fields: Mapping[str, Any], *, fds: Sequence[int] = ()
    ) -> Future[Answer]:
        """Ask its init for something."""
        return self.conversation.call(op, fields, timeout_s=STEP_LIMIT_S, fds=fds)


@dataclass(frozen=True, slots=True)
class ForkOrder:
    """A child to be forked when no callback is on the stack: it keeps `theirs`, we keep `own`."""

    role: Role
    own: socket.socket
    theirs: socket.socket
    on_forked: Callable[[int], None]


class NodeTable:
    """Build nodes, end them, and notice when they end by themselves."""

    def __init__(
        self,
        loop: Loop,
        scratch: Scratch,
        *,
        tag: str,
        addresses: str,
        is_isolated: bool,
        fork: Callable[[ForkOrder], None],
        tell: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._loop = loop
        self._scratch = scratch
        self._tag = tag
        self._addresses = addresses
        self._is_isolated = is_isolated
        self._fork = fork
        self._tell = tell
        self.switch: Conversation | None = None
        self.on_killed: Callable[[Node], None] = lambda _: None
        self.hierarchies = cgroups.find_hierarchies()
        self._nodes: dict[str, Node] = {}
        self._incarnations: dict[str, int] = {}
        self.drops_of_ended = 0

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    def find(self, name: str) -> Node:
        """Return a running node; raises ProcessLookupError when it has just ended."""
        node = self._nodes.get(name)
        if node is None:
            raise ProcessLookupError(f"node '{name}' has ended")
        return node

    # --- building -----------------------------------------------------------------------------

    def start(self, fields: JsonObject) -> Steps[Answer]:
        """Build a node; the answer has its facts and a pidfd of its init."""
        name = fields["name"]
        if name in self._nodes:
            raise ClusterError(f"cannot start node '{name}': it is running")
        incarnation = self._incarnations[name] = self._incarnations.get(name, 0) + 1
        plan = self._plan(fields)
        group = cgroups.NodeGroup(self._tag, f"{name}-{incarnation}", self.hierarchies)
        node = self._nodes[name] = Node(name, incarnation, group)
        own, theirs = socket.socketpair()
        node.connection = Conversation(
            self._loop,
            own,
            on_event=lambda event, told, fds: self._on_event(node, plan, event, told, fds),
            on_closed=lambda reason: self._on_silent(node, reason),
        )

        def on_forked(pid: int) -> None:
            node.setup_pid = pid

        self._fork(ForkOrder(NodeSetup(theirs, plan), own, theirs, on_forked))
        try:
            yield from node.built
        except ClusterError as error:
            raise ClusterError(f"cannot start node '{name}': {error.message}") from error
        facts = {
            "incarnation": incarnation,
            "pid_namespace": node.pid_namespace,
            "address": plan.address,
            "disk": disk_path(plan.shared) if self._is_isolated else plan.disk,
        }
        return Answer(fields=facts, fds=[os.dup(node.pidfd)])

    def add_remote(self, fields: JsonObject) -> Steps[Answer]:
        """Have nodes here find one that runs on another machine, by its name and its address."""
        assert self.switch is not None, "only nodes with a network find those of other machines"
        name, index = fields["name"], fields["index"]
        self._scratch.add_name(name, f"{self._addresses}.{index}")
        port = {"name": name, "octet": index, "machine": fields["machine"]}
        yield from self.switch.call("attach_remote", port, timeout_s=STEP_LIMIT_S)
        return Answer()

    def _plan(self, fields: JsonObject) -> NodePlan:
        name, index = fields["name"], fields["index"]
        address = f"{self._addresses}.{index}"
        self._scratch.add_name(name, address)
        self._scratch.make_disk(name, keep=fields["keep_disk"])
        self._scratch.make_temporary(name)
        return NodePlan(
            name=name,
            index=index,
            address=address,
            is_isolated=self._is_isolated,
            hosts=self._scratch.hosts,
            names=self._scratch.names_folder(name),
            disk=self._scratch.disk(name),
            shared=fields["shared"],
            read_only=fields["read_only"],
            sysctls=fields["sysctls"],
            mtu=fields["mtu"],
        )

    def _on_event(
        self, node: Node, plan: NodePlan, event: str, told: JsonObject, fds: list[int]
    ) -> None:
        match event:
            case "built":
                node.pid_namespace = told["pid_namespace"]
                self._on_built(node, plan, fds)
            case "build_failed":
                self._on_build_failed(node, told["error"])
            case "exited":
                self._tell("exited", {**told, "node": node.name})

    def _on_built(self, node: Node, plan: NodePlan, fds: list[int]) -> None:
        node.pidfd = fds.pop()
        node.pid = process_table.pid_of_pidfd(node.pidfd)
        if node.is_dying:
            self.kill(node)
        if not fds or self.switch is None:
            node.built.settle(None)
            return
        port = {"name": node.name, "octet": plan.index}
        attached = self.switch.call("attach", port, timeout_s=STEP_LIMIT_S, fds=fds)
        attached.add_done_callback(lambda done: node.built.settle(done.error))
        for fd in fds:
            os.close(fd)

    def _on_build_failed(self, node: Node, error: str) -> None:
        if self._nodes.get(node.name) is node:
            del self._nodes[node.name]
        node.conversation.close()
        node.built.settle(ClusterError(error))
        node.gone.settle(None)

    def _on_silent(self, node: Node, reason: str) -> None:
        if not node.built.is_done and node.pidfd < 0:
            self._on_build_failed(node, reason)

    # --- ending -------------------------------------------------------------------------------

    def end(self, name: str, how: str) -> Steps[Answer]:
        """End a node: `stop` takes it off the network too, `cut` silences it before it dies."""
        node = self.find(name)
        with contextlib.suppress(ClusterError):
            last_word = yield from node.conversation.call(
                "count_drops", {}, timeout_s=_LAST_WORD_LIMIT_S
            )
            self.drops_of_ended += last_word.fields["dropped"]
        if how == "cut" and self.switch is not None:
            try:
                yield from self.switch.call("darken", {"name": name}, timeout_s=STEP_LIMIT_S)
            except ClusterError as error:
                raise ClusterError(f"cannot silence node '{name}': {error.message}") from error
        self.kill(node)
        yield from node.gone
        if how != "crash" and self.switch is not None:
            yield from self.switch.call("detach", {"name": name}, timeout_s=STEP_LIMIT_S)
        return Answer()

    def end_all(self) -> Future[list[None]]:
        """End every node; done when none is left."""
        nodes = list(self._nodes.values())
        for node in nodes:
            self.kill(node)
        return gather(node.gone for node in nodes)

    def set_names(self, fields: JsonObject) -> Future[Answer]:
        """Have a node take names for something else; an empty change shows it the truth again.

        `changes` are (address, seconds, owner) by name: None is no address, "" the true one.
        """
        node = self.find(fields["name"])
        served: dict[str, tuple[str | None, float, str]] = {}
        for name, (given, slow_s, owner) in fields["changes"].items():
            address = self._scratch.address_of(name) if given == "" else given
            served[name] = (address, slow_s, owner)
        self._scratch.change_names(node.name, dict.fromkeys(served))
        return node.call("show_names", {"served": served})

    def forget_names(self) -> None:
        """Begin anew: the next start of any name is its first."""
        self._incarnations.clear()
        self._scratch.clear()
        self.drops_of_ended = 0

    def kill(self, node: Node) -> None:
        """Kill all processes of a node; one that is being built dies when it can be named."""
        node.is_dying = True
        if node.pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._is_isolated:
                signal.pidfd_send_signal(node.pidfd, signal.SIGKILL)
            else:
                _kill_tree(node.pid)
        self.on_killed(node)
        if node.group.folders and "freeze" in self.hierarchies:
            node.group.freeze(frozen=False)  # on version 1 what is frozen cannot die

    def on_child(self, pid: int, status: int) -> None:
        """Note a child that was reaped."""
        for node in self:
            if node.pid == pid:
                self._on_gone(node)
            elif node.setup_pid == pid and status and not node.built.is_done:
                self._on_build_failed(node, f"its first process ended with status {status}")

    def _on_gone(self, node: Node) -> None:
        """Forget a node whose init was reaped: by then the kernel has ended all of it."""
        if self._nodes.get(node.name) is node:
            del self._nodes[node.name]
        if not self._is_isolated:
            self._kill_orphans()
        os.close(node.pidfd)
        node.conversation.close()
        node.group.remove()
        node.built.settle(ClusterError("it ended while it was being built"))
        gone = {"node": node.name, "incarnation": node.incarnation, "asked": node.is_dying}
        self._tell("node_gone", gone)
        node.gone.settle(None)

    def _kill_orphans(self) -> None:
        """End what a node without a pid namespace has left: it is ours now, as the subreaper's."""
        while True:
            inits = {pid for node in self for pid in (node.pid, node.setup_pid)}
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
                os.waitid(os.P_PID, row.pid, os.WEXITED | os.WNOWAIT)
                remove_clock_of(row.pid)
                os.waitpid(row.pid, 0)


def _kill_tree(root: int) -> None:
    """Kill a process and its descendants; what they fork meanwhile becomes our child."""
    for pid in [root, *(row.pid for row in process_table.descendants(root))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
