"""What one incarnation of a node has promised and acknowledged, and how it votes (R11).

A promise is a term: whoever has promised it obeys no lower one, ever. It is made by joining a
coordinator and by voting for a candidate, at most once a term. What was acknowledged is the highest
seal, by term and then by round, and whether its commit was seen. Both live as long as the process:
a restarted agent is another incarnation, and has a voice in no roster of before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.belief import is_believable
from pytest_elastic.rendezvous.model import Electorate, Settings

__all__ = ["Ballot", "electorate_of", "rank_of", "voters_of"]


def rank_of(seal: m.Seal | None) -> tuple[int, int]:
    """Return by what seals are compared: the term, then the round."""
    return (seal.term, seal.round) if seal is not None else (0, 0)


def electorate_of(seal: m.Seal) -> Electorate:
    """Return the roster of a seal as those who have a voice in what follows it."""
    return Electorate(
        term=seal.term, round=seal.round, coordinator=seal.sealed_by, members=seal.roster
    )


def voters_of(
    seal: m.Seal,
    *,
    is_committed: bool,
    came_to: Mapping[str, int] = MappingProxyType({}),
    term: float = float("inf"),
) -> tuple[Electorate, ...]:
    """Return the rosters that must each give a quorum to whoever follows the seal's coordinator.

    Where the commit was not seen, both may be true: that it was committed, and that it was not and
    something else was instead. So the seal's roster has a say, and those it was to follow, too: the
    oldest of them, and each that nobody proves never to have been committed. `came_to` has who
    obeys no term below `term` any more, each with the highest round that it has come to.
    """
    own = electorate_of(seal)
    if is_committed:
        return (own,)
    oldest, *later = *seal.electorates, own
    voters = [oldest]
    for each in later:
        needed = [entry.incarnation for entry in each.members]
        if each is own:
            needed.extend(seal.endorsers)
        if each.term >= term or not _is_disproved(each.round, needed, came_to):
            voters.append(each)
    return tuple(voters)


def _is_disproved(round_: int, needed: Iterable[str], came_to: Mapping[str, int]) -> bool:
    """Tell whether one of those that a round needed has not acknowledged it, and never will.

    That is judged by the number of the round: a successor says a committed one again under its own
    term, and who knows it under the term before has acknowledged it all the same.
    """
    return any(came_to.get(incarnation, round_) < round_ for incarnation in needed)


class Ballot:
    """The votes and acknowledgements of one incarnation."""

    def __init__(self, settings: Settings, incarnation: str) -> None:
        self.incarnation = incarnation
        self.promised = 0
        self.choice = ""
        """For whom this node voted in the term that was promised, "" for nobody."""
        self.leader = ""
        """Whom it joined in that term, "" for nobody yet: the term has no other coordinator."""
        self.ends_in_term = 0
        """The newest term under which the end of the job was announced, 0 if none was."""
        self.seal: m.Seal | None = None
        self.commit: m.Commit | None = None
        self.newest_round = 0
        self.restarts_used = 0
        self.contact_at: float | None = None
        """When a coordinator was last heard: it may count on an answer to what it said by then."""
        self.has_renounced = False
        self._settings = settings
        self._voted_at: float | None = None
        self._voted_for = ""
        self._voters: Sequence[Electorate] | None = None  # None: to be seen from the seal

    @property
    def voters(self) -> Sequence[Electorate]:
        """Who would have to agree to a successor, as far as this node knows."""
        if self._voters is None and self.seal is not None:
            self._voters = voters_of(self.seal, is_committed=self.commit is not None)
        return self._voters or ()

    @property
    def is_bound(self) -> bool:
        """Whether anybody counts on what was promised: a vote was given, or a seal acknowledged."""
        return self.seal is not None or self._voted_at is not None

    # --- promises ----------------------------------------------------------------------------

    def may_obey(self, term: int, coordinator: str) -> bool:
        """Tell whether orders under a term are to be followed, if `coordinator` gives them."""
        if term <= self.ends_in_term and coordinator != self.leader:
            return False
        if not self.is_bound:
            return True
        is_same = term == self.promised and self.leader in {"", coordinator}
        return term > self.promised or is_same

    def join(self, term: int, coordinator: str) -> None:
        """Obey no lower term from here on, and in this one nobody else."""
        assert self.may_obey(term, coordinator), f"term {self.promised} was promised, not {term}"
        if not self.is_bound:
            self.promised, self.choice = term, ""
        self._promise(term)
        self.leader = coordinator

    def hear_of_end(self, term: int) -> None:
        """Obey no other coordinator of that term, or before it: it has announced the end."""
        self.ends_in_term = max(self.ends_in_term, term)

    def refuse(self, term: int) -> None:
        """Obey this term no more: it has two coordinators."""
        self._promise(term + 1)

    def vote(self, term: int, candidate: str, now: float) -> None:
        """Obey no lower term from here on, and vote for nobody else in this one."""
        self.contact_at = self.contact_but_with(candidate)
        self._promise(term)
        self.choice = self._voted_for = candidate
        self._voted_at = now

    def _promise(self, term: int) -> None:
        if term > self.promised:
            self.promised, self.choice, self.leader = term, "", ""

    # --- acknowledgements --------------------------------------------------------------------

    def hear_of(self, round_: int) -> None:
        """Take note that such a round was acknowledged elsewhere; whoever asks is told."""
        self.newest_round = max(self.newest_round, round_)

    def acknowledge(self, seal: m.Seal) -> None:
        """Remember a seal whose acknowledgement is about to be sent."""
        self.newest_round = max(self.newest_round, seal.round)
        if rank_of(seal) > rank_of(self.seal):
            is_same = self.seal is not None and self.seal.round == seal.round
            self.seal = seal
            self._voters = None
            if not is_same:
                self.commit = None

    def see_commit(self, commit: m.Commit) -> None:
        """Remember that the acknowledged round was committed."""
        if self.seal is not None and commit.round == self.seal.round:
            self.commit = commit
            self._voters = None
            # What a seal would cost that is given up, nobody has paid.
            self.restarts_used = max(self.restarts_used, self.seal.restart_count)

    def renounce(self) -> None:
        """Vote and stand for nothing any more: this node leaves, and nobody shall count it."""
        self.has_renounced = True

    # --- voting ------------------------------------------------------------------------------

    def answer(
        self,
        request: m.VoteRequest,
        now: float,
        *,
        place: m.Place | None,
        patience_s: float,
        ending: m.JobEnding | None,
        ended: m.JobEnding | None = None,
        left: Mapping[str, int] = MappingProxyType({}),
    ) -> m.VoteAnswer:
        """Answer a candidate. `place`: the coordinator with whom this node is in contact.

        `patience_s` is for how long the coordinator may still be well, 0 if it is known to be lost.
        `ending` is how the job ends, if this node was told, `ended` if that holds; `left` are those
        who have renounced their voices, in electorates of these rounds on.
        """
        refusal = self._refusal(request, place, patience_s)
        if ended is not None:
            refusal = refusal or "the job has ended"
        contact_at = self.contact_but_with(request.candidate)
        if not refusal and not request.is_trial:
            self.vote(request.term, request.candidate, now)
        return m.VoteAnswer(
            term=self.promised,
            voter=self.incarnation,
            is_granted=not refusal,
            reason=refusal,
            patience_s=patience_s,
            seal=self.seal,
            commit=self.commit,
            newest_round=self.newest_round,
            restarts_used=self.restarts_used,
            contact_age_s=None if contact_at is None else max(now - contact_at, 0.0),
            ending=ending,
            ended=ended,
            place=place,
            left=left,
        )

    def has_voted_since(self, moment: float) -> bool:
        """Tell whether a vote was given to somebody else that late."""
        is_own = self._voted_for == self.incarnation
        return self._voted_at is not None and self._voted_at >= moment and not is_own

    def contact_but_with(self, candidate: str) -> float | None:
        """Return the latest contact that somebody else may count on: a vote is one.

        Whoever was elected by it may have decided since; a candidate itself knows whether it has.
        """
        if self._voted_at is None or self._voted_for == candidate:
            return self.contact_at
        return max(self._voted_at, self.contact_at or self._voted_at)

    def _refusal(self, request: m.VoteRequest, place: m.Place | None, patience_s: float) -> str:
        if request.run_id != self._settings.run_id:
            return f"this is run {self._settings.run_id!r}"
        if self.has_renounced:
            return "this node leaves"
        if place is not None:
            return f"{place.name} decides, under term {place.term}"
        if patience_s > 0:
            return "the coordinator may be well"
        if not is_believable(request.term, self.promised):
            return f"no election gets to term {request.term}"
        is_again = request.term == self.promised and request.candidate == self.choice
        if not request.is_trial and request.term <= self.promised and not is_again:
            return f"term {self.promised} was promised"
        return ""
