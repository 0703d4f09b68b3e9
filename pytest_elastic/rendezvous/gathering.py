"""Between two rounds: whether those who are ready are enough, and how long to wait (R1, R2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pytest_elastic.rendezvous.desk import Desk
from pytest_elastic.rendezvous.ordering import natural_key
from pytest_elastic.rendezvous.peer import Peer
from pytest_elastic.rendezvous.reachability import mutually_reachable
from pytest_elastic.rendezvous.round import CommittedRound, by_claim, choose_roster

__all__ = ["Enough", "Gathering", "TooFew"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough:
    """A round can be sealed of this roster, in rank order, all of which reach each other.

    `endorsers` have to acknowledge it, too, without being in it (R11.3).
    """

    roster: Sequence[Peer]
    endorsers: Sequence[Peer]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFew:
    """The job is lost: nobody came for too long."""

    reason: str


class Gathering:
    """Looks at who is ready, and remembers since when they were too few, or enough."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._settings = desk.settings
        self._members = desk.members
        self._mandate = desk.mandate
        self._deadlines = desk.deadlines
        self._reach = desk.reach
        self._too_few_since: float | None = None
        self._enough_since: float | None = None
        self._spares_until: float | None = None

    def wait_for_spares(self, until: float) -> None:
        """Leave the spares of an earlier coordinator time to come, where there is room (R11)."""
        self._spares_until = until

    def forget_spares(self) -> None:
        """Wait for them no longer: a round was committed."""
        self._spares_until = None

    def look(self, last: CommittedRound | None, now: float) -> Enough | TooFew | None:
        """Decide what follows the `last` committed round; None: wait."""
        wanted = self._settings
        if last is not None and any(
            incarnation in last.incarnation_set for incarnation in self._members.suspects
        ):
            return None  # until its fate is known: it decides what the last round costs
        if self._reach.is_pending:
            return None
        ready = self._together(self._members.ready.values(), last)
        if len(ready) < wanted.min_nodes:
            return self._wait_for_more(last, now)
        roster = choose_roster(ready, last, wanted.max_nodes)
        endorsers = self._find_endorsers(roster)
        if endorsers is None:
            return self._wait_for_more(last, now)
        is_due = self._deadlines.is_due
        waits_for_spares = self._spares_until is not None and len(ready) < wanted.max_nodes
        if waits_for_spares and not is_due(self._spares_until or now, now):
            return None
        self._too_few_since = None
        if self._enough_since is None:
            self._enough_since = now
        reason = f"{len(ready)} nodes are ready"
        if last is None and len(ready) < wanted.max_nodes:
            if not is_due(self._enough_since + wanted.last_call_s, now):
                return None
            reason += f" and the last call of {wanted.last_call_s:g} s is over"
        elif len(ready) >= wanted.max_nodes:
            reason = f"{wanted.max_nodes} nodes are ready, and no more may be"
        else:
            reason += ", and nobody else is left of the last round"
        if not self._reach.covers(roster):
            self._reach.sweep(roster)
            if not self._reach.covers(roster):  # as it does one node alone, which dials nobody
                return None
        return Enough(roster=roster, endorsers=endorsers, reason=reason)

    def look_ahead(self, last: CommittedRound) -> None:
        """Find out who can reach whom while the workers of the `last` round are being stopped."""
        members = self._members.peers.values()
        here = [one for one in members if not one.is_suspect and not one.is_leaving]
        together = self._together(here, last)
        self._reach.sweep(choose_roster(together, last, self._settings.max_nodes))

    def may_join(self, last: CommittedRound) -> Sequence[Peer]:
        """Return who waits and could be in a round with those that are in the `last` one (R7).

        Nobody, until it is known who reaches whom.
        """
        if self._reach.is_pending:
            return ()
        ready = self._members.ready
        present = [
            peer
            for peer in last.roster
            if not peer.is_suspect and peer.node.incarnation in self._members.peers
        ]
        together = tuple(self._together((*present, *ready.values()), last))
        if not self._reach.covers(together):
            self._reach.sweep(together)
            return ()
        return [peer for peer in together if peer.node.incarnation in ready]

    def _together(self, peers: Collection[Peer], last: CommittedRound | None) -> Collection[Peer]:
        """Return those of whom, as far as is known, everybody reaches everybody (R13).

        The coordinator's own node goes before the members of the `last` round, in the order of
        their ranks, and those before newcomers, in the order of their claims.
        """
        if not self._reach.unreached:
            return peers
        ranks = [entry.incarnation for entry in last.seal.roster] if last is not None else []
        own = [one.node.incarnation for one in peers if self._desk.is_own(one)]
        here = {one.node.incarnation for one in peers} - set(own)
        survivors = [incarnation for incarnation in ranks if incarnation in here]
        newcomers = [
            one.node.incarnation
            for one in by_claim(peers, last)
            if one.node.incarnation in here and one.node.incarnation not in ranks
        ]
        kept = mutually_reachable(own + survivors, newcomers, unreached=self._reach.unreached)
        return [self._members.peers[incarnation] for incarnation in kept]

    def _find_endorsers(self, roster: Iterable[Peer]) -> Sequence[Peer] | None:
        """Return whose voice a round of this roster needs besides (R11.3); None: it is not here.

        A quorum of two electorates may be more than `max_nodes`.
        """
        agreeing = {peer.node.incarnation for peer in roster}
        if self._mandate.allows(agreeing):
            return ()
        endorsers: list[Peer] = []
        electorates = self._mandate.electorates
        voices = {entry.incarnation for each in electorates for entry in each.members}
        for incarnation, peer in self._members.ready.items():
            if incarnation in voices - agreeing:
                agreeing.add(incarnation)
                endorsers.append(peer)
                if self._mandate.allows(agreeing):
                    return endorsers
        return None

    def _wait_for_more(self, last: CommittedRound | None, now: float) -> TooFew | None:
        self._enough_since = None
        if self._too_few_since is None:
            self._too_few_since = now
        wanted = self._settings
        if not self._deadlines.is_due(self._too_few_since + wanted.join_timeout_s, now):
            return None
        here = sorted((peer.node.name for peer in self._members.ready.values()), key=natural_key)
        reason = (
            f"{len(here)} of at least {wanted.min_nodes} nodes were ready within "
            f"{wanted.join_timeout_s:g} s: {', '.join(here) or 'none'}"
        )
        if len(here) >= wanted.min_nodes and not self._reach.unreached:
            reason += ", which is no majority of the last round"
        if last is not None:
            missing = [name for name in last.names if name not in here]
            reason += f"; missing since round {last.number}: {', '.join(missing)}"
        if gaps := self._reach.described(self._members.peers):
            reason += f"; {gaps}"
        elif last is None and len(here) < wanted.min_nodes:
            reason += (
                ". Start the others with the same --rdzv-endpoint and --rdzv-id, and see that they "
                "can reach this node; --rdzv-conf join_timeout is how long they may take"
            )
        return TooFew(reason=reason)
