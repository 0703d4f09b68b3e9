"""The links between simulated nodes: the switch's own model, in virtual time.

A packet is offered to its `Link` (`network.link_model`) and arrives when, and if, the model says
so; what a link holds goes on when the link does. A stream over a link loses nothing: what was lost
is sent again, later each time, and what was sent behind it waits, as with TCP.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from elastic_harness.network.link_model import (
    NO_CLASS,
    DecisionKind,
    DropReason,
    Layers,
    Link,
    LinkCounters,
    LinkMode,
    Pair,
    Traffic,
)

__all__ = ["SimulatedNetwork"]

# Linux sends a lost segment again after 200 ms at least, then after twice as long each time.
_RESEND_S = 0.2
_MAX_RESENDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packet:
    size: int
    flow: Hashable
    traffic: Traffic
    deliver: Callable[[], None]


class SimulatedNetwork:
    """All links, by source and destination. `later(delay_s, act, *arguments)` is the world's."""

    def __init__(
        self, *, now: Callable[[], float], later: Callable[..., None], seed: str = ""
    ) -> None:
        self._now = now
        self._later = later
        self._seed = seed
        self._links: dict[Pair, Link] = {}
        self._held: dict[Pair, list[_Packet]] = {}
        self._held_on_way: dict[Pair, list[_Packet]] = {}
        self._arrives_at: dict[tuple[Pair, Hashable], float] = {}

    def lay(self, pair: Pair, layers: Layers, *, traffic: str | None = None) -> None:
        """Lay policies over a link: what waited meets them, what was held on its way arrives."""
        self._link(pair).lay(layers, self._now(), traffic=traffic)
        for packet in self._held_on_way.pop(pair, []):
            self._arrive(pair, packet)
        for packet in self._held.pop(pair, []):
            self._decide(pair, packet)

    def counters(self) -> Mapping[Pair, LinkCounters]:
        """Return what each link has counted."""
        return {pair: link.counters() for pair, link in self._links.items()}

    def heal(self, seed: str = "") -> None:
        """Forget every link; what chance draws from now on follows from `seed`."""
        self._links.clear()
        self._held.clear()
        self._held_on_way.clear()
        self._arrives_at.clear()
        self._seed = seed

    # --- packets -----------------------------------------------------------------------------

    def send(
        self,
        pair: Pair,
        size: int,
        flow: Hashable,
        deliver: Callable[[], None],
        *,
        traffic: Traffic = NO_CLASS,
    ) -> None:
        """Send one packet; `deliver` is called for each copy of it that arrives."""
        self._link(pair).count_offer(size, traffic)
        self._decide(pair, _Packet(size=size, flow=flow, traffic=traffic, deliver=deliver))

    def _decide(self, pair: Pair, packet: _Packet) -> None:
        link, now = self._link(pair), self._now()
        decision = link.decide(packet.size, packet.flow, now, units=1, traffic=packet.traffic)
        if decision.kind is DecisionKind.HOLD:
            self._held.setdefault(pair, []).append(packet)
        for when in decision.leave_at if not decision.corrupt_units else ():
            self._later(max(when - now, 0.0), self._arrive, pair, packet)

    def _arrive(self, pair: Pair, packet: _Packet) -> None:
        link = self._link(pair)
        match link.stop_on_way(self._now(), packet.traffic):
            case None:
                link.count_delivery(packet.traffic)
                packet.deliver()
            case LinkMode.HOLD:
                self._held_on_way.setdefault(pair, []).append(packet)
            case _:
                link.count_drop(DropReason.DOWN, traffic=packet.traffic)

    # --- streams -----------------------------------------------------------------------------

    def is_plain(self, pair: Pair) -> bool:
        """Tell whether a link does nothing to what passes."""
        link = self._links.get(pair)
        return link is None or link.is_transparent

    def stream_s(self, pair: Pair, size: int, flow: Hashable) -> float:
        """Return how long from now on a part of a stream takes, lost ones sent again, in order."""
        link, now = self._link(pair), self._now()
        at, resend_s, arrives_at = now, _RESEND_S, None
        for _ in range(_MAX_RESENDS):
            decision = link.offer(size, flow, at, units=1)
            if decision.leave_at and not decision.corrupt_units:
                link.count_delivery()
                arrives_at = min(decision.leave_at)
                break
            at, resend_s = at + resend_s, 2 * resend_s
        before = self._arrives_at.get((pair, flow), now)
        arrives_at = max(at if arrives_at is None else arrives_at, before)
        self._arrives_at[pair, flow] = arrives_at
        return arrives_at - now

    def block(self, pair: Pair, size: int) -> None:
        """Count what does not pass a link that is down."""
        self._link(pair).offer(size, "", self._now(), units=1)

    def _link(self, pair: Pair) -> Link:
        link = self._links.get(pair)
        if link is None:
            link = self._links[pair] = Link(f"{self._seed}:link:{pair[0]}>{pair[1]}")
        return link
