"""Whose policy did what to which packets, on a link that has policies of several owners.

What happens to a packet is decided by all policies together (`link_model`); here it is put down to
those that did it: a delay to each policy that delays, a packet that was stopped to each that cuts
the link in that way. Where chance may have been that of several, which one it was is drawn, by
their shares and from a stream of its own, so that what the link draws is what it was without.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from elastic_harness.network.link_counters import DropReason, LinkCounters
from elastic_harness.network.link_model import NO_CLASS, Fate, FateKind, Link, Traffic
from elastic_harness.network.link_policy import HEALTHY, Flap, LinkMode, LinkPolicy

__all__ = ["Layers", "OwnedLink"]

# What each owner has laid over a link, or over one class of its traffic.
Layers = tuple[tuple[str, LinkPolicy], ...]

_HARDLY = 1e-9
# A connection that is not remembered counts as older than every order to reset.
_MOST_OPENED = 65536
_STOPPED = {
    FateKind.DROP: (LinkMode.DROP, "dropped"),
    FateKind.REJECT: (LinkMode.REJECT, "rejected"),
    FateKind.HOLD: (LinkMode.HOLD, "held"),
}


class OwnedLink(Link):
    """A link that knows who has laid what over it, and counts what each one's policy did."""

    def __init__(self, seed: int | str, policy: LinkPolicy = HEALTHY) -> None:
        self._layers: dict[str | None, Layers] = {}
        self._by_owner: dict[str, dict[str, int]] = {}
        self._shares: random.Random | None = None
        # Connections by the number of orders to reset that came before they were opened.
        self._opened: dict[Hashable, int] = {}
        self._reset_orders: dict[str, int] = {}
        super().__init__(seed, policy)

    def own(
        self, layers: Layers, policy: LinkPolicy, now: float, *, traffic: str | None = None
    ) -> None:
        """Put a policy in force that these layers make together."""
        self.change_policy(policy, now, traffic=traffic)
        self._layers[traffic] = layers
        there = [owner for each in self._layers.values() for owner, own in each if own.resets]
        newest = max(self._reset_orders.values(), default=0) + 1
        self._reset_orders = {owner: self._reset_orders.get(owner, newest) for owner in there}
        if not there:
            self._opened.clear()

    def decide(
        self,
        size: int,
        flow: Hashable,
        now: float,
        *,
        units: int | None = None,
        opens: bool | None = None,
        traffic: Traffic = NO_CLASS,
    ) -> Fate:
        """Decide on a packet, and put what happens to it down to whose doing it is."""
        before = self._reordered
        fate = super().decide(size, flow, now, units=units, opens=opens, traffic=traffic)
        if layers := self._layers_for(traffic):
            if opens and self._reset_orders and len(self._opened) < _MOST_OPENED:
                self._opened[flow] = max(self._reset_orders.values())
            self._put_down(fate, layers, self.policy_of(traffic), flow, now)
            for _ in range(self._reordered - before):
                self._put_chance(layers, lambda own: own.reorder, "reordered")
        return fate

    def may_deliver(self, now: float = 0.0, traffic: Traffic = NO_CLASS) -> bool:
        """Tell whether a delayed packet may still arrive; asked once, when it would."""
        may = super().may_deliver(now, traffic)
        if not may and (layers := self._layers_for(traffic)):
            mode = self.policy_of(traffic).mode
            kind = FateKind.HOLD if mode is LinkMode.HOLD else FateKind.DROP
            self._put_down_stop(kind, layers, now, modes=tuple(LinkMode))
        return may

    def counters(self) -> LinkCounters:
        """Return what was counted so far, by owner too."""
        by_owner = {owner: dict(counted) for owner, counted in self._by_owner.items()}
        return replace(super().counters(), by_owner=by_owner)

    # --- whose doing it is ----------------------------------------------------------------------

    def _layers_for(self, traffic: Traffic) -> Layers:
        if not self._layers:
            return ()
        return sum((self._layers.get(name, ()) for name in (None, *traffic)), ())

    def _put_down(
        self, fate: Fate, layers: Layers, policy: LinkPolicy, flow: Hashable, now: float
    ) -> None:
        match fate.kind, fate.reason:
            case FateKind.RESET, _:
                opened = self._opened.get(flow, 0)
                self._put(
                    [owner for owner, _ in layers if self._reset_orders.get(owner, 0) > opened],
                    "reset",
                )
            case FateKind.DROP, DropReason.LOST:
                self._put_chance(layers, self._loss_of, "lost")
            case FateKind.DROP, DropReason.QUEUE_FULL:
                self._put(_slowest(layers, policy), "overflowed")
            case FateKind.LEAVE, _:
                self._put_down_leave(fate, layers, policy, now)
            case kind, _:
                self._put_down_stop(kind, layers, now, modes=(_STOPPED[kind][0],))

    def _put_down_stop(
        self, kind: FateKind, layers: Layers, now: float, *, modes: Sequence[LinkMode]
    ) -> None:
        """Put a packet that was stopped down to every layer that stops it in this way."""
        cuts = [owner for owner, own in layers if not own.up and own.mode in modes]
        flaps = [
            owner
            for owner, own in layers
            if any(flap.mode in modes and self._is_down(flap, now) for flap in own.flaps)
        ]
        self._put(cuts or flaps, _STOPPED[kind][1])

    def _put_down_leave(self, fate: Fate, layers: Layers, policy: LinkPolicy, now: float) -> None:
        for _ in fate.lost_units:
            self._put_chance(layers, self._loss_of, "lost")
        for _ in fate.corrupt_units:
            self._put_chance(layers, lambda own: own.corrupt, "corrupted")
        for _ in fate.leave_at[1:]:
            self._put_chance(layers, lambda own: own.duplicate, "doubled")
        if max(fate.leave_at) <= now:
            return
        delaying = [
            owner
            for owner, own in layers
            if own.latency_s or (own.jitter_s and own.distribution is policy.distribution)
        ]
        self._put([*dict.fromkeys([*delaying, *_slowest(layers, policy)])], "delayed")
        holding = [
            owner
            for owner, own in layers
            if any(each.mode is LinkMode.HOLD and self._is_down(each, now) for each in own.flaps)
        ]
        self._put(holding, "held")

    def _is_down(self, flap: Flap, now: float) -> bool:
        since = self._flaps_since.get(flap)
        return since is not None and flap.up_at(since, now) is not None

    def _loss_of(self, own: LinkPolicy) -> float:
        """Return the chance by which a layer may have lost a unit just now."""
        # A burst may have ended with the packet that it has lost: it is never ruled out.
        bursts = [each.loss if self._is_bad.get(each) else _HARDLY for each in own.bursts]
        return max([own.loss, *bursts])

    def _put_chance(self, layers: Layers, chance: Callable[[LinkPolicy], float], kind: str) -> None:
        chances = {owner: chance(own) for owner, own in layers}
        able = [owner for owner, share in chances.items() if share]
        if len(able) > 1:
            # Made when it is needed: there are thousands of links, most with one policy at most.
            self._shares = self._shares or random.Random(f"{self._seed}:owners")
            able = self._shares.choices(able, [chances[owner] for owner in able])
        self._put(able, kind)

    def _put(self, owners: Sequence[str], kind: str) -> None:
        for owner in owners:
            counted = self._by_owner.setdefault(owner, {})
            counted[kind] = counted.get(kind, 0) + 1


def _slowest(layers: Layers, policy: LinkPolicy) -> list[str]:
    """Return whose rate it is that holds."""
    rate = policy.rate_bytes_per_s
    return [owner for owner, own in layers if rate is not None and own.rate_bytes_per_s == rate]
