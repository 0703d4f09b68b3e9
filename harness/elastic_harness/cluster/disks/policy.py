"""What a disk does to its users: takes long, refuses, fails. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["DISK_OPERATIONS", "DiskCounters", "DiskPolicy", "combine"]

# The kinds of operation that a disk can fail at.
DISK_OPERATIONS = ("read", "write", "sync")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPolicy:
    """What happens below one path of one node.

    `free_bytes` may still be written (None: any number); `fails` are operations that end with EIO;
    each operation takes `latency_s` longer, and what is read and written `rate` bytes a second.
    `holds` matches files below the path (`*.pt`; `*` also stands for folders): who writes one is
    held in the middle of it, a part of the bytes written, until that is no more in force.
    """

    is_read_only: bool = False
    free_bytes: int | None = None
    fails: tuple[str, ...] = ()
    latency_s: float = 0.0
    rate: float | None = None
    holds: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskCounters:
    """What has passed an overlay since it was mounted, and what each owner's policy did to it.

    That is "refused_read_only", "refused_full", "failed", "delayed" and "held": writes that were
    held in their middle. `held_file` is the newest one's file, below the path.
    """

    operations: int = 0
    by_owner: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    held_file: str = ""


def combine(policies: Iterable[DiskPolicy]) -> DiskPolicy:
    """Return the policy of a disk that has all of these."""
    total = DiskPolicy()
    for each in policies:
        total = replace(
            total,
            is_read_only=total.is_read_only or each.is_read_only,
            free_bytes=_smaller(total.free_bytes, each.free_bytes),
            fails=tuple(name for name in DISK_OPERATIONS if name in {*total.fails, *each.fails}),
            latency_s=total.latency_s + each.latency_s,
            rate=_smaller(total.rate, each.rate),
            holds=total.holds if each.holds is None else each.holds,
        )
    return total


def _smaller(one: Any, other: Any) -> Any:  # noqa: ANN401 (two kinds of number, and None)
    return min((value for value in (one, other) if value is not None), default=None)
