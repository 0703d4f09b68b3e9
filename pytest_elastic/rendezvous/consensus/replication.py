"""The leader's record: what is proposed, which voters accepted it, how long the leader may lead.

A new leader first proposes the newest record again, under its own term, decided or not. Its own
proposals it may withdraw, as no other node counts their acceptances; what it found it may not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from pytest_elastic.rendezvous.consensus.records import Configuration, Mark, Record, Term
from pytest_elastic.rendezvous.messages import AppendRecord, RecordDecided
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.settings import Settings
from pytest_elastic.wire import Value

__all__ = ["Recovered", "Replication"]

_NEVER = float("inf")


class Recovered(Value):
    """What a new leader goes on with.

    `base` is decided. `record` is the same one, or one on it that may be, and is proposed again.
    `started` is where the store of its round is, None if no voter knows that it was started.
    `heard_at` is when each voter that answered was asked, `contact_at` when one last heard a
    leader, and `began_at` when this node began to look for the job; `mark` is what it found on its
    machine then. `granted_until`: how long it may lead, where an external service says so. `seats`
    says which incarnation of each host has voted for it.
    """

    term: Term
    base: Record
    record: Record
    started: RecordDecided | None
    contact_at: float
    lost: str = ""
    has_left: bool = False
    began_at: float = 0.0
    mark: Mark | None = None
    granted_until: float | None = None
    seats: Mapping[str, str] = msgspec.field(default_factory=dict)
    number: int = 0
    restarts_used: int = 0
    heard_at: Mapping[str, float] = msgspec.field(default_factory=dict)

    @property
    def why_followed(self) -> str:
        """Why this leader follows the one before it: that one left, or was lost."""
        return f"{self.lost} left" if self.has_left else f"{self.lost} was lost"

    @property
    def known(self) -> Sequence[Node]:
        """All nodes that may be looking for a leader now."""
        entries = {entry.incarnation: entry for entry in (*self.base.roster, *self.record.roster)}
        return tuple(entries.values())


class Replication:
    """One record at a time, on a decided `base`; `own` is the leader's incarnation."""

    def __init__(self, settings: Settings, own: str, recovered: Recovered, now: float) -> None:
        base = recovered.base
        is_adopted = recovered.record.number > 0 and not settings.is_granted
        self.base = base
        """The newest record that is decided."""
        self.pending = recovered.record.under(recovered.term) if is_adopted else None
        """What is proposed on it, if anything is."""
        self.round = max(self.newest.round, recovered.number)
        """The highest round number that any node is known to have used."""
        self._number = max(base.number, self.newest.number)  # of the newest proposal
        self._settings = settings
        self._own = own
        self._term = recovered.term
        self._accepted: set[str] = set()
        self._proposed_at = now
        self._heard_at = dict(recovered.heard_at)
        self._seats = dict(recovered.seats)  # the voters of a founding record, by incarnation
        self._since = self._looked_at = float("-inf")
        self._stale_s = settings.beat_interval_s / 8
        granted_until = recovered.granted_until
        self._granted_until = _NEVER if granted_until is None else granted_until
        self._written = self._asked = 0  # numbers of records, where an external service decides
        self._is_concluded = False
        self._message: AppendRecord | None = None

    @property
    def newest(self) -> Record:
        """The record that the job goes by."""
        return self.pending or self.base

    @property
    def is_adopted(self) -> bool:
        """Whether what is pending was found, and may be decided already."""
        return self.pending is not None and self.pending.origin != self._term

    # --- proposing ---------------------------------------------------------------------------

    def configuration_of(self, voters: Sequence[str]) -> Configuration:
        """Return the voters among these; without succession there is only ever one."""
        if not self._settings.has_succession:
            voters = (self._own,)
        tie_breaker = self._own if self._own in voters else voters[0]
        return Configuration(voters=tuple(voters), tie_breaker=tie_breaker)

    def propose(self, now: float, **changed: object) -> Record:
        """Propose a record that differs from the newest one in these fields."""
        assert self.pending is None, "one record is pending at a time"
        self._number += 1
        self.pending = record = replace(
            self.base, term=self._term, origin=self._term, number=self._number, **changed
        )
        self._proposed_at = now
        self._accepted.clear()
        self._since = self._looked_at = float("-inf")
        return record

    def message(self) -> AppendRecord:
        """Return the message that asks voters to accept the newest record; one for all of them."""
        said = self._message
        if said is None or said.record is not self.newest or said.base is not self.base:
            said = self._message = AppendRecord(term=self._term, record=self.newest, base=self.base)
        return said

    def withdraw(self) -> None:
        """Take back a proposal of our own that was never counted as decided."""
        assert not self.is_adopted, "what was adopted may be decided already"
        self.pending = None

    def take_acceptance(self, incarnation: str, number: int) -> None:
        """Note that a voter has accepted the newest record."""
        if self.pending is not None and number == self.pending.number:
            self._accepted |= {incarnation, self._seats.get(incarnation, incarnation)}
            self.hear(incarnation, self._proposed_at)

    @property
    def has_quorums(self) -> bool:
        """Whether enough have accepted the pending record for it to be decided."""
        if self._settings.is_granted:
            return self.pending is not None and self.pending.number == self._written
        return self.pending is not None and self.is_agreed(self._accepted)

    def must_be_written(self) -> bool:
        """Tell, once, whether the pending record has to be written down for it to be decided."""
        if not self._settings.is_granted or self.pending is None:
            return False
        is_new, self._asked = self._asked != self.pending.number, self.pending.number
        return is_new

    def take_written(self, number: int) -> None:
        """Note that the record of a number is written down."""
        self._written = max(self._written, number)

    def is_agreed(self, agreeing: Collection[str]) -> bool:
        """Tell whether a quorum of each configuration that counts is among these."""
        is_founding = bool(self._seats) and self.base.number == 0
        if not (self._settings.has_succession or is_founding):
            return True  # the only voter is this node, which leads: its follower may be away
        if is_founding:
            agreeing = {*agreeing, *(self._seats.get(each, each) for each in agreeing)}
        return all(each.has_quorum(agreeing) for each in self._needed)

    @property
    def _needed(self) -> Sequence[Configuration]:
        own = self.base.configuration
        return (own,) if self.pending is None else (own, self.pending.configuration)

    def settle(self) -> Record:
        """Take the pending record for decided, as it is; return it."""
        assert self.has_quorums, "a record is decided by quorums"
        assert self.pending is not None, "there is a record to decide"
        self.base, self.pending = self.pending, None
        self._since = self._looked_at = float("-inf")
        return self.base

    @property
    def candidates(self) -> Sequence[str]:
        """Who could lead instead of us (incarnations): voters, or hosts before the first round."""
        if self._seats and self.newest.number == 0:
            return tuple(self._seats)
        return self.newest.configuration.voters

    def has_voter(self, incarnation: str) -> bool:
        """Tell whether a node has a vote on what is proposed next, or now."""
        names = {incarnation, self._seats.get(incarnation, incarnation)}
        return any(not names.isdisjoint(each.voters) for each in self._needed)

    # --- the leader's lease ------------------------------------------------------------------

    def hear(self, incarnation: str, sent_at: float) -> None:
        """Note that a member has answered what we sent at `sent_at`."""
        if sent_at >= self._heard_at.get(incarnation, sent_at):
            self._heard_at[incarnation] = sent_at
            if self._seats and incarnation in self._seats:
                self._heard_at[self._seats[incarnation]] = sent_at

    def extend(self, until: float) -> None:
        """Note until when an external service grants the lease."""
        self._granted_until = until

    def conclude(self) -> None:
        """Stop needing answers: the end is decided."""
        self._is_concluded = True

    @property
    def why_over(self) -> str:
        """Why the lease ended, once it has."""
        if self._settings.is_granted:
            return "its grant ran out"
        return "a majority of the last round has not answered for a lease"

    def leads_until(self, now: float) -> float:
        """Return when the lease ends unless it is extended; infinite if it does not.

        Looks at all voters only now and then, as it only moves on.
        """
        if self._is_concluded:
            return _NEVER
        if self._settings.is_granted:
            return self._granted_until
        counted = self._counted
        is_alone = all(tuple(each.voters) == (self._own,) for each in counted)
        if is_alone and not (self._settings.has_succession and self.base.number > 0):
            return _NEVER  # else our own voter may elect another leader
        lease_s = self._settings.lease_s
        is_over = now >= self._since + lease_s
        if is_over or not self._looked_at <= now < self._looked_at + self._stale_s:
            since = min(each.agreed_since(self._heard_at) for each in counted)
            self._since, self._looked_at = max(self._since, since), now
        return min(self._since, now) + lease_s

    @property
    def _counted(self) -> Sequence[Configuration]:
        """Whose answers make the lease.

        Of an adopted record too, as it may be decided; and of one that leaves this node out, as the
        leader that is elected then need not have heard of what rested on our own vote.
        """
        own, pending = self.base.configuration, self.pending
        if pending is not None and (
            self.is_adopted or self._own not in pending.configuration.voters
        ):
            return (own, pending.configuration)
        return (own,)
