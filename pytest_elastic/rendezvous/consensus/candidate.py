"""One node's attempt to be elected, because the leader is lost.

    IDLE       there is a leader
    WAITING    until it is this node's turn, or for the next try
    PRE_VOTE   asks what votes it would get; nothing is promised (Raft thesis, 9.6)
    VOTE       asks for votes, under a term above all that it has heard of

Answers tell what voters have accepted, so whose votes are needed shows while answers come in.
"""

from __future__ import annotations

import zlib
from enum import Enum

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.consensus.records import Record, Term
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.consensus.voter import Voter
from pytest_elastic.rendezvous.leases import announced_within_s
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.settings import Settings
from pytest_elastic.rendezvous.vocabulary import Answered, Ask

__all__ = ["CANDIDATE_ALLOWED", "Candidacy", "Candidate"]


class Candidacy(Enum):
    """What a node does about a leader that is lost."""

    __hash__ = object.__hash__  # Enum hashes by name, in Python, at every look into a set

    IDLE = "idle"
    WAITING = "waiting"
    PRE_VOTE = "pre_vote"
    VOTE = "vote"


CANDIDATE_ALLOWED: dict[Candidacy, frozenset[Candidacy]] = {
    Candidacy.IDLE: frozenset({Candidacy.WAITING}),
    Candidacy.WAITING: frozenset({Candidacy.PRE_VOTE, Candidacy.VOTE, Candidacy.IDLE}),
    Candidacy.PRE_VOTE: frozenset({Candidacy.VOTE, Candidacy.WAITING, Candidacy.IDLE}),
    Candidacy.VOTE: frozenset({Candidacy.WAITING, Candidacy.IDLE}),
}


class Candidate:
    """Asks for votes when it is told to; what came of it is in `elected` and `leader`."""

    def __init__(self, settings: Settings, voter: Voter) -> None:
        self.phase = Candidacy.IDLE
        self.elected: Recovered | None = None
        """Set by an election that was won; its reader takes it away."""
        self.leader: m.LeaderAddress | None = None
        """Who leads already, as a voter said."""
        self.reached: tuple[int, int] | None = None
        """How many of how many voters agreed to the last try that failed."""
        self._settings = settings
        self._voter = voter
        self._wake_at = 0.0
        self._skips_pre_vote = self._has_deferred = False
        self._tries = 0
        self._term: Term | None = None  # under which votes are asked for
        self._asked_at = 0.0
        self._asked: set[str] = set()
        self._unanswered: set[str] = set()
        self._granted: dict[str, Record | None] = {}  # what each had accepted that agrees
        self._seats: dict[str, str] = {}  # which incarnation of each host agrees
        self._up_s: dict[str, float] = {}  # and for how long it has been up
        self._patience_s: list[float] = []
        self._contact_at = float("-inf")
        # What was learnt, in this try and before: all of it stays true.
        self._base: Record | None = None
        self._newest: Record | None = None
        self._started: m.RecordDecided | None = None
        self._entries: dict[str, Node] = {}
        self._counter = 0
        self._number = 0
        self._restarts_used = 0
        self._out: list[Ask] = []

    @property
    def stagger_s(self) -> float:
        """How long after the one before it a candidate tries: longer than an election takes."""
        return self._settings.beat_interval_s / 2

    @property
    def wake_at(self) -> float | None:
        """When `advance` is wanted."""
        return None if self.phase is Candidacy.IDLE else self._wake_at

    def hear_of_term(self, counter: int) -> None:
        """Note that a node has promised a term: a lower one would not be obeyed."""
        self._counter = max(self._counter, counter)

    # --- standing ----------------------------------------------------------------------------

    def stand(self, now: float, lost: str, *, at_once: bool = False) -> None:
        """Begin, unless this goes on already; `lost` is the incarnation of the leader that is.

        `at_once`: the leader has named this node (leadership transfer), or there is no other voter.
        """
        if self.phase is not Candidacy.IDLE or self._voter.base is None:
            return
        self._learn(self._voter)
        newest = self._newest or self._base
        assert newest is not None, "a voter with a base was just learnt from"
        roster = newest.roster
        order = [entry.incarnation for entry in roster if entry.incarnation != lost]
        own = (
            self._voter.seat if newest.number == 0 and self._voter.seat else self._voter.incarnation
        )
        place = order.index(own) if own in order else len(order)
        self._skips_pre_vote = at_once
        self._has_deferred = False
        self._become(Candidacy.WAITING)
        self._wake_at = now if at_once else now + place * (self.stagger_s + self._jitter_s())

    def withdraw(self) -> None:
        """Stop: there is a leader."""
        if self.phase is not Candidacy.IDLE:
            self._become(Candidacy.IDLE)
        self._term = self.leader = self.reached = None

    def yield_to_another(self, now: float) -> None:
        """Give up this try: a vote was given to another."""
        if self.phase in {Candidacy.PRE_VOTE, Candidacy.VOTE}:
            self._fail(now)
        if self.phase is Candidacy.WAITING:
            self._wake_at = max(self._wake_at, now + 2 * self.stagger_s + self._jitter_s())
            self._skips_pre_vote = False

    def defer_to(self, candidate: str, now: float) -> None:
        """Leave time to one that tries, too, and comes earlier in the roster; once a try.

        Of two that ask for votes at the same time one may be elected although the other has
        promised a higher term by then. It steps down, and its lease is waited for.
        """
        is_trying = self.phase in {Candidacy.WAITING, Candidacy.PRE_VOTE}
        if self._has_deferred or not is_trying or self._skips_pre_vote:
            return
        if not self._comes_earlier(candidate):
            return
        self._has_deferred = True
        if self.phase is Candidacy.PRE_VOTE:
            self._become(Candidacy.WAITING)
            self._term = None
        self._wake_at = max(self._wake_at, now + self.stagger_s + self._jitter_s())

    def _comes_earlier(self, other: str) -> bool:
        newest = self._newest or self._base
        assert newest is not None, "a candidate knows a record"
        order = [entry.incarnation for entry in newest.roster]
        own = self._voter.incarnation
        return other in order and (own not in order or order.index(other) < order.index(own))

    def advance(self, now: float) -> list[Ask]:
        """Do what is due; return the votes to ask for."""
        if self.phase is Candidacy.WAITING and now >= self._wake_at:
            is_pre_vote = not self._skips_pre_vote
            self._skips_pre_vote = False
            self._ask(now, is_pre_vote=is_pre_vote)
        elif self.phase in {Candidacy.PRE_VOTE, Candidacy.VOTE} and now >= self._wake_at:
            self._fail(now)
        asked, self._out = self._out, []
        return asked

    def _become(self, phase: Candidacy) -> None:
        allowed = CANDIDATE_ALLOWED[self.phase]
        assert phase in allowed, f"a candidate cannot go from {self.phase} to {phase}"
        self.phase = phase

    # --- asking ------------------------------------------------------------------------------

    def _ask(self, now: float, *, is_pre_vote: bool) -> None:
        self._become(Candidacy.PRE_VOTE if is_pre_vote else Candidacy.VOTE)
        self._learn(self._voter)
        voter, own = self._voter, self._voter.incarnation
        term = Term(max(self._counter, voter.term.counter) + 1, own)
        if not is_pre_vote:
            if self._needs_own_vote:
                voter.vote(term, now)
            self._counter = term.counter  # which a host that gives way would forget
            self._tries += 1
        self._term = term
        self._asked_at = now
        self._asked = {own}
        self._unanswered.clear()
        self._patience_s.clear()
        self._granted = {own: voter.record}
        self._up_s.clear()
        self._seats.clear()
        if voter.seat:
            self._granted[voter.seat] = voter.record
            self._asked.add(voter.seat)
            self._take_seat(voter.seat, own, now - voter.up_since)
        contact_at = voter.contact_but_with(own)
        self._contact_at = float("-inf") if contact_at is None else contact_at
        self._wake_at = now + self._settings.lease_s / 2
        self._count(now)

    def _ask_more(self, now: float) -> None:
        """Ask the voters that are needed and were not asked yet."""
        within_s = max(self._wake_at - now, 0.01)
        for incarnation in self._voters():
            entry = self._entries.get(incarnation)
            if incarnation in self._asked or entry is None:
                continue
            self._asked.add(incarnation)
            self._unanswered.add(incarnation)
            is_pre_vote = self.phase is Candidacy.PRE_VOTE
            self._out.append(
                Ask(node=entry, term=self._term, is_pre_vote=is_pre_vote, within_s=within_s)
            )

    def _fail(self, now: float) -> None:
        """Try again after a while: when a voter said, if one did, but not in step with others."""
        voters = self._voters()
        self.reached = (len(voters.keys() & self._granted.keys()), len(voters))
        self._become(Candidacy.WAITING)
        self._term = None
        self._has_deferred = False
        self._tries += 1
        pause_s = self.stagger_s / 2 + self._jitter_s()
        self._wake_at = now + max(pause_s, min(self._patience_s, default=0.0))

    def _jitter_s(self) -> float:
        """Return a part of a stagger that differs from node to node and from try to try."""
        text = f"{self._voter.incarnation}/{self._tries}"
        return self.stagger_s * zlib.crc32(text.encode()) / 2**32

    # --- answers -----------------------------------------------------------------------------

    def take_answer(self, answered: Answered, now: float) -> None:
        """Take in what a voter said, or that it said nothing."""
        answer = answered.answer
        if answer is not None:
            self._learn(answer)
        is_pre_vote = self.phase is Candidacy.PRE_VOTE
        if (answered.term, answered.is_pre_vote) != (self._term, is_pre_vote):
            return  # to an earlier try
        self._unanswered.discard(answered.incarnation)
        if answer is not None and answer.leader is not None:
            self.leader = answer.leader
        if answer is not None and answer.is_granted:
            self._granted[answer.incarnation] = answer.record
            if answered.incarnation != answer.incarnation:  # asked as the host of an endpoint
                self._granted[answered.incarnation] = answer.record
                self._take_seat(answered.incarnation, answer.incarnation, answer.up_s)
            if answer.contact_age_s is not None:
                self._contact_at = max(self._contact_at, now - answer.contact_age_s)
        elif answer is not None and answer.patience_s > 0:
            self._patience_s.append(answer.patience_s)
        self._count(now)

    def _learn(self, said: Voter | m.Answer) -> None:
        """Take in what a voter knows, another or our own."""
        record, base, started = said.record, said.base, said.started
        self._counter = max(self._counter, said.term.counter)
        self._number = max(self._number, said.number)
        self._restarts_used = max(self._restarts_used, said.restarts_used)
        for each in (base, record):
            if each is not None:
                self._entries |= {entry.incarnation: entry for entry in each.roster}
                self._counter = max(self._counter, each.term.counter)
        is_newer = base is not None and (self._base is None or base.rank >= self._base.rank)
        if base is not None and is_newer:
            self._base = base
        if record is not None and (self._newest is None or record.rank > self._newest.rank):
            if self._newest is None or self._newest.round != record.round:
                self._started = None
            self._newest = record
        is_of_newest = record is not None and self._newest is not None
        if started is not None and is_of_newest and record.round == self._newest.round:  # type: ignore[union-attr]
            self._started = started

    # --- counting ----------------------------------------------------------------------------

    @property
    def _pending(self) -> Record | None:
        """The newest record, if it is not known to be decided."""
        base, newest = self._base, self._newest
        if newest is None or base is None or newest.identity == base.identity:
            return None
        return newest if newest.rank > base.rank else None

    def _may_be_decided(self, pending: Record) -> bool:
        """Tell whether the pending record may be decided, as far as its voters are known."""
        assert self._base is not None, "a candidate knows a decided record"
        never = [
            voter
            for voter, accepted in self._granted.items()
            if accepted is None or accepted.identity != pending.identity
        ]
        return pending.may_be_decided(self._base, never)

    def _voters(self) -> dict[str, None]:
        """Whose votes are needed, in the order of their rosters."""
        assert self._base is not None, "a candidate knows a decided record"
        voters, pending = dict.fromkeys(self._base.configuration.voters), self._pending
        if pending is not None and self._may_be_decided(pending):
            voters |= dict.fromkeys(pending.configuration.voters)
        return voters

    @property
    def _needs_own_vote(self) -> bool:
        """Whether this node is a voter.

        Another may lead as well, but promises itself nothing before it is elected: it could not
        follow the leader that the voters elect meanwhile, which would have to stand again.
        """
        own = {self._voter.incarnation, self._voter.seat}
        return not own.isdisjoint(self._voters())

    def _count(self, now: float) -> None:
        """See whether enough have agreed, or whether enough never will."""
        assert self._base is not None, "a candidate knows a decided record"
        pending = self._pending
        if pending is not None and not self._may_be_decided(pending):
            pending = None
        is_won = self._base.configuration.has_quorum(self._granted) and self._may_found()
        if pending is not None:
            is_won = is_won and pending.configuration.has_quorum(self._granted)
        if is_won and self.phase is Candidacy.PRE_VOTE:
            self._ask(now, is_pre_vote=False)
        elif is_won:
            self._win(pending, now)
        else:
            self._ask_more(now)
            if not self._unanswered:
                self._fail(now)

    def _take_seat(self, seat: str, incarnation: str, up_s: float) -> None:
        self._seats[seat] = incarnation
        self._up_s[seat] = up_s

    def _may_found(self) -> bool:
        """Tell whether hosts that may have voted before, and have forgotten it, may count (R12).

        All of them may: no other host could know more. Else each has been up for as long as the
        survivors of a running job take to announce themselves there.
        """
        assert self._base is not None, "a candidate knows a decided record"
        seats = self._base.configuration.voters
        if self._base.number > 0 or not self._settings.endpoints:
            return True
        if all(seat in self._seats for seat in seats):
            return True
        settled_s = announced_within_s(self._settings)
        settled = [seat for seat in seats if self._up_s.get(seat, 0.0) >= settled_s]
        return self._base.configuration.has_quorum(settled)

    def _win(self, pending: Record | None, now: float) -> None:
        assert self._term is not None, "an election was held"
        assert self._base is not None, "a candidate knows a decided record"
        term, base = self._term, self._base
        newest = self._newest
        if newest is not None and newest.identity == base.identity and newest.rank > base.rank:
            base = newest
        record = pending or base
        if not self._needs_own_vote:
            self._voter.vote(term, now)
        is_started = newest is not None and newest.round == record.round
        self._voter.contact_at = now  # from here on it may lead, if it is elected again
        self.elected = Recovered(
            term=term,
            base=base,
            record=record,
            started=self._started if is_started else None,
            contact_at=self._contact_at,
            heard_at=dict.fromkeys(self._granted, self._asked_at),
            seats={incarnation: seat for seat, incarnation in self._seats.items()},
            number=max(self._number, record.round),
            restarts_used=self._restarts_used,
        )
        self._term = None
        self._become(Candidacy.IDLE)
