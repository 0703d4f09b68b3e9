"""What is replicated: one record, its voters, and the term it stands under (docs/rendezvous.md).

A record is decided when a majority of its base's voters and a majority of its own have accepted it
under the term of one leader. Both majorities make it joint consensus (Raft thesis, 4.3) in one
step, as at most one record is pending at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from pytest_elastic.rendezvous.model import Failure, Node
from pytest_elastic.wire import Float, Integer, Value

__all__ = [
    "NO_TERM",
    "Configuration",
    "End",
    "KnownJob",
    "Mark",
    "Record",
    "Term",
    "founding_record",
    "is_seat",
    "seat_of",
]

_NEVER = float("-inf")


class Term(NamedTuple):
    """The time under one leader; unique, as `node` is the incarnation that stood for election."""

    counter: Integer
    node: str


NO_TERM = Term(0, "")


class Configuration(Value):
    """Who votes (incarnations). Of an even number, exactly half is enough with `tie_breaker`.

    Any two quorums have a voter in common.
    """

    voters: tuple[str, ...]
    tie_breaker: str

    def has_quorum(self, agreeing: Collection[str]) -> bool:
        """Tell whether so many agree that no others can agree on something else."""
        votes = sum(voter in agreeing for voter in self.voters)
        if 2 * votes == len(self.voters):
            return self.tie_breaker in agreeing and self.tie_breaker in self.voters
        return 2 * votes > len(self.voters)

    def could_have_quorum(self, refusing: Collection[str]) -> bool:
        """Tell whether the others could still be a quorum when these never agree."""
        return self.has_quorum([voter for voter in self.voters if voter not in refusing])

    def agreed_since(self, heard_at: Mapping[str, float]) -> float:
        """Return the latest time at or after which a quorum was heard; minus infinite for never."""
        times = sorted((heard_at.get(voter, _NEVER) for voter in self.voters), reverse=True)
        if not times:
            return _NEVER
        majority = times[len(times) // 2]
        if len(times) % 2 or self.tie_breaker not in self.voters:
            return majority
        with_tie = min(times[len(times) // 2 - 1], heard_at.get(self.tie_breaker, _NEVER))
        return max(majority, with_tie)


class End(Value):
    """How the job has ended: "succeeded", "failed" or "lost"."""

    result: str
    reason: str
    first_failure: Failure | None = None


class Record(Value):
    """All that a job goes on with; the newest decided one is what the job is.

    `term` is that of the leader that proposed it last, `origin` that of the one that did so first.
    `number` grows with each proposal of a term; `round` is that of the newest round, whose `roster`
    is in rank order. `restart_count` and `idle_rounds` are what the budget has used.
    """

    term: Term
    origin: Term
    number: Integer
    round: Integer
    roster: tuple[Node, ...]
    configuration: Configuration
    spares: tuple[str, ...] = ()
    restart_count: Integer = 0
    max_restarts: Integer = 0
    idle_rounds: Integer = 0
    end: End | None = None

    @property
    def rank(self) -> tuple[Term, int]:
        """By what records are compared: the newest that a voter was asked to accept is highest."""
        return (self.term, self.number)

    def under(self, term: Term) -> Record:
        """Return the record as a new leader proposes it again."""
        return replace(self, term=term)

    @property
    def identity(self) -> tuple[Term, int]:
        """What stays the same when another leader proposes it again."""
        return (self.origin, self.number)

    def may_be_decided(self, base: Record, never: Collection[str]) -> bool:
        """Tell whether this record, on that base, may have been decided, or ever be.

        `never` (incarnations) obey no term under which it was proposed, and have not accepted it.
        """
        return base.configuration.could_have_quorum(never) and self.configuration.could_have_quorum(
            never
        )


class KnownJob(Value):
    """What a node knows of the job that it is in: whose votes count, and the highest numbers."""

    record: Record
    base: Record
    number: Integer
    restarts_used: Integer


class Mark(Value):
    """What was left on this machine; `renewed_at` is when its writer was last in contact."""

    job: KnownJob
    renewed_at: Float


_SEAT = "host of "


def seat_of(endpoint: str) -> str:
    """Return the voter that the host of an endpoint is, as long as a job has not begun."""
    return _SEAT + endpoint


def is_seat(voter: str) -> bool:
    """Tell whether a voter is named by its place."""
    return voter.startswith(_SEAT)


def founding_record(hosts: Sequence[Node]) -> Record:
    """Return what a job begins with: the hosts of its endpoints vote, and there is no round."""
    return Record(
        term=NO_TERM,
        origin=NO_TERM,
        number=0,
        round=0,
        roster=tuple(hosts),
        configuration=Configuration(
            voters=tuple(host.incarnation for host in hosts),
            tie_breaker=hosts[0].incarnation if len(hosts) == 1 else "",
        ),
    )
