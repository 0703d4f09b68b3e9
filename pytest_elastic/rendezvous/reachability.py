"""Who can reach whom: what the coordinator lets members find out before it seals a round (R13).

Workers talk to each other, not by way of the coordinator: that every node has reached the
endpoint says nothing about the link between two of them. So before a round is sealed, each member
of it dials the others (or some of them, in a large job) and says whom it did not reach. Of those
that wait, only a set of which everybody reaches everybody is sealed; whoever is left out waits, and
the links that failed are tried again once a lease.

Only the node that dialled knows: that `a` reaches `b` proves nothing about the other direction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pytest_elastic.rendezvous.messages import CheckPeers, PeersChecked
from pytest_elastic.rendezvous.outbox import Outbox
from pytest_elastic.rendezvous.peer import Peer

__all__ = ["FULL_MESH", "Reachability", "mutually_reachable", "neighbours"]

# Up to so many members, each dials every other one. In a larger roster each dials as many as its
# length has binary digits; only when some of those are not reached, everybody dials everybody.
FULL_MESH = 16


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
    claims: Sequence[str], unreached: Mapping[str, Collection[str]]
) -> tuple[str, ...]:
    """Return those of `claims` that may be in a round together, in the same order.

    `claims` are incarnations, the strongest claim first; `unreached[a]` are those that `a` did not
    reach. While there are two that are apart, the one that is apart from most others is left out,
    of several the one with the weakest claim. (The largest such set is not always found: that
    problem is NP-hard. Where a network is cut into parts, it is.)
    """
    here = set(claims)
    apart: dict[str, set[str]] = {}
    for dialler, targets in unreached.items():
        for target in here.intersection(targets) if dialler in here else ():
            apart.setdefault(dialler, set()).add(target)
            apart.setdefault(target, set()).add(dialler)
    strength = {incarnation: -position for position, incarnation in enumerate(claims)}
    left = {one: set(others) for one, others in apart.items()}
    while left:
        worst = min(left, key=lambda one: (-len(left[one]), strength[one]))
        here.discard(worst)
        for other in left.pop(worst):
            left[other].discard(worst)
            if not left[other]:
                del left[other]
    for one in claims:  # left out for the sake of somebody who was left out later
        if one not in here and here.isdisjoint(apart[one]):
            here.add(one)
    return tuple(incarnation for incarnation in claims if incarnation in here)


class Reachability:
    """What is known of the links between members, all of them named by incarnation.

    A **sweep** asks each member of a roster to dial its neighbours there; it covers that roster
    once all have answered. `unreached` holds, for each dialler, those it did not reach and how the
    last dial ended; it outlives sweeps, until the dialler reaches them or either is gone.
    """

    def __init__(self, outbox: Outbox, *, term: int, answer_within_s: float, is_on: bool) -> None:
        self.unreached: dict[str, dict[str, str]] = {}
        self._out = outbox
        self._term = term
        self._answer_within_s = answer_within_s
        self._is_on = is_on
        self._number = 0
        self._roster: Sequence[Peer] = ()
        self._swept: set[str] = set()
        self._is_thorough = False
        self._is_stale = False
        self._asked: dict[str, CheckPeers] = {}
        self._retries_at: float | None = None

    # --- finding out -------------------------------------------------------------------------

    def covers(self, roster: Iterable[str]) -> bool:
        """Tell whether all of a roster have answered since the last sweep began."""
        if not self._is_on:
            return True
        return all(one in self._swept and one not in self._asked for one in roster)

    def is_sweeping(self, roster: Iterable[str]) -> bool:
        """Tell whether the sweep that goes on will cover a roster, so that it is waited for."""
        return not self._is_stale and self._swept.issuperset(roster)

    def sweep(self, roster: Sequence[Peer], *, is_thorough: bool = False) -> None:
        """Let each of a roster dial its neighbours; an earlier sweep is given up."""
        if not self._is_on:
            return
        self._roster = tuple(roster)
        self._swept = {peer.node.incarnation for peer in roster}
        self._is_thorough = is_thorough or len(roster) <= FULL_MESH
        self._is_stale = False
        self._asked.clear()
        for position, peer in enumerate(roster):
            dials = neighbours(position, len(roster), is_thorough=is_thorough)
            if dials:
                self._ask(peer, [roster[other] for other in dials])

    def end_sweep(self) -> None:
        """Take what was found for old: the next round wants a sweep of its own."""
        self._swept.clear()

    def ask_again(self, peer: Peer) -> None:
        """Repeat a question to a member that is back: it, or its answer, may have been lost."""
        if (order := self._asked.get(peer.node.incarnation)) is not None:
            self._out.send(peer, order)

    def take(
        self, peer: Peer, report: PeersChecked, members: Mapping[str, Peer]
    ) -> Mapping[str, str]:
        """Take an answer in; return who is newly known not to be reached, and how that ended."""
        incarnation = peer.node.incarnation
        order = self._asked.get(incarnation)
        if order is None or order.number != report.number:
            return {}
        del self._asked[incarnation]
        known = self.unreached.pop(incarnation, {})
        asked = {entry.incarnation for entry in order.peers}
        fresh = {
            one: how for one, how in report.unreached.items() if one in asked and one in members
        }
        links = {one: how for one, how in known.items() if one not in asked} | fresh
        if links:
            self.unreached[incarnation] = links
        if not self._is_thorough and self.covers(self._swept) and self._has_gap():
            self.sweep(
                [one for one in self._roster if one.connection is not None], is_thorough=True
            )
        return {one: how for one, how in fresh.items() if one not in known}

    def _has_gap(self) -> bool:
        return any(
            not self._swept.isdisjoint(targets)
            for dialler, targets in self.unreached.items()
            if dialler in self._swept
        )

    def forget(self, incarnation: str) -> None:
        """Drop what concerns a member that is gone; who still dials it, is not waited for."""
        self._asked.pop(incarnation, None)
        if incarnation in self._swept:
            self._swept.discard(incarnation)
            self._is_stale |= bool(self._asked)
        self.unreached.pop(incarnation, None)
        for dialler in [one for one, targets in self.unreached.items() if incarnation in targets]:
            del self.unreached[dialler][incarnation]
            if not self.unreached[dialler]:
                del self.unreached[dialler]

    # --- trying again ------------------------------------------------------------------------

    def retries_at(self, now: float) -> float | None:
        """Return when the links that failed are to be tried again; None: there are none."""
        if not self.unreached:
            self._retries_at = None
        elif self._retries_at is None:
            self._retries_at = now + self._answer_within_s
        return self._retries_at

    def retry(self, members: Mapping[str, Peer]) -> None:
        """Let members dial again whom they did not reach."""
        self._retries_at = None
        for dialler, targets in self.unreached.items():
            if dialler not in self._asked:
                self._ask(members[dialler], [members[target] for target in targets])

    def _ask(self, peer: Peer, targets: Sequence[Peer]) -> None:
        self._number += 1
        order = CheckPeers(
            term=self._term,
            number=self._number,
            peers=tuple(target.as_entry() for target in targets),
            answer_within_s=self._answer_within_s,
        )
        self._asked[peer.node.incarnation] = order
        self._out.send(peer, order)
