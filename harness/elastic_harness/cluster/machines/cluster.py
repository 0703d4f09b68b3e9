"""A cluster whose nodes are on several machines, each with an agent that does what is asked.

Node N is on machine N modulo their number, of those that have what nodes need. A process has a
number of its own here (see `PIDS_OF_A_MACHINE`).

Where all machines can make namespaces, nodes are those of the namespace cluster: the switch of each
machine carries the packets of its own nodes, and trunks join the switches. Elsewhere a node is a
tree of plain processes that has its machine's address.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from elastic_harness.cluster.client_facets import (
    NodeDisks,
    NodeNames,
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
from elastic_harness.cluster.machines.agent import AgentOrder
from elastic_harness.cluster.machines.facets import (
    MachineClock,
    MachineFiles,
    MachineLimits,
    MachineLogs,
    MachineNetwork,
    MachineSockets,
    MachineStrangers,
    sign_in,
)
from elastic_harness.cluster.machines.folder_copies import PIECE_BYTES
from elastic_harness.cluster.machines.gateway import Gateway
from elastic_harness.cluster.machines.link import Switchboard
from elastic_harness.cluster.machines.log_copies import write_copy
from elastic_harness.cluster.machines.machine import LEASE_S, Machine
from elastic_harness.cluster.machines.placement import Placement
from elastic_harness.cluster.machines.reports import ENCODING, RemoteReporters
from elastic_harness.cluster.machines.travel import code_roots
from elastic_harness.cluster.process import (
    PIDS_OF_A_MACHINE,
    ProcessHandle,
    ProcessInfo,
    ProcessRef,
    ProcessSpec,
)
from elastic_harness.conversation import Answer, Reply
from elastic_harness.future import Future, Steps, gather, run, settled, within
from elastic_harness.network.link_model import Pair
from pytest_elastic.channel import JsonObject
from pytest_elastic.credentials import Credentials
from pytest_elastic.errors import ElasticError, UsageError
from pytest_elastic.loop import Loop

__all__ = ["MachinesCluster"]

# A batch system may take its time.
_PLACE_LIMIT_S: Final = 60.0
# The agent starts a cluster server there, which imports torch.
_START_LIMIT_S: Final = 120.0
_CLOSE_LIMIT_S: Final = 20.0


class MachinesCluster:
    """The operations of `Cluster`, carried out by agents that a placement has put on machines.

    `copy` is a folder that machines are to have, and an archive of it. Trunks are connections of
    TCP, or UDP `by_datagrams`.
    """

    scratch = ""

    def __init__(
        self,
        loop: Loop,
        placement: Placement,
        *,
        on_event: Callable[[ClusterEvent], None],
        capabilities: Capabilities,
        preload: Sequence[str] = ("torch",),
        lease_s: float = LEASE_S,
        copy: tuple[str, bytes] | None = None,
        by_datagrams: bool = False,
    ) -> None:
        self.kind = placement.kind
        self.capabilities = capabilities
        self.network = MachineNetwork(self) if capabilities.has("network") else None
        self.disks = NodeDisks(self) if capabilities.has("disk_faults") else None
        self.names = NodeNames(self) if capabilities.has("names") else None
        self.sockets = MachineSockets(self)
        self.strangers = MachineStrangers(self)
        self.clock = MachineClock(self) if capabilities.has("clock_skew") else None
        self.limits = MachineLimits(self)
        self.logs = MachineLogs()
        self.files = MachineFiles(self)
        self.loop = loop
        self._placement = placement
        self._on_event = on_event
        self._preload = list(preload)
        self._lease_s = lease_s
        self._copy = copy
        self._by_datagrams = by_datagrams
        has_our_clock = capabilities.has("common_clock")
        self._machines = [
            Machine(loop, number, name, has_our_clock=has_our_clock)
            for number, name in enumerate(placement.machines, start=1)
        ]
        self.reporters = RemoteReporters(loop, lambda: self._machines)
        self._switchboard: Switchboard | None = None
        self._gateway: Gateway | None = None
        self._nodes: dict[str, ClusterNode | None] = {}
        self._places: dict[str, Machine] = {}
        self._copied: set[str] = set()
        self._last_watch = 0
        self._closing: Future[None] | None = None

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        return {name: node for name, node in self._nodes.items() if node is not None}

    @property
    def places(self) -> Mapping[str, ClusterNode]:
        """The nodes that run now, and the gateway."""
        place = None if self._gateway is None else self._gateway.place
        return self.nodes if place is None else {**self.nodes, GATEWAY: place}

    @property
    def machines(self) -> Sequence[Machine]:
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
        here = frozenset() if self._gateway is None else self._gateway.own_pids
        return self._placement.own_pids | here

    @property
    def own_fds(self) -> frozenset[int]:
        board = frozenset() if self._switchboard is None else self._switchboard.fds
        here = frozenset() if self._gateway is None else self._gateway.own_fds
        return board | self._placement.own_fds | here

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
            starts = [
                run(self.loop, self._start_machine(board, machine, token))
                for machine in self._machines
            ]
            if self.network is not None and self.capabilities.has("gateway"):
                self._gateway = Gateway(
                    self.loop,
                    len(self._machines) + 1,
                    Credentials.of_job(token.encode(), "machines"),
                    by_datagrams=self._by_datagrams,
                    on_event=self._on_own_event,
                )
                starts.append(self._gateway.start())
            yield from gather(starts)
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

    def _start_machine(self, board: Switchboard, machine: Machine, token: str) -> Steps[None]:
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
            by_datagrams=self._by_datagrams,
            roots=code_roots(),
        )
        placed = self._placement.place(self.loop, machine.name, order)
        placed.add_done_callback(
            lambda done: called.settle(done.error) if done.error is not None else None
        )
        what = f"the agent on {machine.name} to call"
        yield from within(called, _PLACE_LIMIT_S, what)
        facts = yield from machine.call("start", {}, timeout_s=_START_LIMIT_S)
        machine.address, machine.trunk_port = facts.fields["address"], facts.fields["port"]
        if self._copy is not None:
            yield from self._copy_to(machine, *self._copy)

    def _copy_to(self, machine: Machine, folder: str, archive: bytes) -> Steps[None]:
        try:
            with sign_in(folder) as sign:
                answer = yield from machine.call("copy_begins", {"folder": folder, "sign": sign})
        except OSError as error:
            raise ClusterError(
                f"cannot tell which machines share {folder}, as no file can be made there: "
                f"{error.strerror}"
            ) from error
        if not answer.fields["is_wanted"]:
            return
        for start in range(0, len(archive), PIECE_BYTES):
            piece = archive[start : start + PIECE_BYTES].decode(ENCODING)
            yield from machine.call("copy_piece", {"data": piece})
        yield from machine.call("copy_ends", {"folder": folder})

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
        if self._gateway is not None:
            yield from self._gateway.close()
            self._gateway = None
        self._switchboard = None
        yield from self._placement.close(self.loop)
        self._nodes.clear()

    def reset(self, *, seed: str = "") -> Future[None]:
        return run(self.loop, self._reset(seed))

    def _reset(self, seed: str) -> Steps[None]:
        resets = [each.call("reset", {"seed": seed}).then(_nothing) for each in self._machines]
        if self._gateway is not None:
            resets.append(self._gateway.reset(seed))
        yield from gather(resets)
        yield from self._join_switches()
        if self.network is not None:
            self.network.spread_s = 0.0
        yield from self._placement.release(self.loop)
        self.strangers.forget()
        self._copied.clear()
        self._places.clear()

    # --- nodes ----------------------------------------------------------------------------------

    def start_node(self, spec: NodeSpec) -> Future[ClusterNode]:
        if spec.name in self._nodes:
            raise UsageError(f"cannot start node '{spec.name}': it is running")
        self._nodes[spec.name] = None
        return run(self.loop, self._start_node(spec))

    def _start_node(self, spec: NodeSpec) -> Steps[ClusterNode]:
        isolated = self.network is not None
        shared = [*spec.shared, os.getcwd(), *filter(None, sys.path)]
        folders = [path for path in spec.shared if os.path.isdir(path) and _is_private(path)]
        wanted = {
            **asdict(spec),
            "shared": [path for path in dict.fromkeys(shared) if path not in folders],
            "sysctls": dict(spec.sysctls) if isolated else {},
        }
        try:
            machine = self._machine_for(spec)
            if spec.resources:
                yield from self._placement.reserve(
                    self.loop, machine.name, spec.name, spec.resources
                )
            started = yield from machine.call("start_node", {"spec": wanted, "folders": folders})
            facts = started.fields
            if isolated:
                fields = {"name": spec.name, "index": spec.index, "machine": machine.number}
                finds = [each.ask("add_remote_node", fields) for each in self._others(machine)]
                if self._gateway is not None and self._gateway.is_joined:
                    finds.append(self._gateway.add(spec.name, spec.index, machine))
                yield from gather(finds)
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

    def _machine_for(self, spec: NodeSpec) -> Machine:
        try:
            name = self._placement.machine_for(spec.index, spec.resources, spec.labels)
        except ClusterError as error:
            raise ClusterError(f"cannot start node '{spec.name}': {error.message}") from error
        return next(machine for machine in self._machines if machine.name == name)

    def stop_node(self, name: str) -> Future[None]:
        return run(self.loop, self._end_node(self.machine_of(name), name, "stop_node"))

    def crash_node(self, name: str) -> Future[None]:
        return run(self.loop, self._end_node(self.machine_of(name), name, "crash_node"))

    def power_cut(self, name: str) -> Future[None]:
        return run(self.loop, self._end_node(self.machine_of(name), name, "power_cut"))

    def _end_node(self, machine: Machine, name: str, act: str) -> Steps[None]:
        """End a node: at one moment, as the switch of its machine is between it and all others."""
        others = self._others(machine) if self.network is not None else ()
        yield from machine.do(act, None, name=name)
        if act != "crash_node":
            ends = [each.ask_switch("detach", {"name": name}) for each in others]
            if self._gateway is not None and self._gateway.is_joined:
                ends.append(self._gateway.detach(name))
            yield from gather(ends)

    def open_gateway(self) -> Future[Gateway]:
        """Return pytest's own place in the network of the nodes, which all of them can reach."""
        gateway = self._gateway
        if gateway is None:
            return settled(ClusterError(self.capabilities["gateway"].reason))
        nodes: dict[Machine, list[ClusterNode]] = {}
        for name, node in self.nodes.items():
            nodes.setdefault(self._places[name], []).append(node)
        return gateway.open(self._machines, nodes).then(lambda _: gateway)

    @property
    def gateway(self) -> Gateway | None:
        """Pytest's own place in the network of the nodes, where that can be had."""
        return self._gateway

    def _on_own_event(self, event: ClusterEvent) -> None:
        """Note that the switch of this machine was lost."""
        if isinstance(event, ServerLost) and self._closing is None:
            self._on_event(event)

    def _others(self, machine: Machine) -> Sequence[Machine]:
        return [each for each in self._machines if each is not machine]

    def pause_node(self, name: str) -> Future[None]:
        return self.machine_of(name).do("pause_node", None, name=name)

    def resume_node(self, name: str) -> Future[None]:
        return self.machine_of(name).do("resume_node", None, name=name)

    def running(self, name: str) -> ClusterNode:
        """Return a running node; raises UsageError if there is none."""
        self.machine_of(name)
        return self.nodes[name]

    def ask(self, op: str, fields: Mapping[str, Any], fds: Sequence[int] = ()) -> Future[Answer]:
        """Ask the cluster server of a node's machine for something."""
        assert not fds, "descriptors do not travel to another machine"
        return self.machine_of(fields["name"]).ask(op, fields)

    def owners_of(self, pairs: Sequence[Pair]) -> Mapping[Machine | Gateway, Sequence[Pair]]:
        """Return whose switches links belong to: where they begin, which is known once it ran."""
        found: dict[Machine | Gateway, list[Pair]] = {}
        for pair in pairs:
            known = self._gateway if pair[0] == GATEWAY else self._places.get(pair[0])
            for machine in self._machines if known is None else (known,):
                found.setdefault(machine, []).append(pair)
        return found

    def machine_of(self, name: str) -> Machine:
        """Return the machine of a running node; raises UsageError if there is none."""
        if self._nodes.get(name) is None:
            running = ", ".join(self.nodes) or "none"
            raise UsageError(f"there is no running node '{name}'", hint=f"running: {running}")
        return self._places[name]

    # --- processes ------------------------------------------------------------------------------

    def spawn(self, node: str, spec: ProcessSpec) -> Future[ProcessHandle]:
        return run(self.loop, self._spawn(self.machine_of(node), node, spec))

    def _spawn(self, machine: Machine, node: str, spec: ProcessSpec) -> Steps[ProcessHandle]:
        for path in filter(None, (spec.stdout, spec.stderr, spec.logs)):
            self.copies_to(path)
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
        return machine.do("processes", tuple[ProcessInfo, ...], node=node).then(
            lambda found: tuple(
                replace(
                    each,
                    pid=machine.pid_here(each.pid),
                    session=machine.pid_here(each.session),
                )
                for each in found
            )
        )

    def signal(self, process: ProcessRef, signum: int) -> Future[bool]:
        return self.do_to(process, "signal", bool, otherwise=False, signum=int(signum))

    def state(self, process: ProcessRef) -> Future[str]:
        return self.do_to(process, "state", str, otherwise="")

    def ended(self, process: ProcessRef) -> Future[int | None]:
        machine = self._machine_with(process)
        if machine is None:
            return settled(None)
        self._last_watch += 1
        watch = self._last_watch
        ended: Future[int | None] = machine.watched.setdefault(watch, Future())
        order = {"process": asdict(machine.ref(process)), "watch": watch}
        asked = machine.call("watch_end", order)
        asked.add_done_callback(
            lambda done: None if done.error is None else ended.settle(done.error)
        )
        return ended

    def stacks(self, process: ProcessRef, *, fd: int, signum: int) -> Future[tuple[str, str]]:
        lost = ("", "it is on no machine of this cluster")
        return self.do_to(process, "stacks", tuple[str, str], otherwise=lost, fd=fd, signum=signum)

    def copies_to(self, path: str) -> None:
        """Let agents write pieces of a file at `path`, or of files below it."""
        self._copied.add(os.path.abspath(path))

    def do_to(
        self, process: ProcessRef, act: str, kind: object, *, otherwise: object, **arguments: object
    ) -> Future[Any]:
        """Have the agent of a process's machine do something to it; `otherwise`: it is on none."""
        machine = self._machine_with(process)
        if machine is None:
            return settled(otherwise)
        return machine.do(act, kind, process=machine.ref(process), **arguments)

    def _machine_with(self, process: ProcessRef) -> Machine | None:
        number = process.pid // PIDS_OF_A_MACHINE
        return self._machines[number - 1] if 1 <= number <= len(self._machines) else None

    # --- what agents say ------------------------------------------------------------------------

    def _on_told(self, machine: Machine, event: str, told: JsonObject) -> None:
        if self.reporters.hear(machine, event, told):
            return
        match event:
            case "exited":
                process = machine.processes.pop(told["id"], None)
                if process is not None:
                    process.exit_code = told["exit_code"]
                    self._on_event(ProcessExited(process=process))
            case "file" | "files_unseen":
                self.files.hear(machine, event, told)
            case "visits":
                self.strangers.hear(machine, told)
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

    def _on_asked(self, machine: Machine, op: str, fields: JsonObject, reply: Reply) -> None:
        """Write a piece of a file; nowhere else than where one was asked for."""
        path = os.path.abspath(fields["path"])
        is_asked_for = op == "copy" and any(
            path == known or path.startswith(known + os.sep) for known in self._copied
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

    def _on_lost(self, machine: Machine, reason: str) -> None:
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


def _nothing(_: Answer) -> None:
    return None


def _is_private(path: str) -> bool:
    """Tell whether a node of its own sees something else at a path, unless it shares it."""
    return any(path.startswith(f"{tree}/") for tree in PRIVATE_TREES)


@contextlib.contextmanager
def _sign_beside(spec: ProcessSpec) -> Iterator[str]:
    """Sign the folder of a process's logs, which need not be there yet."""
    folder = spec.logs or os.path.dirname(spec.stdout or spec.stderr or "")
    if not folder:
        yield "/nowhere"
        return
    os.makedirs(folder, exist_ok=True)
    with sign_in(folder) as sign:
        yield sign
