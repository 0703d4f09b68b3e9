"""From a follower to its leader: finding it, dialling it, heartbeats, the lease.

Every try has a deadline, and after one that came to nothing there is a short rest. Nothing here
knows of rounds: whether workers are held when the leader is lost, or killed when the lease ends, is
the follower's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from msgspec.structs import asdict, replace

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.voter import Voter
from pytest_elastic.rendezvous.leases import HeldLease
from pytest_elastic.rendezvous.machine import Part, Shared
from pytest_elastic.rendezvous.model import Node

__all__ = ["CONNECTION_ALLOWED", "Connection", "ConnectionPhase"]

# How long to wait before the next try to find or dial: not felt by a person, nothing for a network.
_RETRY_S = 0.1


class ConnectionPhase(Enum):
    """What stands between a node and its leader."""

    __hash__ = object.__hash__  # Enum hashes by name, in Python, at every look into a set

    UNSTARTED = "unstarted"
    SEEKING = "seeking"  # the registry, and other nodes, were asked for the leader
    DIALING = "dialing"
    JOINING = "joining"  # connected; the join request was sent
    JOINED = "joined"  # heartbeats run, orders hold
    RESTING = "resting"  # the next try comes after a pause, or when workers are gone
    OVER = "over"  # the agent was told that the job is over here


CONNECTION_ALLOWED: dict[ConnectionPhase, frozenset[ConnectionPhase]] = {
    ConnectionPhase.UNSTARTED: frozenset({ConnectionPhase.SEEKING, ConnectionPhase.OVER}),
    ConnectionPhase.SEEKING: frozenset(
        {ConnectionPhase.DIALING, ConnectionPhase.RESTING, ConnectionPhase.OVER}
    ),
    ConnectionPhase.DIALING: frozenset(
        {ConnectionPhase.JOINING, ConnectionPhase.RESTING, ConnectionPhase.OVER}
    ),
    ConnectionPhase.JOINING: frozenset(
        {ConnectionPhase.JOINED, ConnectionPhase.RESTING, ConnectionPhase.OVER}
    ),
    ConnectionPhase.JOINED: frozenset(
        {ConnectionPhase.DIALING, ConnectionPhase.RESTING, ConnectionPhase.OVER}
    ),
    ConnectionPhase.RESTING: frozenset(
        {ConnectionPhase.SEEKING, ConnectionPhase.DIALING, ConnectionPhase.OVER}
    ),
    ConnectionPhase.OVER: frozenset(),
}

_TOWARDS = frozenset({ConnectionPhase.DIALING, ConnectionPhase.JOINING, ConnectionPhase.JOINED})


class Connection(Part):
    """One follower's connection to its leader; `phase` is what goes on now."""

    def __init__(self, shared: Shared, voter: Voter, node: Node) -> None:
        super().__init__(shared)
        self.node = node
        """This node, where it is and as the leader has named it."""
        self.phase = ConnectionPhase.UNSTARTED
        self.leader: m.LeaderAddress | None = None
        """The leader that this node follows, or tries to."""
        self.followed: m.LeaderAddress | None = None
        """The leader of a job that it followed last."""
        self.is_lost = False
        """The leader is known to be lost, whatever the lease says."""
        self.last_problem = "the endpoint has not answered yet"
        self._voter = voter
        self._tried_at = self._dialled_at = self._rest_until = 0.0
        self.trusted_until = float("-inf")
        """Until when a leader that was announced is still expected to be there."""
        self._lease: HeldLease | None = None
        self._next_lease: HeldLease | None = None
        self._echo = 0
        self._told, self._told_at = "", 0.0  # which leader was last told that it is not obeyed
        self._ask_at = 0.0

    def become(self, phase: ConnectionPhase) -> None:
        """Go from one phase to another, as the table has it."""
        allowed = CONNECTION_ALLOWED[self.phase]
        assert phase in allowed, f"a connection cannot go from {self.phase} to {phase}"
        self.phase = phase

    @property
    def was_accepted(self) -> bool:
        """Whether a leader has ever taken this node in."""
        return self._lease is not None

    @property
    def is_joined(self) -> bool:
        """Whether heartbeats run, and orders hold."""
        return self.phase is ConnectionPhase.JOINED

    @property
    def is_provisional(self) -> bool:
        """Whether the leader has decided nothing, and this node is in a job that may go on.

        Contact with it counts as none: those of that job elect a leader, if they are enough.
        """
        base, record = self._voter.base, self._voter.record
        if base is None or self.leader is None or not self._waits_beside_its_job:
            return False
        if base.number > 0:
            return True
        # As nothing is decided, hosts elect, and just did: under a higher term than of what this
        # node has accepted. One with a lower term has forgotten that.
        return record is not None and self.leader.term.counter <= record.term.counter

    @property
    def _waits_beside_its_job(self) -> bool:
        is_founding = self.leader is not None and self.leader.is_founding
        if self.leader is None or not (is_founding and self.is_joined):
            return False
        if not self._settings.has_succession:
            return False  # a job can only go on under the leader that its registry names
        record = self._voter.record
        return record is None or record.term != self.leader.term  # else it begins right now

    @property
    def leads_somewhere(self) -> bool:
        """Whether something goes on towards a leader."""
        return self.phase in _TOWARDS

    @property
    def is_to_itself(self) -> bool:
        """Whether the leader is here and cannot be lost, as no other node can be elected."""
        return self.leads and not self._settings.outlives_coordinator

    @property
    def leads(self) -> bool:
        """Whether the leader that was found is this node."""
        return self.leader is not None and self.leader.incarnation == self._voter.incarnation

    @property
    def name(self) -> str:
        """What the leader is called."""
        return "the leader" if self.leader is None else self.leader.name

    @property
    def where(self) -> str:
        """The leader and its address, for a sentence."""
        if self.leader is None:
            return self.name
        whose = ", this node itself" if self.leads else ""
        return f"{self.name} ({self.leader.address}:{self.leader.port}{whose})"

    # --- towards a leader --------------------------------------------------------------------

    def seek(self, peers: Sequence[m.Agent], now: float) -> None:
        """Ask for the leader."""
        self.become(ConnectionPhase.SEEKING)
        self._tried_at = now
        self._out.add(v.FindLeader(peers=peers))

    def dial(self, now: float) -> None:
        """Dial the leader that is known."""
        assert self.leader is not None, "there is an address to dial"
        self.become(ConnectionPhase.DIALING)
        self._tried_at = self._dialled_at = now
        self._out.add(v.Dial(address=self.leader.address, port=self.leader.port))

    def rest(self, problem: str, now: float) -> None:
        """Go on without a connection for a moment."""
        self.last_problem = problem
        self.become(ConnectionPhase.RESTING)
        is_late = self._settings.has_succession and self.has_lost_leader(now)
        self._rest_until = now + (self._settings.beat_interval_s / 2 if is_late else _RETRY_S)

    def break_off(self, reason: str, now: float) -> None:
        """End whatever goes on, a search for the leader too, and rest."""
        if self.leads_somewhere:
            self._out.add(v.Hangup())
            self.rest(reason, now)
        elif self.phase is ConnectionPhase.SEEKING:
            self.rest(reason, now)

    def take_found(self, leader: m.LeaderAddress, now: float) -> None:
        """Dial the leader that the registry names, unless it is over or was just dialled."""
        if self.phase is not ConnectionPhase.SEEKING:
            return
        if not self.may_dial(leader, now):
            reason = f"the registry names the leader of term {leader.term.counter}, which is over"
            self.rest(reason, now)
        elif self._is_lost_one(leader) and now < self._dialled_at + self._settings.lease_s:
            self.rest("the registry names the leader that was lost", now)
        else:
            self.leader = leader
            self.dial(now)

    def may_dial(self, leader: m.LeaderAddress, now: float) -> bool:
        """Tell whether to dial a leader: to follow it, or to tell it of a higher term.

        It cannot count on this voter, and stands again when it hears so (Raft 5.1). That is said
        once a lease, as it may be lost.
        """
        if self._voter.may_follow(leader.term):
            return True
        is_told = self._told == leader.incarnation
        if is_told and now < self._told_at + self._settings.lease_s:
            return False
        self._told, self._told_at = leader.incarnation, now
        return True

    def _is_lost_one(self, leader: m.LeaderAddress) -> bool:
        known = self.leader
        is_same = known is not None and known.incarnation == leader.incarnation
        return is_same and known is not None and known.term == leader.term and self.is_lost

    def turn_to(self, leader: m.LeaderAddress, now: float) -> bool:
        """Dial an announced leader, unless that goes on already; tell whether it is new."""
        known = self.leader
        if known is not None and (known.incarnation, known.term) == (
            leader.incarnation,
            leader.term,
        ):
            # A dial that began while a link was cut takes long to notice that it is not any more.
            is_fresh = now < self._tried_at + self._settings.beat_interval_s / 2
            if self.leads_somewhere and (self.phase is not ConnectionPhase.DIALING or is_fresh):
                return False
        self.is_lost = False
        self.trusted_until = now + self._settings.lease_s / 2
        self.leader = leader
        self.break_off(f"{leader.name} leads now, under term {leader.term.counter}", now)
        self._rest_until = now
        return True

    def request_join(self, now: float, *, resumes_round: int) -> None:
        """Say the first words: they are beat 0 of a lease."""
        assert self.leader is not None, "what is connected was dialled"
        self.become(ConnectionPhase.JOINING)
        self._tried_at = now
        self._next_lease = HeldLease(self._settings, now)
        self._echo = 0
        self._out.send(
            m.JoinRequest(
                run_id=self._settings.run_id,
                node=self.node,
                settings=asdict(self._settings),
                resumes_round=resumes_round,
                term=self._voter.term,
                number=self._voter.number,
                restarts_used=self._voter.restarts_used,
                meant_for=self.leader.incarnation,
            )
        )

    def take_accepted(self, accepted: m.JoinAccepted, now: float) -> bool:
        """Follow the leader that took this node in, unless it is an old one; tell whether."""
        assert self.leader is not None, "what answers was dialled"
        if not (accepted.is_founding or self.leads):
            self._voter.give_way()
        record = self._voter.record
        # Decided or not, no job follows an end; where that is written down, what is not is none.
        has_end = record is not None and record.end is not None and not self._settings.is_granted
        if not self._voter.may_follow(accepted.term) or (has_end and accepted.is_founding):
            self.is_lost = True
            reason = f"{accepted.leader} leads under the old term {accepted.term.counter}"
            self.break_off("it begins another job" if has_end else reason, now)
            return False
        self.leader = replace(
            self.leader,
            is_founding=accepted.is_founding,
            term=accepted.term,
            name=accepted.leader,
        )
        if not (accepted.is_founding or self.leads):
            self.followed = self.leader
        self.node = self.node.named(accepted.name)
        self.become(ConnectionPhase.JOINED)
        self._voter.follow(accepted.term)
        self._voter.contact_at = now
        self.is_lost = False
        assert self._next_lease is not None, "the join request was beat 0 of a lease"
        self._lease, self._next_lease = self._next_lease, None
        self._lease.take_echo(0, accepted.lease_s)
        return True

    def lose(self) -> None:
        """Note that the leader is lost, and that its lease need not be waited for."""
        self.is_lost = True
        self.trusted_until = float("-inf")

    # --- heartbeats and the lease ------------------------------------------------------------

    @property
    def held_until(self) -> float | None:
        """When the lease ends; None: none is held, or none is needed from a leader here."""
        return None if self._lease is None or self.is_to_itself else self._lease.held_until

    def has_lost_leader(self, now: float) -> bool:
        """Tell whether the leader is lost, as far as this node can know."""
        if self.phase is ConnectionPhase.JOINED:
            return False
        held_until = self.held_until
        return self.is_lost or held_until is None or now >= held_until

    def must_fence(self, now: float) -> bool:
        """Tell whether killing has to begin, so that all is dead when the lease ends (R6)."""
        if self._lease is None or self.is_to_itself:
            return False
        fence_at = self._lease.fence_at
        return fence_at is not None and self._deadlines.is_due(fence_at, now)

    def is_silent(self, now: float) -> bool:
        """Tell whether the lease from a leader that this node has joined is over."""
        held_until = self.held_until
        return held_until is not None and self._deadlines.is_due(held_until, now)

    def take_heartbeat(self, beat: m.Heartbeat, now: float) -> bool:
        """Take in a beat of the leader; tell whether the lease was extended."""
        assert self._lease is not None, "a follower that has joined has a lease"
        self._voter.contact_at = now
        if beat.lease_s is not None:
            # What it grants next depends on how lately we have answered: do not wait for our beat.
            self._out.send(m.Heartbeat(count=0, echo=beat.count))
        self._echo = max(self._echo, beat.count)
        is_extended = self._lease.take_echo(beat.echo, beat.lease_s)
        if beat.lease_s is not None:
            self._lease.hurry(now, beat.lease_s)
        return is_extended

    def _beat(self, now: float) -> None:
        assert self._lease is not None, "a follower that has joined has a lease"
        if self._deadlines.is_due(self._lease.beat_at, now):
            count = self._lease.next_beat(now)
            self._out.send(m.Heartbeat(count=count, echo=self._echo))
            self._deadlines.is_due(self._lease.beat_at, now)

    def _ask_on(self, peers: Callable[[], Sequence[m.Agent]], now: float) -> None:
        """Ask those of this node's job once a beat while its leader has decided nothing (R10).

        They may have a leader, or know how that job has ended, and no other node would say so.
        """
        if self._voter.number == 0 or not self._waits_beside_its_job:
            return
        if self._deadlines.is_due(self._ask_at, now):
            self._ask_at = now + self._settings.beat_interval_s
            self._deadlines.is_due(self._ask_at, now)
            self._out.add(v.FindLeader(peers=peers()))

    def standing(self, now: float) -> tuple[m.LeaderAddress | None, float]:
        """Return the leader this node follows with a valid lease, and for how long it may hold."""
        held_until = self.held_until
        if self.is_provisional:
            return None, max(self.trusted_until - now, 0.0)
        if self.phase is ConnectionPhase.JOINED:
            is_held = held_until is None or now < held_until
            return (self.leader if is_held else None), 0.0
        patience_s = 0.0 if held_until is None or self.is_lost else held_until - now
        return None, max(patience_s, self.trusted_until - now, 0.0)

    # --- time --------------------------------------------------------------------------------

    def watch(self, peers: Callable[[], Sequence[m.Agent]], now: float, *, may_join: bool) -> None:
        """Beat, give up what takes too long, try again; `may_join`: nothing is being killed.

        `peers` returns other nodes that can be asked for the leader.
        """
        is_due, lease_s = self._deadlines.is_due, self._settings.lease_s
        match self.phase:
            case ConnectionPhase.JOINED:
                self._beat(now)
                self._ask_on(peers, now)
            case ConnectionPhase.SEEKING:
                if is_due(self._tried_at + v.FIND_S + 1.0, now):
                    self.rest("the registry did not answer", now)
            case ConnectionPhase.DIALING:
                if is_due(self._tried_at + lease_s + 1.0, now):
                    self.break_off(f"{self.where} did not answer", now)
            case ConnectionPhase.JOINING:
                # The holder of our name may have to be waited for: until its lease has run out.
                if is_due(self._tried_at + 2 * lease_s + self._settings.drift_s, now):
                    self.break_off(f"{self.where} did not answer the join request", now)
            case _:
                pass
        is_resting = self.phase is ConnectionPhase.RESTING
        if is_resting and may_join and is_due(self._rest_until, now):
            is_known = self.held_until is not None and not self.has_lost_leader(now)
            if self.leader is not None and (is_known or now < self.trusted_until):
                self.dial(now)
            else:
                self.seek(peers(), now)
