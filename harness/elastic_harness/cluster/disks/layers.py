"""The covered paths of nodes, as the cluster's server sees them: one process for each.

A path is covered once, when it is first needed, and stays covered until its node ends: a file that
is open would keep what it was opened on, and taking the cover away is a fault of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from elastic_harness.cluster.disks.role import DiskRole
from elastic_harness.cluster.server.node_table import (
    STEP_LIMIT_S,
    ForkOrder,
    Node,
    NodeTable,
    relay,
)
from elastic_harness.conversation import Answer, Conversation, Reply
from pytest_elastic.channel import JsonObject
from pytest_elastic.loop import Loop

__all__ = ["DiskLayers"]


@dataclass(slots=True, eq=False)
class _Layer:
    """One covered path; `waiting` are called when it is ready, or with what is wrong."""

    node: str
    incarnation: int
    path: str
    conversation: Conversation | None = None
    pid: int = 0
    is_ready: bool = False
    waiting: list[Callable[[str | None], None]] = field(default_factory=list)


class DiskLayers:
    """Cover paths of nodes, set policies there, and end what serves them."""

    def __init__(self, loop: Loop, nodes: NodeTable, *, fork: Callable[[ForkOrder], None]) -> None:
        self._loop = loop
        self._nodes = nodes
        self._fork = fork
        self._layers: list[_Layer] = []
        self._on_empty: Callable[[], None] | None = None

    @property
    def conversations(self) -> list[Conversation]:
        """The connections that a forked child has nothing to do with."""
        return [each.conversation for each in self._layers if each.conversation is not None]

    def obey(self, op: str, fields: JsonObject, reply: Reply) -> None:
        """Do what a client asks of one path: set or unset a policy, or count; covers if need be."""
        node = self._nodes.find(fields["name"])
        layer = self._find(node, fields["path"])

        def on_ready(problem: str | None) -> None:
            if problem is not None or layer.conversation is None:
                reply.failed(f"cannot cover {layer.path} on '{layer.node}': {problem}")
            else:
                relay(layer.conversation, op, fields["fields"], reply)

        if layer.is_ready:
            on_ready(None)
        else:
            layer.waiting.append(on_ready)
            if len(layer.waiting) == 1:
                self._cover(node, layer)

    def end(self, node: str, incarnation: int) -> None:
        """End what serves a node that is dying: whoever waits for an answer then wakes."""
        for layer in self._layers:
            if (layer.node, layer.incarnation) == (node, incarnation) and layer.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(layer.pid, signal.SIGKILL)

    def when_empty(self, callback: Callable[[], None]) -> None:
        """End all, and call back when nothing is left."""
        for layer in list(self._layers):
            self.end(layer.node, layer.incarnation)
        self._on_empty = callback
        self._look_if_empty()

    def on_child(self, pid: int) -> None:
        """Take note of a child that was reaped."""
        for layer in [each for each in self._layers if each.pid == pid]:
            self._layers.remove(layer)
            if layer.conversation is not None:
                layer.conversation.close()
        self._look_if_empty()

    def _look_if_empty(self) -> None:
        if self._on_empty is not None and not any(each.pid for each in self._layers):
            callback, self._on_empty = self._on_empty, None
            self._layers.clear()
            callback()

    def _find(self, node: Node, path: str) -> _Layer:
        for layer in self._layers:
            if (layer.node, layer.incarnation, layer.path) == (node.name, node.incarnation, path):
                return layer
        layer = _Layer(node.name, node.incarnation, path)
        self._layers.append(layer)
        return layer

    def _cover(self, node: Node, layer: _Layer) -> None:
        assert node.conversation is not None, "a node that runs can be talked to"

        def on_mounted(answer: Answer) -> None:
            if answer.error is not None:
                self._give_up(layer, answer.error)
            else:
                self._serve(layer, answer.fds)

        order = {"path": layer.path}
        node.conversation.call("cover", order, on_mounted, timeout_s=STEP_LIMIT_S)

    def _serve(self, layer: _Layer, fds: Sequence[int]) -> None:
        own, theirs = socket.socketpair()
        conversation = Conversation(self._loop, own, on_closed=lambda _: None)
        layer.conversation = conversation

        def on_attached(answer: Answer) -> None:
            if answer.error is not None:
                self._give_up(layer, answer.error)
                return
            layer.is_ready = True
            waiting, layer.waiting = layer.waiting, []
            for callback in waiting:
                callback(None)

        def on_forked(pid: int) -> None:
            layer.pid = pid

        self._fork(ForkOrder(DiskRole(theirs), own, theirs, on_forked))
        conversation.call("attach", {}, on_attached, timeout_s=STEP_LIMIT_S, fds=fds)
        for fd in fds:
            os.close(fd)

    def _give_up(self, layer: _Layer, problem: str) -> None:
        if layer in self._layers and not layer.pid:
            self._layers.remove(layer)
        waiting, layer.waiting = layer.waiting, []
        for callback in waiting:
            callback(problem)
