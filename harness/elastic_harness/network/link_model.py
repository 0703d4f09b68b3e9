"""One direction between two nodes: which packets leave it, when, and what happens to the others.

Nothing here reads a clock or touches a packet, and chance comes from a named stream: the same model
serves the user-space switch and the simulator. A link is told that a packet of so many bytes of
such a flow arrived `now`, and answers with its decision.

Loss and corruption count in units of at most 1 500 bytes: what a switch reads in one go may be
forty segments of a TCP stream, each of which a real link would lose by itself.

Several faults may lay a policy over one link, or over a class of its traffic (`traffic`). A packet
meets all of them, as it would meet links in a row: delays add up, each layer draws its own chance,
the narrowest rate holds, the hardest cut stops. What happens to it is put down to the owner of each
layer that did it, or would have done it alone.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import NamedTuple

from elastic_harness.network.link_counters import Counts, DropReason, LinkCounters
from elastic_harness.network.link_policy import (
    HEALTHY,
    MAX_DELAY_S,
    STRENGTH,
    BurstLoss,
    Distribution,
    Flap,
    LinkMode,
    LinkPolicy,
)

__all__ = [
    "HEALTHY",
    "MAX_QUEUE_S",
    "NO_CLASS",
    "UNIT_BYTES",
    "BurstLoss",
    "Decision",
    "DecisionKind",
    "Distribution",
    "DropReason",
    "Flap",
    "Layers",
    "Link",
    "LinkCounters",
    "LinkMode",
    "LinkPolicy",
    "Pair",
    "Traffic",
    "hardest_cut",
]

# Source and destination, by node name.
Pair = tuple[str, str]
# What each owner has laid over a link, or over one class of its traffic.
Layers = tuple[tuple[str, LinkPolicy], ...]
# The classes that a packet belongs to, by name, in a fixed order.
Traffic = tuple[str, ...]
NO_CLASS: Traffic = ()

UNIT_BYTES = 1500
# What a router would queue on a slow link. Above, buffers bloat: a beat would wait for seconds
# behind a checkpoint; below about 50 ms TCP no longer fills the link.
MAX_QUEUE_S = 0.2
# A reordered packet arrives this much later than its turn, in addition to what jitter says: enough
# to be passed by the packets sent right behind it.
REORDER_DELAY_S = 0.001
# How often flows that are over are forgotten: thousands of short ones are not kept for ever.
_FORGET_INTERVAL_S = 1.0
# A connection that began after an order to reset is remembered; of more than so many each counts as
# older than every order.
_MAX_OPENED = 65536
# What a flap holds leaves so much after the link is up: floats are not exact.
_AFTER_FLAP_S = 1e-6


class DecisionKind(enum.Enum):
    """What is to be done with a packet."""

    LEAVE = "leave"
    DROP = "drop"
    REJECT = "reject"
    HOLD = "hold"
    RESET = "reset"


class Decision(NamedTuple):
    """The decision on a packet (a tuple, for there is one for each: it is made in half the time).

    `leave_at` is a time for each copy, `reason` why it is dropped. `lost_units` are the units of
    a packet of several that do not arrive while the others do, by their position;
    `corrupt_units` those that arrive with a wrong checksum. RESET: the packet is dropped, and both
    ends of its connection are told that there is none.
    """

    kind: DecisionKind
    leave_at: tuple[float, ...] = ()
    reason: DropReason | None = None
    lost_units: tuple[int, ...] = ()
    corrupt_units: tuple[int, ...] = ()


_LOST = Decision(DecisionKind.DROP, reason=DropReason.LOST)
_QUEUE_FULL = Decision(DecisionKind.DROP, reason=DropReason.QUEUE_FULL)
_RESET = Decision(DecisionKind.RESET, reason=DropReason.RESET)
# What becomes of a packet at a cut, by its mode, and what the layer that cuts is said to have done.
_STOPPED = {
    LinkMode.HOLD: (Decision(DecisionKind.HOLD), "held"),
    LinkMode.REJECT: (Decision(DecisionKind.REJECT, reason=DropReason.REJECTED), "rejected"),
    LinkMode.DROP: (Decision(DecisionKind.DROP, reason=DropReason.DOWN), "dropped"),
}


def hardest_cut(layers: Layers) -> LinkMode | None:
    """Return how a link is cut by policies that lie over it; None while it is up."""
    modes = [own.mode for _, own in layers if not own.up]
    return min(modes, key=STRENGTH.index, default=None)


class Link:
    """The state of one direction: its layers, the queue of its rate, and what it has counted.

    All chance is drawn from the stream that `seed` names. `is_transparent`: every packet simply
    passes; `loses`, `resets`: some policy looks at the units of a packet, at its connection.
    """

    def __init__(self, seed: int | str) -> None:
        self._seed = seed
        self._stream: random.Random | None = None
        self._layers: dict[str | None, Layers] = {}
        self._layers_of: dict[Traffic, Layers] = {}
        self._sent_until: dict[Hashable, float] = {}
        self._last_arrival: dict[Hashable, float] = {}
        self._forget_at = -math.inf
        self._settles_at = -math.inf
        self._is_bad: dict[tuple[str, BurstLoss], bool] = {}
        self._flaps_since: dict[tuple[str, Flap], float] = {}
        # Connections by the number of orders to reset that came before they were opened.
        self._opened: dict[Hashable, int] = {}
        self._reset_orders: dict[str, tuple[int, int]] = {}  # resets of the policy, their number
        self._counts = Counts()
        self._counts_of_all = (self._counts,)
        self._counts_of: dict[str, Counts] = {}
        self._by_owner: dict[str, dict[str, int]] = {}
        self.lay(())

    # --- policies -----------------------------------------------------------------------------

    @property
    def tells_apart(self) -> bool:
        """Tell whether there is a class with a policy of its own."""
        return any(name is not None for name in self._layers)

    def is_settled(self, now: float) -> bool:
        """Tell whether nothing that was delayed is still on its way, to be overtaken."""
        return now >= self._settles_at

    def lay(self, layers: Layers, now: float = 0.0, *, traffic: str | None = None) -> None:
        """Put other layers in force, for everything or for a class of traffic.

        Decided packets keep their decision, and are not overtaken by those of their flow that
        come later.
        """
        self._layers[traffic] = tuple(each for each in layers if not each[1].is_transparent)
        if not self._layers[traffic]:
            del self._layers[traffic]
        elif traffic is not None:
            self._counts_of.setdefault(traffic, Counts())
        self._layers_of.clear()
        there = [each for own in self._layers.values() for each in own]
        self._may_stop = any(not own.up or own.flaps for _, own in there)
        self._has_rate = any(own.rate_bytes_per_s is not None for _, own in there)
        if not self._has_rate:
            self._sent_until.clear()
        flaps = [(owner, flap) for owner, own in there for flap in own.flaps]
        self._flaps_since = {flap: self._flaps_since.get(flap, now) for flap in flaps}
        bursts = [(owner, burst) for owner, own in there for burst in own.bursts]
        self._is_bad = {burst: self._is_bad.get(burst, False) for burst in bursts}
        self._number_resets(there)
        self.resets = sum(own.resets for _, own in there)
        self.is_transparent = not there
        self.loses = any(own.loses for _, own in there)

    def _number_resets(self, there: Iterable[tuple[str, LinkPolicy]]) -> None:
        newest = max((number for _, number in self._reset_orders.values()), default=0) + 1
        known, self._reset_orders = self._reset_orders, {}
        for owner, own in there:
            if own.resets:
                resets, number = known.get(owner, (0, newest))
                is_new = own.resets > resets
                self._reset_orders[owner] = (own.resets, newest if is_new else number)
        if not self._reset_orders:
            self._opened.clear()

    def _layers_for(self, traffic: Traffic) -> Layers:
        found = self._layers_of.get(traffic)
        if found is None:
            each = [self._layers.get(name, ()) for name in (None, *traffic)]
            found = self._layers_of[traffic] = sum(each, ())
        return found

    # --- packets ------------------------------------------------------------------------------

    def offer(
        self,
        size: int,
        flow: Hashable,
        now: float,
        *,
        units: int | None = None,
        opens: bool | None = None,
        traffic: Traffic = NO_CLASS,
    ) -> Decision:
        """Decide on a packet of `size` bytes that arrived `now`, and count it.

        `units` is how many packets of a real link it stands for (default: by size). `opens` tells
        whether it opens a connection; None for what belongs to none.
        """
        self.count_offer(size, traffic)
        return self.decide(size, flow, now, units=units, opens=opens, traffic=traffic)

    def decide(
        self,
        size: int,
        flow: Hashable,
        now: float,
        *,
        units: int | None = None,
        opens: bool | None = None,
        traffic: Traffic = NO_CLASS,
    ) -> Decision:
        """Decide on a packet that was counted when it arrived (one that was held)."""
        layers = self._layers_for(traffic)
        mode = self._stop(layers, now) if self._may_stop else None
        if mode is not None:
            decision, _ = _STOPPED[mode]
            if decision.reason is not None:
                self.count_drop(decision.reason, traffic=traffic)
            return decision
        if self.resets and opens is not None and self._is_reset(layers, flow, opens=opens):
            self.count_drop(DropReason.RESET, traffic=traffic)
            return _RESET
        lost: tuple[int, ...] = ()
        corrupt: tuple[int, ...] = ()
        if self.loses:
            count = -(-size // UNIT_BYTES) if units is None else units
            lost, corrupt = self._draw_units(layers, count)
            if lost:
                self.count_drop(DropReason.LOST, len(lost), traffic=traffic)
            if corrupt:
                self.count_drop(DropReason.CORRUPTED, len(corrupt), traffic=traffic)
            if len(lost) == count:
                return _LOST
        if now >= self._forget_at:
            self._forget_idle_flows(now)
        leave = begin = self._flap_end(layers, now) if self._flaps_since else now
        slowest: list[str] = []
        if self._has_rate:
            rate = min((r for _, own in layers if (r := own.rate_bytes_per_s)), default=math.inf)
            slowest = [owner for owner, own in layers if own.rate_bytes_per_s == rate]
        if slowest:
            leave = self._queue(size, flow, begin, rate)
            if leave - begin > MAX_QUEUE_S:
                self.count_drop(DropReason.QUEUE_FULL, traffic=traffic)
                self._put(slowest, "overflowed")
                return _QUEUE_FULL
            self._sent_until[flow] = leave
        times: tuple[float, ...] = (self._arrival(leave, flow, layers),)
        for owner, own in layers:
            if own.duplicate and self._chance.random() < own.duplicate:
                times += (self._arrival(leave, flow, layers),)
                self._count(traffic, "duplicated")
                self._put([owner], "doubled")
        if (last := max(times)) > now:
            self._count(traffic, "delayed")
            self._settles_at = max(self._settles_at, last)
            delaying = [owner for owner, own in layers if own.latency_s or own.jitter_s]
            self._put(dict.fromkeys([*delaying, *slowest]), "delayed")
        return Decision(DecisionKind.LEAVE, times, None, lost, corrupt)

    def stop_on_way(self, now: float = 0.0, traffic: Traffic = NO_CLASS) -> LinkMode | None:
        """Return how a delayed packet is stopped that would arrive now, None if it arrives.

        A cut loses, or holds, what is on its way. Asked once for each, as it is counted.
        """
        return self._stop(self._layers_for(traffic), now) if self._may_stop else None

    # --- counting -----------------------------------------------------------------------------

    def count_offer(self, size: int, traffic: Traffic = NO_CLASS) -> None:
        """Count a packet that was sent."""
        for counts in self._counts_for(traffic):
            counts.packets += 1
            counts.bytes += size

    def count_delivery(self, traffic: Traffic = NO_CLASS) -> None:
        """Count a packet (or a copy) that reached its destination."""
        for counts in self._counts_for(traffic):
            counts.delivered += 1

    def count_pass(self, size: int) -> None:
        """Count a packet that was sent and delivered at once, of a link that does nothing."""
        counts = self._counts
        counts.packets += 1
        counts.bytes += size
        counts.delivered += 1

    def count_drop(
        self, reason: DropReason, packets: int = 1, *, traffic: Traffic = NO_CLASS
    ) -> None:
        """Count packets that will not arrive."""
        for counts in self._counts_for(traffic):
            counts.drop(reason, packets)

    def counters(self) -> LinkCounters:
        """Return what was counted so far."""
        classes = {name: counts.frozen() for name, counts in self._counts_of.items()}
        by_owner = {owner: dict(counted) for owner, counted in self._by_owner.items()}
        return replace(self._counts.frozen(classes), by_owner=by_owner)

    def _counts_for(self, traffic: Traffic) -> tuple[Counts, ...]:
        if not traffic:
            return self._counts_of_all
        known = self._counts_of
        return (self._counts, *[known[name] for name in traffic if name in known])

    def _count(self, traffic: Traffic, what: str) -> None:
        for counts in self._counts_for(traffic):
            setattr(counts, what, getattr(counts, what) + 1)

    def _put(self, owners: Iterable[str], what: str) -> None:
        """Count what the policies of some owners did to a packet."""
        for owner in owners:
            if owner:
                counted = self._by_owner.setdefault(owner, {})
                counted[what] = counted.get(what, 0) + 1

    @property
    def _chance(self) -> random.Random:
        """The stream of chance. Four thousand healthy links are 10 MB lighter without any."""
        if self._stream is None:
            self._stream = random.Random(self._seed)
        return self._stream

    # --- deciding -----------------------------------------------------------------------------

    def _stop(self, layers: Layers, now: float) -> LinkMode | None:
        """Return how a packet is stopped before it comes to the link: by the hardest cut."""
        cuts = [(own.mode, owner) for owner, own in layers if not own.up]
        cuts += [
            (flap.mode, owner)
            for owner, own in layers
            for flap in own.flaps
            if flap.mode is not LinkMode.HOLD  # such a flap only delays
            and flap.up_at(self._flaps_since[owner, flap], now) is not None
        ]
        if not cuts:
            return None
        mode = min((mode for mode, _ in cuts), key=STRENGTH.index)
        self._put(dict.fromkeys(owner for each, owner in cuts if each is mode), _STOPPED[mode][1])
        return mode

    def _is_reset(self, layers: Layers, flow: Hashable, *, opens: bool) -> bool:
        """Tell whether a packet's connection is to be reset; take note of one that opens."""
        if opens:
            if len(self._opened) < _MAX_OPENED:
                self._opened[flow] = max(number for _, number in self._reset_orders.values())
            return False
        opened = self._opened.get(flow, 0)
        orders = [owner for owner, own in layers if own.resets]
        resetting = [owner for owner in orders if self._reset_orders[owner][1] > opened]
        self._put(resetting, "reset")
        return bool(resetting)

    def _flap_end(self, layers: Layers, now: float) -> float:
        """Return when a packet may go on: at once, or when what holds it is up again."""
        begin = now
        for owner, own in layers:
            for flap in own.flaps:
                end = flap.up_at(self._flaps_since[owner, flap], now)
                if end is not None:
                    begin = max(begin, end + _AFTER_FLAP_S)
                    self._put([owner], "held")
        return begin

    def _draw_units(self, layers: Layers, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return which of `count` units are lost, and which of the others are corrupted."""
        lost: list[int] = []
        corrupt: list[int] = []
        for unit in range(count):
            losers = [owner for owner, own in layers if own.loses and self._is_lost(owner, own)]
            if losers:
                lost.append(unit)
                self._put(losers, "lost")
                continue
            spoilers = [
                owner
                for owner, own in layers
                if own.corrupt and self._chance.random() < own.corrupt
            ]
            if spoilers:
                corrupt.append(unit)
                self._put(spoilers, "corrupted")
        return tuple(lost), tuple(corrupt)

    def _is_lost(self, owner: str, policy: LinkPolicy) -> bool:
        draw = self._chance.random
        is_lost = bool(policy.loss) and draw() < policy.loss
        for burst in policy.bursts:
            is_bad = self._is_bad[owner, burst]
            is_bad = draw() >= burst.leave if is_bad else draw() < burst.enter
            self._is_bad[owner, burst] = is_bad
            is_lost |= is_bad and (burst.loss == 1.0 or draw() < burst.loss)
        return is_lost

    def _queue(self, size: int, flow: Hashable, now: float, rate: float) -> float:
        """Return when the packet has been sent at `rate`, shared equally by the flows that queue.

        The share is fixed when the packet arrives. So a flow that begins is never behind another's
        queue, and for as long as that queue lasts the link is faster than its rate by its share.
        """
        own = self._sent_until.get(flow, -math.inf)
        queueing = sum([until > now for until in self._sent_until.values()])
        sharing = queueing + (own <= now)
        return max(now, own) + size * sharing / rate

    def _arrival(self, leave: float, flow: Hashable, layers: Layers) -> float:
        """Return when the packet arrives; in order within its flow, but for those drawn to be late.

        One late packet holds back those behind it, as on a real path: jitter alone must not look
        like reordering, which TCP takes for loss. What it would deliver before it was sent arrives
        at once.
        """
        delay_s = sum(own.latency_s for _, own in layers)
        late_s = 0.0
        for _, own in layers:
            if own.jitter_s:
                delay_s += own.distribution.draw(self._chance, own.jitter_s)
        arrival = leave + min(max(0.0, delay_s), MAX_DELAY_S)
        arrival = max(arrival, self._last_arrival.get(flow, arrival))
        for owner, own in layers:
            if own.reorder and self._chance.random() < own.reorder:
                late_s = max(late_s, REORDER_DELAY_S + own.jitter_s)
                self._put([owner], "reordered")
        if late_s:
            return arrival + late_s
        self._last_arrival[flow] = arrival
        return arrival

    def _forget_idle_flows(self, now: float) -> None:
        self._forget_at = now + _FORGET_INTERVAL_S
        for table in (self._sent_until, self._last_arrival):
            for flow in [flow for flow, until in table.items() if until <= now]:
                del table[flow]
