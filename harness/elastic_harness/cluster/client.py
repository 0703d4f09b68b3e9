"""A cluster as pytest sees it: operations, events, and the processes on its nodes.

The server behind it is started once in a session, preloads torch, and is reused by many tests:
nodes come and go in milliseconds, and `reset` proves that nothing is left of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from elastic_harness.cluster import process_table
from elastic_harness.cluster.client_facets import (
    FileClock,
    LocalSockets,
    NodeDisks,
    NodeLimits,
    NodeNames,
    Switch,
)
from elastic_harness.cluster.cluster import (
    GATEWAY,
    PRIVATE_TREES,
    Capabilities,
    ClusterError,
    ClusterEvent,
    ClusterNode,
    NodeGone,
    NodeSpec,
    ProcessExited,
    ServerLost,
)
from elastic_harness.cluster.files.local_files import LocalFiles
from elastic_harness.cluster.local_logs import LocalLogs
from elastic_harness.cluster.local_processes import LocalProcesses, list_processes
from elastic_harness.cluster.local_reporters import LocalReporters
from elastic_harness.cluster.process import ProcessHandle, ProcessInfo, ProcessRef, ProcessSpec
from elastic_harness.cluster.server.loopback import LoopbackRange
from elastic_harness.cluster.server.server_process import ServerProcess
from elastic_harness.cluster.server.stale_resources import ENVIRONMENT_MARK, temporary_folder
from elastic_harness.cluster.stacks import dump_stacks
from elastic_harness.cluster.strangers import LocalStrangers
from elastic_harness.conversation import Answer
from elastic_harness.future import Future, Steps, run, settled
from pytest_elastic.channel import JsonObject
from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop

__all__ = ["ClusterClient", "NamespaceCluster", "ProcessCluster"]

# Importing torch takes 1.6 s here, and many times that on a machine that is busy or reads it from
# a cold disk.
_START_LIMIT_S: Final = 120.0
# The server bounds each of its own steps by 10 s, and an operation has at most three.
_OPERATION_LIMIT_S: Final = 30.0
_NETWORK: Final = "10.77.0"
_GATEWAY_INDEX: Final = 254


class ClusterClient:
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
        mtu: int | None = None,
    ) -> None:
        self.loop = loop
        self._mtu = mtu
        self.capabilities = capabilities
        self.network = Switch(self) if capabilities.has("network") else None
        self.sockets = LocalSockets(self, self._start_gateway, is_isolated=self._is_isolated)
        self.disks = NodeDisks(self) if capabilities.has("disk_faults") else None
        self.limits = NodeLimits(self)
        self.names = NodeNames(self) if capabilities.has("names") else None
        self.strangers = LocalStrangers(loop, self.sockets, lambda: self.nodes)
        self.logs = LocalLogs()
        self.files = LocalFiles(loop, self._private_folders)
        self.clock = FileClock() if capabilities.has("clock_skew") else None
        self.reporters = LocalReporters(loop)
        self._on_event = on_event
        self._uses_user_namespace = uses_user_namespace
        self._preload = tuple(preload)
        self._server: ServerProcess | None = None
        self._own_pids: frozenset[int] = frozenset()
        self._loopback: LoopbackRange | None = None
        self._tag = ""
        self._scratch = ""
        # By name, in the order in which starts were asked for, whichever was ready first.
        self._places: dict[str, ClusterNode | None] = {}
        self._namespaces: dict[str, int] = {}
        self._causes: dict[str, str] = {}  # of the ends that were asked for
        self._processes = LocalProcesses(
            loop, lambda handle: on_event(ProcessExited(process=handle))
        )
        self._lost_reason = "the server ended"
        self._closed: Future[None] | None = None

    @property
    def places(self) -> Mapping[str, ClusterNode]:
        """The nodes that run now, by name, in the order of their start, and the gateway."""
        return {name: node for name, node in self._places.items() if node is not None}

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        return {name: node for name, node in self.places.items() if name != GATEWAY}

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
    def clock_errors(self) -> Mapping[str, float]:
        return {}

    @property
    def scratch(self) -> str:
        """A folder for our files on the host, removed even if this process is killed."""
        return self._scratch

    # --- the server ---------------------------------------------------------------------------

    def start(self) -> Future[None]:
        assert self._server is None, "a cluster is started once"
        return run(self.loop, self._start())

    def _start(self) -> Steps[None]:
        if not self._is_isolated:
            self._loopback = LoopbackRange()
        argument = {
            "is_isolated": self._is_isolated,
            "uses_user_namespace": self._uses_user_namespace,
            "addresses": _NETWORK if self._loopback is None else self._loopback.prefix,
        }
        server = self._server = ServerProcess(
            self.loop,
            argument,
            preload=self._preload,
            on_event=self._on_told,
            on_ended=self._on_server_ended,
        )
        try:
            hello = yield from server.conversation.call("hello", {}, timeout_s=_START_LIMIT_S)
        except ClusterError as error:
            raise server.error(f"cannot start the cluster server: {error.message}") from error
        self._tag = hello.fields["tag"]
        self._scratch = hello.fields["scratch"]
        served_by = [process_table.pid_of_pidfd(fd) for fd in hello.fds]
        self._own_pids = frozenset({server.pid, *served_by})
        hello.close_fds()
        if self._closed is not None:
            raise ClusterError("the cluster was closed while it was started")

    def close(self) -> Future[None]:
        if self._server is None:
            return settled(None)
        if self._closed is None:
            self._closed = Future()
            self._server.conversation.call("close", {}, timeout_s=_OPERATION_LIMIT_S)
        return self._closed

    def reset(self, *, seed: str = "") -> Future[None]:
        self.strangers.close()
        return self.ask("reset", {"seed": seed}).then(lambda _: self._processes.close())

    def _on_server_ended(self) -> None:
        assert self._server is not None, "only a server that was started can end"
        reason = str(self._server.error(self._lost_reason))
        self._server = None
        if self._loopback is not None:
            self._loopback.close()
        for name in self.places:
            self._forget_node(name, asked=self._closed is not None, reason=reason)
        self._processes.close()
        if self._closed is not None:
            self._closed.settle(None)
        else:
            self._on_event(ServerLost(reason=reason))

    # --- nodes --------------------------------------------------------------------------------

    def start_node(self, spec: NodeSpec) -> Future[ClusterNode]:
        if spec.name in self._places:
            raise UsageError(f"cannot start node '{spec.name}': it is running")
        return self._begin_node(
            spec.name,
            spec.index,
            shared=_shared_paths(spec.shared),
            read_only=list(spec.read_only),
            keep_disk=spec.keep_disk,
            sysctls=dict(spec.sysctls),
        )

    def _start_gateway(self) -> Future[ClusterNode]:
        return self._begin_node(
            GATEWAY, _GATEWAY_INDEX, shared=[], read_only=[], keep_disk=False, sysctls={}
        )

    def _begin_node(self, name: str, index: int, **request: object) -> Future[ClusterNode]:
        self._places[name] = None
        order = {"name": name, "index": index, "mtu": self._mtu, **request}
        return run(self.loop, self._start_node(name, index, order))

    def _start_node(self, name: str, index: int, order: Mapping[str, Any]) -> Steps[ClusterNode]:
        try:
            started = yield from self.ask("start_node", order)
        except ClusterError:
            self._places.pop(name, None)
            raise
        (pidfd,) = started.fds
        node = ClusterNode(
            name=name,
            index=index,
            incarnation=started.fields["incarnation"],
            address=started.fields["address"],
            hostname=name if self._is_isolated else started.fields["address"],
            disk=started.fields["disk"],
            pid=process_table.pid_of_pidfd(pidfd),
        )
        os.close(pidfd)
        self._namespaces[name] = started.fields["pid_namespace"]
        self._places[name] = node
        return node

    def stop_node(self, name: str) -> Future[None]:
        return self._end_node(name, "stop", "teardown")

    def crash_node(self, name: str) -> Future[None]:
        return self._end_node(name, "crash", "crash")

    def power_cut(self, name: str) -> Future[None]:
        return self._end_node(name, "cut", "power_cut")

    def _end_node(self, name: str, how: str, cause: str) -> Future[None]:
        ended = self._ask_about("end_node", name, how=how)
        self._causes[name] = cause
        return ended

    def pause_node(self, name: str) -> Future[None]:
        return self._ask_about("pause_node", name)

    def resume_node(self, name: str) -> Future[None]:
        return self._ask_about("resume_node", name)

    def _private_folders(self, name: str) -> Mapping[str, str]:
        node = self.running(name)
        if not self.capabilities.has("private_disk"):
            return {node.disk: node.disk}
        return {tree: f"/proc/{node.pid}/root{tree}" for tree in (node.disk, *PRIVATE_TREES)}

    def running(self, name: str) -> ClusterNode:
        """Return what runs under a name; raises UsageError if nothing does."""
        node = self._places.get(name)
        if node is None:
            running = ", ".join(self.places) or "none"
            raise UsageError(f"there is no running node '{name}'", hint=f"running: {running}")
        return node

    def _forget_node(self, name: str, *, asked: bool, reason: str) -> None:
        node = self._places.pop(name, None)
        if node is None:
            return
        self._processes.on_node_gone(name)
        self.strangers.on_node_gone(name)
        if name != GATEWAY:
            cause = self._causes.pop(name, "teardown" if asked else "lost")
            self._on_event(
                NodeGone(node=name, incarnation=node.incarnation, cause=cause, reason=reason)
            )

    # --- processes ----------------------------------------------------------------------------

    def spawn(self, node: str, spec: ProcessSpec) -> Future[ProcessHandle]:
        self.running(node)
        if not self.capabilities.has("private_disk"):
            temporary = {"TMPDIR": temporary_folder(self._scratch, node)}
            spec = replace(spec, environ={**temporary, **spec.environ})
        fields = {
            "argv": list(spec.argv),
            "environ": {**spec.environ, ENVIRONMENT_MARK: self._tag},
            "cwd": spec.cwd,
            "stdin": spec.stdin,
            "stdout": spec.stdout,
            "stderr": spec.stderr,
            "preloaded_entry": spec.preloaded_entry,
            "preloaded_role": spec.preloaded_role,
        }
        return self.ask("node", {"name": node, "order": "spawn", "fields": fields}).then(
            lambda answer: self._processes.adopt(node, answer.fields["node_pid"], answer.fds[0])
        )

    def processes(self, node: str) -> Future[tuple[ProcessInfo, ...]]:
        init = self.running(node).pid
        namespace = self._namespaces[node] if self._is_isolated else None
        return settled(list_processes(node, init, namespace))

    def signal(self, process: ProcessRef, signum: int) -> Future[bool]:
        return settled(self._processes.signal(process, signum))

    def state(self, process: ProcessRef) -> Future[str]:
        return settled(self._processes.state(process))

    def ended(self, process: ProcessRef) -> Future[int | None]:
        return self._processes.ended(process)

    def stacks(self, process: ProcessRef, *, fd: int, signum: int) -> Future[tuple[str, str]]:
        return run(
            self.loop, dump_stacks(self._processes, self.loop, process, fd=fd, signum=signum)
        )

    # --- talking ------------------------------------------------------------------------------

    def ask(self, op: str, fields: Mapping[str, Any], fds: Sequence[int] = ()) -> Future[Answer]:
        """Ask the server for something."""
        if self._server is None:
            return settled(ClusterError("the cluster's server has ended"))
        talk = self._server.conversation
        return talk.call(op, fields, timeout_s=_OPERATION_LIMIT_S, fds=fds)

    def _ask_about(self, op: str, name: str, **more: str) -> Future[None]:
        self.running(name)
        return self.ask(op, {"name": name, **more}).then(lambda _: None)

    def _on_told(self, event: str, told: JsonObject, fds: list[int]) -> None:
        match event:
            case "exited":
                self._processes.on_exited(told["node"], told["node_pid"], told["exit_code"])
            case "node_gone":
                reason = "it was ended" if told["asked"] else "its init ended by itself"
                self._forget_node(told["node"], asked=told["asked"], reason=reason)
            case "lost":
                self._lost_reason = told["reason"]


class NamespaceCluster(ClusterClient):
    """Nodes with a network, a host name, disks and process numbers of their own."""

    kind: ClassVar[str] = "namespace"


class ProcessCluster(ClusterClient):
    """Nodes that are trees of plain processes, each with a loopback address of its own."""

    kind: ClassVar[str] = "process"
    _is_isolated: ClassVar[bool] = False


def _shared_paths(wanted: Sequence[str]) -> list[str]:
    """Add what no node can do without: the interpreter, its packages, the working directory.

    Each by the names it has: a virtual environment may be a link, and `sys.path` goes by that.
    """
    needed = [sys.prefix, sys.base_prefix, os.getcwd(), *sys.path]
    paths = [*wanted, *(path for path in needed if path and os.path.isdir(path))]
    shared = sorted({name(path) for path in paths for name in (os.path.abspath, os.path.realpath)})
    if "/dev/shm" in shared:  # noqa: S108 (the directory itself)
        raise UsageError("cannot share /dev/shm between nodes: it is what each has of its own")
    missing = [path for path in shared if not os.path.exists(path)]
    if missing:
        raise UsageError(f"cannot share {', '.join(missing)} with a node: it does not exist")
    return shared
