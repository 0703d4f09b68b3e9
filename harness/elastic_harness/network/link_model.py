"""One direction between two nodes: which packets leave it, when, and what happens to the others.

Nothing here reads a clock or touches a packet, and chance comes from a named stream: the same model
serves the user-space switch and the simulator. A link is told that a packet of so many bytes of
such a flow arrived `now`, and answers with its fate.

Loss and corruption count in units of at most 1 500 bytes: what a switch reads in one go may be
forty segments of a TCP stream, each of which a real link would lose by itself.

A link may treat classes of traffic (`traffic`) differently: a packet meets the policy of the link
and those of all classes that it belongs to.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Hashable
from typing import NamedTuple

from elastic_harness.network.link_counters import Counts, DropReason, LinkCounters
from elastic_harness.network.link_policy import (
    HEALTHY,
    BurstLoss,
    Distribution,
    Flap,
    LinkMode,
    LinkPolicy,
    combine,
)

__all__ = [
    "HEALTHY",
    "MAX_QUEUE_S",
    "NO_CLASS",
    "UNIT_BYTES",
    "BurstLoss",
    "Distribution",
    "DropReason",
    "Fate",
    "FateKind",
    "Flap",
    "Link",
    "LinkCounters",
    "LinkMode",
    "LinkPolicy",
    "Pair",
    "Traffic",
]

# Source and destination, by node name.
Pair = tuple[str, str]
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
# A connection that began after an order to reset is remembered; more than so many are not.
_MAX_YOUNG_FLOWS = 65536
# What a flap holds leaves so much after the link is up: floats are not exact.
_AFTER_FLAP_S = 1e-6


class FateKind(enum.Enum):
    """What is to be done with a packet."""

    LEAVE = "leave"
    DROP = "drop"
    REJECT = "reject"
    HOLD = "hold"
    RESET = "reset"


class Fate(NamedTuple):
    """The decision on a packet (a tuple, for there is one for each: it is made in half the time).

    `leave_at` is a time for each copy, `reason` why it is dropped. `lost_units` are the units of
    a packet of several that do not arrive while the others do, by their position;
    `corrupt_units` those that arrive with a wrong checksum. RESET: the packet is dropped, and both
    ends of its connection are told that there is none.
    """

    kind: FateKind
    leave_at: tuple[float, ...] = ()
    reason: DropReason | None = None
    lost_units: tuple[int, ...] = ()
    corrupt_units: tuple[int, ...] = ()


_HELD = Fate(FateKind.HOLD)
_DOWN = Fate(FateKind.DROP, reason=DropReason.DOWN)
_REJECTED = Fate(FateKind.REJECT, reason=DropReason.REJECTED)
_RESET = Fate(FateKind.RESET, reason=DropReason.RESET)
_LOST = Fate(FateKind.DROP, reason=DropReason.LOST)
_QUEUE_FULL = Fate(FateKind.DROP, reason=DropReason.QUEUE_FULL)


class Link:
    """The state of one direction: its policies, the queue of its rate, and what it has counted.

    All chance is drawn from the stream that `seed` names. `is_transparent`: every packet simply
    passes; `loses`, `resets`: some policy looks at the units of a packet, at its connection.
    """

    def __init__(self, seed: int | str, policy: LinkPolicy = HEALTHY) -> None:
        self._seed = seed
        self._stream: random.Random | None = None
        self._policy = HEALTHY
        self._of_class: dict[str, LinkPolicy] = {}
        self._combined: dict[Traffic, LinkPolicy] = {}
        self._sent_until: dict[Hashable, float] = {}
        self._last_arrival: dict[Hashable, float] = {}
        self._forget_at = -math.inf
        self._settles_at = -math.inf
        self._reordered = 0
        self._is_bad: dict[BurstLoss, bool] = {}
        self._flaps_since: dict[Flap, float] = {}
        self._young: set[Hashable] = set()
        self.resets = 0
        self._counts = Counts()
        self._counts_of_all = (self._counts,)
        self._counts_of: dict[str, Counts] = {}
        self.change_policy(policy)

    # --- policies -----------------------------------------------------------------------------

    @property
    def policy(self) -> LinkPolicy:
        """The policy in force for traffic of no class."""
        return self._policy

    @property
    def tells_apart(self) -> bool:
        """Tell whether there is a class with a policy of its own."""
        return bool(self._of_class)

    def is_settled(self, now: float) -> bool:
        """Tell whether nothing that was delayed is still on its way, to be overtaken."""
        return now >= self._settles_at

    def policy_of(self, traffic: Traffic) -> LinkPolicy:
        """Return what packets that belong to these classes meet."""
        if not traffic or not self._of_class:
            return self._policy
        found = self._combined.get(traffic)
        if found is None:
            own = [self._of_class[name] for name in traffic if name in self._of_class]
            found = self._combined[traffic] = combine(
                [layer for layer in (self._policy, *own) if not layer.is_transparent]
            )
        return found

    def change_policy(
        self, policy: LinkPolicy, now: float = 0.0, *, traffic: str | None = None
    ) -> None:
        """Put another policy in force, for everything or for a class of traffic.

        Packets that already have their fate keep it, and are not overtaken by those of their flow
        that come later.
        """
        if traffic is None:
            self._policy = policy
        elif policy.is_transparent:
            self._of_class.pop(traffic, None)
        else:
            self._of_class[traffic] = policy
            self._counts_of.setdefault(traffic, Counts())
        self._combined.clear()
        policies = (self._policy, *self._of_class.values())
        if all(each.rate_bytes_per_s is None for each in policies):
            self._sent_until.clear()
        flaps = {flap for each in policies for flap in each.flaps}
        self._flaps_since = {flap: self._flaps_since.get(flap, now) for flap in flaps}
        bursts = {burst for each in policies for burst in each.bursts}
        self._is_bad = {burst: self._is_bad.get(burst, False) for burst in bursts}
        resets = sum(each.resets for each in policies)
        if resets > self.resets or not resets:
            self._young.clear()
        self.resets = resets
        self.is_transparent = not self._of_class and self._policy.is_transparent
        self.loses = any(each.loses for each in policies)

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
    ) -> Fate:
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
    ) -> Fate:
        """Decide on a packet that was counted when it arrived (one that was held)."""
        policy = self.policy_of(traffic)
        if not policy.up or policy.flaps or policy.resets:
            stopped = self._stop(policy, flow, now, opens=opens)
            if stopped is not None:
                if stopped.reason is not None:
                    self.count_drop(stopped.reason, traffic=traffic)
                return stopped
        lost: tuple[int, ...] = ()
        corrupt: tuple[int, ...] = ()
        if self.loses and policy.loses:
            count = -(-size // UNIT_BYTES) if units is None else units
            lost, corrupt = self._draw_units(policy, count)
            if lost:
                self.count_drop(DropReason.LOST, len(lost), traffic=traffic)
            if corrupt:
                self.count_drop(DropReason.CORRUPTED, len(corrupt), traffic=traffic)
            if len(lost) == count:
                return _LOST
        if now >= self._forget_at:
            self._forget_idle_flows(now)
        leave = begin = self._flap_end(policy, now) if policy.flaps else now
        if policy.rate_bytes_per_s is not None:
            leave = self._queue(size, flow, begin, policy.rate_bytes_per_s)
            if leave - begin > MAX_QUEUE_S:
                self.count_drop(DropReason.QUEUE_FULL, traffic=traffic)
                return _QUEUE_FULL
            self._sent_until[flow] = leave
        times: tuple[float, ...] = (self._arrival(leave, flow, policy),)
        if policy.duplicate and self._chance.random() < policy.duplicate:
            times += (self._arrival(leave, flow, policy),)
            self._count(traffic, "duplicated")
        if (last := max(times)) > now:
            self._count(traffic, "delayed")
            self._settles_at = max(self._settles_at, last)
        return Fate(FateKind.LEAVE, times, None, lost, corrupt)

    def may_deliver(self, now: float = 0.0, traffic: Traffic = NO_CLASS) -> bool:
        """Tell whether a delayed packet may still arrive: a cut loses what is on its way."""
        policy = self.policy_of(traffic)
        return policy.up and not any(
            flap.up_at(self._flaps_since[flap], now) is not None
            for flap in policy.flaps
            if flap.mode is not LinkMode.HOLD
        )

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
        return self._counts.frozen(
            {name: counts.frozen() for name, counts in self._counts_of.items()}
        )

    def _counts_for(self, traffic: Traffic) -> tuple[Counts, ...]:
        if not traffic:
            return self._counts_of_all
        known = self._counts_of
        return (self._counts, *[known[name] for name in traffic if name in known])

    def _count(self, traffic: Traffic, what: str) -> None:
        for counts in self._counts_for(traffic):
            setattr(counts, what, getattr(counts, what) + 1)

    @property
    def _chance(self) -> random.Random:
        """The stream of chance. Four thousand healthy links are 10 MB lighter without any."""
        if self._stream is None:
            self._stream = random.Random(self._seed)
        return self._stream

    # --- deciding -----------------------------------------------------------------------------

    def _stop(
        self, policy: LinkPolicy, flow: Hashable, now: float, *, opens: bool | None
    ) -> Fate | None:
        """Return the fate of a packet that does not even come to the link."""
        if not policy.up:
            return _fate_when_down(policy.mode)
        for flap in policy.flaps:
            is_down = flap.up_at(self._flaps_since[flap], now) is not None
            if is_down and flap.mode is not LinkMode.HOLD:
                return _fate_when_down(flap.mode)
        if policy.resets and opens is not None:
            if opens and len(self._young) < _MAX_YOUNG_FLOWS:
                self._young.add(flow)
            elif flow not in self._young:
                return _RESET
        return None

    def _flap_end(self, policy: LinkPolicy, now: float) -> float:
        """Return when a packet may go on: at once, or when what holds it is up again."""
        ends = [flap.up_at(self._flaps_since[flap], now) for flap in policy.flaps]
        waits = [end + _AFTER_FLAP_S for end in ends if end is not None]
        return max(waits, default=now)

    def _draw_units(
        self, policy: LinkPolicy, count: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return which of `count` units are lost, and which of the others are corrupted."""
        draw = self._chance.random
        lost: list[int] = []
        corrupt: list[int] = []
        for unit in range(count):
            is_lost = bool(policy.loss) and draw() < policy.loss
            for burst in policy.bursts:
                is_bad = self._is_bad[burst]
                is_bad = draw() >= burst.leave if is_bad else draw() < burst.enter
                self._is_bad[burst] = is_bad
                is_lost |= is_bad and (burst.loss == 1.0 or draw() < burst.loss)
            if is_lost:
                lost.append(unit)
            elif policy.corrupt and draw() < policy.corrupt:
                corrupt.append(unit)
        return tuple(lost), tuple(corrupt)

    def _queue(self, size: int, flow: Hashable, now: float, rate: float) -> float:
        """Return when the packet has been sent at `rate`, shared equally by the flows that queue.

        The share is fixed when the packet arrives. So a flow that begins is never behind another's
        queue, and for as long as that queue lasts the link is faster than its rate by its share.
        """
        own = self._sent_until.get(flow, -math.inf)
        queueing = sum([until > now for until in self._sent_until.values()])
        sharing = queueing + (own <= now)
        return max(now, own) + size * sharing / rate

    def _arrival(self, leave: float, flow: Hashable, policy: LinkPolicy) -> float:
        """Return when the packet arrives; in order within its flow, but for those drawn to be late.

        One late packet holds back those behind it, as on a real path: jitter alone must not look
        like reordering, which TCP takes for loss.
        """
        arrival = leave + policy.latency_s
        if policy.jitter_s:
            arrival = max(leave, arrival + policy.distribution.draw(self._chance, policy.jitter_s))
        arrival = max(arrival, self._last_arrival.get(flow, arrival))
        if policy.reorder and self._chance.random() < policy.reorder:
            self._reordered += 1
            return arrival + REORDER_DELAY_S + policy.jitter_s
        self._last_arrival[flow] = arrival
        return arrival

    def _forget_idle_flows(self, now: float) -> None:
        self._forget_at = now + _FORGET_INTERVAL_S
        for table in (self._sent_until, self._last_arrival):
            for flow in [flow for flow, until in table.items() if until <= now]:
                del table[flow]


def _fate_when_down(mode: LinkMode) -> Fate:
    if mode is LinkMode.HOLD:
        return _HELD
    return _REJECTED if mode is LinkMode.REJECT else _DOWN
