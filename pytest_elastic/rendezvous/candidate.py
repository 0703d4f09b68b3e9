"""One node's attempt to follow a coordinator that is lost (R11).

    IDLE       the coordinator is well, or somebody else has been found that decides
    WAITING    until it is this node's turn, or for the next try
    TRYING     asks what votes it would get; nothing is promised, so that a node which merely cannot
               reach the others disturbs nobody
    ASKING     asks for votes, under a term that is higher than any it has heard of

Every answer tells what the voter has acknowledged. The highest of it is what would be gone on with,
and says who has to agree: so the electorate grows while answers come in.
"""

from __future__ import annotations

import zlib
from enum import Enum

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.ballot import Ballot, rank_of, voters_of
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.model import Electorate, RosterEntry, Settings
from pytest_elastic.rendezvous.quorum import has_quorum
from pytest_elastic.rendezvous.vocabulary import AskVote, VoteAnswered

__all__ = ["CANDIDATE_ALLOWED", "Candidate", "Standing"]

# Where one election follows another within two leases, candidates come in each other's way: each
# then leaves the one before it up to so many more staggers. With few, elections that take longer
# than a stagger (a slow network) never end; with many, losing several coordinators costs seconds.
_MOST_UNREST = 4


class Standing(Enum):
    """What a node does about a coordinator that is lost."""

    # There is one object of each; Enum hashes by name, in Python, at every look into a set.
    __hash__ = object.__hash__

    IDLE = "idle"
    WAITING = "waiting"
    TRYING = "trying"
    ASKING = "asking"


CANDIDATE_ALLOWED: dict[Standing, frozenset[Standing]] = {
    Standing.IDLE: frozenset({Standing.WAITING}),
    Standing.WAITING: frozenset({Standing.TRYING, Standing.ASKING, Standing.IDLE}),
    Standing.TRYING: frozenset({Standing.ASKING, Standing.WAITING, Standing.IDLE}),
    Standing.ASKING: frozenset({Standing.WAITING, Standing.IDLE}),
}


class Candidate:
    """Asks for votes when it is told to; what came of it is in `elected`, `place` and `ending`."""

    def __init__(self, settings: Settings, ballot: Ballot) -> None:
        self.standing = Standing.IDLE
        self.elected: Heritage | None = None
        """Set once by an election that was won; whoever reads it takes it away."""
        self.place: m.Place | None = None
        """Who decides already, as a voter said."""
        self.ending: m.JobEnding | None = None
        """How the job ends, as a voter was told."""
        self.reached: tuple[int, int] | None = None
        """How many of how many agreed to the last try that failed."""
        self._settings = settings
        self._ballot = ballot
        self._wake_at = 0.0
        self._is_certain = False
        self._has_deferred = False
        self._tries = 0
        self._stood_at = float("-inf")
        self._unrest = 0
        self._request: m.VoteRequest | None = None
        self._asked_at = 0.0
        self._asked: set[str] = set()
        self._unanswered: set[str] = set()
        # Of those who agree in this election: when they were asked, and the highest round that each
        # has come to, acknowledged or not.
        self._heard_at: dict[str, float] = {}
        self._came_to: dict[str, int] = {}
        self._contact_at = float("-inf")
        self._patience_s: list[float] = []
        # What was learnt, in this try and before: all of it stays true.
        self._seal: m.Seal | None = None
        self._commit: m.Commit | None = None
        self._highest_term = 0
        self._newest_round = 0
        self._restarts_used = 0
        self.left: dict[str, int] = {}
        """Who has renounced its voice, and since which round's electorate."""
        self._out: list[AskVote] = []

    @property
    def stagger_s(self) -> float:
        """How long after the one before it a candidate tries: longer than an election takes."""
        return self._settings.beat_interval_s / 2

    @property
    def wake_at(self) -> float | None:
        """When `advance` is wanted."""
        return None if self.standing is Standing.IDLE else self._wake_at

    def hear_of_term(self, term: int | None) -> None:
        """Take note that somebody has promised a term: a lower one would not be obeyed."""
        self._highest_term = max(self._highest_term, term or 0)

    def excuse(self, incarnation: str, since_round: int) -> None:
        """Take note that a node has left and renounced its voice, in electorates from that one on.

        In one before it counts: that node may have agreed alone to what followed.
        """
        self.left[incarnation] = since_round

    def _excused(self, electorate: Electorate) -> frozenset[str]:
        left = self.left.items()
        return frozenset(name for name, since in left if since <= electorate.round)

    def stand(self, now: float, lost: str, *, is_named: bool = False) -> None:
        """Begin, if this is not going on already; `lost` is the incarnation that cannot be asked.

        `is_named`: the coordinator itself said that this node shall follow it.
        """
        if self.standing is not Standing.IDLE or self._ballot.has_renounced:
            return
        self._learn_own()
        if self._seal is None:
            return
        order = [entry.incarnation for entry in self._seal.roster if entry.incarnation != lost]
        own = self._ballot.incarnation
        place = order.index(own) if own in order else len(order)
        self._is_certain = is_named
        self._has_deferred = False
        self._become(Standing.WAITING)
        is_unrest = now < self._stood_at + 2 * self._settings.lease_s
        self._unrest = min(self._unrest + 1, _MOST_UNREST) if is_unrest else 0
        self._stood_at = now
        wait_s = self.stagger_s * (1 + self._unrest) + self._jitter_s()
        self._wake_at = now if is_named else now + place * wait_s

    def withdraw(self) -> None:
        """Stop: somebody decides."""
        if self.standing is not Standing.IDLE:
            self._become(Standing.IDLE)
        self._request = None
        self.place = None
        self.reached = None

    def defer_to(self, candidate: str, now: float) -> None:
        """Leave time to one that tries, too, and comes earlier in the last roster; once a try.

        Of two that ask for votes at the same time one may be elected although the other has
        promised a higher term by then. It steps down, and its lease is waited for.
        """
        may_wait = self.standing in {Standing.WAITING, Standing.TRYING} and not self._is_certain
        if self._has_deferred or not may_wait or not self._comes_earlier(candidate):
            return
        self._has_deferred = True
        if self.standing is Standing.TRYING:
            self._become(Standing.WAITING)
            self._request = None
        self._wake_at = max(self._wake_at, now + self.stagger_s + self._jitter_s())

    def _comes_earlier(self, other: str) -> bool:
        """Tell whether it is another one's turn before it is this node's."""
        assert self._seal is not None, "a candidate has acknowledged something"
        order = [entry.incarnation for entry in self._seal.roster]
        own = self._ballot.incarnation
        return other in order and (own not in order or order.index(other) < order.index(own))

    def yield_to_another(self, now: float) -> None:
        """Give up this try: a vote was given to somebody else."""
        if self.standing in {Standing.TRYING, Standing.ASKING}:
            self._fail(now)
        if self.standing is Standing.WAITING:
            self._wake_at = max(self._wake_at, now + 2 * self.stagger_s + self._jitter_s())
            self._is_certain = False

    def advance(self, now: float) -> list[AskVote]:
        """Do what time asks for; return whom to ask."""
        if self.standing is Standing.WAITING and now >= self._wake_at:
            if self._is_certain:
                self._is_certain = False
                self._ask_for_votes(now)
            else:
                self._try(now)
        elif self.standing in {Standing.TRYING, Standing.ASKING} and now >= self._wake_at:
            self._fail(now)
        asked, self._out = self._out, []
        return asked

    # --- answers -----------------------------------------------------------------------------

    def take_answer(self, answered: VoteAnswered, now: float) -> None:
        """Take in what a voter said, or that it said nothing."""
        answer = answered.answer
        if answer is not None:
            self._learn(answer, now)
        if self._request is None or answered.request != self._request:
            return
        self._unanswered.discard(answered.incarnation)
        if answer is not None and answer.place is not None:
            self.place = answer.place
        if answer is not None and answer.is_granted:
            self._heard_at[answer.voter] = self._asked_at
            self._came_to[answer.voter] = answer.newest_round
            if answer.contact_age_s is not None:
                self._contact_at = max(self._contact_at, now - answer.contact_age_s)
        elif answer is not None and answer.patience_s > 0:
            self._patience_s.append(answer.patience_s)
        self._count(now)

    def _learn(self, answer: m.VoteAnswer, now: float) -> None:
        self._highest_term = max(self._highest_term, answer.term)
        self._newest_round = max(self._newest_round, answer.newest_round)
        self._restarts_used = max(self._restarts_used, answer.restarts_used)
        if answer.ending is not None:
            self.ending = answer.ending
        if answer.left and answer.contact_age_s is not None:
            # Whoever was told so was in contact then (R11.6), and may not be asked again.
            own_contact_at = self._ballot.contact_at or float("-inf")
            self._ballot.contact_at = max(own_contact_at, now - answer.contact_age_s)
            self.left |= answer.left
        self._learn_seal(answer.seal, answer.commit)

    def _learn_seal(self, seal: m.Seal | None, commit: m.Commit | None) -> None:
        if seal is None:
            return
        if rank_of(seal) > rank_of(self._seal):
            if self._seal is None or self._seal.round != seal.round:
                self._commit = None
            self._seal = seal
        if commit is not None and self._seal is not None and commit.round == self._seal.round:
            self._commit = commit

    def _learn_own(self) -> None:
        ballot = self._ballot
        self._highest_term = max(self._highest_term, ballot.promised)
        self._newest_round = max(self._newest_round, ballot.newest_round)
        self._restarts_used = max(self._restarts_used, ballot.restarts_used)
        self._learn_seal(ballot.seal, ballot.commit)

    def _count(self, now: float) -> None:
        """See whether enough have agreed, or whether enough never will."""
        assert self._request is not None, "votes are counted while they are asked for"
        voters = self._voters()
        heard = self._heard_at
        has_agreement = all(has_quorum(each, heard, self._excused(each)) for each in voters)
        if has_agreement and self._is_begun():
            if self.standing is Standing.TRYING:
                self._ask_for_votes(now)
            else:
                self._win(voters, now)
            return
        self._ask_more(voters, now)
        if not self._unanswered:
            self._fail(now)

    def _is_begun(self) -> bool:
        """Tell whether a round was committed, as far as that matters.

        The roster of a first round that was given up need not have anybody in common with the one
        that was formed instead. Where two groups could both be large enough, or a round after it
        is known to have been acknowledged, nobody follows it.
        """
        assert self._seal is not None, "a candidate has acknowledged something"
        was_first = not self._seal.electorates and self._commit is None
        is_given_up = self._newest_round > self._seal.round
        return not (was_first and (self._settings.could_be_two or is_given_up))

    # --- trying and asking -------------------------------------------------------------------

    def _become(self, standing: Standing) -> None:
        allowed = CANDIDATE_ALLOWED[self.standing]
        assert standing in allowed, f"a candidate cannot go from {self.standing} to {standing}"
        self.standing = standing

    def _try(self, now: float) -> None:
        self._become(Standing.TRYING)
        self._ask(now, term=self._ballot.promised + 1, is_trial=True)

    def _ask_for_votes(self, now: float) -> None:
        self._become(Standing.ASKING)
        self._learn_own()
        term = max(self._highest_term, self._ballot.promised) + 1
        self._ballot.vote(term, self._ballot.incarnation, now)
        self._ask(now, term=term, is_trial=False)

    def _ask(self, now: float, *, term: int, is_trial: bool) -> None:
        self._tries += not is_trial
        own = self._ballot
        self._request = m.VoteRequest(
            run_id=self._settings.run_id, term=term, candidate=own.incarnation, is_trial=is_trial
        )
        self._asked_at = now
        self._unanswered.clear()
        self._patience_s.clear()
        self._heard_at = {own.incarnation: now}
        self._came_to = {own.incarnation: own.newest_round}
        self._contact_at = float("-inf")
        self._asked = {own.incarnation}
        self._wake_at = now + self._answer_within_s
        self._count(now)

    @property
    def _answer_within_s(self) -> float:
        return self._settings.lease_s / 2

    def _voters(self) -> tuple[Electorate, ...]:
        assert self._seal is not None, "a candidate has acknowledged something"
        assert self._request is not None, "votes are counted while they are asked for"
        # A trial's answers promise nothing; they are asked for again in earnest.
        term = float("inf") if self._request.is_trial else self._request.term
        is_committed = self._commit is not None
        return voters_of(self._seal, is_committed=is_committed, came_to=self._came_to, term=term)

    def _ask_more(self, voters: tuple[Electorate, ...], now: float) -> None:
        """Ask those who have a voice and were not asked yet."""
        assert self._request is not None, "there is something to ask"
        left_s = max(self._wake_at - now, 0.01)
        for electorate in voters:
            for entry in electorate.members:
                if entry.incarnation not in self._asked and entry.incarnation not in self.left:
                    self._asked.add(entry.incarnation)
                    self._unanswered.add(entry.incarnation)
                    self._out.append(self._question(entry, left_s))

    def _question(self, entry: RosterEntry, within_s: float) -> AskVote:
        assert self._request is not None, "there is something to ask"
        return AskVote(
            incarnation=entry.incarnation,
            address=entry.address,
            port=entry.port,
            request=self._request,
            answer_within_s=within_s,
        )

    def _fail(self, now: float) -> None:
        """Try again after a while: when a voter said, if one did, but not in step with others."""
        voters = self._voters()
        counted = {entry.incarnation for each in voters for entry in each.members} - set(self.left)
        self.reached = (len(counted & set(self._heard_at)), len(counted))
        self._become(Standing.WAITING)
        self._request = None
        self._has_deferred = False
        self._tries += 1
        pause_s = self.stagger_s / 2 + self._jitter_s()
        self._wake_at = now + max(pause_s, min(self._patience_s, default=0.0))

    def _jitter_s(self) -> float:
        """Return a part of a stagger that differs from node to node and from try to try."""
        text = f"{self._ballot.incarnation}/{self._tries}"
        return self.stagger_s * zlib.crc32(text.encode()) / 2**32

    def _win(self, voters: tuple[Electorate, ...], now: float) -> None:
        assert self._request is not None, "an election was held"
        assert self._seal is not None, "a candidate has acknowledged something"
        # It may have been told meanwhile, by who has left, or by a voter, of a contact that counts.
        own = self._ballot
        own_contact_at = own.contact_but_with(own.incarnation)
        if own_contact_at is not None:
            self._contact_at = max(self._contact_at, own_contact_at)
        # From here on it may decide: if it is elected again, that was a contact, too.
        own.contact_at = now
        self.elected = Heritage(
            term=self._request.term,
            seal=self._seal,
            commit=self._commit,
            electorates=voters,
            contact_at=self._contact_at,
            lost="",
            heard_at=dict(self._heard_at),
            left=dict(self.left),
            newest_round=self._newest_round,
            restarts_used=self._restarts_used,
            ending=self.ending,
        )
        self._request = None
        self._become(Standing.IDLE)
