"""When so many members agree that no others can agree on something else (R11).

A quorum of an electorate is more than half of those who count; exactly half is one if the node that
decided the electorate's round is among them. Whoever has renounced its voice does not count: it
left on purpose, and has promised to vote and to acknowledge nothing any more. A node that merely
cannot be reached counts: nothing tells it from one that votes for somebody else.

Any two quorums of one electorate have a member in common, whoever was excused in either count: a
node that renounced is in no later count, and the rest is a majority of those who remain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pytest_elastic.rendezvous.model import Electorate

__all__ = ["agreed_since", "has_quorum"]


def has_quorum(
    electorate: Electorate, present: Collection[str], excused: Collection[str] = ()
) -> bool:
    """Tell whether `present` (incarnations) are a quorum when the `excused` do not count."""
    counted = [m.incarnation for m in electorate.members if m.incarnation not in excused]
    agreeing = sum(incarnation in present for incarnation in counted)
    if 2 * agreeing == len(counted):
        first = electorate.coordinator
        return first in present and first in counted
    return 2 * agreeing > len(counted)


def agreed_since(
    electorates: Iterable[Electorate], heard_at: Mapping[str, float], excused: Collection[str] = ()
) -> float:
    """Return the latest time at or after which a quorum of each electorate was heard.

    `heard_at` is by incarnation. Infinite without electorates; minus infinite where fewer than a
    quorum were ever heard.
    """
    return min(
        (_one_agreed_since(each, heard_at, excused) for each in electorates), default=float("inf")
    )


def _one_agreed_since(
    electorate: Electorate, heard_at: Mapping[str, float], excused: Collection[str]
) -> float:
    counted = [m.incarnation for m in electorate.members if m.incarnation not in excused]
    times = sorted((heard_at.get(each, float("-inf")) for each in counted), reverse=True)
    if not times:
        return float("-inf")
    majority = times[len(times) // 2]
    if len(times) % 2 or electorate.coordinator not in counted:
        return majority
    with_coordinator = min(
        times[len(times) // 2 - 1], heard_at.get(electorate.coordinator, float("-inf"))
    )
    return max(majority, with_coordinator)
