"""How nodes leave on purpose (R4), and how the job ends (R10), as the leader sees it.

A member that leaves is announced to all, and is a voter until a record leaves it out. A leader that
leaves proposes the record without itself like any other, and hands over when that is decided
(leadership transfer); where no node could lead, the job ends with it. Voters that are lost are left
out by such a record, too, before they are so many that no quorum is left.

The end is a record that all are told of, late comers too: a node lost early may come back after it
and ask.
"""

from __future__ import annotations

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.consensus.records import End
from pytest_elastic.rendezvous.leader.members import Members
from pytest_elastic.rendezvous.leader.rounds import Rounds
from pytest_elastic.rendezvous.leader.state import (
    Cause,
    LeaderPart,
    LeaderShared,
    Peer,
    Standing,
    Went,
)
from pytest_elastic.rendezvous.vocabulary import Finished, WriteRecord

__all__ = ["JobEnd", "Leavers"]

# How long after its lease a node that was lost may still come and ask what has become of the job.
_MAY_RETURN_S = 5.0
# Stands for nodes that waited with a leader before this one: no record names them all.
_STRANGERS = "nodes that waited with the leader before"


class Leavers(LeaderPart):
    """The nodes that have announced that they leave, and have not left yet."""

    def __init__(self, shared: LeaderShared, members: Members, rounds: Rounds) -> None:
        super().__init__(shared)
        self.why_job_ends: str | None = None
        """Why the job ends with this node, if it does."""
        self._members = members
        self._rounds = rounds
        self._peers: dict[str, Peer] = {}
        self._gone: set[str] = set()  # who left or was lost, while it may still be a voter

    def take_drain(
        self, peer: Peer, drain: ports.DrainRequested, now: float, *, is_ending: bool
    ) -> None:
        """Note that a member leaves, and tell the others; it is in no round to come."""
        if peer.is_leaving or (self._is_own(peer) and is_ending):
            return
        peer.leaves_by = now + max(drain.grace_s, 0.0)
        peer.leave_reason = drain.reason
        if peer.standing is Standing.PROPOSED:
            self._rounds.break_off(f"{peer.node.name} leaves ({drain.reason})")
        self._members.update(peer)
        self._peers[peer.node.incarnation] = peer
        notice = ports.PeerDraining(node=peer.node.name, grace_s=drain.grace_s)
        for other in self._members.peers.values():
            if other is not peer:
                self._out.send_to(other.connection, notice)
        if self._is_own(peer) and not self._settings.outlives_coordinator:
            self.why_job_ends = (
                f"{peer.node.name} leaves ({drain.reason}), which hosts the rendezvous, and there "
                "is no succession"
            )

    def forget(self, incarnation: str) -> None:
        """Wait for a node no longer: it is a member no more."""
        self._peers.pop(incarnation, None)
        self._gone.add(incarnation)

    def lose(self, peer: Peer) -> None:
        """Note that a member is out of reach: our own can only have ended its part."""
        if self._settings.outlives_coordinator or not self._is_own(peer):
            return
        if self.why_job_ends is None:
            self._end_job(f"{peer.node.name}, which hosts the rendezvous, has left")

    def end_round_when_overdue(self, now: float) -> None:
        """End the round that runs when the workers of a leaver have had their grace."""
        last = self._rounds.last
        for peer in self._peers.values():
            if last is None or peer.node.incarnation not in last.holding or peer.leaves_by is None:
                continue
            if self._deadlines.is_due(peer.leaves_by, now):
                last.stop_because(f"{peer.node.name} leaves and its grace is over", Cause.CHANGE)

    def watch(self, now: float, *, is_ending: bool, has_others: bool) -> str | None:
        """Let nodes go whose workers are gone, and that have no vote any more.

        Return why this leader has left, once its own node is one of them and another may lead.
        `has_others`: another node is in the job, or may return, and could be named in our place.
        """
        if not is_ending and self._is_pending_without_a_voter():
            self._replication.withdraw()
        idle = [
            peer
            for peer in self._peers.values()
            if not peer.has_workers and peer.standing is not Standing.PROPOSED
        ]
        has_voter, has_succession = self._replication.has_voter, self._settings.has_succession
        is_founding = self._replication.newest.number == 0  # a host that leaves then is just down
        is_counted = has_succession and not is_founding
        voters = {
            peer.node.incarnation
            for peer in idle
            if is_counted and has_voter(peer.node.incarnation)
        }
        if is_counted and not is_ending and self._replication.pending is None:
            if voters or self._are_many_lost(now):
                self._propose_without({peer.node.incarnation for peer in idle}, now)
            if voters:
                return None
        for peer in idle:
            if peer.node.incarnation in voters:
                continue
            if not self._is_own(peer):
                self._members.let_go(peer, peer.leave_reason, now)
            elif not is_ending and self._may_hand_over(peer, has_others=has_others):
                self._out.emit(events.MemberLeft(member=peer.node.name, reason=peer.leave_reason))
                return f"{peer.node.name} left ({peer.leave_reason})"
        return None

    def _is_pending_without_a_voter(self) -> bool:
        """Tell whether a record for a leaver is pending of which a voter was lost since.

        It may never be decided, while the votes that this leader has are enough to go on.
        """
        replication, own = self._replication, self._own.incarnation
        if replication.pending is None or replication.is_adopted or self._rounds.next is not None:
            return False
        voters = replication.pending.configuration.voters
        return any(each not in self._members.peers and each != own for each in voters)

    def _are_many_lost(self, now: float) -> bool:
        """Tell whether a quarter of the voters is lost, or more: soon no quorum would be left.

        One of a long roster is no such danger, and a record of it costs time.
        """
        voters, members = self._replication.base.configuration.voters, self._members.peers
        if 4 * len(self._gone) < len(voters) or not self._rounds.is_gate_open(now):
            return False
        self._gone = {each for each in set(voters) & self._gone if each not in members}
        return 4 * len(self._gone) >= len(voters)

    def _propose_without(self, leaving: set[str], now: float) -> None:
        """Propose the same round without the nodes that leave or are lost."""
        voters, members = self._replication.base.configuration.voters, self._members.peers
        if any(each not in members for each in voters) and not self._rounds.is_gate_open(now):
            return  # a successor waits for the leases of those that the record names, and no others
        others = [each for each in voters if each in members and each not in leaving]
        if not others and self._own.incarnation not in leaving:
            others = [self._own.incarnation]  # elected as a host, it was in no round itself
        if others and not self._members.hears_most_of(others):
            return  # only we could decide what the others accept
        if others:
            configuration = self._replication.configuration_of(others)
            self._replication.propose(now, configuration=configuration)
            self._rounds.send_record()
        elif self._own.incarnation in leaving:
            self._end_alone(self._peers[self._own.incarnation])

    def _may_hand_over(self, own: Peer, *, has_others: bool) -> bool:
        """Tell whether another node can lead instead; where none can, the job ends."""
        if not self._settings.outlives_coordinator:
            assert self.why_job_ends is not None, "the node has said that it leaves"
            self._end_job(self.why_job_ends)
            return False
        if self.choose_successor() or (self._settings.is_granted and has_others):
            return True
        self._end_alone(own)
        return False

    def _end_alone(self, own: Peer) -> None:
        if self.why_job_ends is None:
            self._end_job(f"{own.node.name} leaves ({own.leave_reason}), and no other node is left")

    def _end_job(self, reason: str) -> None:
        self.why_job_ends = reason
        self._rounds.break_off(reason)
        if self._rounds.last is not None:
            self._rounds.last.stop_because(reason, Cause.CHANGE)

    def choose_successor(self) -> str:
        """Return the first voter that could lead instead of us, or ""."""
        voters = self._replication.candidates
        if self._settings.is_granted:  # any member can be named
            voters = tuple(self._members.peers)
        for incarnation in voters:
            peer = self._members.peers.get(incarnation)
            if peer is None or self._is_own(peer) or peer.is_suspect or peer.is_leaving:
                continue
            return incarnation
        return ""


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
