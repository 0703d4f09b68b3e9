"""What a member does about a coordinator that is lost (R11).

It holds the ballot and the candidate of this node, and knows what the member's own phases do not
say: whether the coordinator is known to be lost although its lease still holds (its port refused,
its keeper answered, it stepped down), and for how long somebody who was just elected is trusted to
be there before it was ever reached.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.ballot import Ballot, rank_of
from pytest_elastic.rendezvous.candidate import Candidate, Standing
from pytest_elastic.rendezvous.mark import KnownJob
from pytest_elastic.rendezvous.model import RosterEntry, Settings

__all__ = ["Contact", "Succession"]

_NOBODY: Sequence[RosterEntry] = ()
_FIRST_TERM = 1  # of a founder: whoever comes back at its address is under it, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """How a member stands with its coordinator.

    `place` is where the coordinator is, if the member is joined and its lease holds; else
    `patience_s` is for how long the lease still does. `ending` is how the job ends, if it was told,
    `ended` the same, if it is known to hold.
    """

    place: m.Place | None
    patience_s: float
    ending: m.JobEnding | None
    ended: m.JobEnding | None


class Succession:
    """The ballot and the candidate of one node."""

    def __init__(self, settings: Settings, incarnation: str) -> None:
        self.is_on = settings.has_succession
        self.ballot = Ballot(settings, incarnation)
        self.candidate = Candidate(settings, self.ballot)
        self.is_lost = False
        """The coordinator is known to be lost, whatever the lease says."""
        self._settings = settings
        self._trusted_until = float("-inf")
        self._round, self._roster = 0, _NOBODY  # the newest one that was committed without it
        self._is_told = False

    # --- whom to obey ------------------------------------------------------------------------

    def may_obey(self, term: int, incarnation: str) -> bool:
        """Tell whether a coordinator may be joined; an old one, or an unknown one, may not."""
        return not self.is_on or self.ballot.may_obey(term, incarnation)

    def must_tell(self, term: int) -> bool:
        """Tell whether a coordinator is to hear that this node has promised a higher term."""
        return self.is_on and self.ballot.is_bound and term < self.ballot.promised

    def refuse_second(self, term: int, incarnation: str) -> None:
        """Obey no more a term under which this node had another coordinator; both shall go.

        Two may be elected under one term, each by a quorum of another roster, where neither roster
        is known to have been committed. Who obeys one of them could never come to the other.
        """
        if self.is_second(term, incarnation):
            self.ballot.refuse(term)

    def is_second(self, term: int, incarnation: str) -> bool:
        """Tell whether this node obeys another coordinator under the same term."""
        is_second = term == self.ballot.promised and self.ballot.leader not in {"", incarnation}
        return self.is_on and self.ballot.is_bound and is_second and term > _FIRST_TERM

    def term_to_tell(self, term: int) -> int:
        """Return the term for a greeting; `term` is that of the last coordinator."""
        if not self.is_on:
            return term
        return self.ballot.promised if self.ballot.is_bound else 0

    def join(self, term: int, incarnation: str, now: float) -> None:
        """Take note that this coordinator has welcomed us."""
        self.ballot.contact_at = now
        if self.is_on:
            self.ballot.join(term, incarnation)
        self.candidate.withdraw()
        self.is_lost = False
        self._is_told = False

    def trust(self, now: float) -> None:
        """Expect a coordinator that was announced to be there."""
        self.candidate.withdraw()
        self.is_lost = False
        self._trusted_until = now + self._settings.lease_s / 2

    def excuse(self, incarnation: str, since_round: int, now: float) -> None:
        """Take note that a coordinator has left, in electorates of that round on.

        What it granted until now may have rested on its own voice, which no voter can know.
        """
        self.ballot.contact_at = now
        self.candidate.excuse(incarnation, since_round)

    def hear_of_term(self, term: int, now: float) -> None:
        """Stand for nothing, and vote for nobody, for a while: somebody decides under a new term.

        It has refused this node's round, and will take it in without one.
        """
        if self.is_on and term > self.ballot.promised:
            self.trust(now)

    def lose(self) -> None:
        """Take note that the coordinator is lost, and that nobody needs to wait for its lease."""
        self.is_lost = True
        self._trusted_until = float("-inf")

    def trusts(self, now: float) -> bool:
        """Tell whether somebody who was announced is still expected to be there."""
        return now < self._trusted_until

    def know(self, round_: int, roster: Sequence[RosterEntry]) -> None:
        """Take note of a round that was committed without this node, and of who is in it."""
        self._round, self._roster = round_, roster
        self.ballot.hear_of(round_)

    @property
    def peers(self) -> Sequence[RosterEntry]:
        """Who can be asked who decides: of its last round, and of a later one without it."""
        if not self.is_on:
            return ()
        _, own_round = rank_of(self.ballot.seal)
        own = self.ballot.seal.roster if self.ballot.seal is not None else _NOBODY
        others = self._roster if self._round > own_round else _NOBODY
        known = {entry.incarnation: entry for entry in (*own, *others)}
        known.pop(self.ballot.incarnation, None)
        return tuple(known.values())

    def known_numbers(self, round_: int, restarts_used: int) -> tuple[int, int]:
        """Return the newest round, and the restarts used, that this node was told of anywhere."""
        ballot = self.ballot
        if ballot.seal is not None:
            restarts_used = max(restarts_used, ballot.seal.restart_count)
        return max(round_, ballot.newest_round), restarts_used

    def known_job(self, round_: int, *, restarts_used: int) -> KnownJob:
        """Return what is known of the job, for whoever hosts the endpoint next (R12)."""
        ballot = self.ballot
        return KnownJob(
            round=round_,
            restarts_used=restarts_used,
            electorates=ballot.voters,
            left=(ballot.incarnation,) if ballot.has_renounced else (),
        )

    # --- questions ---------------------------------------------------------------------------

    def answer(self, asked: v.Asked, contact: Contact, now: float) -> Sequence[v.MemberCommand]:
        """Answer who asks at the door; a vote that is given comes with `Supersede`."""
        question = asked.question
        if isinstance(question, m.PlaceRequest):
            message = m.PlaceAnswer(place=None)
            if question.run_id == self._settings.run_id:
                message = m.PlaceAnswer(
                    place=contact.place, ending=contact.ending, ended=contact.ended
                )
            return (v.AnswerTo(connection=asked.connection, message=message),)
        answer = self.ballot.answer(
            question,
            now,
            place=contact.place,
            patience_s=max(self._patience_s(now, is_trial=question.is_trial), contact.patience_s),
            ending=contact.ending,
            ended=contact.ended,
            left=dict(self.candidate.left),
        )
        reply = v.AnswerTo(connection=asked.connection, message=answer)
        if not answer.is_granted:
            return (reply,)
        if question.is_trial:
            self.candidate.defer_to(question.candidate, now)
            return (reply,)
        self.candidate.yield_to_another(now)
        self._trusted_until = float("-inf")
        return (v.Supersede(term=question.term), reply)

    def _patience_s(self, now: float, *, is_trial: bool) -> float:
        """Return how long to wait for somebody who was voted for, or announced, to be there.

        That may be this node itself, as long as it asks for votes in earnest.
        """
        beat_s = self._settings.beat_interval_s
        if is_trial and self.candidate.standing is Standing.ASKING:
            return self.candidate.stagger_s
        voted_s = beat_s if self.ballot.has_voted_since(now - beat_s) else 0.0
        return max(voted_s, self._trusted_until - now, 0.0)

    # --- standing ----------------------------------------------------------------------------

    def watch(
        self,
        now: float,
        *,
        lost: str,
        name: str,
        problem: str,
        ending: m.JobEnding | None,
        may_stand: bool = True,
    ) -> Sequence[v.MemberCommand]:
        """Go on with an election, as the coordinator is lost; `Lead` when it is won.

        `lost` is the incarnation of the coordinator, `name` its name, `problem` how it was lost,
        `ending` how the job ends, if it was told. One that may not stand votes for others.
        """
        candidate = self.candidate
        heritage, candidate.elected = candidate.elected, None
        if heritage is not None:
            ending = heritage.ending or ending
            has_left = lost in heritage.left
            known = dataclasses.replace(heritage, lost=name, has_left=has_left, ending=ending)
            return (v.Lead(heritage=known),)
        if self.trusts(now):
            return ()
        if may_stand:
            candidate.stand(now, lost)
        commands: list[v.MemberCommand] = [*candidate.advance(now)]
        # Who has voted was reached by a candidate, and may hear of its election in a moment.
        has_voted = self.ballot.has_voted_since(now - self._settings.lease_s)
        if candidate.reached is not None and not self._is_told and not has_voted:
            self._is_told = True
            reached, members = candidate.reached
            missed = events.QuorumMissed(reached=reached, members=members, reason=problem)
            commands.append(v.Emit(event=missed))
        return commands

    def wake_at(self, now: float) -> float | None:
        """Return when `watch` is wanted again."""
        return self._trusted_until if self.trusts(now) else self.candidate.wake_at

    def take_place(self) -> m.Place | None:
        """Return who decides already, as a voter said, once."""
        place, self.candidate.place = self.candidate.place, None
        return place
