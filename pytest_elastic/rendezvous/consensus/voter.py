"""What one incarnation of a node has promised and accepted, and how it votes.

A promise is a term: a voter that has promised one obeys no lower one, ever. It is made by following
a leader and by a vote. All of this lives as long as the process: an agent that is started again is
another voter, in no configuration of before.
"""

from __future__ import annotations

from msgspec.structs import replace

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.consensus.records import NO_TERM, Record, Term

__all__ = ["Voter"]


class Voter:
    """The votes and acceptances of one incarnation."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.term = NO_TERM
        """The highest that it has promised to obey (currentTerm)."""
        self.record: Record | None = None
        """The newest that it has accepted."""
        self.base: Record | None = None
        """The newest that it knows to be decided; the same as `record`, or the one before it."""
        self.started: m.RecordDecided | None = None
        """Where the store of the record's round is, if it was told that the round was started."""
        self.number = 0
        """The highest number of a round that it has heard of."""
        self.restarts_used = 0
        """How many restarts the newest round had used that it saw started."""
        self.contact_at: float | None = None
        """When a leader was last heard: it may count on an answer to what it said by then."""
        self.seat = ""
        """Which of several endpoints' hosts this is, as a voter of the founding record."""
        self.up_since = 0.0
        self._voted_for = ""
        self._voted_at = float("-inf")

    @property
    def is_bound(self) -> bool:
        """Whether another node relies on a promise: a vote was given, or a record accepted."""
        return self.record is not None or bool(self._voted_for)

    @property
    def may_found(self) -> bool:
        """Whether this is the host of one of several endpoints, and in no job yet."""
        return bool(self.seat) and self.record is None

    # --- which leader to obey ----------------------------------------------------------------

    def may_follow(self, term: Term) -> bool:
        """Tell whether the leader of a term may be obeyed."""
        return not self.is_bound or term >= self.term

    def follow(self, term: Term) -> None:
        """Obey no lower term from here on."""
        assert self.may_follow(term), f"term {self.term} was promised, not {term}"
        self.term = term

    def give_way(self) -> None:
        """Stop founding a job, and forget votes for that: another node leads one."""
        if self.record is None and self.base is not None:
            self.base = None
            self.term, self._voted_for, self._voted_at = NO_TERM, "", float("-inf")

    def hear_of(self, number: int, restarts_used: int = 0) -> None:
        """Note that there is a round of that number, and what it had used."""
        self.number = max(self.number, number)
        self.restarts_used = max(self.restarts_used, restarts_used)

    # --- records -----------------------------------------------------------------------------

    def accept(self, record: Record, base: Record) -> bool:
        """Accept a record on a decided base; tell whether it is accepted, now or before."""
        if record.term < self.term or (self.record and record.rank < self.record.rank):
            return False
        if self.record is None or self.record.round != record.round:
            self.started = None
        is_decided = self.base is not None and self.base.identity == record.identity
        self.record, self.term = record, record.term
        self.base = record if is_decided else base
        self.hear_of(record.round)
        return True

    def learn_decided(self, decided: m.RecordDecided) -> bool:
        """Note that the accepted record is decided; tell whether it is that one."""
        if self.record is None or self.record.number != decided.number:
            return False
        self.base = self.record
        if decided.store_port:
            self.started = decided
            self.restarts_used = max(self.restarts_used, self.record.restart_count)
        return True

    @property
    def ended(self) -> Record | None:
        """The decided end of the job, if this voter knows it."""
        return self.base if self.base is not None and self.base.end is not None else None

    # --- voting ------------------------------------------------------------------------------

    def vote(self, term: Term, now: float) -> None:
        """Obey no lower term from here on."""
        self.contact_at = self.contact_but_with(term.node)
        self.term = term
        self._voted_for, self._voted_at = term.node, now

    def voted_for_another_since(self, moment: float) -> bool:
        """Tell whether a vote was given to another node then, or later."""
        return self._voted_at >= moment and self._voted_for != self.incarnation

    def has_voted_under(self, term: Term) -> bool:
        """Tell whether the candidate of a term has this vote."""
        return term == self.term and term.node == self._voted_for

    def contact_but_with(self, candidate: str) -> float | None:
        """Return the latest contact on which another leader may rely: a vote is one.

        The node that it elected may have led since; a candidate knows whether it has itself.
        """
        if not self._voted_for or self._voted_for == candidate:
            return self.contact_at
        return max(self._voted_at, self.contact_at or self._voted_at)

    def status(self, leader: m.LeaderAddress | None) -> m.Answer:
        """Say what is known. `leader`: the one this node follows, with a lease that holds."""
        return m.Answer(
            incarnation=self.incarnation,
            leader=leader,
            has_end=self.record is not None and self.record.end is not None,
            number=self.number,
            restarts_used=self.restarts_used,
            base=self.ended,
        )

    def answer(
        self,
        term: Term,
        now: float,
        *,
        is_pre_vote: bool,
        leader: m.LeaderAddress | None,
        patience_s: float,
    ) -> m.Answer:
        """Answer the candidate of a term. `leader`: as for `status`.

        `patience_s`: for how long another leader may still hold a lease, 0 if none can.
        """
        reason = self._refusal(leader, patience_s)
        if not reason and not is_pre_vote and term < self.term:
            reason = f"term {self.term.counter} was promised"
        contact_at = self.contact_but_with(term.node)
        if not reason and not is_pre_vote:
            self.vote(term, now)
        return replace(
            self.status(leader),
            is_granted=not reason,
            reason=reason,
            term=self.term,
            record=self.record,
            base=self.base,
            started=self.started,
            contact_age_s=None if contact_at is None else max(now - contact_at, 0.0),
            patience_s=patience_s,
            up_s=now - self.up_since if self.seat else 0.0,
        )

    def _refusal(self, leader: m.LeaderAddress | None, patience_s: float) -> str:
        if self.ended is not None:
            return "the job has ended"
        if leader is not None:
            return f"{leader.name} leads, under term {leader.term.counter}"
        if patience_s > 0:
            return "another node may lead"
        return ""
