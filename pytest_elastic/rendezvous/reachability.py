"""Which nodes reach each other: members find out before the leader proposes a round (R13).

Workers talk to each other, not by way of the leader: that every node has reached the
endpoint says nothing about the link between two of them. So before a round is proposed, each member
of it dials the others (or some of them, in a large job) and reports those it did not reach. Only a
set of nodes that all reach each other is in the round; the others wait, and the links that failed
are tried again once a lease.

Only the node that dialled knows: that `a` reaches `b` proves nothing about the other direction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pytest_elastic.events.model import PeersUnreached
from pytest_elastic.rendezvous.leader.members import Members
from pytest_elastic.rendezvous.leader.state import LeaderPart, LeaderShared, Peer
from pytest_elastic.rendezvous.messages import DialPeers, PeersDialled
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.vocabulary import Answered, Ask, Outcome

__all__ = ["FULL_MESH", "PeerDials", "Reachability", "mutually_reachable", "neighbours"]

# Up to so many members, each dials every other one. In a larger roster each dials as many as its
# length has binary digits; only when some of those are not reached, each dials all others.
FULL_MESH = 16
_NO_ANSWER = "no answer"  # beside what a dial shows (`vocabulary.Outcome`)


def neighbours(position: int, count: int, *, is_thorough: bool = False) -> tuple[int, ...]:
    """Return which positions of a roster of `count` members the one at `position` dials.

    In a large roster: position 0, whose node has the worker store, and those that lie 1, 2, 4, 8 …
    further on. Whatever two parts a roster is cut into, some of these dials go across.
    """
    if is_thorough or count <= FULL_MESH:
        return tuple(other for other in range(count) if other != position)
    further = ((position + (1 << power)) % count for power in range((count - 1).bit_length()))
    return tuple(dict.fromkeys(other for other in (0, *further) if other != position))


def mutually_reachable(
    *groups: Sequence[str], unreached: Mapping[str, Collection[str]]
) -> tuple[str, ...]:
    """Return those incarnations that may be in a round together.

    An earlier group goes before a later one: no incarnation of a later group is taken that is apart
    from one taken of an earlier group. `unreached[a]` are those that `a` did not reach. Within a
    group, while there are two that are apart, the one that is apart from most others is left out;
    of several, the last. (The largest such set is not always found: that problem is NP-hard. Where
    a network is cut into parts, it is.)
    """
    apart: dict[str, set[str]] = {}
    for dialler, targets in unreached.items():
        for target in targets:
            apart.setdefault(dialler, set()).add(target)
            apart.setdefault(target, set()).add(dialler)
    kept: list[str] = []
    for group in groups:
        kept += _largest([one for one in group if apart.get(one, set()).isdisjoint(kept)], apart)
    return tuple(kept)


def _largest(claims: Sequence[str], apart: Mapping[str, Collection[str]]) -> Sequence[str]:
    """Leave out the one that is apart from most others, until none is apart; keep the order."""
    here = set(claims)
    left = {one: here.intersection(apart[one]) for one in claims if one in apart}
    left = {one: others for one, others in left.items() if others}
    strength = {incarnation: -position for position, incarnation in enumerate(claims)}
    while left:
        worst = min(left, key=lambda one: (-len(left[one]), strength[one]))
        here.discard(worst)
        for other in left.pop(worst):
            left[other].discard(worst)
            if not left[other]:
                del left[other]
    for one in claims:  # left out for one that was left out later
        if one not in here and here.isdisjoint(apart[one]):
            here.add(one)
    return [one for one in claims if one in here]


class Reachability(LeaderPart):
    """What is known of the links between members, all of them named by incarnation.

    A **sweep** asks each member of a roster to dial its neighbours there; it covers that roster
    once all have answered, or two leases are over. `unreached` holds, for each dialler, those it
    did not reach and how the last dial ended; it outlives sweeps, until the dialler reaches them or
    either is gone.
    """

    def __init__(self, shared: LeaderShared, members: Members) -> None:
        super().__init__(shared)
        self.unreached: dict[str, dict[str, str]] = {}
        self._members = members
        self._number = 0
        self._roster: Sequence[Peer] = ()
        self._swept: set[str] = set()
        self._is_thorough = False
        self._is_stale = False
        self._asked: dict[str, DialPeers] = {}
        self._answers_by: float | None = None  # when all that were asked have to have answered
        self._waits_for: set[str] = set()
        self._retries_at: float | None = None

    # --- finding out -------------------------------------------------------------------------

    @property
    def is_pending(self) -> bool:
        """Whether a sweep goes on that is worth waiting for."""
        return bool(self._waits_for) and not self._is_stale

    def covers(self, roster: Iterable[Peer]) -> bool:
        """Tell whether all of a roster have answered since the last sweep began."""
        return not self._waits_for and all(one.node.incarnation in self._swept for one in roster)

    def sweep(self, roster: Sequence[Peer], *, is_thorough: bool = False) -> None:
        """Let each of a roster dial its neighbours; an earlier sweep is given up."""
        self._roster = tuple(roster)
        self._swept = {peer.node.incarnation for peer in roster}
        self._is_thorough = is_thorough or len(roster) <= FULL_MESH
        self._is_stale = False
        self._answers_by = None
        self._asked.clear()
        self._waits_for.clear()
        entries = [peer.node for peer in roster]
        for position, peer in enumerate(roster):
            dials = neighbours(position, len(roster), is_thorough=is_thorough)
            if dials:
                self._waits_for.add(peer.node.incarnation)
                self._ask(peer, [entries[other] for other in dials])

    def end_sweep(self) -> None:
        """Take what was found for old: the next round wants a sweep of its own."""
        self._swept.clear()
        self._waits_for.clear()

    def take(self, peer: Peer, report: PeersDialled) -> None:
        """Take an answer in; say which nodes are newly unreached, and how each dial ended."""
        incarnation = peer.node.incarnation
        order = self._asked.get(incarnation)
        if order is None or order.number != report.number:
            return
        del self._asked[incarnation]
        self._waits_for.discard(incarnation)
        known = self.unreached.pop(incarnation, {})
        asked = {entry.incarnation for entry in order.peers}
        members = self._members.peers
        fresh = {
            one: how for one, how in report.unreached.items() if one in asked and one in members
        }
        links = {one: how for one, how in known.items() if one not in asked} | fresh
        if links:
            self.unreached[incarnation] = links
        if not self._waits_for and not self._is_thorough and self._has_gap():
            here = [one for one in self._roster if one.node.incarnation in self._swept]
            self.sweep(here, is_thorough=True)
        if news := {members[one].node.name: how for one, how in fresh.items() if one not in known}:
            self._out.emit(PeersUnreached(member=peer.node.name, unreached=news))

    def _has_gap(self) -> bool:
        return any(
            not self._swept.isdisjoint(targets)
            for dialler, targets in self.unreached.items()
            if dialler in self._swept
        )

    def set_aside(self, incarnation: str) -> None:
        """Take a member out of the sweep that cannot be asked now, or that others may not reach."""
        self._asked.pop(incarnation, None)
        self._waits_for.discard(incarnation)
        if incarnation in self._swept:
            self._swept.discard(incarnation)
            self._is_stale |= bool(self._waits_for)

    def forget(self, incarnation: str) -> None:
        """Drop what concerns a member that is gone."""
        self.set_aside(incarnation)
        self.unreached.pop(incarnation, None)
        for dialler in [one for one, targets in self.unreached.items() if incarnation in targets]:
            del self.unreached[dialler][incarnation]
            if not self.unreached[dialler]:
                del self.unreached[dialler]

    def described(self, one: str = "") -> str:
        """Say which links failed, or which of `one` did, in words; empty if none."""
        members = self._members.peers
        gaps = [
            (members[dialler].node, members[target].node, how)
            for dialler, targets in self.unreached.items()
            for target, how in targets.items()
            if one in {"", dialler, target} and dialler in members and target in members
        ]
        return "; ".join(
            f"{dialler.name} cannot reach {target.name} at {target.address}:{target.port} ({how})"
            for dialler, target, how in gaps
        )

    # --- time --------------------------------------------------------------------------------

    def watch(self, now: float) -> None:
        """Give up answers that take too long, and try the links that failed again once a lease."""
        for peer, report in self.overdue(now):
            self.take(peer, report)
        retries_at = self.retries_at(now)
        while retries_at is not None and self._deadlines.is_due(retries_at, now):
            self.retry()
            retries_at = self.retries_at(now)

    def overdue(self, now: float) -> Sequence[tuple[Peer, PeersDialled]]:
        """Return the reports to assume for silent members: that they reach none of the others.

        A dial that fails takes a lease, and an answer may be lost with a connection.
        """
        if not self._asked:
            self._answers_by = None
            return ()
        if self._answers_by is None:
            self._answers_by = now + 2 * self._settings.lease_s
        if not self._deadlines.is_due(max(self._answers_by, self._members.judges_from), now):
            return ()
        self._answers_by = None
        members = self._members.peers
        return [
            (
                members[incarnation],
                PeersDialled(
                    term=self._term,
                    number=order.number,
                    unreached={entry.incarnation: _NO_ANSWER for entry in order.peers},
                ),
            )
            for incarnation, order in self._asked.items()
            if incarnation in members
        ]

    def retries_at(self, now: float) -> float | None:
        """Return when the links that failed are to be tried again; None: there are none."""
        if not self.unreached:
            self._retries_at = None
        elif self._retries_at is None:
            self._retries_at = now + self._settings.lease_s
        return self._retries_at

    def retry(self) -> None:
        """Let members dial the unreached nodes again."""
        self._retries_at = None
        members = self._members.peers
        for dialler, targets in self.unreached.items():
            # A node dropped a moment ago is forgotten later in the same step.
            here = [members[target] for target in targets if target in members]
            peer = members.get(dialler)
            # A suspect would not hear the question; it is asked at a later look, if it comes back.
            if dialler not in self._asked and peer is not None and not peer.is_suspect and here:
                self._ask(peer, [target.node for target in here])

    def _ask(self, peer: Peer, targets: Sequence[Node]) -> None:
        self._number += 1
        order = DialPeers(term=self._term, number=self._number, peers=tuple(targets))
        self._asked[peer.node.incarnation] = order
        self._out.send_to(peer.connection, order)


class PeerDials:
    """The order that is being carried out, if there is one."""

    def __init__(self) -> None:
        self._order: DialPeers | None = None
        self._waits_for: set[str] = set()
        self._unreached: dict[str, str] = {}

    def begin(self, order: DialPeers) -> tuple[Ask, ...]:
        """Return the dials that an order asks for; whatever went on before is given up."""
        if order == self._order:
            return ()  # said again, as the leader could not know that it was heard
        self._order = order
        self._unreached.clear()
        self._waits_for = {entry.incarnation for entry in order.peers}
        return tuple(Ask(node=each) for each in order.peers)

    def take(self, answer: Answered) -> PeersDialled | None:
        """Take in how a dial ended; return the answer to the order, if that was the last one."""
        if self._order is None or answer.incarnation not in self._waits_for:
            return None
        self._waits_for.discard(answer.incarnation)
        if answer.outcome is not Outcome.ALIVE:
            self._unreached[answer.incarnation] = answer.outcome.value
        return None if self._waits_for else self.answer()

    def answer(self) -> PeersDialled | None:
        """Return the report once all were dialled: it is sent again after joining."""
        if self._order is None or self._waits_for:
            return None
        return PeersDialled(
            term=self._order.term, number=self._order.number, unreached=dict(self._unreached)
        )
