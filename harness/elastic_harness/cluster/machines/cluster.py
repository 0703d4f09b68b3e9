"""A cluster whose nodes are on several machines, each with an agent that does what is asked.

Node N is on machine N modulo their number. A process has a number of its own here (see
`PIDS_OF_A_MACHINE`).

Where all machines can make namespaces, nodes are those of the namespace cluster: the switch of each
machine carries the packets of its own nodes, and trunks join the switches. Elsewhere a node is a
tree of plain processes that has its machine's address.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from elastic_harness.cluster.client_facets import (
    NodeDisks,
    NodeLimits,
    NodeNames,
    add_up,
    ends_by_index,
    policy_order,
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
from elastic_harness.cluster.facets import FileLimit, NetworkCounters
from elastic_harness.cluster.local_logs import LocalLogs
from elastic_harness.cluster.machines.agent import AgentOrder
from elastic_harness.cluster.machines.link import Link, Switchboard
from elastic_harness.cluster.machines.log_copies import write_copy
from elastic_harness.cluster.machines.placement import Placement
from elastic_harness.cluster.machines.reports import ENCODING, RemoteReporters
from elastic_harness.cluster.process import (
    PIDS_OF_A_MACHINE,
    ProcessHandle,
    ProcessInfo,
    ProcessRef,
    ProcessSpec,
)
from elastic_harness.conversation import Answer, Conversation, Reply
from elastic_harness.future import Future, Steps, gather, run, settled, within
from elastic_harness.network.link_model import Layers, LinkCounters, LinkPolicy, Pair
from elastic_harness.network.switch_wire import counters_from_fields
from pytest_elastic.channel import JsonObject
from pytest_elastic.credentials import Credentials
from pytest_elastic.errors import ElasticError, UsageError
from pytest_elastic.loop import Loop

__all__ = ["LEASE_S", "MachinesCluster"]

# A control link may be cut for a minute, and the machine is still ours.
LEASE_S: Final = 90.0
# An operation waits for the link, should that be cut.
_OPERATION_LIMIT_S: Final = LEASE_S + 30.0
# A batch system may take its time.
_PLACE_LIMIT_S: Final = 60.0
# The agent starts a cluster server there, which imports torch.
_START_LIMIT_S: Final = 120.0
_CLOSE_LIMIT_S: Final = 20.0


class _Machine:
    """A machine as the cluster sees it: its name, its link, and what runs there."""

    def __init__(self, loop: Loop, number: int, name: str, *, has_our_clock: bool) -> None:
        self.number = number
        self.name = name
        self.address = ""
        self.processes: dict[int, ProcessHandle] = {}
        self.watched: dict[int, Future[int | None]] = {}
        self.trunk_port = 0
        self._loop = loop
        self._has_our_clock = has_our_clock
        self._link: Link | None = None
        self._talk: Conversation | None = None

    def open(
        self,
        link: Link,
        on_event: Callable[[_Machine, str, JsonObject], None],
        on_request: Callable[[_Machine, str, JsonObject, Reply], None],
        on_lost: Callable[[_Machine, str], None],
    ) -> None:
        """Begin to talk, once the agent calls."""
        self._link = link
        self._talk = Conversation(
            self._loop,
            link.open,
            on_event=lambda event, told, _: on_event(self, event, told),
            on_request=lambda op, fields, _, reply: on_request(self, op, fields, reply),
            on_closed=lambda reason: on_lost(self, reason),
        )

    @property
    def clock_offset_s(self) -> float:
        """What is to be added to a time of the machine, for one of ours."""
        if self._has_our_clock or self._link is None:
            return 0.0
        return -self._link.clock.offset_s

    @property
    def clock_error_s(self) -> float:
        """By how much that may be wrong."""
        if self._has_our_clock or self._link is None:
            return 0.0
        return self._link.clock.error_s(self._loop.now())

    def call(
        self, op: str, fields: Mapping[str, Any], *, timeout_s: float = _OPERATION_LIMIT_S
    ) -> Future[Answer]:
        """Ask the agent for something."""
        assert self._talk is not None, "a machine that is used has a link"
        return run(self._loop, self._call(op, fields, timeout_s))

    def _call(self, op: str, fields: Mapping[str, Any], timeout_s: float) -> Steps[Answer]:
        assert self._talk is not None, "a machine that is used has a link"
        try:
            return (yield from self._talk.call(op, fields, timeout_s=timeout_s))
        except ClusterError as error:
            raise ClusterError(f"machine {self.name}: {error.message}") from error

    def ask(self, op: str, fields: Mapping[str, Any]) -> Future[Answer]:
        """Ask the cluster server there for something."""
        return self.call("ask", {"order": op, "fields": fields}).then(
            lambda answer: Answer(fields=answer.fields["fields"])
        )

    def ask_switch(self, order: str, fields: Mapping[str, Any]) -> Future[Answer]:
        """Ask the switch there for something."""
        return self.ask("network", {"order": order, "fields": fields})

    def tell(self, event: str, fields: Mapping[str, Any]) -> None:
        """Tell the agent something."""
        if self._talk is not None and not self._talk.is_closed:
            self._talk.tell(event, fields)

    def hang_up(self, reason: str) -> None:
        """Take it for lost, as its agent ends."""
        if self._link is not None:
            self._link.end(reason)

    def pid_here(self, pid: int) -> int:
        """Return our number of a process of the machine."""
        return self.number * PIDS_OF_A_MACHINE + pid

    def ref(self, process: ProcessRef) -> dict[str, Any]:
        """Return a process as the machine knows it."""
        return {**asdict(process), "pid": process.pid % PIDS_OF_A_MACHINE}


class MachinesCluster:
    """The operations of `Cluster`, carried out by agents that a placement has put on machines."""

    scratch = ""
    clock = None

    def __init__(
        self,
        loop: Loop,
        placement: Placement,
        *,
        on_event: Callable[[ClusterEvent], None],
        capabilities: Capabilities,
        preload: Sequence[str] = ("torch",),
        lease_s: float = LEASE_S,
    ) -> None:
        self.kind = placement.kind
        self.capabilities = capabilities
        self.network = MachineNetwork(self) if capabilities.has("network") else None
        self.disks = NodeDisks(self) if capabilities.has("disk_faults") else None
        self.names = NodeNames(self) if capabilities.has("names") else None
        self.sockets = MachineSockets(self) if capabilities.has("gateway") else None
        self.limits = MachineLimits(self)
        self.logs = MachineLogs()
        self.loop = loop
        self._placement = placement
        self._on_event = on_event
        self._preload = list(preload)
        self._lease_s = lease_s
        has_our_clock = capabilities.has("common_clock")
        self._machines = [
            _Machine(loop, number, name, has_our_clock=has_our_clock)
            for number, name in enumerate(placement.machines, start=1)
        ]
        self.reporters = RemoteReporters(loop, lambda: self._machines)
        self._switchboard: Switchboard | None = None
        self._nodes: dict[str, ClusterNode | None] = {}
        self._places: dict[str, _Machine] = {}
        self._logs: set[str] = set()
        self._last_watch = 0
        self._closing: Future[None] | None = None

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        return {name: node for name, node in self._nodes.items() if node is not None}

    @property
    def places(self) -> Mapping[str, ClusterNode]:
        """The nodes that run now: there is no gateway."""
        return self.nodes

    @property
    def machines(self) -> Sequence[_Machine]:
        """All machines, in their order."""
        return self._machines

    @property
    def clock_errors(self) -> Mapping[str, float]:
        if self.capabilities.has("common_clock"):
            return {}
        return {
            name: self.reporters.clock_error_s(machine) for name, machine in self._places.items()
        }

    @property
    def called_at(self) -> Sequence[str]:
        """The addresses of ours at which agents have called."""
        return () if self._switchboard is None else self._switchboard.called_at

    @property
    def own_pids(self) -> frozenset[int]:
        return self._placement.own_pids

    @property
    def own_fds(self) -> frozenset[int]:
        board = frozenset() if self._switchboard is None else self._switchboard.fds
        return board | self._placement.own_fds

    # --- the agents -----------------------------------------------------------------------------

    def start(self) -> Future[None]:
        assert self._switchboard is None, "a cluster is started once"
        return run(self.loop, self._start())

    def _start(self) -> Steps[None]:
        token = secrets.token_hex(32)
        listener = self._placement.listen()
        board = self._switchboard = Switchboard(
            self.loop,
            listener,
            credentials=Credentials.of_job(token.encode(), "machines"),
            lease_s=self._lease_s,
        )
        try:
            yield from gather(
                run(self.loop, self._start_machine(board, machine, token))
                for machine in self._machines
            )
            yield from self._join_switches()
        except ElasticError:
            yield from self.close()
            raise

    def _join_switches(self) -> Steps[None]:
        """Have a trunk between every two switches; those that are lost are made anew."""
        if self.network is None:
            return
        answers = yield from gather(each.ask_switch("trunks", {}) for each in self._machines)
        trunks = [
            (machine.number, far)
            for machine, answer in zip(self._machines, answers, strict=True)
            for far in answer.fields["machines"]
        ]
        # Both ends have to be well. Of two machines that with the higher number dials.
        lacking = {
            machine: [
                (near.number, near.address, near.trunk_port)
                for near in self._machines[: machine.number - 1]
                if {(near.number, machine.number), (machine.number, near.number)} - set(trunks)
            ]
            for machine in self._machines
        }
        if any(lacking.values()):
            yield from gather(
                machine.call("join", {"peers": peers}) for machine, peers in lacking.items()
            )
            yield from gather(each.call("add_trunks", {}) for each in self._machines)

    def _start_machine(self, board: Switchboard, machine: _Machine, token: str) -> Steps[None]:
        called: Future[None] = Future()
        link = board.expect(machine.number, lambda: called.settle(None))
        machine.open(link, self._on_told, self._on_asked, self._on_lost)
        order = AgentOrder(
            machine=machine.number,
            nodes="process" if self.network is None else "namespace",
            addresses=self._placement.addresses(machine.name, board.port),
            token=token,
            lease_s=self._lease_s,
            preload=self._preload,
            environ=dict(os.environ),
            stays=self._placement.keeps_agents,
        )
        placed = self._placement.place(self.loop, machine.name, order)
        placed.add_done_callback(
            lambda done: called.settle(done.error) if done.error is not None else None
        )
        what = f"the agent on {machine.name} to call"
        yield from within(called, _PLACE_LIMIT_S, what)
        facts = yield from machine.call("start", {}, timeout_s=_START_LIMIT_S)
        machine.address, machine.trunk_port = facts.fields["address"], facts.fields["port"]

    def close(self) -> Future[None]:
        if self._switchboard is None:
            return settled(None)
        if self._closing is None:
            # From now on the loss of a machine is no error.
            closing: Future[None] = Future()
            self._closing = closing
            done = run(self.loop, self._close(self._switchboard))
            done.add_done_callback(lambda done: closing.settle(done.error))
        return self._closing

    def _close(self, board: Switchboard) -> Steps[None]:
        called = [each for each in self._machines if board.has_called(each.number)]
        ends = [machine.call("close", {}, timeout_s=_CLOSE_LIMIT_S) for machine in called]
        for end in ends:
            with contextlib.suppress(ClusterError):
                yield from end
        board.close()
        self._switchboard = None
        yield from self._placement.close(self.loop)
        self._nodes.clear()

    def reset(self, *, seed: str = "") -> Future[None]:
        return run(self.loop, self._reset(seed))

    def _reset(self, seed: str) -> Steps[None]:
        yield from gather(each.call("reset", {"seed": seed}) for each in self._machines)
        yield from self._join_switches()
        if self.network is not None:
            self.network.spread_s = 0.0
        self._logs.clear()
        self._places.clear()

    # --- nodes ----------------------------------------------------------------------------------

    def start_node(self, spec: NodeSpec) -> Future[ClusterNode]:
        if spec.name in self._nodes:
            raise UsageError(f"cannot start node '{spec.name}': it is running")
        self._nodes[spec.name] = None
        return run(self.loop, self._start_node(spec))

    def _start_node(self, spec: NodeSpec) -> Steps[ClusterNode]:
        machine = self._machines[(spec.index - 1) % len(self._machines)]
        isolated = self.network is not None
        shared = [*spec.shared, os.getcwd(), *filter(None, sys.path)]
        folders = [path for path in spec.shared if os.path.isdir(path) and _is_private(path)]
        wanted = {
            **asdict(spec),
            "shared": [path for path in dict.fromkeys(shared) if path not in folders],
            "sysctls": dict(spec.sysctls) if isolated else {},
        }
        try:
            started = yield from machine.call("start_node", {"spec": wanted, "folders": folders})
            facts = started.fields
            if isolated:
                fields = {"name": spec.name, "index": spec.index, "machine": machine.number}
                yield from gather(
                    each.ask("add_remote_node", fields) for each in self._others(machine)
                )
        except ClusterError:
            self._nodes.pop(spec.name, None)
            raise
        node = ClusterNode(
            name=spec.name,
            index=spec.index,
            incarnation=facts["incarnation"],
            address=facts["address"] if isolated else machine.address,
            hostname=facts["hostname"] if isolated else machine.address,
            disk=facts["disk"],
            pid=machine.pid_here(facts["pid"]),
        )
        self._nodes[spec.name] = node
        self._places[spec.name] = machine
        return node

    def begin_node(self, request: Mapping[str, Any]) -> Future[ClusterNode]:
        """Start the gateway: pytest is on none of the machines, so there is none."""
        raise ClusterError(f"cannot start {request['name']}: pytest is outside of the network")

    def stop_node(self, name: str) -> Future[None]:
        return run(self.loop, self._end_node(self.machine_of(name), name, "stop"))

    def crash_node(self, name: str) -> Future[None]:
        return run(self.loop, self._end_node(self.machine_of(name), name, "crash"))

    def power_cut(self, name: str) -> Future[None]:
        return run(self.loop, self._end_node(self.machine_of(name), name, "cut"))

    def _end_node(self, machine: _Machine, name: str, how: str) -> Steps[None]:
        """End a node: at one moment, as the switch of its machine is between it and all others."""
        others = self._others(machine) if self.network is not None else ()
        yield from machine.call("end_node", {"name": name, "how": how})
        if how != "crash":
            yield from gather(each.ask_switch("detach", {"name": name}) for each in others)

    def _others(self, machine: _Machine) -> Sequence[_Machine]:
        return [each for each in self._machines if each is not machine]

    def pause_node(self, name: str) -> Future[None]:
        return self._ask_about("pause_node", name)

    def resume_node(self, name: str) -> Future[None]:
        return self._ask_about("resume_node", name)

    def private_folders(self, name: str) -> Mapping[str, str]:
        machine = self.machine_of(name)
        raise ClusterError(f"what node '{name}' has for itself is on the machine {machine.name}")

    def running(self, name: str) -> ClusterNode:
        """Return a running node; raises UsageError if there is none."""
        self.machine_of(name)
        return self.nodes[name]

    def ask(self, op: str, fields: Mapping[str, Any], fds: Sequence[int] = ()) -> Future[Answer]:
        """Ask the cluster server of a node's machine for something."""
        assert not fds, "descriptors do not travel to another machine"
        return self.machine_of(fields["name"]).ask(op, fields)

    def machines_of(self, pairs: Sequence[Pair]) -> Mapping[_Machine, Sequence[Pair]]:
        """Return whose switches links belong to: where they begin, which is known once it ran."""
        found: dict[_Machine, list[Pair]] = {}
        for pair in pairs:
            known = self._places.get(pair[0])
            for machine in self._machines if known is None else (known,):
                found.setdefault(machine, []).append(pair)
        return found

    def machine_of(self, name: str) -> _Machine:
        """Return the machine of a running node; raises UsageError if there is none."""
        if self._nodes.get(name) is None:
            running = ", ".join(self.nodes) or "none"
            raise UsageError(f"there is no running node '{name}'", hint=f"running: {running}")
        return self._places[name]

    def _ask_about(self, op: str, name: str, **more: str) -> Future[None]:
        return self.machine_of(name).call(op, {"name": name, **more}).then(lambda _: None)

    # --- processes ------------------------------------------------------------------------------

    def spawn(self, node: str, spec: ProcessSpec) -> Future[ProcessHandle]:
        return run(self.loop, self._spawn(self.machine_of(node), node, spec))

    def _spawn(self, machine: _Machine, node: str, spec: ProcessSpec) -> Steps[ProcessHandle]:
        outputs = [path for path in (spec.stdout, spec.stderr, spec.logs) if path is not None]
        self._logs.update(map(os.path.abspath, outputs))
        folder = spec.environ.get("ELASTIC_CHECKPOINT_DIR")
        with _sign_beside(spec) as sign:
            fields = {
                "node": node,
                "spec": asdict(spec),
                "sign": sign,
                "folders": [folder] if folder else [],
            }
            answer = yield from machine.call("spawn", fields)
        facts = answer.fields
        process = machine.processes[facts["id"]] = ProcessHandle(
            node=node,
            id=machine.pid_here(facts["id"]),
            pid=machine.pid_here(facts["pid"]),
            node_pid=facts["node_pid"],
            start_time=facts["start_time"],
        )
        return process

    def processes(self, node: str) -> Future[tuple[ProcessInfo, ...]]:
        machine = self.machine_of(node)

        def read(answer: Answer) -> tuple[ProcessInfo, ...]:
            return tuple(
                ProcessInfo(**{**each, "pid": machine.pid_here(each["pid"])} | {"command": command})
                for each in answer.fields["processes"]
                for command in [tuple(each["command"])]
            )

        return machine.call("processes", {"node": node}).then(read)

    def signal(self, process: ProcessRef, signum: int) -> Future[bool]:
        return self.ask_process("signal", process, {"signum": int(signum)}).then(
            lambda answer: answer is not None and bool(answer.fields["sent"])
        )

    def state(self, process: ProcessRef) -> Future[str]:
        return self.ask_process("state", process, {}).then(
            lambda answer: "" if answer is None else str(answer.fields["state"])
        )

    def ended(self, process: ProcessRef) -> Future[int | None]:
        machine = self._machine_with(process)
        if machine is None:
            return settled(None)
        self._last_watch += 1
        watch = self._last_watch
        ended: Future[int | None] = machine.watched.setdefault(watch, Future())
        asked = machine.call("watch_end", {"process": machine.ref(process), "watch": watch})
        asked.add_done_callback(
            lambda done: None if done.error is None else ended.settle(done.error)
        )
        return ended

    def ask_process(
        self, op: str, process: ProcessRef, fields: Mapping[str, Any]
    ) -> Future[Answer | None]:
        """Ask the agent of a process's machine; None for a process of no machine."""
        machine = self._machine_with(process)
        if machine is None:
            return settled(None)
        return machine.call(op, {"process": machine.ref(process), **fields}).then(lambda got: got)

    def _machine_with(self, process: ProcessRef) -> _Machine | None:
        number = process.pid // PIDS_OF_A_MACHINE
        return self._machines[number - 1] if 1 <= number <= len(self._machines) else None

    # --- what agents say ------------------------------------------------------------------------

    def _on_told(self, machine: _Machine, event: str, told: JsonObject) -> None:
        if self.reporters.hear(machine, event, told):
            return
        match event:
            case "exited":
                process = machine.processes.pop(told["id"], None)
                if process is not None:
                    process.exit_code = told["exit_code"]
                    self._on_event(ProcessExited(process=process))
            case "ends":
                machine.hang_up(told["reason"])
            case "ended":
                machine.watched.pop(told["watch"]).settle(told["code"])
            case "node_gone":
                self._nodes.pop(told["node"], None)
                self._on_event(
                    NodeGone(
                        node=told["node"],
                        incarnation=told["incarnation"],
                        cause=told["cause"],
                        reason=told["reason"],
                    )
                )

    def _on_asked(self, machine: _Machine, op: str, fields: JsonObject, reply: Reply) -> None:
        """Write a piece of a log; nowhere else than where one was asked for."""
        path = os.path.abspath(fields["path"])
        is_asked_for = op == "log" and any(
            path == log or path.startswith(log + os.sep) for log in self._logs
        )
        if not is_asked_for:
            reply.failed(f"{op} of {path} was not asked of the machine {machine.name}")
            return
        try:
            write_copy(path, fields["offset"], fields["data"].encode(ENCODING))
        except ClusterError as error:
            reply.failed(error.message)
            self._on_lost(machine, error.message)
        else:
            reply.done()

    def _on_lost(self, machine: _Machine, reason: str) -> None:
        if self._closing is not None:
            return
        why = f"the machine {machine.name} was lost: {reason}"
        for name in tuple(self.nodes):
            node = self._nodes.pop(name)
            assert node is not None, "a listed node runs"
            self._on_event(
                NodeGone(node=name, incarnation=node.incarnation, cause="lost", reason=why)
            )
        self.close()
        self._on_event(ServerLost(reason=why))


class MachineNetwork:
    """`Network`, as the switches of all machines are it together.

    A link is that of the switch where it begins. `spread_s` is how long it took at most, since the
    last reset, from an order to the last switch that had carried it out.
    """

    def __init__(self, cluster: MachinesCluster) -> None:
        self.spread_s = 0.0
        self._cluster = cluster

    def set_policy(
        self,
        pairs: Sequence[Pair],
        policy: LinkPolicy,
        *,
        traffic: str | None = None,
        layers: Layers = (),
    ) -> Future[None]:
        order = policy_order(pairs, policy, traffic, layers)
        return run(self._cluster.loop, self._order(order, self._cluster.machines_of(pairs)))

    def _order(
        self, order: Mapping[str, Any], machines: Mapping[_Machine, Sequence[Pair]]
    ) -> Steps[None]:
        asked_at = self._cluster.loop.now()
        yield from gather(
            machine.ask_switch("set_policy", {**order, "pairs": pairs})
            for machine, pairs in machines.items()
        )
        if len(machines) > 1:
            self.spread_s = max(self.spread_s, self._cluster.loop.now() - asked_at)

    def learn_traffic(self, endpoints: Mapping[str, Sequence[tuple[str, int]]]) -> Future[None]:
        order = {"ends": ends_by_index(endpoints, self._cluster.places)}
        machines = self._cluster.machines
        learnt = gather(each.ask_switch("learn_traffic", order) for each in machines)
        return learnt.then(lambda _: None)

    def counters(self) -> Future[NetworkCounters]:
        return run(self._cluster.loop, self._read_counters())

    def _read_counters(self) -> Steps[NetworkCounters]:
        machines = self._cluster.machines
        answers = yield from gather(machine.call("counters", {}) for machine in machines)
        links: dict[Pair, LinkCounters] = {}
        own: dict[str, int] = {}
        for machine, answer in zip(machines, answers, strict=True):
            found = counters_from_fields(answer.fields["links"])
            for pair in self._cluster.machines_of(tuple(found)).get(machine, ()):
                links[pair] = found[pair]
            own = add_up(own, answer.fields["own"])
        return NetworkCounters(links=links, own_drops=own, spread_s=self.spread_s)

    def capture(self, id: str, pairs: Sequence[Pair], path: str) -> Future[None]:
        return settled(ClusterError("packets that pass on other machines cannot be captured"))

    def captured(self, id: str) -> Future[int]:
        return settled(0)

    def end_capture(self, id: str) -> Future[int]:
        return settled(0)


class MachineSockets:
    """`Sockets` of this machine, which nodes reach as their agents reach it."""

    def __init__(self, cluster: MachinesCluster) -> None:
        self._cluster = cluster

    @property
    def gateway_address(self) -> str:
        found = self._cluster.called_at
        if len(found) != 1:
            raise ClusterError(
                f"machines reach pytest at different addresses: {', '.join(found)}",
                hint="--elastic-call-back=HOST says which one all of them can reach.",
            )
        return found[0]

    def open(self, node: str, *, datagram: bool = False) -> Future[socket.socket]:
        if node != GATEWAY:
            return settled(ClusterError("sockets live in the network of nodes on one machine only"))
        family = socket.AF_INET6 if ":" in self.gateway_address else socket.AF_INET
        kind = socket.SOCK_DGRAM if datagram else socket.SOCK_STREAM
        return settled(socket.socket(family, kind))

    def listeners(self, node: str, port: int) -> Future[tuple[ProcessRef, ...]]:
        return settled(ClusterError(f"who listens at port {port} is known on this machine only"))


class MachineLimits(NodeLimits):
    """`Limits`, as the agents' own clusters have them."""

    def __init__(self, cluster: MachinesCluster) -> None:
        super().__init__(cluster)
        self._cluster = cluster

    def limit_files(
        self, process: ProcessRef, *, free: int, at_most: int | None = None
    ) -> Future[FileLimit | None]:
        fields = {"arguments": {"free": free, "at_most": at_most}}

        def read(answer: Answer | None) -> FileLimit | None:
            result = None if answer is None else answer.fields["result"]
            return None if result is None else FileLimit(**result)

        return self._cluster.ask_process("limit_files", process, fields).then(read)

    def restore_files(self, process: ProcessRef, *, at_most: int | None = None) -> Future[None]:
        fields = {"arguments": {"at_most": at_most}}
        return self._cluster.ask_process("restore_files", process, fields).then(lambda _: None)


class MachineLogs(LocalLogs):
    """`Logs`, as far as they were copied."""

    def is_complete(self, path: str, size: int) -> bool:
        """Return False: processes on another machine may still write to it."""
        return False


def _is_private(path: str) -> bool:
    """Tell whether a node of its own sees something else at a path, unless it shares it."""
    return any(path.startswith(f"{tree}/") for tree in PRIVATE_TREES)


@contextlib.contextmanager
def _sign_beside(spec: ProcessSpec) -> Iterator[str]:
    """Put a file beside the logs, by which a machine sees whether the folder is ours as well."""
    folder = spec.logs or os.path.dirname(spec.stdout or spec.stderr or "")
    if not folder:
        yield "/nowhere"
        return
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f".elastic-{secrets.token_hex(8)}")
    with open(path, "x", encoding="ascii"):
        pass
    try:
        yield path
    finally:
        os.unlink(path)
