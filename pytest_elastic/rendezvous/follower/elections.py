"""What a follower does about a lost leader: stand, vote, lead, or follow another leader.

It holds what passes between the candidate, the voter and the connection: when it is time to stand,
how a vote request is answered, and what a leader elected here begins with.
"""

from __future__ import annotations

from msgspec.structs import replace

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.consensus.candidate import Candidacy, Candidate
from pytest_elastic.rendezvous.consensus.voter import Voter
from pytest_elastic.rendezvous.follower.connection import Connection, ConnectionPhase
from pytest_elastic.rendezvous.follower.worker_group import WorkerGroup
from pytest_elastic.rendezvous.leases import announced_within_s
from pytest_elastic.rendezvous.machine import Part, Shared
from pytest_elastic.rendezvous.vocabulary import Bootstrap, Lead

__all__ = ["Elections"]

_AWAY = frozenset({ConnectionPhase.UNSTARTED, ConnectionPhase.JOINED})


class Elections(Part):
    """One follower's part in elections."""

    def __init__(
        self,
        shared: Shared,
        voter: Voter,
        candidate: Candidate,
        connection: Connection,
        group: WorkerGroup,
    ) -> None:
        super().__init__(shared)
        self.has_leader_left = False
        """Whether the leader that this node has lost left on purpose."""
        self._voter = voter
        self._candidate = candidate
        self._connection = connection
        self._group = group
        self._bootstrap: Bootstrap | None = None  # what a host was told last
        self._began_at = 0.0
        self._alone_since: float | None = None  # since it gave way without following another
        self._is_quorum_missed = False

    def bootstrap(self, bootstrap: Bootstrap, now: float) -> None:
        """Stand for election among the hosts of the endpoints; alone, this node wins at once."""
        is_new, self._bootstrap = self._bootstrap is None, bootstrap
        if is_new:
            self._may_found_from(now)
        elif self._voter.base is not None and self._voter.base.number == 0:
            self._voter.base = bootstrap.base
            self._candidate.withdraw()  # and stand again, now that more hosts are known
        if not bootstrap.seat:
            self._candidate.stand(now, "", at_once=True)
            self._out.add(*self._candidate.advance(now))
            self._lead_if_elected(now)

    def _may_found_from(self, now: float) -> None:
        assert self._bootstrap is not None, "this node is a host"
        self._began_at = self._voter.up_since = now
        self._voter.seat, self._voter.base = self._bootstrap.seat, self._bootstrap.base

    def _found_again(self, now: float) -> None:
        """Become a host that may found again, if the leader it gave way to is not found (R12).

        Not where that leader may be leading others out of reach and needs no agreement of others.
        """
        host, voter = self._bootstrap, self._voter
        if host is None or voter.base is not None or voter.record is not None:
            return
        if self._settings.could_be_two and not host.seat:
            return
        if self._alone_since is None:
            self._alone_since = now
        if self._deadlines.is_due(self._alone_since + announced_within_s(self._settings), now):
            self._alone_since = None
            self._may_found_from(now)

    def end(self) -> None:
        """Note that this node follows a leader."""
        self._candidate.withdraw()
        self._alone_since = None
        self._is_quorum_missed = self.has_leader_left = False

    def watch(self, now: float, *, may_stand: bool) -> m.LeaderAddress | None:
        """Go on with an election, if the leader is lost; return the leader if a voter named it."""
        candidate, connection = self._candidate, self._connection
        if self._lead_if_elected(now):
            return None
        is_away = connection.phase in _AWAY and not connection.is_provisional
        if is_away or not self._is_lost(now):
            return None
        if candidate.leader is not None:
            leader, candidate.leader = candidate.leader, None
            return leader
        if now < connection.trusted_until:
            self._deadlines.is_due(connection.trusted_until, now)
            return None
        self._found_again(now)
        if may_stand:
            lost = connection.leader.incarnation if connection.leader is not None else ""
            candidate.stand(now, lost)
        self._out.add(*candidate.advance(now))
        if not self._lead_if_elected(now):
            self._tell_quorum_missed(now)
            if candidate.wake_at is not None:
                self._deadlines.is_due(candidate.wake_at, now)
        return None

    def _is_lost(self, now: float) -> bool:
        if not (self._settings.has_succession or self._voter.may_found):
            return False
        held_until = self._connection.held_until
        if self._connection.is_provisional:
            return True
        if held_until is None:
            return self._bootstrap is not None  # it has never followed a leader
        return self._connection.has_lost_leader(now) or self._deadlines.is_due(held_until, now)

    def _lead_if_elected(self, now: float) -> bool:
        """Lead if an election was won, and follow this leader as all other nodes do."""
        elected, self._candidate.elected = self._candidate.elected, None
        if elected is None:
            return False
        recovered = replace(
            elected,
            lost=self._connection.name,
            has_left=self.has_leader_left,
            began_at=self._began_at,
            mark=self._bootstrap.mark if self._bootstrap is not None else None,
        )
        self._out.add(Lead(recovered=recovered))
        node, is_founding = self._connection.node, elected.record.number == 0
        self._group.hold("this node leads now")
        self._connection.turn_to(
            m.LeaderAddress.of(node, elected.term, is_founding=is_founding), now
        )
        return True

    def _tell_quorum_missed(self, now: float) -> None:
        # A node that voted was reached by a candidate, and may hear of its election in a moment.
        has_voted = self._voter.voted_for_another_since(now - self._settings.lease_s)
        if self._candidate.reached is None or self._is_quorum_missed or has_voted:
            return
        self._is_quorum_missed = True
        reached, voters = self._candidate.reached
        reason = self._connection.last_problem
        self._out.emit(events.QuorumMissed(reached=reached, members=voters, reason=reason))

    def answer(self, number: int, question: m.Question, now: float) -> None:
        """Say what this node knows, and vote if it is asked to."""
        leader, patience_s = self._connection.standing(now)
        term = question.term
        if question.run_id != self._settings.run_id:
            # It is told nothing of this job: it could take that for its own.
            self._out.send_to(number, m.Answer(incarnation=self._voter.incarnation))
            return
        if term is None:
            self._out.send_to(number, self._voter.status(leader))
            return
        beat_s = self._settings.beat_interval_s
        # One candidate may ask twice: as the host of an endpoint, and as a node of a round.
        is_repeated = self._voter.has_voted_under(term)
        if self._voter.voted_for_another_since(now - beat_s) and not is_repeated:
            patience_s = max(patience_s, beat_s)
        if question.is_pre_vote and self._candidate.phase is Candidacy.VOTE:
            patience_s = max(patience_s, self._candidate.stagger_s)  # it may be elected
        vote = self._voter.answer(
            term, now, is_pre_vote=question.is_pre_vote, leader=leader, patience_s=patience_s
        )
        self._out.send_to(number, vote)
        if vote.is_granted and question.is_pre_vote:
            # It may vote for itself under that term next, and could not follow a lower one.
            self._candidate.hear_of_term(term.counter)
            self._candidate.defer_to(term.node, now)
        elif vote.is_granted:
            self._candidate.yield_to_another(now)
            if self._connection.leads_somewhere:
                self._connection.break_off("this node has voted for a successor", now)

    def why_lost(self, detail: str) -> str:
        """Say why this node gives the job up."""
        settings, where = self._settings, self._connection.where
        if not settings.has_succession:
            return (
                f"lost {where}, which leads run {settings.run_id!r}: {detail}. "
                "Without succession the job ends with it."
            )
        reached = self._candidate.reached
        seen = f"reached {reached[0]} of its {reached[1]} members" if reached else "no successor"
        return (
            f"lost {where} and was cut off from a majority of run {settings.run_id!r} for "
            f"{settings.join_timeout_s:g} s ({seen}): {detail}. "
            "If others go on with it, start this node again when it can reach them."
        )
