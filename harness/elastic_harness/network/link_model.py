"""One direction between two nodes: which packets leave it, when, and what happens to the others.

Nothing here reads a clock, draws from a generator of its own or touches a packet: the same model
serves the user-space switch and the simulator. A link is told that a packet of so many bytes of
such a flow arrived `now`, and answers with its fate.

Loss counts in units of at most 1 500 bytes, whatever is handed over at a time: what a switch reads
in one go may be forty segments of a TCP stream, each of which a real link would lose by itself.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from pytest_elastic.errors import UsageError

__all__ = [
    "HEALTHY",
    "MAX_QUEUE_S",
    "UNIT_BYTES",
    "DropReason",
    "Fate",
    "FateKind",
    "Link",
    "LinkCounters",
    "LinkMode",
    "LinkPolicy",
    "Pair",
]

# Source and destination, by node name.
Pair = tuple[str, str]

UNIT_BYTES = 1500
# What a router would queue on a slow link. Above, buffers bloat: a beat would wait for seconds
# behind a checkpoint; below about 50 ms TCP no longer fills the link.
MAX_QUEUE_S = 0.2
# A reordered packet arrives this much later than its turn, in addition to what jitter says: enough
# to be passed by the packets sent right behind it.
REORDER_DELAY_S = 0.001
# How often flows that are over are forgotten: rarely enough to cost nothing, often enough that
# thousands of short connections are not remembered for ever.
_FORGET_INTERVAL_S = 1.0


class LinkMode(enum.Enum):
    """What happens to packets of a link that is down."""

    DROP = "drop"
    REJECT = "reject"
    HOLD = "hold"


class DropReason(enum.Enum):
    """Why a packet did not arrive."""

    DOWN = "down"
    REJECTED = "rejected"
    LOST = "lost"
    QUEUE_FULL = "queue_full"
    HOLD_FULL = "hold_full"
    DEVICE = "device"
    STALL = "stall"

    @property
    def is_own(self) -> bool:
        """Tell whether the drop is the harness's own doing, which makes a run unknown."""
        return self in {DropReason.HOLD_FULL, DropReason.DEVICE, DropReason.STALL}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPolicy:
    """How a link treats packets. `loss`, `duplicate` and `reorder` are chances from 0 to 1."""

    up: bool = True
    mode: LinkMode = LinkMode.DROP
    latency_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    rate_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder"):
            chance = getattr(self, name)
            if not 0.0 <= chance <= 1.0:
                raise UsageError(f"cannot give a link a {name} of {chance}: 0 to 1 is expected")
        for name in ("latency_s", "jitter_s"):
            seconds = getattr(self, name)
            if not 0.0 <= seconds <= 3600.0:
                raise UsageError(
                    f"cannot give a link a {name} of {seconds}: 0 to 3600 seconds is expected"
                )
        if self.jitter_s > self.latency_s:
            raise UsageError(
                f"cannot give a link a jitter of {self.jitter_s} s around a latency of"
                f" {self.latency_s} s: packets would arrive before they were sent"
            )
        rate = self.rate_bytes_per_s
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise UsageError(
                f"cannot give a link a rate of {rate} bytes per second: more than 0 is expected"
            )

    @property
    def is_transparent(self) -> bool:
        """Tell whether packets simply pass."""
        return self == HEALTHY


HEALTHY = LinkPolicy()


class FateKind(enum.Enum):
    """What is to be done with a packet."""

    LEAVE = "leave"
    DROP = "drop"
    REJECT = "reject"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Fate:
    """The decision on a packet.

    `leave_at` is a time for each copy, `reason` why it is dropped. `lost_units` are the units of
    a packet of several that do not arrive while the others do, by their position.
    """

    kind: FateKind
    leave_at: tuple[float, ...] = ()
    reason: DropReason | None = None
    lost_units: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCounters:
    """What a link has done: what it was offered, what it delivered, what it dropped and why.

    Lost packets are counted in units, so there may be more of them than of packets offered.
    """

    packets: int = 0
    bytes: int = 0
    delivered: int = 0
    dropped: Mapping[DropReason, int] = field(default_factory=dict)


_HELD = Fate(FateKind.HOLD)
_DOWN = Fate(FateKind.DROP, reason=DropReason.DOWN)
_REJECTED = Fate(FateKind.REJECT, reason=DropReason.REJECTED)
_LOST = Fate(FateKind.DROP, reason=DropReason.LOST)
_QUEUE_FULL = Fate(FateKind.DROP, reason=DropReason.QUEUE_FULL)


class Link:
    """The state of one direction: its policy, the queue of its rate, and what it has counted."""

    def __init__(self, chance: random.Random, policy: LinkPolicy = HEALTHY) -> None:
        self._chance = chance
        self._policy = policy
        self._sent_until: dict[Hashable, float] = {}
        self._last_arrival: dict[Hashable, float] = {}
        self._forget_at = -math.inf
        self.packets = 0
        self.bytes = 0
        self.delivered = 0
        self._dropped: dict[DropReason, int] = {}

    @property
    def policy(self) -> LinkPolicy:
        """The policy in force."""
        return self._policy

    def change_policy(self, policy: LinkPolicy) -> None:
        """Put another policy in force; packets that already have their fate keep it."""
        if policy.rate_bytes_per_s is None:
            self._sent_until.clear()
        self._policy = policy

    def offer(self, size: int, flow: Hashable, now: float, *, units: int | None = None) -> Fate:
        """Decide on a packet of `size` bytes that arrived `now`, and count it.

        `units` is how many packets of a real link it stands for (default: by size).
        """
        self.packets += 1
        self.bytes += size
        return self.decide(size, flow, now, units=units)

    def decide(self, size: int, flow: Hashable, now: float, *, units: int | None = None) -> Fate:
        """Decide on a packet that was counted when it arrived (one that was held)."""
        policy = self._policy
        if not policy.up:
            fate = self._fate_when_down(policy.mode)
            if fate.reason is not None:
                self.count_drop(fate.reason)
            return fate
        lost: tuple[int, ...] = ()
        if policy.loss:
            count = -(-size // UNIT_BYTES) if units is None else units
            draw = self._chance.random
            lost = tuple([unit for unit in range(count) if draw() < policy.loss])
            if lost:
                self.count_drop(DropReason.LOST, len(lost))
            if len(lost) == count:
                return _LOST
        self._forget_idle_flows(now)
        leave = now
        if policy.rate_bytes_per_s is not None:
            leave = self._queue(size, flow, now, policy.rate_bytes_per_s)
            if leave - now > MAX_QUEUE_S:
                self.count_drop(DropReason.QUEUE_FULL)
                return _QUEUE_FULL
            self._sent_until[flow] = leave
        times = [self._arrival(leave, flow, policy)]
        if policy.duplicate and self._chance.random() < policy.duplicate:
            times.append(self._arrival(leave, flow, policy))
        return Fate(FateKind.LEAVE, leave_at=tuple(times), lost_units=lost)

    def may_deliver(self) -> bool:
        """Tell whether a delayed packet may still arrive: a cut loses what is on its way."""
        return self._policy.up

    def count_delivery(self) -> None:
        """Count a packet (or a copy) that reached its destination."""
        self.delivered += 1

    def count_drop(self, reason: DropReason, packets: int = 1) -> None:
        """Count packets that will not arrive."""
        self._dropped[reason] = self._dropped.get(reason, 0) + packets

    def counters(self) -> LinkCounters:
        """Return what was counted so far."""
        return LinkCounters(
            packets=self.packets,
            bytes=self.bytes,
            delivered=self.delivered,
            dropped=dict(self._dropped),
        )

    @staticmethod
    def _fate_when_down(mode: LinkMode) -> Fate:
        if mode is LinkMode.HOLD:
            return _HELD
        return _REJECTED if mode is LinkMode.REJECT else _DOWN

    def _queue(self, size: int, flow: Hashable, now: float, rate: float) -> float:
        """Return when the packet has been sent at `rate`, shared equally by the flows that queue.

        The share is fixed when the packet arrives. So a flow that begins is never behind another's
        queue, and for as long as that queue lasts the link is faster than its rate by its share.
        """
        queueing = sum(until > now for until in self._sent_until.values())
        own = self._sent_until.get(flow, -math.inf)
        sharing = queueing + (own <= now)
        return max(now, own) + size * sharing / rate

    def _arrival(self, leave: float, flow: Hashable, policy: LinkPolicy) -> float:
        """Return when the packet arrives; in order within its flow, but for those drawn to be late.

        One late packet holds back those behind it, as on a real path: jitter alone must not look
        like reordering, which TCP takes for loss.
        """
        arrival = leave + policy.latency_s
        if policy.jitter_s:
            arrival += self._chance.uniform(-policy.jitter_s, policy.jitter_s)
        arrival = max(arrival, self._last_arrival.get(flow, arrival))
        if policy.reorder and self._chance.random() < policy.reorder:
            return arrival + REORDER_DELAY_S + policy.jitter_s
        self._last_arrival[flow] = arrival
        return arrival

    def _forget_idle_flows(self, now: float) -> None:
        if now < self._forget_at:
            return
        self._forget_at = now + _FORGET_INTERVAL_S
        for table in (self._sent_until, self._last_arrival):
            for flow in [flow for flow, until in table.items() if until <= now]:
                del table[flow]
