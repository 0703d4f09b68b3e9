"""A round on its way: sealed, then committed, then ending. The coordinator's plain records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pytest_elastic.rendezvous.budget import EndedRound, Verdict
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.messages import Commit, Seal
from pytest_elastic.rendezvous.model import Failure
from pytest_elastic.rendezvous.ordering import rank_order
from pytest_elastic.rendezvous.peer import Peer

__all__ = ["Cause", "CommittedRound", "SealedRound", "by_claim", "choose_roster", "inherited_round"]


class Cause(Enum):
    """Why a round is over, as far as it matters for what follows."""

    FAILURE = "a worker failed"
    LOSS = "a member was lost"
    CHANGE = "a member leaves, or nodes came"


@dataclass(slots=True, kw_only=True)
class SealedRound:
    """A roster that waits for its acknowledgements and its worker store.

    `endorsers` acknowledge it without being in it (R11.3); `missing`, incarnations, have yet to.
    `verdict` is what the round before it would cost if this one is committed (R3).
    """

    message: Seal
    roster: Sequence[Peer]
    endorsers: Sequence[Peer]
    sealed_at: float
    verdict: Verdict
    missing: set[str]
    store: tuple[str, int] | None = None
    broken_by: str | None = None

    @property
    def number(self) -> int:
        """The number of the round."""
        return self.message.round

    @property
    def store_host(self) -> Peer:
        """The member of group rank 0."""
        return self.roster[0]

    def as_committed(self, commit: Commit, now: float) -> CommittedRound:
        """Return the round as it is from its commit on."""
        incarnations = frozenset(peer.node.incarnation for peer in self.roster)
        return CommittedRound(
            seal=self.message,
            commit=commit,
            roster=self.roster,
            names=tuple(peer.node.name for peer in self.roster),
            incarnation_set=incarnations,
            committed_at=now,
            unfinished=set(incarnations),
            holding=set(incarnations),
        )


@dataclass(slots=True, kw_only=True)
class CommittedRound:
    """The newest committed round, until the next one is committed.

    `unfinished` are the members that have not reported success; `holding`, those whose workers are
    not known to be gone; `absent`, those that are members no more, of whom some were `evicted`
    while they were alive. All are incarnations.
    `unexplained`: a sentence, if an earlier coordinator had stopped it for a reason that went with
    that one; it is free then, unless a member that comes back tells of a failure.
    """

    seal: Seal
    commit: Commit
    roster: Sequence[Peer]
    names: Sequence[str]
    incarnation_set: frozenset[str]
    committed_at: float
    unfinished: set[str]
    holding: set[str]
    absent: set[str] = field(default_factory=set)
    evicted: set[str] = field(default_factory=set)
    first_failure: Failure | None = None
    has_success: bool = False
    stop_reason: str | None = None
    stop_cause: Cause | None = None
    stopped_at: float = 0.0
    lost_or_gained: str | None = None
    is_inherited: bool = False
    unexplained: str | None = None

    @property
    def number(self) -> int:
        """The number of the round."""
        return self.commit.round

    def stop_because(self, reason: str, cause: Cause) -> None:
        """Note why the round is over; the first reason stands."""
        if self.stop_reason is None:
            self.stop_reason, self.stop_cause = reason, cause

    def why_ended(self) -> str:
        """Say why it is over, and why that is free if there is another reason for it."""
        reason = self.stop_reason or "it ended"
        if self._why_free not in {None, reason}:
            reason += f"; free: {self._why_free}"
        return reason

    def is_full(self, max_nodes: int) -> bool:
        """Tell whether nobody else could be in it."""
        return len(self.roster) - len(self.absent) >= max_nodes

    def as_ended(self) -> EndedRound:
        """Return the round as the budget judges it."""
        return EndedRound(
            round=self.number,
            roster=tuple(peer.node.incarnation for peer in self.roster),
            cause=self.stop_reason or "it ended",
            lost_or_gained=self._why_free,
            is_failure=self.stop_cause is Cause.FAILURE,
            evicted=frozenset(self.evicted),
        )

    @property
    def _why_free(self) -> str | None:
        return self.lost_or_gained or self.unexplained


def by_claim(peers: Iterable[Peer], last: CommittedRound | None) -> Sequence[Peer]:
    """Return who has which claim to be in the round that follows `last`, the strongest first.

    Survivors go before newcomers, and of these who came first (R7).
    """
    old = last.incarnation_set if last is not None else frozenset()
    return sorted(peers, key=lambda peer: (peer.node.incarnation not in old, peer.came_at))


def choose_roster(
    ready: Iterable[Peer], last: CommittedRound | None, max_nodes: int
) -> tuple[Peer, ...]:
    """Choose who is in the next round, by their claims; the result is in rank order (R9)."""
    claims = by_claim(ready, last)
    chosen = {peer.node.incarnation: peer for peer in claims[:max_nodes]}
    order = rank_order((peer.node for peer in chosen.values()), last.names if last else ())
    return tuple(chosen[node.incarnation] for node in order)


def inherited_round(
    seal: Seal, heritage: Heritage, roster: Sequence[Peer], *, committed_at: float
) -> CommittedRound:
    """Return the round of an earlier coordinator as it stands: `roster` without who has left.

    One of which nobody knows whether it was committed is stopped, as it may have been.
    """
    term = seal.term
    commit = heritage.commit or Commit(term=term, round=seal.round, store_address="", store_port=0)
    remaining = {peer.node.incarnation for peer in roster}
    inherited = CommittedRound(
        seal=seal,
        commit=dataclasses.replace(commit, term=term),
        roster=roster,
        names=tuple(entry.name for entry in seal.roster),
        incarnation_set=frozenset(entry.incarnation for entry in seal.roster),
        committed_at=committed_at,
        unfinished=set(remaining),
        holding=set(remaining),
        absent={entry.incarnation for entry in seal.roster} - remaining,
        is_inherited=True,
    )
    gone = [entry.name for entry in seal.roster if entry.incarnation not in remaining]
    reason = f"{', '.join(gone)} left" if gone else heritage.why_followed
    if gone or heritage.commit is None:
        is_change = gone or heritage.has_left
        inherited.stop_because(reason, Cause.CHANGE if is_change else Cause.LOSS)
        inherited.lost_or_gained = reason
    return inherited
