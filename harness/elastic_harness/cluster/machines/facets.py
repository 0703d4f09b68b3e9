"""The facets of a cluster on several machines, carried out by their agents."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from elastic_harness.cluster.client_facets import (
    FacetClient,
    NodeLimits,
    add_up,
    ends_by_index,
    order_to_lay,
)
from elastic_harness.cluster.cluster import GATEWAY, ClusterError, ClusterNode
from elastic_harness.cluster.facets import (
    FileLimit,
    Network,
    NetworkCounters,
    OnUnseen,
    OnWritten,
    Visits,
)
from elastic_harness.cluster.files.folder_watch import FolderWatch, folder_identity
from elastic_harness.cluster.local_logs import LocalLogs
from elastic_harness.cluster.machines.gateway import Gateway
from elastic_harness.cluster.machines.machine import Machine
from elastic_harness.cluster.machines.reports import ENCODING
from elastic_harness.cluster.process import ProcessRef
from elastic_harness.conversation import Answer
from elastic_harness.future import Future, Steps, gather, run, settled
from elastic_harness.network.link_counters import links_of
from elastic_harness.network.link_model import Layers, LinkCounters, Pair
from pytest_elastic.channel import JsonObject

__all__ = [
    "MachineClock",
    "MachineFiles",
    "MachineLimits",
    "MachineLogs",
    "MachineNetwork",
    "MachineSockets",
    "MachineStrangers",
    "sign_in",
]


# How much later than ordered policies come into force at several switches: the order takes as
# long to the last of them, on one network, unless a machine is overloaded.
_AHEAD_S: Final = 0.005


class _Cluster(FacetClient, Protocol):
    """What facets need of the cluster."""

    @property
    def machines(self) -> Sequence[Machine]:
        """All machines, in their order."""

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        """The nodes that run now, by name."""

    @property
    def network(self) -> Network | None:
        """Its links."""

    @property
    def gateway(self) -> Gateway | None:
        """Pytest's own place in the network of the nodes, where that can be had."""

    def open_gateway(self) -> Future[Gateway]:
        """Return it once nodes can reach it."""

    @property
    def called_at(self) -> Sequence[str]:
        """The addresses of ours at which agents have called."""

    def machine_of(self, name: str) -> Machine:
        """Return the machine of a running node; raises UsageError if there is none."""

    def owners_of(self, pairs: Sequence[Pair]) -> Mapping[Machine | Gateway, Sequence[Pair]]:
        """Return on whose switches links begin."""

    def do_to(
        self, process: ProcessRef, act: str, kind: object, *, otherwise: object, **arguments: object
    ) -> Future[Any]:
        """Have the agent of a process's machine do something to it; `otherwise`: it is on none."""

    def copies_to(self, path: str) -> None:
        """Let agents write pieces of a file at `path`."""


class MachineNetwork:
    """`Network`, as the switches of all machines are it together.

    A link is that of the switch where it begins. `spread_s` is by how much the moments differed at
    most, since the last reset, in which an order came into force at several switches; what is not
    known of their clocks included.
    """

    def __init__(self, cluster: _Cluster) -> None:
        self.spread_s = 0.0
        self._cluster = cluster
        self._captures: dict[str, Sequence[Machine | Gateway]] = {}

    @property
    def _owners(self) -> Sequence[Machine | Gateway]:
        gateway = self._cluster.gateway
        return [*self._cluster.machines, *([gateway] if gateway is not None else [])]

    def lay(
        self, pairs: Sequence[Pair], layers: Layers, *, traffic: str | None = None
    ) -> Future[None]:
        order = order_to_lay(pairs, layers, traffic)
        return run(self._cluster.loop, self._order(order, self._cluster.owners_of(pairs)))

    def _order(
        self, order: Mapping[str, Any], owners: Mapping[Machine | Gateway, Sequence[Pair]]
    ) -> Steps[None]:
        """Have all switches change at one moment, which is close ahead.

        A single one needs none, and without a comparison of clocks none can be told.
        """
        asked_at = self._cluster.loop.now()
        error_s = max((owner.clock_error_s for owner in owners), default=0.0)
        if len(owners) < 2 or math.isinf(error_s):
            yield from gather(
                owner.ask_switch("lay", {**order, "pairs": pairs})
                for owner, pairs in owners.items()
            )
            if len(owners) > 1:
                self.spread_s = max(self.spread_s, self._cluster.loop.now() - asked_at)
            return
        at = asked_at + _AHEAD_S
        answers = yield from gather(
            owner.ask_switch("lay", {**order, "pairs": pairs, "at": at - owner.clock_offset_s})
            for owner, pairs in owners.items()
        )
        moments = [
            float(answer.fields["at"]) + owner.clock_offset_s
            for owner, answer in zip(owners, answers, strict=True)
        ]
        spread_s = max(moments) - min(moments) + 2 * error_s
        self.spread_s = max(self.spread_s, spread_s)

    def learn_traffic(self, endpoints: Mapping[str, Sequence[tuple[str, int]]]) -> Future[None]:
        order = {"ends": ends_by_index(endpoints, self._cluster.places)}
        learnt = gather(each.ask_switch("learn_traffic", order) for each in self._owners)
        return learnt.then(lambda _: None)

    def counters(self) -> Future[NetworkCounters]:
        return run(self._cluster.loop, self._read_counters())

    def _read_counters(self) -> Steps[NetworkCounters]:
        machines = self._cluster.machines
        answers = yield from gather(machine.call("counters", {}) for machine in machines)
        links: dict[Pair, LinkCounters] = {}
        own: dict[str, int] = {}
        for machine, answer in zip(machines, answers, strict=True):
            found = links_of(answer.fields["links"])
            for pair in self._cluster.owners_of(tuple(found)).get(machine, ()):
                links[pair] = found[pair]
            own = add_up(own, answer.fields["own"])
        if self._cluster.gateway is not None and self._cluster.gateway.is_joined:
            here = yield from self._cluster.gateway.network.counters()
            links |= {pair: found for pair, found in here.links.items() if pair[0] == GATEWAY}
            own = add_up(own, here.own_drops)
        return NetworkCounters(links=links, own_drops=own, spread_s=self.spread_s)

    def capture(self, id: str, pairs: Sequence[Pair], path: str) -> Future[Sequence[str]]:
        return run(self._cluster.loop, self._capture(id, pairs, path))

    def _capture(self, id: str, pairs: Sequence[Pair], path: str) -> Steps[Sequence[str]]:
        beginning, ending = os.path.splitext(path)
        files = {
            owner: (f"{beginning}.{owner.number}{ending}", pairs)
            for owner, pairs in self._cluster.owners_of(pairs).items()
        }
        self._captures[id] = tuple(files)
        with sign_in(os.path.dirname(path)) as sign:
            for file, _ in files.values():
                self._cluster.copies_to(file)
            yield from gather(
                owner.capture(id, links, file, sign) for owner, (file, links) in files.items()
            )
        return [file for file, _ in files.values()]

    def captured(self, id: str) -> Future[int]:
        return self._count_captured("captured", id)

    def end_capture(self, id: str) -> Future[int]:
        return self._count_captured("end_capture", id)

    def _count_captured(self, op: str, id: str) -> Future[int]:
        owners = self._captures.get(id, ())
        return gather(owner.count_captured(op, id) for owner in owners).then(sum)


class MachineSockets:
    """`Sockets` of this machine, which nodes reach as their agents reach it (`gateway`)."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster

    @property
    def gateway_address(self) -> str:
        if self._cluster.gateway is not None:
            return self._cluster.gateway.address
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
        if self._cluster.network is not None:
            joined = self._cluster.open_gateway()
            return run(self._cluster.loop, self._open_at(joined, datagram=datagram))
        family = socket.AF_INET6 if ":" in self.gateway_address else socket.AF_INET
        kind = socket.SOCK_DGRAM if datagram else socket.SOCK_STREAM
        return settled(socket.socket(family, kind))

    def _open_at(self, joined: Future[Gateway], *, datagram: bool) -> Steps[socket.socket]:
        gateway = yield from joined
        return (yield from gateway.socket(datagram=datagram))

    def listeners(self, node: str, port: int) -> Future[tuple[ProcessRef, ...]]:
        machine = self._cluster.machine_of(node)
        found = machine.do("sockets.listeners", tuple[ProcessRef, ...], node=node, port=port)
        return found.then(
            lambda refs: tuple(replace(each, pid=machine.pid_here(each.pid)) for each in refs)
        )


class MachineStrangers:
    """`Strangers`: their agents have them, and tell what becomes of them."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self._visits: dict[tuple[str, Machine], Visits] = {}  # by whose they are

    def send(
        self, owner: str, node: str, at: tuple[str, int], words: bytes, *, connections: int
    ) -> None:
        target, machine = self._cluster.nodes[at[0]], self._cluster.machine_of(node)
        known = self._visits.get((owner, machine), Visits())
        self._visits[owner, machine] = replace(known, wanted=known.wanted + connections)
        order = {
            "owner": owner,
            "node": node,
            "address": (target.address, at[1]),
            "words": words.decode(ENCODING),
            "connections": connections,
        }

        def on_done(done: Future[Answer]) -> None:
            if done.error is not None and (owner, machine) in self._visits:
                known = self._visits[owner, machine]
                self._visits[owner, machine] = replace(known, refusal=done.error.message)

        machine.call("send_strangers", order).add_done_callback(on_done)

    def hear(self, machine: Machine, told: JsonObject) -> None:
        """Take what an agent says of them."""
        key = (told["owner"], machine)
        if key in self._visits:
            self._visits[key] = replace(Visits(**told["visits"]), wanted=self._visits[key].wanted)

    def visits(self, owner: str) -> Visits:
        found = [visits for (whose, _), visits in self._visits.items() if whose == owner]
        refusals = [each.refusal for each in found if each.refusal]
        return Visits(
            wanted=sum(each.wanted for each in found),
            taken=sum(each.taken for each in found),
            closed=sum(each.closed for each in found),
            answered=sum(each.answered for each in found),
            refusal=refusals[-1] if refusals else "",
        )

    def send_away(self, owner: str) -> None:
        for whose, machine in list(self._visits):
            if whose == owner:
                del self._visits[whose, machine]
                machine.tell("send_strangers_away", {"owner": owner})

    def forget(self) -> None:
        """Note that all were sent away."""
        self._visits.clear()


class MachineClock:
    """`Clock`: each machine has the file of its own nodes."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster

    def set_offset(self, node: str, file: str, offset_s: float) -> Future[None]:
        machine = self._cluster.machine_of(node)
        return machine.do("clock.set_offset", None, node=node, file=file, offset_s=offset_s)

    def time_of_day(self, node: str) -> Future[float]:
        return self._cluster.machine_of(node).do("clock.time_of_day", float, node=node)


class MachineLimits(NodeLimits):
    """`Limits`, as the agents' own clusters have them."""

    def __init__(self, cluster: _Cluster) -> None:
        super().__init__(cluster)
        self._cluster = cluster

    def limit_files(
        self, process: ProcessRef, *, free: int, at_most: int | None = None
    ) -> Future[FileLimit | None]:
        act, kind = "limits.limit_files", FileLimit | None
        return self._cluster.do_to(process, act, kind, otherwise=None, free=free, at_most=at_most)

    def restore_files(self, process: ProcessRef, *, at_most: int | None = None) -> Future[None]:
        act = "limits.restore_files"
        return self._cluster.do_to(process, act, None, otherwise=None, at_most=at_most)


class MachineLogs(LocalLogs):
    """`Logs`, as far as they were copied."""

    def is_complete(self, path: str, size: int) -> bool:
        """Return False: processes on another machine may still write to it."""
        return False


class MachineFiles:
    """`Files`: each agent watches its machine's, as a kernel reports only its own machine's writes.

    Where machines see one folder, on one kernel, the first of them is listened to.
    """

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self._on_written: OnWritten = lambda *_: None
        self._on_unseen: OnUnseen = lambda _: None
        # By machine: whether it is listened to, and what it has told before that was known.
        self._hears: dict[Machine, bool] = {}
        self._waiting: dict[Machine, list[tuple[str, JsonObject]]] = {}

    def watch(self, folder: str, on_written: OnWritten, on_unseen: OnUnseen) -> Callable[[], None]:
        self._on_written, self._on_unseen = on_written, on_unseen
        here = FolderWatch(self._cluster.loop, folder, on_written, on_unseen)
        here.start()
        run(self._cluster.loop, self._choose(folder))

        def stop() -> None:
            here.close()
            self._hears.clear()
            self._waiting.clear()
            for machine in self._cluster.machines:
                machine.tell("unwatch_files", {})

        return stop

    def _choose(self, folder: str) -> Steps[None]:
        """Have all agents watch, before anything is started there, and find who sees the same."""
        known: set[str] = set()
        with contextlib.suppress(OSError):  # there is none here, and `here` has said so
            known.add(folder_identity(folder))
        self._hears.clear()
        self._waiting = {machine: [] for machine in self._cluster.machines}
        asked = {
            machine: machine.call("watch_files", {"folder": folder})
            for machine in self._cluster.machines
        }
        for machine, answering in asked.items():
            try:
                answer = yield from answering
            except ClusterError as error:
                self._waiting.pop(machine, None)
                self._on_unseen(error.message)
                continue
            identity = str(answer.fields["identity"])
            self._hears[machine] = identity not in known
            known.add(identity)
            for event, told in self._waiting.pop(machine, ()):
                self.hear(machine, event, told)

    def hear(self, machine: Machine, event: str, told: JsonObject) -> None:
        """Take what an agent says of files."""
        if machine in self._waiting:
            self._waiting[machine].append((event, told))
        elif not self._hears.get(machine):
            return
        elif event == "file":
            self._on_written(told["path"], told["how"], told["size"])
        else:
            self._on_unseen(f"on {machine.name}: {told['reason']}")

    def corrupt(
        self, pattern: str, how: str, *, folders: Sequence[str], node: str | None = None
    ) -> Future[str]:
        machine = self._cluster.machines[0] if node is None else self._cluster.machine_of(node)
        return machine.do(
            "files.corrupt", str, pattern=pattern, how=how, folders=folders, node=node
        )


@contextlib.contextmanager
def sign_in(folder: str) -> Iterator[str]:
    """Put a file into a folder, by which a machine sees whether that is the same there."""
    path = os.path.join(folder, f".elastic-{secrets.token_hex(8)}")
    with open(path, "x", encoding="ascii"):
        pass
    try:
        yield path
    finally:
        os.unlink(path)
