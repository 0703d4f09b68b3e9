"""Between two rounds: whether those who are ready are enough, and how long to wait (R1, R2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pytest_elastic.rendezvous.core.members import Members
from pytest_elastic.rendezvous.core.reachability import Reachability, mutually_reachable
from pytest_elastic.rendezvous.core.replication import Replication
from pytest_elastic.rendezvous.core.rounds import Round
from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.model import Settings
from pytest_elastic.rendezvous.ordering import natural_key, rank_order
from pytest_elastic.rendezvous.peer import Peer

__all__ = ["Enough", "Gathering", "TooFew"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough:
    """A round can be proposed of this roster, in rank order, all of which reach each other."""

    roster: Sequence[Peer]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFew:
    """The job is lost: nobody came for too long."""

    reason: str


class Gathering:
    """Looks at who is ready, and remembers since when they were too few, or enough."""

    def __init__(
        self,
        settings: Settings,
        own: str,
        *,
        members: Members,
        replication: Replication,
        reach: Reachability,
        deadlines: Deadlines,
    ) -> None:
        self._settings = settings
        self._own = own
        self._members = members
        self._replication = replication
        self._reach = reach
        self._deadlines = deadlines
        self._too_few_since: float | None = None
        self._enough_since: float | None = None
        self._spares_until: float | None = None

    def wait_for_spares(self, until: float) -> None:
        """Leave the spares of an earlier leader time to come, where there is room (R11)."""
        self._spares_until = until

    def end(self) -> None:
        """Take note that a round was started."""
        self._spares_until = self._too_few_since = self._enough_since = None
        self._reach.end_sweep()

    def look(self, last: Round | None, now: float) -> Enough | TooFew | None:
        """Decide what follows the `last` round; None: wait."""
        wanted = self._settings
        if last is not None and any(each in last.incarnations for each in self._members.suspects):
            return None  # until its fate is known: it decides what the last round costs
        if self._reach.is_pending:
            return None
        ready = self._together(self._members.ready.values(), last)
        if len(ready) < wanted.min_nodes or not self._replication.is_agreed(self._here):
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
        roster = self._choose(ready, last)
        if not self._reach.covers(roster):
            self._reach.sweep(roster)
            if not self._reach.covers(roster):  # as it does one node alone, which dials nobody
                return None
        return Enough(roster=roster, reason=reason)

    @property
    def _here(self) -> Collection[str]:
        return [each for each, peer in self._members.peers.items() if not peer.is_suspect]

    def _choose(self, ready: Iterable[Peer], last: Round | None) -> tuple[Peer, ...]:
        """Choose who is in the next round, survivors first (R7); in rank order (R9)."""
        claims = self._by_claim(ready, last)[: self._settings.max_nodes]
        chosen = {peer.node.incarnation: peer for peer in claims}
        order = rank_order((peer.node for peer in chosen.values()), last.names if last else ())
        return tuple(chosen[node.incarnation] for node in order)

    def _by_claim(self, peers: Iterable[Peer], last: Round | None) -> Sequence[Peer]:
        old = last.incarnations if last is not None else frozenset()
        return sorted(peers, key=lambda peer: (peer.node.incarnation not in old, peer.came_at))

    def look_ahead(self, last: Round) -> None:
        """Find out who reaches whom while the workers of the `last` round are being stopped."""
        members = self._members.peers.values()
        here = [one for one in members if not one.is_suspect and not one.is_leaving]
        self._reach.sweep(self._choose(self._together(here, last), last))

    def newcomers(self, last: Round, now: float) -> Sequence[Peer]:
        """Return for whom the `last` round is to end, as they could be in the next one (R7)."""
        ready, wanted = self._members.ready, self._settings
        if last.stop_reason is not None or not last.unfinished or last.has_success:
            return ()
        if last.is_full(wanted.max_nodes) or not ready:
            return ()
        gathered_at = next(iter(ready.values())).came_at + wanted.newcomer_window_s
        if not self._deadlines.is_due(max(gathered_at, last.at + wanted.min_round_s), now):
            return ()
        if self._reach.is_pending:
            return ()  # until it is known who reaches whom
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

    def _together(self, peers: Collection[Peer], last: Round | None) -> Collection[Peer]:
        """Return those of whom, as far as is known, everybody reaches everybody (R13).

        The leader's own node goes before the members of the `last` round, in the order of their
        ranks, and those before newcomers, in the order of their claims.
        """
        if not self._reach.unreached:
            return peers
        ranks = [peer.node.incarnation for peer in last.roster] if last is not None else []
        here = {one.node.incarnation for one in peers}
        own = [self._own] if self._own in here else []
        survivors = [each for each in ranks if each in here and each not in own]
        newcomers = [
            one.node.incarnation
            for one in self._by_claim(peers, last)
            if one.node.incarnation not in {*own, *ranks}
        ]
        kept = mutually_reachable(own + survivors, newcomers, unreached=self._reach.unreached)
        return [self._members.peers[incarnation] for incarnation in kept]

    def _wait_for_more(self, last: Round | None, now: float) -> TooFew | None:
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
