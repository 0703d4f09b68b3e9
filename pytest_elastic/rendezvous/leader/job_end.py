"""The end of a job, as its leader sees it: a record that all are told of, late comers too (R10).

It keeps the list of nodes that may still ask how the job ended: a node lost early may come back
after the end.
"""

from __future__ import annotations

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.consensus.records import End
from pytest_elastic.rendezvous.leader.members import Members
from pytest_elastic.rendezvous.leader.peer import LeaderPart, LeaderShared, Peer, Went
from pytest_elastic.rendezvous.vocabulary import Finished, WriteRecord

__all__ = ["JobEnd"]

# How long after its lease a node that was lost may still come and ask what has become of the job.
_MAY_RETURN_S = 5.0
# Stands for nodes that waited with a leader before this one: no record names them all.
_STRANGERS = "nodes that waited with the leader before"


class JobEnd(LeaderPart):
    """How the job ends, which nodes have accepted that, and which may still ask."""

    def __init__(self, shared: LeaderShared, members: Members) -> None:
        super().__init__(shared)
        self.end: End | None = None
        """How the job ends, once that is decided on here."""
        self._members = members
        self._decided_at = 0.0
        self._over_at: float | None = None
        self._is_finished = False
        self._unaware: set[str] = set()
        self._may_return: dict[str, float] = {}

    # --- which nodes may ask -----------------------------------------------------------------

    def expect_strangers(self, now: float) -> None:
        """Note that nodes may ask which only an earlier leader knew."""
        self._may_return[_STRANGERS] = now

    def part_from(self, gone: Went, now: float) -> None:
        """Note that a node is a member no more; it may come back, if it was lost."""
        self._unaware.discard(gone.peer.node.incarnation)
        if gone.may_return:
            self._may_return[gone.peer.node.incarnation] = now

    def lose(self, peer: Peer, now: float) -> None:
        """Note that a node that was being told is out of reach; one that knows may well go."""
        if peer.node.incarnation in self._unaware:
            self._unaware.discard(peer.node.incarnation)
            self._may_return[peer.node.incarnation] = now

    def meet(self, peer: Peer, now: float) -> bool:
        """Note that a node is here (again); tell whether it is told how the job ends."""
        incarnation = peer.node.incarnation
        if self.end is None:
            self._may_return.pop(incarnation, None)
            return False
        if self._over_at is None:
            self._may_return.pop(incarnation, None)
            self._unaware.add(incarnation)
        else:
            self._may_return[incarnation] = now  # until it says that it knows
        self._out.send_to(peer.connection, self._replication.message())
        if self._over_at is not None:
            self._out.send_to(peer.connection, self._last_word(now))
        return True

    # --- the end -----------------------------------------------------------------------------

    def propose(self, end: End, now: float) -> None:
        """Decide how the job ends, and tell all nodes."""
        self._replication.propose(now, end=end)
        self._out.emit(events.JobEnding(result=end.result, reason=end.reason))
        self.go_on(end, now)

    def go_on(self, end: End, now: float) -> None:
        """Tell all nodes how the job ends, as this leader or an earlier one has proposed."""
        self.end, self._decided_at = end, now
        self._members.close(now)
        for peer in self._members.peers.values():
            if peer.is_suspect:
                self._may_return[peer.node.incarnation] = now
            else:
                self._unaware.add(peer.node.incarnation)
                self._out.send_to(peer.connection, self._replication.message())

    def take_acceptance(self, peer: Peer) -> None:
        """Note that a node knows the end."""
        self._unaware.discard(peer.node.incarnation)
        self._may_return.pop(peer.node.incarnation, None)

    def look(self, now: float) -> bool | None:
        """Wait for all, for at most a lease; tell whether the end is decided then. None: wait."""
        deadline = self._decided_at + self._settings.lease_s
        if self._unaware and not self._deadlines.is_due(deadline, now):
            return None
        if self._replication.must_be_written():
            record = self._replication.newest
            decided = m.RecordDecided(term=self._term, number=record.number)
            self._out.add(WriteRecord(record=record, decided=decided))
        if self._settings.is_granted and not self._replication.has_quorums:
            return None  # until that is written, or the lease is over
        if not self._replication.has_quorums:
            return False if self._deadlines.is_due(deadline, now) else None
        self._replication.settle()
        self._replication.conclude()
        self._may_return.update(dict.fromkeys(sorted(self._unaware), now))
        self._over_at = now
        last_word = self._last_word(now)
        for peer in self._members.peers.values():
            self._out.send_to(peer.connection, last_word)
        return True

    def _last_word(self, now: float) -> m.RecordDecided:
        number = self._replication.base.number
        return m.RecordDecided(term=self._term, number=number, unaware=self._awaited(now))

    def _awaited(self, now: float) -> tuple[str, ...]:
        patience_s = self._settings.lease_s + _MAY_RETURN_S
        return tuple(each for each, at in sorted(self._may_return.items()) if at + patience_s > now)

    def has_others(self, now: float) -> bool:
        """Tell whether another node is in this job, or was lost so lately that it may return."""
        return len(self._members.peers) > 1 or bool(self._awaited(now))

    def linger(self, now: float) -> None:
        """Stay for nodes that may still ask; say so once when there are none any more."""
        if self._is_finished:
            return
        assert self.end is not None, "the end is decided"
        assert self._over_at is not None, "the last word was said"
        patience_s = self._settings.lease_s + _MAY_RETURN_S
        last = max(self._may_return.values(), default=self._over_at - patience_s)
        until = min(last + patience_s, self._over_at + self._settings.linger_s)
        if self._deadlines.is_due(until, now):
            self._is_finished = True
            self._out.add(Finished(result=self.end.result))
