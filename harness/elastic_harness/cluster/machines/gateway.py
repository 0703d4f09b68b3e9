"""pytest's own place in the network of nodes that are on other machines.

This machine runs a switch as the others do, for one place only, the gateway. It is joined to them
by trunks when something is first opened there, so that only runs with services of pytest's, such as
proxies, need connections from this machine to the others.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.cluster.cluster import GATEWAY, ClusterEvent, ClusterNode
from elastic_harness.cluster.facets import Network
from elastic_harness.cluster.machines.machine import Machine
from elastic_harness.cluster.machines.trunk_ends import TrunkEnds
from elastic_harness.conversation import Answer
from elastic_harness.future import Future, Steps, gather, run
from elastic_harness.network.link_model import Pair
from elastic_harness.network.trunk import DATAGRAM_MTU
from pytest_elastic.credentials import Credentials
from pytest_elastic.loop import Loop

__all__ = ["Gateway"]


class Gateway:
    """The switch of this machine. `number` is one more than those of the machines."""

    clock_offset_s = clock_error_s = 0.0  # as of a machine: the clock is ours

    def __init__(
        self,
        loop: Loop,
        number: int,
        credentials: Credentials,
        *,
        by_datagrams: bool,
        on_event: Callable[[ClusterEvent], None],
    ) -> None:
        self.number = number
        self._loop = loop
        self._here = choose_cluster("namespace").make(
            loop, on_event=on_event, preload=(), mtu=DATAGRAM_MTU if by_datagrams else None
        )
        # Of two machines that with the higher number dials, so that nothing comes in here.
        self._trunks = TrunkEnds(loop, number, "127.0.0.1", credentials, by_datagrams=by_datagrams)
        self._joined: Future[None] | None = None

    @property
    def network(self) -> Network:
        """The links that begin at the gateway."""
        assert self._here.network is not None, "it was chosen for its network"
        return self._here.network

    @property
    def place(self) -> ClusterNode | None:
        """What nodes reach, once something was opened there."""
        return self._here.places.get(GATEWAY)

    @property
    def is_joined(self) -> bool:
        """Tell whether nodes can reach it in this run."""
        return self._joined is not None

    @property
    def address(self) -> str:
        """Its address in the network of nodes, once something was opened there."""
        return self._here.sockets.gateway_address

    @property
    def own_pids(self) -> frozenset[int]:
        """The processes of this machine that serve it."""
        return self._here.own_pids

    @property
    def own_fds(self) -> frozenset[int]:
        """The descriptors of this process that it uses."""
        return self._here.own_fds | {self._trunks.fileno()}

    def start(self) -> Future[None]:
        """Start the switch."""
        return self._here.start()

    def close(self) -> Future[None]:
        """End it."""
        self._trunks.close()
        return self._here.close()

    def reset(self, seed: str) -> Future[None]:
        """Take the gateway off; trunks stay."""
        self._joined = None
        return self._here.reset(seed=seed)

    def open(
        self, machines: Sequence[Machine], nodes: Mapping[Machine, Collection[ClusterNode]]
    ) -> Future[None]:
        """Join the switches of the machines and have nodes find the gateway, once in a run."""
        if self._joined is None or (self._joined.is_done and self._joined.error is not None):
            self._joined = run(self._loop, self._join(machines, nodes))
        return self._joined

    def _join(
        self, machines: Sequence[Machine], nodes: Mapping[Machine, Collection[ClusterNode]]
    ) -> Steps[None]:
        answers = yield from gather(each.ask_switch("trunks", {}) for each in machines)
        far = {
            machine.number
            for machine, answer in zip(machines, answers, strict=True)
            if self.number in answer.fields["machines"]
        }
        near = (yield from self.ask_switch("trunks", {})).fields["machines"]
        lacking = [each for each in machines if each.number not in far.intersection(near)]
        yield from gather(
            run(self._loop, self._trunks.dial(each.number, each.address, each.trunk_port))
            for each in lacking
        )
        for number, end in self._trunks.take().items():
            order = {"machine": number, "cookie": end.cookie}
            with end.socket:
                added = self.ask_switch("add_trunk", order, [end.socket.fileno()])
            yield from added
        yield from gather(each.call("add_trunks", {}) for each in lacking)
        for machine, there in nodes.items():
            for node in there:
                yield from self.add(node.name, node.index, machine)
        (yield from self._here.sockets.open(GATEWAY)).close()  # so that there is a gateway
        assert self.place is not None, "a socket was opened there"
        fields = {"name": GATEWAY, "index": self.place.index, "machine": self.number}
        yield from gather(each.ask("add_remote_node", fields) for each in machines)

    def add(self, name: str, index: int, machine: Machine) -> Future[Answer]:
        """Have the gateway find a node."""
        fields = {"name": name, "index": index, "machine": machine.number}
        return self._here.ask("add_remote_node", fields)

    def capture(self, name: str, pairs: Sequence[Pair], path: str, sign: str) -> Future[None]:
        """Write what passes over links that begin here into a file, as `Machine.capture` does."""
        del sign  # this machine shares its own files
        return self.network.capture(name, pairs, path).then(lambda _: None)

    def count_captured(self, op: str, name: str) -> Future[int]:
        """Return how many packets a capture has; `op` is "captured" or "end_capture"."""
        ends = op == "end_capture"
        return self.network.end_capture(name) if ends else self.network.captured(name)

    def detach(self, name: str) -> Future[Answer]:
        """Take a node off that has ended."""
        return self.ask_switch("detach", {"name": name})

    def socket(self, *, datagram: bool) -> Future[socket.socket]:
        """Open a socket at the gateway, once it has joined."""
        return self._here.sockets.open(GATEWAY, datagram=datagram)

    def ask_switch(
        self, order: str, fields: Mapping[str, Any], fds: Sequence[int] = ()
    ) -> Future[Answer]:
        """Ask the switch here for something."""
        return self._here.ask("network", {"order": order, "fields": fields}, fds)
