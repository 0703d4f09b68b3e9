"""The parts of a leader, made and wired together; what they begin with, if the job has one.

Each part has its own file. They share an outbox, so that their commands keep one order, and the
deadlines for which the leader is woken.
"""

from __future__ import annotations

from pytest_elastic.rendezvous.consensus.replication import Recovered, Replication
from pytest_elastic.rendezvous.leader.gathering import FirstRound, Gathering
from pytest_elastic.rendezvous.leader.job_end import JobEnd
from pytest_elastic.rendezvous.leader.leavers import Leavers
from pytest_elastic.rendezvous.leader.members import Members
from pytest_elastic.rendezvous.leader.peer import LeaderShared
from pytest_elastic.rendezvous.leader.rounds import Rounds
from pytest_elastic.rendezvous.machine import LeaderPhase
from pytest_elastic.rendezvous.model import Node, Settings
from pytest_elastic.rendezvous.reachability import Reachability

__all__ = ["LeaderParts"]


class LeaderParts:
    """What the leader on `node` consists of, which goes on with what was `recovered`."""

    def __init__(self, settings: Settings, node: Node, recovered: Recovered, now: float) -> None:
        term, is_new = recovered.term, recovered.record.number == 0
        self._replication = Replication(settings, node.incarnation, recovered, now)
        shared = LeaderShared(settings=settings, own=node, term=term, replication=self._replication)
        self._out, self._deadlines = shared.out, shared.deadlines
        self._members = Members(shared)
        self._reach = Reachability(shared, self._members)
        self._gathering = Gathering(shared, self._members, self._reach)
        self._rounds = Rounds(shared, self._members, now)
        self._job_end = JobEnd(shared, self._members)
        self._first_round = FirstRound(
            shared, began_at=recovered.began_at, is_new=is_new, mark=recovered.mark
        )
        self._leavers = Leavers(shared, self._members, self._rounds)
        self.phase = LeaderPhase.GATHERING if is_new else self._recover(settings, recovered, now)

    def _recover(self, settings: Settings, recovered: Recovered, now: float) -> LeaderPhase:
        """Begin with the round of an earlier leader, whose members are yet to come."""
        record = self._replication.newest
        leases_end = recovered.contact_at + settings.lease_s
        is_started = recovered.started is not None
        self._rounds.use(
            restarts_used=max(recovered.restarts_used, record.restart_count),
            idle_rounds=record.idle_rounds + (not is_started),
        )
        left = set(record.configuration.voters) if settings.has_succession else None
        entries = record.roster if record.round > 0 else ()  # before it, hosts by their place
        roster = self._members.inherit(
            [entry for entry in entries if left is None or entry.incarnation in left],
            record.round,
            until=leases_end,
            lost=recovered.record.configuration.tie_breaker,
            now=now,
        )
        self._rounds.inherit(record, roster, recovered, now)
        self._job_end.expect_strangers(now)
        if record.spares:
            self._gathering.wait_for_spares(now + settings.beat_interval_s)
        if record.end is not None:
            self._job_end.go_on(record.end, now)
            return LeaderPhase.ENDING
        if is_started:
            return LeaderPhase.RUNNING
        # Whether its workers run is not known, nor those of the round before.
        self._rounds.close_gate(leases_end + settings.drift_s)
        return LeaderPhase.STOPPING
