"""The links and names of a played world: the switch's own model of a link, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from elastic_harness.faults.ticket import Ticket
from elastic_harness.network.link_model import (
    HEALTHY,
    FateKind,
    Layers,
    Link,
    LinkCounters,
    LinkPolicy,
    Pair,
)
from elastic_harness.network.names import NameChange, NameOverlay
from elastic_harness.network.overlay import Overlay, Place

from tests.unit.faults.virtual_time import VirtualTime

__all__ = ["PlayedNetwork"]


class PlayedNetwork:
    """The part of a played world that is its network.

    To the owners to which it is `deaf` everything is answered, and nothing comes of it.
    """

    numb: bool
    time: VirtualTime
    up: list[str]

    def __init__(self) -> None:
        self.deaf: set[str] = set()
        self.overlay = Overlay()
        self.links: dict[Pair, LinkPolicy] = {}
        self.places: dict[Place, LinkPolicy] = {}
        self.wires: dict[Pair, Link] = {}
        self.captures: dict[str, list[Pair]] = {}
        self.names = NameOverlay()
        self.asked: dict[str, dict[str, dict[str, int]]] = {}

    def _operate(self, name: str, act: Callable[[], None]) -> Ticket[None]:
        raise NotImplementedError

    def _later(self, callback: Callable[[], None]) -> None:
        raise NotImplementedError

    def send(self, source: str, target: str, packets: int = 1) -> None:
        """Let packets be sent over a link, and meet their fate; a numb one does nothing to them."""
        now = self.time.now()
        link = self._link((source, target))
        for _ in range(packets):
            fate = link.offer(1000, f"{source}>{target}", now, opens=False)
            if fate.kind is FateKind.LEAVE:
                link.count_delivery()

    def _link(self, pair: Pair) -> Link:
        return self.wires.setdefault(pair, Link(f"{pair[0]}>{pair[1]}"))

    def look_up(self, node: str, name: str) -> None:
        """Let a process of a node look up a name."""
        if (change := self.names.of(node).get(name)) is not None:
            by_name = self.asked.setdefault(node, {}).setdefault(change.owner, {})
            by_name[name] = by_name.get(name, 0) + 1

    def impose(
        self,
        owner: str,
        pairs: Sequence[Pair],
        policy: LinkPolicy,
        *,
        traffic: str | None = None,
    ) -> Ticket[None]:
        if owner in self.deaf:
            return self._operate(f"impose {owner}", lambda: None)
        changed = self.overlay.impose(owner, pairs, policy, traffic=traffic)
        return self._operate(f"impose {owner}", lambda: self._change(changed))

    def lift(self, owner: str) -> Ticket[None]:
        changed = self.overlay.lift(owner)
        return self._operate(f"lift {owner}", lambda: self._change(changed))

    def counters(self) -> Ticket[Mapping[Pair, LinkCounters]]:
        ticket: Ticket[Mapping[Pair, LinkCounters]] = Ticket()
        counts = {pair: link.counters() for pair, link in self.wires.items()}
        self._later(lambda: ticket.settle(counts))
        return ticket

    def capture(self, owner: str, pairs: Sequence[Pair]) -> Ticket[str]:
        ticket: Ticket[str] = Ticket()
        self.captures[owner] = list(pairs)
        self._later(lambda: ticket.settle(f"{owner}.pcapng"))
        return ticket

    def captured(self, owner: str) -> Ticket[int]:
        return self._number(
            sum(self._link(pair).counters().packets for pair in self.captures[owner])
        )

    def end_capture(self, owner: str) -> Ticket[int]:
        self.captures.pop(owner, None)
        return self._number(0)

    def change_names(
        self, owner: str, node: str, changes: Mapping[str, NameChange]
    ) -> Ticket[Mapping[str, str]]:
        if not self.numb and owner not in self.deaf:
            self.names.impose(owner, node, changes)
        ticket: Ticket[Mapping[str, str]] = Ticket()
        known = {name: f"10.77.0.{name[1:]}" for name in self.up}
        for name in {*self.names.of(node), *(changes if owner in self.deaf else ())}:
            known.pop(name, None)
        self._later(lambda: ticket.settle(known))
        return ticket

    def restore_names(self, owner: str) -> Ticket[None]:
        self.names.lift(owner)
        return self._operate(f"restore_names {owner}", lambda: None)

    def names_asked(self, node: str) -> Ticket[Mapping[str, Mapping[str, int]]]:
        ticket: Ticket[Mapping[str, Mapping[str, int]]] = Ticket()
        asked = self.asked.get(node, {})
        self._later(lambda: ticket.settle(asked))
        return ticket

    def _number(self, number: int) -> Ticket[int]:
        ticket: Ticket[int] = Ticket()
        self._later(lambda: ticket.settle(number))
        return ticket

    def _change(self, changed: Mapping[Place, Layers]) -> None:
        """Put policies in force; those for a class of traffic in a place of their own."""
        for (pair, traffic), layers in changed.items():
            self._link(pair).lay(layers, self.time.now(), traffic=traffic)
            policy = layers[-1][1] if layers else HEALTHY  # the newest of them
            self.places[pair, traffic] = policy
            if traffic is None:
                self.links[pair] = policy
