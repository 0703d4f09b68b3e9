"""The facets of a cluster whose nodes are on this machine, carried out by a cluster server."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from elastic_harness.cluster.cluster import GATEWAY, Capabilities, ClusterError, ClusterNode
from elastic_harness.cluster.disks.policy import DiskCounters, DiskPolicy
from elastic_harness.cluster.facets import FileLimit, Limited, NetworkCounters
from elastic_harness.cluster.limits.cgroup_layout import GroupReadings
from elastic_harness.cluster.local_processes import listens_at
from elastic_harness.cluster.process import ProcessInfo, ProcessRef, is_running
from elastic_harness.conversation import Answer
from elastic_harness.future import Future, Steps, run, settled
from elastic_harness.network.link_counters import links_of
from elastic_harness.network.link_model import DropReason, Layers, LinkCounters, Pair
from elastic_harness.network.names import NameChange, read_hosts
from elastic_harness.network.traffic import check_class
from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop
from pytest_elastic.whole_file import replace_file

__all__ = [
    "FacetClient",
    "FileClock",
    "LocalSockets",
    "NodeDisks",
    "NodeLimits",
    "NodeNames",
    "Switch",
    "add_up",
    "ends_by_index",
    "order_to_lay",
]


class FacetClient(Protocol):
    """What facets need of the client of the cluster's server."""

    loop: Loop
    capabilities: Capabilities

    @property
    def places(self) -> Mapping[str, ClusterNode]:
        """The nodes that run now, by name, and the gateway."""

    def running(self, name: str) -> ClusterNode:
        """Return what runs under a name; raises UsageError if nothing does."""

    def processes(self, node: str) -> Future[tuple[ProcessInfo, ...]]:
        """List the processes of a node."""

    def state(self, process: ProcessRef) -> Future[str]:
        """Return the letter of a process's state, "" once it has ended."""

    def ask(self, op: str, fields: Mapping[str, Any], fds: Sequence[int] = ()) -> Future[Answer]:
        """Ask the server for something."""


class _Facet:
    def __init__(self, client: FacetClient) -> None:
        self._client = client

    def _ask_node(self, node: str, order: str, fields: Mapping[str, Any]) -> Future[Answer]:
        return self._client.ask("node", {"name": node, "order": order, "fields": fields})


class Switch(_Facet):
    """`Network`: what the server's switch does to links."""

    def lay(
        self, pairs: Sequence[Pair], layers: Layers, *, traffic: str | None = None
    ) -> Future[None]:
        return self._ask_switch("lay", order_to_lay(pairs, layers, traffic)).then(_nothing)

    def learn_traffic(self, endpoints: Mapping[str, Sequence[tuple[str, int]]]) -> Future[None]:
        order = {"ends": ends_by_index(endpoints, self._client.places)}
        return self._ask_switch("learn_traffic", order).then(_nothing)

    def counters(self) -> Future[NetworkCounters]:
        return run(self._client.loop, self._read_counters())

    def _read_counters(self) -> Steps[NetworkCounters]:
        """Ask the switch for its links, and every device for what it had to drop meanwhile.

        A device drops packets, unseen by the switch, when the switch stalls for so long that the
        device's own queue is full; those of nodes that have ended are known to the server.
        """
        answer = yield from self._ask_switch("counters", {})
        links = links_of(answer.fields["links"])
        of_ended = self._client.ask("drops_of_ended", {})
        devices = [self._ask_node(name, "count_drops", {}) for name in self._client.places]
        stalled = int((yield from of_ended).fields["dropped"])
        for device in devices:
            with contextlib.suppress(ClusterError):  # it has ended meanwhile
                stalled += int((yield from device).fields["dropped"])
        own = {DropReason.STALL.value: stalled} if stalled else {}
        own = add_up(own, answer.fields["own"])
        return NetworkCounters(links=links, own_drops=_own_drops(links, own))

    def capture(self, id: str, pairs: Sequence[Pair], path: str) -> Future[Sequence[str]]:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"cannot capture packets in {path}: {error.strerror}") from error
        order = {"name": id, "pairs": [list(pair) for pair in pairs]}
        try:
            return self._ask_switch("capture", order, fds=[fd]).then(lambda _: (path,))
        finally:
            os.close(fd)

    def captured(self, id: str) -> Future[int]:
        return self._ask_switch("captured", {"name": id}).then(_packets)

    def end_capture(self, id: str) -> Future[int]:
        return self._ask_switch("end_capture", {"name": id}).then(_packets)

    def _ask_switch(
        self, order: str, fields: Mapping[str, Any], *, fds: Sequence[int] = ()
    ) -> Future[Answer]:
        return self._client.ask("network", {"order": order, "fields": fields}, fds)


def _nothing(_: Answer) -> None:
    return None


def _packets(answer: Answer) -> int:
    return int(answer.fields["packets"])


def order_to_lay(pairs: Sequence[Pair], layers: Layers, traffic: str | None) -> dict[str, Any]:
    """Return what a switch is told of layers."""
    if traffic is not None:
        check_class(traffic)
    return {
        "pairs": [list(pair) for pair in pairs],
        "layers": msgspec.to_builtins(layers),
        "traffic": traffic,
    }


def ends_by_index(
    endpoints: Mapping[str, Sequence[tuple[str, int]]], places: Mapping[str, ClusterNode]
) -> dict[str, list[tuple[int, int]]]:
    """Return endpoints as a switch knows them: by the last octet of the address."""
    return {
        name: [(places[node].index, port) for node, port in found if node in places]
        for name, found in endpoints.items()
    }


def add_up(some: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of numbers by name."""
    return {name: some.get(name, 0) + more.get(name, 0) for name in {**some, **more}}


def _own_drops(links: Mapping[Pair, LinkCounters], own: Mapping[str, int]) -> dict[str, int]:
    for link in links.values():
        found = {each.value: number for each, number in link.dropped.items() if each.is_own}
        own = add_up(own, found)
    return dict(own)


class LocalSockets(_Facet):
    """`Sockets`: opened by a node's init, whose network they live in, and passed to us."""

    def __init__(
        self,
        client: FacetClient,
        start_gateway: Callable[[], Future[ClusterNode]],
        *,
        is_isolated: bool,
    ) -> None:
        super().__init__(client)
        self._start_gateway = start_gateway
        self._is_isolated = is_isolated
        self._gateway: Future[ClusterNode] | None = None

    @property
    def gateway_address(self) -> str:
        return self._client.places[GATEWAY].address if self._is_isolated else "127.0.0.1"

    def open(self, node: str, *, datagram: bool = False) -> Future[socket.socket]:
        if node == GATEWAY and not self._is_isolated:
            return settled(socket.socket(type=_kind(datagram=datagram)))
        if node == GATEWAY and GATEWAY not in self._client.places:
            return run(self._client.loop, self._open_at_gateway(datagram=datagram))
        self._client.running(node)
        return self._ask_node(node, "open_socket", {"datagram": datagram}).then(
            lambda answer: socket.socket(fileno=answer.fds[0])
        )

    def _open_at_gateway(self, *, datagram: bool) -> Steps[socket.socket]:
        """Start the gateway first, once for all who wait for it."""
        if self._gateway is None or self._gateway.is_done:
            self._gateway = self._start_gateway()
        yield from self._gateway
        return (yield from self.open(GATEWAY, datagram=datagram))

    def listeners(self, node: str, port: int) -> Future[tuple[ProcessRef, ...]]:
        return self._client.processes(node).then(
            lambda found: tuple(
                each.ref for each in found if is_running(each.state) and listens_at(each.pid, port)
            )
        )


def _kind(*, datagram: bool) -> socket.SocketKind:
    return socket.SOCK_DGRAM if datagram else socket.SOCK_STREAM


class NodeDisks(_Facet):
    """`Disks`: a file system over a directory, served by a process beside the server."""

    def set_policy(
        self, node: str, path: str, owner: str, policy: DiskPolicy | None
    ) -> Future[None]:
        more = {} if policy is None else {"policy": msgspec.to_builtins(policy)}
        order = "unset" if policy is None else "set"
        return self._ask_disk(node, path, order, {"owner": owner, **more}).then(_nothing)

    def counters(self, node: str, path: str) -> Future[DiskCounters]:
        return self._ask_disk(node, path, "count", {}).then(
            lambda answer: msgspec.convert(answer.fields, DiskCounters)
        )

    def _ask_disk(
        self, node: str, path: str, order: str, fields: Mapping[str, Any]
    ) -> Future[Answer]:
        self._client.running(node)
        return self._client.ask(
            "disk", {"name": node, "path": path, "order": order, "fields": fields}
        )


class NodeLimits(_Facet):
    """`Limits`: control groups of nodes, and the kernel's limits on a process."""

    def __init__(self, client: FacetClient) -> None:
        super().__init__(client)
        self._soft: dict[ProcessRef, int] = {}  # what processes could open before

    def limit_node(self, node: str, of: Limited, most: float | None) -> Future[None]:
        self._client.running(node)
        return self._client.ask("limit_node", {"name": node, "of": of, "most": most}).then(_nothing)

    def readings(self, node: str) -> Future[GroupReadings]:
        self._client.running(node)
        return self._client.ask("read_limits", {"name": node}).then(
            lambda answer: msgspec.convert(answer.fields, GroupReadings)
        )

    def limit_files(
        self, process: ProcessRef, *, free: int, at_most: int | None = None
    ) -> Future[FileLimit | None]:
        return self._client.state(process).then(
            lambda state: _limit_files(process, free, at_most, self._soft) if state else None
        )

    def restore_files(self, process: ProcessRef, *, at_most: int | None = None) -> Future[None]:
        soft = self._soft.get(process) if at_most is not None else self._soft.pop(process, None)

        def restore(state: str) -> None:
            if state and soft is not None:
                with contextlib.suppress(ProcessLookupError):
                    _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
                    wanted = soft if at_most is None else at_most
                    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (wanted, hard))

        return self._client.state(process).then(restore)


def _limit_files(
    process: ProcessRef, free: int, at_most: int | None, before: dict[ProcessRef, int]
) -> FileLimit | None:
    try:
        taken = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        # The limit is on numbers, and a process is always given the lowest that is free.
        usable = [number for number in range(len(taken) + free + 1) if number not in taken]
        wanted = usable[free] if at_most is None else min(usable[free], at_most)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (wanted, hard))
        limit, _ = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    except (ProcessLookupError, FileNotFoundError):
        return None
    before.setdefault(process, soft)
    return FileLimit(limit=limit, asked=usable[free])


class NodeNames(_Facet):
    """`Names`: a table of hosts and a name service of a node's own."""

    def set_names(self, node: str, changes: Mapping[str, NameChange]) -> Future[Mapping[str, str]]:
        fields = {
            name: (None if change.is_missing else change.address or "", change.slow_s, change.owner)
            for name, change in changes.items()
        }
        return self._client.ask("set_names", {"name": node, "changes": fields}).then(
            lambda answer: read_hosts(answer.fields["hosts"])
        )

    def asked(self, node: str) -> Future[Mapping[str, Mapping[str, int]]]:

        def read(answer: Answer) -> Mapping[str, Mapping[str, int]]:
            asked: Mapping[str, Mapping[str, int]] = answer.fields["asked"]
            return asked

        return self._ask_node(node, "names_asked", {}).then(read)


class FileClock:
    """`Clock`: the offset stands in a file that libfaketime reads in every process."""

    def set_offset(self, node: str, file: str, offset_s: float) -> Future[None]:
        try:
            replace_file(file, f"{offset_s:+g}\n")
        except OSError as error:
            return settled(ClusterError(f"cannot set the clock {file}: {error.strerror}"))
        return settled(None)

    def time_of_day(self, node: str) -> Future[float]:
        return settled(time.time())
