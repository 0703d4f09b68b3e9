"""When so many members agree that no others can agree on something else (R11).

A quorum of an electorate is more than half of those who count; exactly half is one if the node that
decided the electorate's round is among them. Whoever has renounced its voice does not count: it
left on purpose, and has promised to vote and to acknowledge nothing any more. A node that merely
cannot be reached counts: nothing tells it from one that votes for somebody else.

Any two quorums of one electorate have a member in common, whoever was excused in either count: a
node that renounced is in no later count, and the rest is a majority of those who remain. That holds
for the electorate it renounced in: to the round that follows an older one it may have agreed alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pytest_elastic.rendezvous.model import Electorate, has_beats

__all__ = ["QuorumChoice", "agreed_since", "choose_quorum", "has_quorum"]

# Below this many nodes, nobody but the coordinator could ever be a majority of what remains.
_FEWEST_NODES = 3
# A coordinator's own lease is a beat old when it grants one.
LEAST_BEATS_PER_LEASE = 3
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumChoice:
    """What `Settings.quorum` is, and why (R12)."""

    quorum: str
    reason: str


def choose_quorum(
    asked: str,
    *,
    min_nodes: int,
    max_nodes: int,
    beat_interval_s: float,
    lease_s: float,
    endpoints: int = 1,
) -> QuorumChoice:
    """Decide whether the job goes on without its coordinator (R12); `asked` may be "auto".

    All nodes of a job come to the same, as it depends on nothing but what they must agree on.
    """
    if asked != "auto":
        return QuorumChoice(quorum=asked, reason=f"--rdzv-conf quorum={asked} asks for it")
    if max_nodes < _FEWEST_NODES:
        reason = f"of {max_nodes} nodes, none is a majority without the other"
        return QuorumChoice(quorum="coordinator", reason=reason)
    if not has_beats(lease_s, beat_interval_s, LEAST_BEATS_PER_LEASE):
        reason = f"a lease of {lease_s:g} s is less than {LEAST_BEATS_PER_LEASE} beats"
        return QuorumChoice(quorum="coordinator", reason=reason)
    if endpoints > 1:
        needed = "both" if endpoints == 2 else f"{endpoints // 2 + 1} of {endpoints}"
        reason = f"nothing begins before {needed} endpoints are reached, so there is one job"
        return QuorumChoice(quorum="majority", reason=reason)
    if 2 * min_nodes > max_nodes:
        reason = f"of at most {max_nodes} nodes, no two groups have {min_nodes}"
        return QuorumChoice(quorum="majority", reason=reason)
    reason = (
        f"with {min_nodes} to {max_nodes} nodes and one endpoint, two groups could both be large "
        "enough; several endpoints, or --rdzv-conf quorum=majority, would let the job outlive it"
    )
    return QuorumChoice(quorum="coordinator", reason=reason)


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
    electorate: Electorate, heard_at: Mapping[str, float], excused: Collection[str] = ()
) -> float:
    """Return the latest time at or after which a quorum was heard, without the `excused`.

    `heard_at` is by incarnation. Minus infinite where fewer than a quorum were ever heard.
    """
    counted = [m.incarnation for m in electorate.members if m.incarnation not in excused]
    times = sorted([heard_at.get(each, _NEVER) for each in counted], reverse=True)
    if not times:
        return _NEVER
    majority = times[len(times) // 2]
    if len(times) % 2 or electorate.coordinator not in counted:
        return majority
    with_coordinator = min(times[len(times) // 2 - 1], heard_at.get(electorate.coordinator, _NEVER))
    return max(majority, with_coordinator)
