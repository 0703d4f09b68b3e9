"""A cluster as pytest sees it: operations with callbacks, events, and the processes on the nodes.

The server behind it is started once in a session, preloads torch, and is reused by many tests:
nodes come and go in milliseconds, and `reset` proves that nothing is left of them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from elastic_harness.cluster import process_table
from elastic_harness.cluster.client_limits import LimitOrders
from elastic_harness.cluster.cluster import (
    GATEWAY,
    Capabilities,
    ClusterError,
    ClusterEvent,
    ClusterNode,
    Done,
    NodeGone,
    NodeSpec,
    ProcessExited,
    ProcessHandle,
    ProcessInfo,
    ProcessSpec,
    ServerLost,
)
from elastic_harness.cluster.network_client import NetworkClient
from elastic_harness.cluster.node.processes import NodeProcesses, list_processes, send_signal
from elastic_harness.cluster.requests import gateway_request, node_request, process_request
from elastic_harness.cluster.server.leftovers import temporary_folder
from elastic_harness.cluster.server.loopback import LoopbackRange
from elastic_harness.cluster.server.server_process import ServerProcess
from elastic_harness.conversation import Answer
from pytest_elastic.channel import JsonObject
from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop

__all__ = ["ClusterClient", "NamespaceCluster", "ProcessCluster", "wait_for"]

T = TypeVar("T")

# Importing torch takes 1.6 s here, and many times that on a machine that is busy or reads it from
# a cold disk.
_START_LIMIT_S = 120.0
# The server bounds each of its own steps by 10 s, and an operation has at most three.
_OPERATION_LIMIT_S = 30.0
_NETWORK = "10.77.0"


class ClusterClient(LimitOrders, NetworkClient):
    """The operations of `Cluster`, carried out by a cluster server."""

    kind: ClassVar[str] = ""
    _is_isolated: ClassVar[bool] = True

    def __init__(
        self,
        loop: Loop,
        *,
        on_event: Callable[[ClusterEvent], None],
        capabilities: Capabilities,
        uses_user_namespace: bool = False,
        preload: Sequence[str] = ("torch",),
    ) -> None:
        self._loop = loop
        self._on_event = on_event
        self.capabilities = capabilities
        self._uses_user_namespace = uses_user_namespace
        self._preload = tuple(preload)
        self._server: ServerProcess | None = None
        self._own_pids: frozenset[int] = frozenset()
        self._loopback: LoopbackRange | None = None
        self._tag = ""
        self._scratch = ""
        self._nodes: dict[str, ClusterNode] = {}
        self._namespaces: dict[str, int] = {}
        # The order in which starts were asked for, whichever was ready first.
        self._starting: dict[str, int] = {}
        self._ranks: dict[str, int] = {}
        self._started = 0
        self._processes = NodeProcesses(lambda handle: on_event(ProcessExited(process=handle)))
        self._waiting_for_gateway: list[tuple[Callable[[ClusterError], None], Callable[[], None]]]
        self._waiting_for_gateway = []
        self._lost_reason = "the server ended"
        self._on_closed: Done[None] | None = None

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        """The nodes that run now, by name, in the order of their start."""
        ordered = sorted(self._nodes.items(), key=lambda item: self._ranks[item[0]])
        return {name: node for name, node in ordered if name != GATEWAY}

    @property
    def own_pids(self) -> frozenset[int]:
        """The processes that serve a cluster without nodes: supervisor, server and switch."""
        return frozenset() if self._server is None else self._own_pids

    @property
    def own_fds(self) -> frozenset[int]:
        """The descriptors of this process that a started cluster uses."""
        if self._server is None:
            return frozenset()
        held = set() if self._loopback is None else {self._loopback.fileno()}
        return self._server.fds | held

    @property
    def scratch(self) -> str:
        """A folder for files of ours on the host: it is removed whoever is killed, us included."""
        return self._scratch

    # --- the server ---------------------------------------------------------------------------

    def start(self, on_done: Done[None]) -> None:
        assert self._server is None, "a cluster is started once"
        if not self._is_isolated:
            self._loopback = LoopbackRange()
        argument = {
            "is_isolated": self._is_isolated,
            "uses_user_namespace": self._uses_user_namespace,
            "addresses": _NETWORK if self._loopback is None else self._loopback.prefix,
        }
        server = self._server = ServerProcess(
            self._loop,
            argument,
            preload=self._preload,
            on_event=self._on_told,
            on_ended=self._on_server_ended,
        )

        def on_hello(answer: Answer) -> None:
            if answer.error is not None:
                on_done(server.error(f"cannot start the cluster server: {answer.error}"))
                return
            self._tag = answer.fields["tag"]
            self._scratch = answer.fields["scratch"]
            served_by = [process_table.pid_of_pidfd(fd) for fd in answer.fds]
            self._own_pids = frozenset({server.pid, *served_by})
            answer.close_fds()
            on_done(None)

        server.conversation.call("hello", {}, on_hello, timeout_s=_START_LIMIT_S)

    def close(self, on_done: Done[None]) -> None:
        if self._server is None:
            self._loop.call_soon(lambda: on_done(None))
            return
        self._on_closed = on_done
        self._server.conversation.call("close", {}, lambda _: None, timeout_s=_OPERATION_LIMIT_S)

    def reset(self, on_done: Done[None], *, seed: str = "") -> None:
        self._ask("reset", {"seed": seed}, lambda _: on_done(None), on_done)

    def _on_server_ended(self) -> None:
        assert self._server is not None, "only a server that was started can end"
        reason = str(self._server.error(self._lost_reason))
        self._server = None
        if self._loopback is not None:
            self._loopback.close()
        for name in list(self._nodes):
            self._forget_node(name, asked=self._on_closed is not None, reason=reason)
        if self._on_closed is not None:
            self._on_closed(None)
        else:
            self._on_event(ServerLost(reason=reason))

    # --- nodes --------------------------------------------------------------------------------

    def start_node(self, spec: NodeSpec, on_done: Done[ClusterNode]) -> None:
        if spec.name in self._nodes or spec.name in self._starting:
            raise UsageError(f"cannot start node '{spec.name}': it is running")
        self._start_node(node_request(spec), on_done)

    def _start_node(self, request: Mapping[str, Any], on_done: Done[ClusterNode]) -> None:
        name: str = request["name"]
        self._started += 1
        self._starting[name] = self._started

        def on_started(answer: Answer) -> None:
            (pidfd,) = answer.fds
            node = ClusterNode(
                name=name,
                index=request["index"],
                incarnation=answer.fields["incarnation"],
                address=answer.fields["address"],
                hostname=name if self._is_isolated else answer.fields["address"],
                disk=answer.fields["disk"],
                pid=process_table.pid_of_pidfd(pidfd),
            )
            os.close(pidfd)
            self._ranks[name] = self._starting.pop(name)
            self._namespaces[name] = answer.fields["pid_namespace"]
            self._nodes[name] = node
            on_done(node)

        def on_refused(error: ClusterError) -> None:
            del self._starting[name]
            on_done(error)

        self._ask("start_node", request, on_started, on_refused)

    def stop_node(self, name: str, on_done: Done[None]) -> None:
        self._end_node(name, "stop", on_done)

    def crash_node(self, name: str, on_done: Done[None]) -> None:
        self._end_node(name, "crash", on_done)

    def power_cut(self, name: str, on_done: Done[None]) -> None:
        self._end_node(name, "cut", on_done)

    def pause_node(self, name: str, on_done: Done[None]) -> None:
        self._require(name)
        self._ask("pause_node", {"name": name}, lambda _: on_done(None), on_done)

    def resume_node(self, name: str, on_done: Done[None]) -> None:
        self._require(name)
        self._ask("resume_node", {"name": name}, lambda _: on_done(None), on_done)

    def _end_node(self, name: str, how: str, on_done: Done[None]) -> None:
        self._require(name)
        self._ask("end_node", {"name": name, "how": how}, lambda _: on_done(None), on_done)

    def _require(self, name: str) -> None:
        if name not in self._nodes:
            running = ", ".join(self._nodes) or "none"
            raise UsageError(f"there is no running node '{name}'", hint=f"running: {running}")

    # --- processes ----------------------------------------------------------------------------

    def spawn(self, node: str, spec: ProcessSpec, on_done: Done[ProcessHandle]) -> None:
        self._require(node)
        if not self.capabilities.has("private_disk"):
            temporary = {"TMPDIR": temporary_folder(self._scratch, node)}
            spec = replace(spec, environ={**temporary, **spec.environ})

        def on_spawned(answer: Answer) -> None:
            (pidfd,) = answer.fds
            on_done(self._processes.adopt(node, answer.fields["node_pid"], pidfd))

        self._ask_node(node, "spawn", process_request(spec, self._tag), on_spawned, on_done)

    def open_socket(
        self, node: str, on_done: Done[socket.socket], *, datagram: bool = False
    ) -> None:
        def open_now() -> None:
            self._ask_node(
                node,
                "open_socket",
                {"datagram": datagram},
                lambda answer: on_done(socket.socket(fileno=answer.fds[0])),
                on_done,
            )

        def on_gateway(started: ClusterNode | ClusterError) -> None:
            waiting, self._waiting_for_gateway = self._waiting_for_gateway, []
            for refuse, proceed in waiting:
                if isinstance(started, ClusterError):
                    refuse(started)
                else:
                    proceed()

        if node != GATEWAY or GATEWAY in self._nodes:
            self._require(node)
            open_now()
        elif not self._is_isolated:
            kind = socket.SOCK_DGRAM if datagram else socket.SOCK_STREAM
            self._loop.call_soon(lambda: on_done(socket.socket(type=kind)))
        else:
            self._waiting_for_gateway.append((on_done, open_now))
            if GATEWAY not in self._starting:
                self._start_node(gateway_request(), on_gateway)

    def signal(self, process: ProcessHandle | ProcessInfo, signum: int) -> bool:
        return send_signal(process, signum)

    def processes(self, node: str) -> tuple[ProcessInfo, ...]:
        self._require(node)
        namespace = self._namespaces[node] if self._is_isolated else None
        return list_processes(node, self._nodes[node].pid, namespace)

    # --- talking ------------------------------------------------------------------------------

    def _ask(
        self,
        op: str,
        fields: Mapping[str, Any],
        on_result: Callable[[Answer], None],
        on_error: Callable[[ClusterError], None],
        fds: Sequence[int] = (),
    ) -> None:
        if self._server is None:
            self._loop.call_soon(lambda: on_error(ClusterError("the cluster's server has ended")))
            return

        def on_answer(answer: Answer) -> None:
            if answer.error is None:
                on_result(answer)
            else:
                on_error(ClusterError(answer.error))

        talk = self._server.conversation
        talk.call(op, fields, on_answer, timeout_s=_OPERATION_LIMIT_S, fds=fds)

    def _ask_node(
        self,
        node: str,
        order: str,
        fields: Mapping[str, Any],
        on_result: Callable[[Answer], None],
        on_error: Callable[[ClusterError], None],
    ) -> None:
        self._ask("node", {"name": node, "order": order, "fields": fields}, on_result, on_error)

    def _on_told(self, event: str, told: JsonObject, fds: list[int]) -> None:
        match event:
            case "exited":
                self._processes.on_exited(told["node"], told["node_pid"], told["exit_code"])
            case "node_gone":
                reason = "it was ended" if told["asked"] else "its init ended by itself"
                self._forget_node(told["node"], asked=told["asked"], reason=reason)
            case "lost":
                self._lost_reason = told["reason"]

    def _forget_node(self, name: str, *, asked: bool, reason: str) -> None:
        node = self._nodes.pop(name, None)
        if node is None:
            return
        self._processes.on_node_gone(name)
        if name != GATEWAY:
            self._on_event(
                NodeGone(node=name, incarnation=node.incarnation, asked=asked, reason=reason)
            )


class NamespaceCluster(ClusterClient):
    """Nodes with a network, a host name, disks and process numbers of their own."""

    kind: ClassVar[str] = "namespace"


class ProcessCluster(ClusterClient):
    """Nodes that are trees of plain processes, each with a loopback address of its own."""

    kind: ClassVar[str] = "process"
    _is_isolated: ClassVar[bool] = False


def wait_for(loop: Loop, operation: Callable[[Done[T]], None], *, within_s: float = 60.0) -> T:
    """Run one operation to its end, serving the loop meanwhile; raises its `ClusterError`."""
    results: list[T | ClusterError] = []
    operation(results.append)
    deadline = loop.now() + within_s
    while not results:
        left_s = deadline - loop.now()
        if left_s <= 0:
            raise ClusterError(f"the operation did not end within {within_s:g} s")
        loop.run_once(left_s)
    if isinstance(results[0], ClusterError):
        raise results[0]
    return results[0]
