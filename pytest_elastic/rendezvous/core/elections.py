"""What a follower does about a leader that is lost: stand, vote, lead, or follow somebody else.

It holds what passes between the candidate, the voter and the connection: when it is time to stand,
what is answered to those who ask, and what a leader begins with that was elected here.
"""

from __future__ import annotations

import dataclasses

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous.core import messages as m
from pytest_elastic.rendezvous.core.candidate import Candidacy, Candidate
from pytest_elastic.rendezvous.core.connection import Connection
from pytest_elastic.rendezvous.core.outbox import FollowerOutbox
from pytest_elastic.rendezvous.core.phases import ConnectionPhase
from pytest_elastic.rendezvous.core.records import Mark
from pytest_elastic.rendezvous.core.vocabulary import Bootstrap, Lead
from pytest_elastic.rendezvous.core.voter import Voter
from pytest_elastic.rendezvous.core.worker_group import WorkerGroup
from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.model import Node, Settings

__all__ = ["Elections"]

_AWAY = frozenset({ConnectionPhase.UNSTARTED, ConnectionPhase.JOINED})


class Elections:
    """One follower's part in elections."""

    def __init__(
        self,
        settings: Settings,
        voter: Voter,
        candidate: Candidate,
        *,
        connection: Connection,
        group: WorkerGroup,
        out: FollowerOutbox,
        deadlines: Deadlines,
    ) -> None:
        self.has_leader_left = False
        """Whether the leader that this node has lost left on purpose."""
        self._settings = settings
        self._voter = voter
        self._candidate = candidate
        self._connection = connection
        self._group = group
        self._out = out
        self._deadlines = deadlines
        self._is_host = False
        self._began_at = 0.0
        self._mark: Mark | None = None
        self._is_quorum_missed = False

    def bootstrap(self, bootstrap: Bootstrap, node: Node, now: float) -> None:
        """Stand for election among the hosts of the endpoints; alone, this node wins at once."""
        if not self._is_host:
            self._is_host, self._mark, self._began_at = True, bootstrap.mark, now
            self._voter.seat, self._voter.up_since = bootstrap.seat, now
            self._voter.base = bootstrap.base
        elif self._voter.base is not None and self._voter.base.number == 0:
            self._voter.base = bootstrap.base
            self._candidate.withdraw()  # and stand again, now that more hosts are known
        if not bootstrap.seat:
            self._candidate.stand(now, "", at_once=True)
            self._out.add(*self._candidate.advance(now))
            self._lead_if_elected(node, now)

    def end(self) -> None:
        """Take note that this node follows a leader."""
        self._candidate.withdraw()
        self._is_quorum_missed = self.has_leader_left = False

    def watch(self, node: Node, now: float, *, may_stand: bool) -> m.LeaderAddress | None:
        """Go on with an election, if the leader is lost; return who leads, if a voter said so."""
        candidate, connection = self._candidate, self._connection
        if self._lead_if_elected(node, now):
            return None
        if connection.phase in _AWAY or not self._is_lost(now):
            return None
        if candidate.leader is not None:
            leader, candidate.leader = candidate.leader, None
            return leader
        if connection.trusts(now):
            self._deadlines.is_due(connection.trusted_until, now)
            return None
        if may_stand:
            lost = connection.leader.incarnation if connection.leader is not None else ""
            candidate.stand(now, lost)
        self._out.add(*candidate.advance(now))
        if not self._lead_if_elected(node, now):
            self._tell_quorum_missed(now)
            if candidate.wake_at is not None:
                self._deadlines.is_due(candidate.wake_at, now)
        return None

    def _is_lost(self, now: float) -> bool:
        if not self._settings.has_succession:
            return False
        held_until = self._connection.held_until
        if held_until is None:
            return self._is_host  # nobody was ever followed
        return self._connection.has_lost_leader(now) or self._deadlines.is_due(held_until, now)

    def _lead_if_elected(self, node: Node, now: float) -> bool:
        """Lead if an election was won, and follow what leads here like everybody else."""
        elected, self._candidate.elected = self._candidate.elected, None
        if elected is None:
            return False
        recovered = dataclasses.replace(
            elected,
            lost=self._connection.name,
            has_left=self.has_leader_left,
            began_at=self._began_at,
            mark=self._mark,
        )
        self._out.add(Lead(recovered=recovered))
        here = m.LeaderAddress(
            term=elected.term,
            name=node.name,
            incarnation=node.incarnation,
            address=node.address,
            port=node.port,
            is_founding=elected.record.number == 0,
        )
        self._group.hold("this node leads now")
        self._connection.turn_to(here, now, is_here=True)
        return True

    def _tell_quorum_missed(self, now: float) -> None:
        # Who has voted was reached by a candidate, and may hear of its election in a moment.
        has_voted = self._voter.voted_for_another_since(now - self._settings.lease_s)
        if self._candidate.reached is None or self._is_quorum_missed or has_voted:
            return
        self._is_quorum_missed = True
        reached, voters = self._candidate.reached
        reason = self._connection.last_problem
        self._out.emit(events.QuorumMissed(reached=reached, members=voters, reason=reason))

    def answer(self, number: int, question: m.VoteRequest | m.LeaderRequest, now: float) -> None:
        """Answer who asks for a vote, or for who leads."""
        leader, patience_s = self._connection.standing(now)
        if isinstance(question, m.LeaderRequest):
            answer = m.LeaderAnswer(leader=None)
            if question.run_id == self._settings.run_id:
                answer = m.LeaderAnswer(leader=leader, ended=self._voter.ended)
            self._out.answer(number, answer)
            return
        beat_s = self._settings.beat_interval_s
        if self._voter.voted_for_another_since(now - beat_s):
            patience_s = max(patience_s, beat_s)
        if question.is_pre_vote and self._candidate.phase is Candidacy.VOTE:
            patience_s = max(patience_s, self._candidate.stagger_s)  # it may be elected
        vote = self._voter.answer(question, now, leader=leader, patience_s=patience_s)
        self._out.answer(number, vote)
        if vote.is_granted and question.is_pre_vote:
            self._candidate.defer_to(question.term.node, now)
        elif vote.is_granted:
            self._candidate.yield_to_another(now)
            if self._connection.leads_somewhere:
                self._connection.break_off("this node has voted for a successor", now)

    def why_lost(self, detail: str) -> str:
        """Say why this node gives the job up."""
        settings, where = self._settings, self._connection.where
        if not settings.has_succession:
            return (
                f"lost {where}, which coordinates run {settings.run_id!r}: {detail}. "
                "Without succession the job ends with it."
            )
        reached = self._candidate.reached
        seen = f"reached {reached[0]} of its {reached[1]} members" if reached else "no successor"
        return (
            f"lost {where} and was cut off from a majority of run {settings.run_id!r} for "
            f"{settings.join_timeout_s:g} s ({seen}): {detail}. "
            "If others go on with it, start this node again when it can reach them."
        )
