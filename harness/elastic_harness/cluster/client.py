"""A cluster as pytest sees it: operations with callbacks, events, and the processes on the nodes.

The server behind it is started once in a session, preloads torch, and is reused by many tests:
nodes come and go in milliseconds, and `reset` proves that nothing is left of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from elastic_harness.cluster import process_table
from elastic_harness.cluster.cluster import (
    GATEWAY,
    Capabilities,
    ClusterError,
    ClusterEvent,
    ClusterNode,
    Done,
    NetworkCounters,
    NodeGone,
    NodeSpec,
    ProcessExited,
    ProcessHandle,
    ProcessInfo,
    ProcessSpec,
    ServerLost,
)
from elastic_harness.cluster.leftovers import ENVIRONMENT_MARK
from elastic_harness.conversation import Answer, Conversation
from elastic_harness.network.link_model import DropReason, LinkPolicy, Pair
from elastic_harness.network.switch import counters_from_fields, policy_to_fields
from pytest_elastic.boot.spawn import command_and_environ
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
_GATEWAY_INDEX = 254


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
    ) -> None:
        self._loop = loop
        self._on_event = on_event
        self.capabilities = capabilities
        self._uses_user_namespace = uses_user_namespace
        self._preload = tuple(preload)
        self._nodes: dict[str, ClusterNode] = {}
        self._namespaces: dict[str, int] = {}
        self._ranks: dict[str, int] = {}
        # The order in which starts were asked for, whichever was ready first.
        self._starting: dict[str, int] = {}
        self._started = 0
        self._processes: dict[tuple[str, int], ProcessHandle] = {}
        self._last_process = 0
        self._lock: socket.socket | None = None
        self._control: Conversation | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._supervisor_fd = -1
        self._errors_fd = -1
        self._on_closed: Callable[[], None] | None = None
        self._lost_reason = ""
        self._own_pids: frozenset[int] = frozenset()
        self._tag = ""

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        """The nodes that run now, by name, in the order of their start."""
        ordered = sorted(self._nodes.items(), key=lambda item: self._ranks[item[0]])
        return {name: node for name, node in ordered if name != GATEWAY}

    @property
    def own_pids(self) -> frozenset[int]:
        """The processes that serve a cluster without nodes: supervisor, server and switch."""
        return frozenset() if self._supervisor is None else self._own_pids

    @property
    def own_fds(self) -> frozenset[int]:
        """The descriptors of this process that a started cluster uses."""
        if self._supervisor is None or self._control is None:
            return frozenset()
        fds = {self._supervisor_fd, self._errors_fd, self._control.fileno()}
        return frozenset(fds if self._lock is None else {*fds, self._lock.fileno()})

    # --- the server ---------------------------------------------------------------------------

    def start(self, on_done: Done[None]) -> None:
        assert self._control is None, "a cluster is started once"
        ours, theirs = socket.socketpair()
        owner = os.pidfd_open(os.getpid())
        argument = {
            "control_fd": theirs.fileno(),
            "owner_fd": owner,
            "is_isolated": self._is_isolated,
            "uses_user_namespace": self._uses_user_namespace,
            "addresses": self._choose_addresses(),
        }
        command, environ = command_and_environ(
            "elastic_harness.cluster.supervisor:make",
            argument,
            preload=self._preload,
            base_environ=_server_environ(),
        )
        self._errors_fd = os.memfd_create("cluster-server-errors", os.MFD_CLOEXEC)
        self._supervisor = subprocess.Popen(
            command,
            env=environ,
            pass_fds=(theirs.fileno(), owner),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors_fd,
            start_new_session=True,
        )
        theirs.close()
        os.close(owner)
        self._supervisor_fd = os.pidfd_open(self._supervisor.pid)
        self._loop.watch(self._supervisor_fd, on_readable=self._on_supervisor_ended)
        self._control = Conversation(
            self._loop, ours, on_event=self._on_told, on_closed=self._on_server_silent
        )

        def on_hello(answer: Answer) -> None:
            if answer.error is None and self._supervisor is not None:
                self._tag = answer.fields["tag"]
                served_by = [process_table.pid_of_pidfd(fd) for fd in answer.fds]
                self._own_pids = frozenset({self._supervisor.pid, *served_by})
                answer.close_fds()
                on_done(None)
            else:
                on_done(self._error(f"cannot start the cluster server: {answer.error}"))

        self._control.call("hello", {}, on_hello, timeout_s=_START_LIMIT_S)

    def close(self, on_done: Done[None]) -> None:
        if self._supervisor is None:
            self._loop.call_soon(lambda: on_done(None))
            return
        self._on_closed = lambda: on_done(None)
        if self._control is not None and not self._control.is_closed:
            self._control.call("close", {}, lambda _: None, timeout_s=_OPERATION_LIMIT_S)

    def reset(self, on_done: Done[None], *, seed: str = "") -> None:
        self._ask("reset", {"seed": seed}, lambda _: on_done(None), on_done)

    def _choose_addresses(self) -> str:
        return "10.77.0"

    def _on_server_silent(self, reason: str) -> None:
        self._lost_reason = self._lost_reason or reason

    def _on_supervisor_ended(self) -> None:
        """All of the cluster has ended: the supervisor goes last."""
        assert self._supervisor is not None, "only a process that was started can end"
        self._loop.unwatch(self._supervisor_fd)
        os.close(self._supervisor_fd)
        self._supervisor.wait()
        self._supervisor = None
        if self._control is not None:
            self._control.close()
        reason = self._error(self._lost_reason or "the server ended").message
        os.close(self._errors_fd)
        if self._lock is not None:
            self._lock.close()
        for name in list(self._nodes):
            self._forget_node(name, asked=self._on_closed is not None, reason=reason)
        if self._on_closed is not None:
            self._on_closed()
        else:
            self._on_event(ServerLost(reason=reason))

    def _error(self, sentence: str) -> ClusterError:
        """Return an error that quotes what the server has last written, for whoever debugs us."""
        text = os.pread(self._errors_fd, 1 << 20, 0).decode(errors="replace").strip()
        return ClusterError(sentence, hint="\n".join(text.splitlines()[-20:]) or None)

    # --- nodes --------------------------------------------------------------------------------

    def start_node(self, spec: NodeSpec, on_done: Done[ClusterNode]) -> None:
        if spec.name in self._nodes or spec.name in self._starting:
            raise UsageError(f"cannot start node '{spec.name}': it is running")
        shared = sorted({os.path.realpath(path) for path in (*spec.shared, *_always_shared())})
        if "/dev/shm" in shared:  # noqa: S108 (the directory itself)
            raise UsageError("cannot share /dev/shm between nodes: it is what each has of its own")
        self._start_node(spec.name, spec.index, spec, shared, on_done)

    def _start_node(
        self,
        name: str,
        index: int,
        spec: NodeSpec | None,
        shared: Sequence[str],
        on_done: Done[ClusterNode],
    ) -> None:
        self._started += 1
        self._starting[name] = self._started
        fields = {
            "name": name,
            "index": index,
            "shared": shared,
            "keep_disk": spec is not None and spec.keep_disk,
            "disk_bytes": None if spec is None else spec.disk_bytes,
            "sysctls": {} if spec is None else dict(spec.sysctls),
        }

        def on_started(answer: Answer) -> None:
            (pidfd,) = answer.fds
            node = ClusterNode(
                name=name,
                index=index,
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

        self._ask("start_node", fields, on_started, on_refused)

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

    def limit_node(
        self,
        name: str,
        on_done: Done[None],
        *,
        cpu: float | None = None,
        memory: int | None = None,
    ) -> None:
        """Limit a node to a share of one processor and to bytes of memory (None: no limit)."""
        self._require(name)
        fields: dict[str, Any] = {"name": name}
        if self.capabilities.has("cpu_limit"):
            fields["cpu"] = cpu
        if self.capabilities.has("memory_limit"):
            fields["memory"] = memory
        self._ask("limit_node", fields, lambda _: on_done(None), on_done)

    def limit_disk(self, name: str, size: int | None, on_done: Done[None]) -> None:
        """Let a node's local disk hold at most `size` bytes (None: no limit)."""
        self._require(name)
        fields = {"name": name, "bytes": size}
        self._ask("limit_disk", fields, lambda _: on_done(None), on_done)

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

        def on_spawned(answer: Answer) -> None:
            (pidfd,) = answer.fds
            self._last_process += 1
            handle = ProcessHandle(
                node=node,
                id=self._last_process,
                pid=process_table.pid_of_pidfd(pidfd),
                node_pid=answer.fields["node_pid"],
                pidfd=pidfd,
            )
            self._processes[node, handle.node_pid] = handle
            on_done(handle)

        self._ask_node(node, "spawn", fields, on_spawned, on_done)

    def open_socket(self, node: str, on_done: Done[socket.socket]) -> None:
        def open_now(started: ClusterNode | ClusterError | None) -> None:
            if isinstance(started, ClusterError):
                on_done(started)
                return
            self._ask_node(
                node,
                "open_socket",
                {},
                lambda answer: on_done(socket.socket(fileno=answer.fds[0])),
                on_done,
            )

        if node == GATEWAY and GATEWAY not in self._nodes:
            if not self._is_isolated:
                self._loop.call_soon(lambda: on_done(socket.socket()))
                return
            self._start_node(GATEWAY, _GATEWAY_INDEX, None, (), open_now)
        else:
            self._require(node)
            open_now(None)

    def signal(self, process: ProcessHandle | ProcessInfo, signum: int) -> bool:
        if isinstance(process, ProcessHandle):
            return _signal_pidfd(process.pidfd, signum)
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        try:
            row = process_table.row_of(process.pid)
            is_same = row is not None and row.started_at == process.started_at
            return is_same and _signal_pidfd(pidfd, signum)
        finally:
            os.close(pidfd)

    def processes(self, node: str) -> tuple[ProcessInfo, ...]:
        self._require(node)
        init = self._nodes[node].pid
        if self._is_isolated:
            rows = process_table.processes_in(self._namespaces[node])
        else:
            rows = process_table.descendants(init)
        node_pids = {row.pid: row.pids[-1] for row in rows}
        found = [
            ProcessInfo(
                node=node,
                pid=row.pid,
                node_pid=row.pids[-1],
                node_ppid=node_pids.get(row.ppid, 0 if self._is_isolated else row.ppid),
                command=process_table.command_of(row.pid),
                started_at=row.started_at,
                state=row.state,
            )
            for row in rows
            if row.pid != init
        ]
        return tuple(sorted(found, key=lambda info: info.node_pid))

    # --- the network --------------------------------------------------------------------------

    def set_policy(self, pairs: Sequence[Pair], policy: LinkPolicy, on_done: Done[None]) -> None:
        order = {"pairs": [list(pair) for pair in pairs], "policy": policy_to_fields(policy)}
        fields = {"order": "set_policy", "fields": order}
        self._ask("network", fields, lambda _: on_done(None), on_done)

    def counters(self, on_done: Done[NetworkCounters]) -> None:
        """Read the links' counters, then what the nodes' devices had to drop."""
        own: dict[str, int] = {}
        if not self._is_isolated:
            nothing = NetworkCounters(links={}, own_drops={})
            self._loop.call_soon(lambda: on_done(nothing))
            return

        def on_counted(answer: Answer) -> None:
            links = counters_from_fields(answer.fields["links"])
            for link in links.values():
                for reason, number in link.dropped.items():
                    if reason.is_own:
                        own[reason.value] = own.get(reason.value, 0) + number
            ask_next(list(self._nodes), NetworkCounters(links=links, own_drops=own))

        def ask_next(names: list[str], counters: NetworkCounters) -> None:
            if not names:
                on_done(counters)
                return

            def on_dropped(answer: Answer) -> None:
                dropped = int(answer.fields["dropped"])
                if dropped:
                    stalled = DropReason.STALL.value
                    own[stalled] = own.get(stalled, 0) + dropped
                ask_next(names[1:], counters)

            def on_gone(_: ClusterError) -> None:
                ask_next(names[1:], counters)  # it ended meanwhile

            self._ask_node(names[0], "count_drops", {}, on_dropped, on_gone)

        self._ask("network", {"order": "counters", "fields": {}}, on_counted, on_done)

    # --- talking ------------------------------------------------------------------------------

    def _ask(
        self,
        op: str,
        fields: Mapping[str, Any],
        on_result: Callable[[Answer], None],
        on_error: Callable[[ClusterError], None],
    ) -> None:
        assert self._control is not None, "a cluster is started before it is used"

        def on_answer(answer: Answer) -> None:
            if answer.error is None:
                on_result(answer)
            else:
                on_error(ClusterError(answer.error))

        self._control.call(op, fields, on_answer, timeout_s=_OPERATION_LIMIT_S)

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
                handle = self._processes.pop((told["node"], told["node_pid"]), None)
                if handle is not None:
                    self._on_exited(handle, told["exit_code"])
            case "node_gone":
                self._forget_node(
                    told["node"],
                    asked=told["asked"],
                    reason="it was ended" if told["asked"] else "its first process ended by itself",
                )
            case "lost":
                self._lost_reason = told["reason"]

    def _forget_node(self, name: str, *, asked: bool, reason: str) -> None:
        node = self._nodes.pop(name, None)
        if node is None:
            return
        for key in [key for key in self._processes if key[0] == name]:
            self._on_exited(self._processes.pop(key), -signal.SIGKILL)
        if name != GATEWAY:
            self._on_event(
                NodeGone(node=name, incarnation=node.incarnation, asked=asked, reason=reason)
            )

    def _on_exited(self, handle: ProcessHandle, exit_code: int) -> None:
        handle.exit_code = exit_code
        os.close(handle.pidfd)
        handle.pidfd = -1
        self._on_event(ProcessExited(process=handle))


class NamespaceCluster(ClusterClient):
    """Nodes with a network, a host name, disks and process numbers of their own."""

    kind: ClassVar[str] = "namespace"


class ProcessCluster(ClusterClient):
    """Nodes that are trees of plain processes, each with a loopback address of its own."""

    kind: ClassVar[str] = "process"
    _is_isolated: ClassVar[bool] = False

    def _choose_addresses(self) -> str:
        """Choose 127.x.y for this session, so that none that runs beside it has the same.

        The lock is an abstract socket: it is as local to the network as loopback is, and the kernel
        lets go of it when this process ends, however it does.
        """
        for attempt in range(250 * 250):
            number = (os.getpid() + attempt) % (250 * 250)
            prefix = f"127.{number // 250 + 2}.{number % 250 + 2}"
            lock = socket.socket(socket.AF_UNIX)
            try:
                lock.bind(f"\0pytest-elastic-{prefix}")
            except OSError:
                lock.close()
                continue
            self._lock = lock
            return prefix
        raise ClusterError("cannot find loopback addresses that no other session uses")


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


def _signal_pidfd(pidfd: int, signum: int) -> bool:
    if pidfd < 0:
        return False
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signum)
        return True
    return False


def _server_environ() -> dict[str, str]:
    """Return our environment with a path on which the server finds this package."""
    environ = dict(os.environ)
    roots = [environ["PYTHONPATH"]] if environ.get("PYTHONPATH") else []
    roots.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    environ["PYTHONPATH"] = os.pathsep.join(roots)
    return environ


def _always_shared() -> list[str]:
    """Return what no node can do without: the interpreter, its packages, the working directory."""
    paths = [sys.prefix, sys.base_prefix, os.getcwd(), *sys.path]
    return [path for path in paths if path and os.path.isdir(path)]
