"""The overlaid paths of nodes, as the cluster's server sees them: one process for each.

An overlay is mounted once, when it is first needed, and stays until its node ends: a file that
is open would keep what it was opened on, and unmounting the overlay is a fault of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.cluster.disks.role import DiskRole
from elastic_harness.cluster.server.node_table import (
    STEP_LIMIT_S,
    ForkOrder,
    Node,
    NodeTable,
)
from elastic_harness.conversation import Answer, Conversation
from elastic_harness.future import Future, Steps, gather, run, settled
from pytest_elastic.channel import JsonObject
from pytest_elastic.loop import Loop

__all__ = ["DiskLayers"]


@dataclass(slots=True, eq=False)
class _Layer:
    """One overlaid path; `ready` is settled once it is served, `gone` when that process is."""

    node: Node
    path: str
    gone: Future[None]
    ready: Future[Conversation]
    conversation: Conversation | None = None
    pid: int = 0


class DiskLayers:
    """Cover paths of nodes, set policies there, and end what serves them."""

    def __init__(self, loop: Loop, nodes: NodeTable, *, fork: Callable[[ForkOrder], None]) -> None:
        self._loop = loop
        self._nodes = nodes
        self._fork = fork
        self._layers: list[_Layer] = []

    @property
    def conversations(self) -> list[Conversation]:
        """The connections that a forked child has nothing to do with."""
        return [each.conversation for each in self._layers if each.conversation is not None]

    def obey(self, op: str, fields: JsonObject) -> Steps[Answer]:
        """Set or unset a policy of one path, or count there; mounts the overlay if need be."""
        node, path = self._nodes.find(fields["name"]), fields["path"]
        layer = self._find(node, path)
        try:
            conversation = yield from layer.ready
        except ClusterError as error:
            raise ClusterError(
                f"cannot mount an overlay on {path} of '{node.name}': {error.message}"
            ) from error
        return (yield from conversation.call(op, fields["fields"], timeout_s=STEP_LIMIT_S))

    def end(self, node: Node) -> None:
        """End what serves a node that is dying: processes that wait for an answer wake then."""
        for layer in self._layers:
            if layer.node is node and layer.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(layer.pid, signal.SIGKILL)

    def end_all(self) -> Future[list[None]]:
        """End all; done when nothing is left."""
        for layer in self._layers:
            self.end(layer.node)
        gone = gather(layer.gone if layer.pid else settled(None) for layer in self._layers)
        self._layers = [layer for layer in self._layers if layer.pid]
        return gone

    def on_child(self, pid: int) -> None:
        """Note a child that was reaped."""
        for layer in [each for each in self._layers if each.pid == pid]:
            self._layers.remove(layer)
            if layer.conversation is not None:
                layer.conversation.close()
            layer.gone.settle(None)

    def _find(self, node: Node, path: str) -> _Layer:
        for layer in self._layers:
            if layer.node is node and layer.path == path:
                return layer
        layer = _Layer(node, path, gone=Future(), ready=Future())
        self._layers.append(layer)
        run(self._loop, self._mount_overlay(layer)).add_done_callback(
            lambda done: layer.ready.settle(done.error or done.result())
        )
        return layer

    def _mount_overlay(self, layer: _Layer) -> Steps[Conversation]:
        """Have a node mount a file system, and serve it in a process of its own."""
        try:
            mounted = yield from layer.node.call("overlay", {"path": layer.path})
            own, theirs = socket.socketpair()
            conversation = Conversation(self._loop, own, on_closed=lambda _: None)
            layer.conversation = conversation

            def on_forked(pid: int) -> None:
                layer.pid = pid

            self._fork(ForkOrder(DiskRole(theirs), own, theirs, on_forked))
            attached = conversation.call("attach", {}, timeout_s=STEP_LIMIT_S, fds=mounted.fds)
            mounted.close_fds()
            yield from attached
        except ClusterError:
            if layer in self._layers and not layer.pid:
                self._layers.remove(layer)
            raise
        return conversation
