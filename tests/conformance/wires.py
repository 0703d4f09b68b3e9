"""Three ways over one link: the pure model, a simulated network, and a switch between real nodes.

All are asked for the same: put a policy in force, send numbered packets, and say which arrived,
in which order, how late. The switch's packets are datagrams from one node to another.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from elastic_harness.future import wait_for
from elastic_harness.network.link_model import (
    NO_CLASS,
    DecisionKind,
    DropReason,
    Link,
    LinkCounters,
    LinkMode,
    LinkPolicy,
)
from elastic_harness.network.traffic import port_class
from elastic_simulation.scenarios.network import SimulatedNetwork
from elastic_simulation.world import World, settings

from tests.cluster_bench import LIMIT_S, Bench

__all__ = ["PAIR", "Arrival", "ModelWire", "SimulatedWire", "SwitchWire", "Wire"]

SEED = "17"
PAIR = ("n1", "n2")
PORT = 7001
OTHER_PORT = 7002
# UDP and IP have headers of so many bytes: a datagram is that much longer than what is sent.
_HEADERS = 28
# A receiver's buffer holds about 500 small datagrams; what is sent between two looks must fit.
_AT_ONCE = 64
_NUMBER = struct.Struct("=I")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A packet that arrived: its number, and how many seconds after it was sent."""

    number: int
    late_s: float


class Wire(Protocol):
    """A link from n1 to n2 that is seeded the same wherever it is."""

    sent_at: list[float]

    def now(self) -> float:
        """Return the time, on the clock of `sent_at`."""

    def change(self, policy: LinkPolicy, *, traffic: str | None = None) -> None:
        """Put a policy in force."""

    def send(
        self, count: int, *, size: int = 100, spacing_s: float = 0.0, port: int = PORT
    ) -> list[Arrival]:
        """Send packets of `size` bytes, numbered from 0; return those that arrive, in order."""

    def arrive_later(self) -> list[Arrival]:
        """Return what has arrived since, of the packets that were sent last."""

    def counters(self) -> LinkCounters:
        """Return what the link has counted."""


class ModelWire:
    """The model, and the little that a driver adds to it: a queue for what is held."""

    def __init__(self) -> None:
        self.link = Link(f"{SEED}:link:{PAIR[0]}>{PAIR[1]}")
        self.sent_at: list[float] = []
        self._now = 100.0
        self._held: list[int] = []

    def now(self) -> float:
        """Return the model's time."""
        return self._now

    def change(self, policy: LinkPolicy, *, traffic: str | None = None) -> None:
        """Put a policy in force at the model's time."""
        self.link.lay((("", policy),), self._now, traffic=traffic)

    def send(
        self, count: int, *, size: int = 100, spacing_s: float = 0.0, port: int = PORT
    ) -> list[Arrival]:
        """Offer packets, and let time pass until all have arrived that will."""
        times = [self._now + number * spacing_s for number in range(count)]
        return self.send_at(times, size=size, port=port)

    def send_at(self, times: list[float], *, size: int = 100, port: int = PORT) -> list[Arrival]:
        """Offer a packet at each of these times."""
        self.sent_at, self._held = times, []
        return self._offer(list(range(len(times))), times, size, port)

    def arrive_later(self) -> list[Arrival]:
        """Let go what was held, under the policy that holds now."""
        held, self._held = self._held, []
        return self._offer(held, [self._now] * len(held), 100, PORT)

    def counters(self) -> LinkCounters:
        """Return what the link has counted."""
        return self.link.counters()

    def _offer(self, numbers: list[int], times: list[float], size: int, port: int) -> list[Arrival]:
        arrived: list[tuple[float, int]] = []
        traffic = (port_class(port),) if self.link.tells_apart else NO_CLASS
        for number, now in zip(numbers, times, strict=True):
            decision = self.link.offer(size + _HEADERS, port, now, units=1, traffic=traffic)
            if decision.kind is DecisionKind.HOLD:
                self._held.append(number)
            for when in decision.leave_at if not decision.corrupt_units else ():
                if self.link.stop_on_way(when, traffic) is not None:
                    self.link.count_drop(DropReason.DOWN, traffic=traffic)
                else:
                    self.link.count_delivery(traffic)
                    arrived.append((when, number))
            self._now = max(self._now, now, *decision.leave_at) if decision.leave_at else now
        # A driver keeps the order of those that are due together.
        arrived.sort(key=lambda each: each[0])
        return [Arrival(number, when - self.sent_at[number]) for when, number in arrived]


class SimulatedWire:
    """A link of simulated nodes: time passes in their world."""

    def __init__(self) -> None:
        self.sent_at: list[float] = []
        self._world = World(settings())
        self._network = SimulatedNetwork(
            now=lambda: self._world.time, later=self._world.later, seed=SEED
        )
        self._arrived: list[Arrival] = []

    def now(self) -> float:
        """Return the world's time."""
        return self._world.time

    def change(self, policy: LinkPolicy, *, traffic: str | None = None) -> None:
        """Put a policy in force now."""
        self._network.lay(PAIR, (("", policy),), traffic=traffic)

    def send(
        self, count: int, *, size: int = 100, spacing_s: float = 0.0, port: int = PORT
    ) -> list[Arrival]:
        """Send packets, and let time pass until all have arrived that will."""
        self.sent_at = [self._world.time + number * spacing_s for number in range(count)]
        for number in range(count):
            self._world.later(number * spacing_s, self._send, number, size, port)
        return self.arrive_later()

    def arrive_later(self) -> list[Arrival]:
        """Let time pass, and return what arrives."""
        self._world.run(LIMIT_S)
        arrived, self._arrived = self._arrived, []
        return arrived

    def counters(self) -> LinkCounters:
        """Return what the link has counted."""
        return self._network.counters()[PAIR]

    def _send(self, number: int, size: int, port: int) -> None:
        def deliver() -> None:
            late_s = self._world.time - self.sent_at[number]
            self._arrived.append(Arrival(number, late_s))

        self._network.send(PAIR, size + _HEADERS, port, deliver, traffic=(port_class(port),))


class SwitchWire:
    """Two nodes of a cluster, and sockets of ours in each of them."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        wait_for(bench.loop, bench.cluster.reset(seed=SEED), within_s=LIMIT_S)
        bench.start(*PAIR)
        self._sender = self._socket(PAIR[0])
        self._receivers = {port: self._socket(PAIR[1]) for port in (PORT, OTHER_PORT)}
        for port, receiver in self._receivers.items():
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            receiver.bind((self._address, port))
        self.sent_at: list[float] = []
        self._sent = 0
        self._holds = False

    def close(self) -> None:
        """Close the sockets, and end the nodes."""
        for sock in (self._sender, *self._receivers.values()):
            sock.close()
        wait_for(self._bench.loop, self._bench.cluster.reset(), within_s=LIMIT_S)

    def now(self) -> float:
        """Return the time of our loop."""
        return self._bench.loop.now()

    def change(self, policy: LinkPolicy, *, traffic: str | None = None) -> None:
        """Put a policy in force, and wait until it is."""
        self._holds = not policy.up and policy.mode is LinkMode.HOLD
        change = self._bench.network.lay([PAIR], (("", policy),), traffic=traffic)
        wait_for(self._bench.loop, change, within_s=LIMIT_S)

    def send(
        self, count: int, *, size: int = 100, spacing_s: float = 0.0, port: int = PORT
    ) -> list[Arrival]:
        """Send datagrams, and receive until the switch has none left."""
        self.sent_at = []
        arrived: list[Arrival] = []
        target = (self._address, port)
        for number in range(count):
            self.sent_at.append(self._bench.loop.now())
            self._sender.sendto(_NUMBER.pack(number).ljust(size, b"."), target)
            self._sent += 1
            if spacing_s:
                arrived += self._receive_until(self.sent_at[-1] + spacing_s, port)
            elif number % _AT_ONCE == 0:
                arrived += self._receive_all(port)
        return arrived + self._receive_all(port)

    def arrive_later(self) -> list[Arrival]:
        """Receive what the switch has let go."""
        return self._receive_all(PORT)

    def counters(self) -> LinkCounters:
        """Return what the switch has counted on the link."""
        return self._bench.counters().links.get(PAIR, LinkCounters())

    @property
    def _address(self) -> str:
        return self._bench.cluster.nodes[PAIR[1]].address

    def _socket(self, node: str) -> socket.socket:
        opened = self._bench.sockets.open(node, datagram=True)
        made: socket.socket = wait_for(self._bench.loop, opened, within_s=LIMIT_S)
        made.setblocking(False)
        return made

    def _receive_until(self, when: float, port: int) -> list[Arrival]:
        arrived: list[Arrival] = []
        while (left_s := when - self._bench.loop.now()) > 0:
            ready, _, _ = select.select([self._receivers[port]], [], [], left_s)
            if ready:
                arrived += self._receive_now(port)
        return arrived

    def _receive_all(self, port: int) -> list[Arrival]:
        """Receive until every packet that was sent has been delivered, dropped, or is held."""
        arrived: list[Arrival] = []
        deadline = self._bench.loop.now() + LIMIT_S
        while not self._is_quiet():
            assert self._bench.loop.now() < deadline, self.counters()
            arrived += self._receive_now(port)
        return arrived + self._receive_now(port)

    def _is_quiet(self) -> bool:
        counters = self.counters()
        if counters.packets < self._sent:
            return False
        lost = sum(counters.dropped.values()) - counters.dropped.get(DropReason.CORRUPTED, 0)
        ended = counters.delivered - counters.duplicated + lost
        return self._holds or ended == self._sent

    def _receive_now(self, port: int) -> list[Arrival]:
        return list(self._received(port))

    def _received(self, port: int) -> Iterator[Arrival]:
        while True:
            try:
                data = self._receivers[port].recv(65536)
            except BlockingIOError:
                return
            (number,) = _NUMBER.unpack_from(data)
            yield Arrival(number, self._bench.loop.now() - self.sent_at[number])
