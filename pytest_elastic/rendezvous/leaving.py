"""Members that leave on purpose: announced to all, waited for as long as their grace lasts (R4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.desk import Desk
from pytest_elastic.rendezvous.peer import Peer

__all__ = ["Leaving"]


class Leaving:
    """Who has announced that it leaves, and has not left yet."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._members = desk.members
        self._peers: dict[str, Peer] = {}

    def announce(self, peer: Peer, drain: ports.DrainRequested, now: float) -> None:
        """Take note that a member leaves, and tell the others; it is in no round to come."""
        peer.leaves_by = now + max(drain.grace_s, 0.0)
        peer.leave_reason = drain.reason
        self._members.update(peer)
        notice = ports.PeerDraining(node=peer.node.name, grace_s=drain.grace_s)
        for other in self._members.peers.values():
            if other is not peer:
                self._desk.out.send(other, notice)
        self._peers[peer.node.incarnation] = peer

    def forget(self, incarnation: str) -> None:
        """Wait for a node no longer: it is a member no more."""
        self._peers.pop(incarnation, None)

    def overdue(self, now: float) -> Sequence[Peer]:
        """Return those whose grace is over."""
        return [
            peer
            for peer in self._peers.values()
            if peer.leaves_by is not None and self._desk.deadlines.is_due(peer.leaves_by, now)
        ]

    def choose_successor(self, roster: Iterable[Peer]) -> str:
        """Return the incarnation of the first of a roster who could decide instead of us, or "".

        Who was given up, and came back as a newcomer, has its voice still. Where somebody outside
        says who decides, who is ready may be named, too: nobody's voice is needed.
        """
        others = self._members.ready.values() if self._desk.settings.is_granted else ()
        for member in (*roster, *others):
            peer = self._members.peers.get(member.node.incarnation)
            if peer is None or self._desk.is_own(peer):
                continue
            if not peer.is_suspect and not peer.is_leaving:
                return peer.node.incarnation
        return ""
