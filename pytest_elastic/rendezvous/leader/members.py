"""The members, as the leader sees them: join requests, names, leases, suspects.

This room knows nothing of rounds, only whether a member may have workers. It answers join requests
and heartbeats by itself; what the leader must hear of is left in `changes`, in order.

    request ──► member ──► suspect ──► lost          the end of a connection; then what a probe
                  ▲  │        │                      shows, or the lease, decides (R5)
                  │  │        └──► member            it came back in time
                  │  └──► lost, left                 silence (R6), eviction, leaving
                  └── claimant                       its name is taken: wait for the holder (R14)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.leader.state import (
    Change,
    Departed,
    Here,
    LeaderPart,
    LeaderShared,
    Peer,
    Standing,
    Suspected,
    Went,
)
from pytest_elastic.rendezvous.leases import GrantedLease, kill_s
from pytest_elastic.rendezvous.model import Node, free_name
from pytest_elastic.rendezvous.settings import difference
from pytest_elastic.rendezvous.vocabulary import Answered, Ask, Outcome

__all__ = ["Members"]

# A claimant waits for one beat of the name's holder; a fleet that waits for one name is a mistake.
_MAX_CLAIMS = 64


class Members(LeaderPart):
    """The members of one job under one leader."""

    def __init__(self, shared: LeaderShared) -> None:
        super().__init__(shared)
        self.peers: dict[str, Peer] = {}
        """By incarnation, in the order in which they came."""
        self.ready: dict[str, Peer] = {}
        """Those that can be in the next round: connected, no workers, not leaving."""
        self.suspects: dict[str, Peer] = {}
        self.changes: deque[Change] = deque()
        self.number = 0
        """The newest round that any node ever told of; the rounds of this term come later."""
        self.restarts_used = 0
        self._by_connection: dict[int, Peer] = {}
        self._by_name: dict[str, Peer] = {}
        self._claims: dict[
            int, m.JoinRequest
        ] = {}  # by connection: each waits for its name's holder
        self._next_expiry = math.inf
        self.judges_from = -math.inf
        """Before that, no member is judged by its silence."""
        self.unheard: set[str] = set()
        """Who has said nothing since a node was lost by its silence: we may be deaf ourselves."""
        self._is_closed = False

    def peer_at(self, connection: int) -> Peer | None:
        """Return the member at the other end of a connection."""
        return self._by_connection.get(connection)

    def hear(self, connection: int) -> Peer | None:
        """Return the member that a message comes from: it is heard."""
        peer = self._by_connection.get(connection)
        if peer is not None and self.unheard:
            self.unheard.discard(peer.node.incarnation)
        return peer

    def hears_most_of(self, incarnations: Collection[str]) -> bool:
        """Tell whether a majority of these was heard since a node was lost by its silence."""
        return 2 * sum(each not in self.unheard for each in incarnations) > len(incarnations)

    def update(self, peer: Peer, standing: Standing | None = None) -> None:
        """Set a peer's standing, and sort it into `ready` or out of it."""
        if standing is not None:
            peer.standing = standing
        if peer.is_ready:
            self.ready.setdefault(peer.node.incarnation, peer)
        else:
            self.ready.pop(peer.node.incarnation, None)

    def inherit(
        self, entries: Sequence[Node], round_: int, *, until: float, lost: str, why: str, now: float
    ) -> Sequence[Peer]:
        """Begin with the members of an earlier leader's round: suspects that have yet to come.

        `why` there is another leader is why they are not connected.
        Their workers may run `until` then. Each may take a beat to come, but for `lost`.
        """
        for node in entries:
            lease = GrantedLease(self._settings, now)
            patience_s = 0.0 if node.incarnation == lost else self._settings.beat_interval_s
            lease.granted_until = max(until, now + patience_s)
            peer = Peer(
                node=node,
                connection=None,
                lease=lease,
                came_at=now,
                standing=Standing.RUNNING,
                round=round_,
                lost_contact=why,
                inherited_until=until,
            )
            self.peers[node.incarnation] = peer
            self._by_name[node.name] = peer
            self.suspects[node.incarnation] = peer
            self._next_expiry = min(self._next_expiry, lease.granted_until)
            if not self._is_own(peer):
                self._probe(peer)
        return tuple(self.peers.values())

    # --- coming ------------------------------------------------------------------------------

    def take_request(self, connection: int, request: m.JoinRequest, now: float) -> None:
        """Answer a node's first words: accept, refuse, or wait while its name is in doubt."""
        problem = difference(request, self._settings, self._own.name)
        if problem is not None:
            self.refuse(connection, problem, is_final=True)
            return
        known = self.peers.get(request.node.incarnation)
        if known is not None:
            if _resumes(known, request):
                self._resume(known, connection, request, now)
                return
            why = f" ({known.lost_contact})" if known.is_suspect else ""
            detail = f"its lease ran out, and it killed its workers{why}"
            self._drop(known, "evicted", detail, None, now)
        if request.resumes_round and not self._is_closed:
            reason = (
                f"round {request.resumes_round} goes on without {request.node.name}, or is over"
            )
            self.refuse(connection, reason, is_final=False)
            return
        holder = self._by_name.get(request.node.name)
        if holder is None:
            self._admit(connection, request, request.node.name, now)
        elif (request.node.is_name_explicit or holder.is_suspect) and not self._is_closed:
            self._claim(connection, request)
        else:
            self._admit(connection, request, free_name(request.node.name, self._by_name), now)

    def _admit(self, connection: int, request: m.JoinRequest, name: str, now: float) -> None:
        node = request.node.named(name)
        self.restarts_used = max(self.restarts_used, request.restarts_used)
        lease = GrantedLease(self._settings, now)
        peer = Peer(node=node, connection=None, lease=lease, came_at=now)
        self.peers[node.incarnation] = self._by_name[name] = peer
        self._welcome(peer, connection, request, now, is_resumed=False)
        self._out.emit(
            events.MemberJoined(member=name, member_incarnation=node.incarnation, slots=node.slots)
        )
        self.changes.append(Here(peer=peer, is_back=False))

    def _resume(self, peer: Peer, connection: int, request: m.JoinRequest, now: float) -> None:
        if peer.connection is not None:
            # The member saw its connection end before we did.
            self._by_connection.pop(peer.connection, None)
            self._out.disconnect(peer.connection)
        peer.node = request.node.named(peer.node.name)
        peer.inherited_until = None
        peer.lease = GrantedLease(self._settings, now)
        self.suspects.pop(peer.node.incarnation, None)
        self._welcome(peer, connection, request, now, is_resumed=request.resumes_round != 0)
        self.changes.append(Here(peer=peer, is_back=True))

    def _welcome(
        self, peer: Peer, connection: int, request: m.JoinRequest, now: float, *, is_resumed: bool
    ) -> None:
        """Take a peer in on a connection, and say so."""
        lease_s = self._lease_s(now)
        peer.connection = connection
        peer.lease.welcome(now, lease_s)
        self.number = max(self.number, request.number)
        self._by_connection[connection] = peer
        self._next_expiry = min(self._next_expiry, peer.lease.granted_until)
        self.update(peer)
        accepted = m.JoinAccepted(
            term=self._term,
            name=peer.node.name,
            leader=self._own.name,
            resumed=is_resumed,
            is_over=self._is_closed,
            is_founding=self._replication.base.number == 0,
            number=max(self.number, self._replication.round),
            lease_s=_finite(lease_s),
        )
        self._out.send_to(connection, accepted)

    def _lease_s(self, now: float) -> float:
        """Return the most that may be granted now: what is left of our own lease."""
        return max(self._replication.leads_until(now) - now, 0.0)

    def refuse(self, connection: int, reason: str, *, is_final: bool) -> None:
        """Turn a node away, for good or until it comes without its round."""
        self._out.send_to(
            connection, m.Dismissed(term=self._term, reason=reason, is_final=is_final)
        )
        self._out.disconnect(connection)

    # --- names -------------------------------------------------------------------------------

    def _claim(self, connection: int, request: m.JoinRequest) -> None:
        for other, claim in list(self._claims.items()):
            if claim.node.incarnation == request.node.incarnation:
                del self._claims[other]
                self._out.disconnect(other)
        if len(self._claims) >= _MAX_CLAIMS:
            self.refuse(connection, f"too many nodes want to be {request.node.name}", is_final=True)
            return
        self._claims[connection] = request

    def _claims_of(self, name: str) -> Sequence[tuple[int, m.JoinRequest]]:
        return [each for each in self._claims.items() if each[1].node.name == name]

    def _answer_claims(self, holder: Peer, now: float) -> None:
        """Give the claimants of a name whose holder is alive another one, or none."""
        if not self._claims:
            return
        for connection, request in self._claims_of(holder.node.name):
            del self._claims[connection]
            node = request.node
            if node.is_name_explicit:
                self.refuse(
                    connection,
                    f"cannot join run {self._settings.run_id!r} as node {node.name!r}: a node of "
                    f"that name at {holder.node.address}:{holder.node.port} is alive. Give each "
                    "node a name of its own, or stop the other one.",
                    is_final=True,
                )
            else:
                self._admit(connection, request, free_name(node.name, self._by_name), now)

    def close(self, now: float) -> None:
        """Stop judging members, as the job ends, and let in nodes that wait for a name."""
        self._is_closed = True
        claims, self._claims = self._claims, {}
        for connection, request in claims.items():
            self._admit(connection, request, free_name(request.node.name, self._by_name), now)

    def _inherit_name(self, name: str, now: float) -> None:
        """Give a name that has become free to its first claimant."""
        for connection, request in self._claims_of(name)[:1]:
            del self._claims[connection]
            self._admit(connection, request, name, now)

    # --- staying -----------------------------------------------------------------------------

    def take_heartbeat(self, peer: Peer, beat: m.Heartbeat, now: float) -> None:
        """Answer a beat, which also grants the lease."""
        peer.lease.take_echo(beat.echo)
        if peer.lease.heard_from is not None:
            self._replication.hear(peer.node.incarnation, peer.lease.heard_from)
        if beat.count == 0:
            return
        lease_s = self._lease_s(now)
        count, echo = peer.lease.take_beat(beat.count, beat.echo, now, lease_s)
        self._out.send_to(
            peer.connection, m.Heartbeat(count=count, echo=echo, lease_s=_finite(lease_s))
        )
        self._answer_claims(peer, now)

    def doubt_ourselves(self, now: float) -> None:
        """We were late ourselves: what we did not hear may be waiting to be read.

        Silence is judged again after one beat; at most once a lease, so that a leader which
        is always late still judges.
        """
        if now >= self.judges_from + self._settings.lease_s:
            self.judges_from = now + self._settings.beat_interval_s

    def judge_silence(self, now: float) -> None:
        """Give up the members whose lease has run out."""
        # All but this node itself, which may not have come yet when others were inherited (R11).
        while len(self.peers) > (self._own.incarnation in self.peers):
            if not self._deadlines.is_due(max(self._next_expiry, self.judges_from), now):
                return
            self._drop_silent(now)

    def _drop_silent(self, now: float) -> None:
        is_any_lost = False
        for peer in list(self.peers.values()):
            if peer.lease.granted_until > now or self._is_own(peer):
                continue
            how = f"its connection ended ({peer.lost_contact})" if peer.is_suspect else "silent"
            detail = f"{how}, and its lease of {self._settings.lease_s:g} s ran out"
            self._drop(peer, "silent", detail, self._lease_end(peer), now)
            is_any_lost = True
        if is_any_lost:
            self._doubt_hearing()
        # A node that was given a name just now counts too.
        self._next_expiry = min(
            (p.lease.granted_until for p in self.peers.values() if not self._is_own(p)),
            default=math.inf,
        )

    # --- going -------------------------------------------------------------------------------

    def lose_connection(self, connection: int, reason: str) -> None:
        """Suspect the member whose connection ended, and ask its agent (R5)."""
        self._claims.pop(connection, None)
        peer = self._by_connection.pop(connection, None)
        if peer is None:
            return
        peer.connection = None
        peer.lost_contact = reason
        self.suspects[peer.node.incarnation] = peer
        self.update(peer)
        self.changes.append(Suspected(peer=peer))
        if self._is_closed:
            return
        self._probe(peer)

    def _probe(self, peer: Peer) -> None:
        """Ask a suspect's agent what has become of it."""
        self._out.add(Ask(node=peer.node))

    def take_answer(self, answer: Answered, now: float) -> None:
        """Take in what dialling a suspect's agent showed."""
        peer = self.peers.get(answer.incarnation)
        if peer is None:
            return
        match answer.outcome:
            case Outcome.TOMBSTONE:
                self._drop(peer, "tombstone", "its agent ended; its keeper said so", None, now)
            case Outcome.REFUSED if peer.is_suspect:
                beat_s = self._settings.beat_interval_s
                safe_at = self._lease_end(peer)
                if peer.inherited_until is None:
                    # It saw its connection to us end, and holds its workers.
                    safe_at = min(now + beat_s + kill_s(self._settings), safe_at)
                detail = f"its connection ended ({peer.lost_contact}) and its port refused another"
                self._drop(peer, "refused", detail, safe_at, now)
            case _:
                pass  # it may come back while its lease lasts

    def evict(self, peer: Peer, reason: str, now: float) -> None:
        """Give up a member that is alive, and does not do in time what it is told."""
        self._drop(peer, "evicted", reason, self._lease_end(peer), now, how="evicted")

    def give_up(self, peer: Peer, reason: str, now: float) -> None:
        """Take a member for lost before its lease has run out."""
        self._drop(peer, "silent", reason, self._lease_end(peer), now)
        self._doubt_hearing()

    def _doubt_hearing(self) -> None:
        self.unheard = set(self.peers) - {self._own.incarnation}

    def let_go(self, peer: Peer, reason: str, now: float) -> None:
        """Let a member go that asked to leave."""
        self._out.send_to(
            peer.connection, m.Dismissed(term=self._term, reason=reason, is_final=True)
        )
        self._out.emit(events.MemberLeft(member=peer.node.name, reason=reason))
        gone = f"{peer.node.name} left ({reason})"
        change = Went(peer=peer, reason=gone, safe_at=None, may_return=False, how="left")
        self._forget(peer, change, now)

    def _lease_end(self, peer: Peer) -> float:
        granted_until = peer.lease.granted_until
        if peer.inherited_until is not None:
            granted_until = peer.inherited_until
        return granted_until + self._settings.drift_s

    def _drop(
        self,
        peer: Peer,
        cause: str,
        detail: str,
        safe_at: float | None,
        now: float,
        *,
        how: Departed = "lost",
    ) -> None:
        order = m.Dismissed(term=self._term, reason=detail, is_final=False)
        self._out.send_to(peer.connection, order)
        self._out.emit(events.MemberLost(member=peer.node.name, cause=cause, detail=detail))
        change = Went(
            peer=peer,
            reason=f"{peer.node.name} was lost: {detail}",
            safe_at=safe_at if peer.has_workers else None,
            may_return=cause != "tombstone",
            how=how,
        )
        self._forget(peer, change, now)

    def _forget(self, peer: Peer, change: Went, now: float) -> None:
        incarnation = peer.node.incarnation
        del self.peers[incarnation]
        del self._by_name[peer.node.name]
        self.ready.pop(incarnation, None)
        self.suspects.pop(incarnation, None)
        self.unheard.discard(incarnation)
        if peer.connection is not None:
            del self._by_connection[peer.connection]
            self._out.disconnect(peer.connection)
            peer.connection = None
        self.changes.append(change)
        self._inherit_name(peer.node.name, now)


def _finite(lease_s: float) -> float | None:
    """Return a grant as it is sent: None is all of a lease."""
    return None if lease_s == math.inf else lease_s


def _resumes(peer: Peer, request: m.JoinRequest) -> bool:
    """Tell whether a member that asks again is where we left it.

    Without workers by our account, it is, whatever it missed: it will be told again. With workers,
    only if it stands by the very round we gave it; else it has fenced itself.
    """
    if peer.standing in {Standing.WAITING, Standing.PROPOSED}:
        return True
    return request.resumes_round == peer.round
