"""What a link counts: packets offered, delivered, dropped and why, for all and for each class."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

__all__ = ["Counts", "DropReason", "LinkCounters", "links_of", "rows_of"]


class DropReason(enum.Enum):
    """Why a packet did not arrive, or not whole."""

    DOWN = "down"
    REJECTED = "rejected"
    LOST = "lost"
    CORRUPTED = "corrupted"
    RESET = "reset"
    QUEUE_FULL = "queue_full"
    HOLD_FULL = "hold_full"
    DEVICE = "device"
    STALL = "stall"
    TRUNK = "trunk"

    @property
    def is_own(self) -> bool:
        """Tell whether the drop is the harness's own doing, which makes a run unknown."""
        return self in {
            DropReason.HOLD_FULL,
            DropReason.DEVICE,
            DropReason.STALL,
            DropReason.TRUNK,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCounters:
    """What a link has done: what it was offered, what it delivered, what it dropped and why.

    Lost packets are counted in units, so there may be more of them than of packets offered.
    `delayed` are packets that had to leave later than they came. `classes` has the same for
    those classes of traffic that the link was told apart; `by_owner` what the policy of each owner
    did, by kind.
    """

    packets: int = 0
    bytes: int = 0
    delivered: int = 0
    delayed: int = 0
    duplicated: int = 0
    dropped: Mapping[DropReason, int] = field(default_factory=dict)
    classes: Mapping[str, LinkCounters] = field(default_factory=dict)
    by_owner: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def of(self, traffic: str | None) -> LinkCounters:
        """Return the counters of a class, or those of everything."""
        return self if traffic is None else self.classes.get(traffic, _NOTHING)


_NOTHING = LinkCounters()


def rows_of(links: Mapping[tuple[str, str], LinkCounters]) -> list[Any]:
    """Return the counters of links as JSON rows (source, target, counters), in order of names."""
    rows = [(*pair, counters) for pair, counters in sorted(links.items())]
    found: list[Any] = msgspec.to_builtins(rows, str_keys=True)
    return found


def links_of(rows: list[Any]) -> dict[tuple[str, str], LinkCounters]:
    """Return the counters of each link that JSON rows stand for."""
    found = msgspec.convert(rows, list[tuple[str, str, LinkCounters]])
    return {(source, target): counters for source, target, counters in found}


class Counts:
    """Counters that count."""

    __slots__ = ("bytes", "delayed", "delivered", "dropped", "duplicated", "packets")

    def __init__(self) -> None:
        self.packets = 0
        self.bytes = 0
        self.delivered = 0
        self.delayed = 0
        self.duplicated = 0
        self.dropped: dict[DropReason, int] = {}

    def drop(self, reason: DropReason, number: int) -> None:
        """Count what will not arrive."""
        self.dropped[reason] = self.dropped.get(reason, 0) + number

    def frozen(self, classes: Mapping[str, LinkCounters] | None = None) -> LinkCounters:
        """Return what was counted so far."""
        return LinkCounters(
            packets=self.packets,
            bytes=self.bytes,
            delivered=self.delivered,
            delayed=self.delayed,
            duplicated=self.duplicated,
            dropped=dict(self.dropped),
            classes=classes or {},
        )
