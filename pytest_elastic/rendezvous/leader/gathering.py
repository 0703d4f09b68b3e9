"""Before a round: are enough nodes ready, how long to wait, whether to begin at all.

Between two rounds, `Gathering` decides that (R1, R2). Before the first one of a leader that has
found nothing, `FirstRound` decides whether it may begin a job, or one may be running already (R12).

A host that has forgotten everything is elected all the same, in the configuration of hosts. Where
it is alone in that, these are safe: that there cannot be nodes enough for a second job; to wait
until the survivors of a first one would have announced themselves; to count only nodes that know of
no job; and a **mark** that was left on this machine, which names the voters of the job of before.
Those, and nodes that come and have promised a higher term, are its *elders*: each is dialled once a
beat, and waited for as long as it may go on with that job, for three times as long as an election
takes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pytest_elastic.events.model import FirstRoundDelayed
from pytest_elastic.rendezvous.consensus.records import Mark
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.leader.members import Members
from pytest_elastic.rendezvous.leader.state import LeaderPart, LeaderShared, Peer, Round
from pytest_elastic.rendezvous.leases import announced_within_s
from pytest_elastic.rendezvous.messages import JoinRequest
from pytest_elastic.rendezvous.model import Node, natural_key, rank_order
from pytest_elastic.rendezvous.reachability import Reachability, mutually_reachable
from pytest_elastic.rendezvous.vocabulary import Answered, Ask, Outcome
from pytest_elastic.wire import Value

__all__ = ["Enough", "FirstRound", "Gathering", "TooFew"]


class Enough(Value):
    """A round can be proposed of this roster, in rank order, all of which reach each other."""

    roster: Sequence[Peer]
    reason: str


class TooFew(Value):
    """The job is lost: too few nodes came for too long."""

    reason: str


class Gathering(LeaderPart):
    """Looks at the ready nodes, and remembers since when they were too few, or enough."""

    def __init__(self, shared: LeaderShared, members: Members, reach: Reachability) -> None:
        super().__init__(shared)
        self._members = members
        self._reach = reach
        self._too_few_since: float | None = None
        self._enough_since: float | None = None
        self._spares_until: float | None = None

    def wait_for_spares(self, until: float) -> None:
        """Leave the spares of an earlier leader time to come, where there is room (R11)."""
        self._spares_until = until

    def end(self) -> None:
        """Note that a round was started."""
        self._spares_until = self._too_few_since = self._enough_since = None
        self._reach.end_sweep()

    def look(self, last: Round | None, now: float) -> Enough | TooFew | None:
        """Decide what follows the `last` round; None: wait."""
        wanted = self._settings
        if last is not None and any(each in last.incarnations for each in self._members.suspects):
            return None  # until it is known how it ended: that decides what the last round costs
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
        reason = _are_ready(len(ready))
        if last is None and len(ready) < wanted.max_nodes:
            if not is_due(self._enough_since + wanted.last_call_s, now):
                return None
            reason += f" and the last call of {wanted.last_call_s:g} s is over"
        elif len(ready) >= wanted.max_nodes:
            reason = f"{_are_ready(wanted.max_nodes)}, and no more may be"
        else:
            reason += ", and no other node is left of the last round"
        roster = self._choose(ready, last)
        if not self._reach.covers(roster):
            self._reach.sweep(roster)
            if not self._reach.covers(roster):  # a sweep of one node covers it at once
                return None
        own = self._replication.configuration_of([peer.node.incarnation for peer in roster])
        if not self._members.hears_most_of(own.voters):
            return None  # only we could decide what the others accept
        return Enough(roster=roster, reason=reason)

    @property
    def _here(self) -> Collection[str]:
        return [each for each, peer in self._members.peers.items() if not peer.is_suspect]

    def _choose(self, ready: Iterable[Peer], last: Round | None) -> tuple[Peer, ...]:
        """Choose the nodes of the next round, survivors first (R7); in rank order (R9)."""
        claims = self._by_claim(ready, last)[: self._settings.max_nodes]
        chosen = {peer.node.incarnation: peer for peer in claims}
        order = rank_order((peer.node for peer in chosen.values()), last.names if last else ())
        return tuple(chosen[node.incarnation] for node in order)

    def _by_claim(self, peers: Iterable[Peer], last: Round | None) -> Sequence[Peer]:
        old = last.incarnations if last is not None else frozenset()
        return sorted(peers, key=lambda peer: (peer.node.incarnation not in old, peer.came_at))

    def look_ahead(self, last: Round) -> None:
        """Find out which nodes reach each other while the `last` round's workers are stopped."""
        members = self._members.peers.values()
        here = [one for one in members if not one.is_suspect and not one.is_leaving]
        self._reach.sweep(self._choose(self._together(here, last), last))

    def newcomers(self, last: Round, now: float) -> Sequence[Peer]:
        """Return the nodes for which the `last` round is to end: they could be in the next (R7)."""
        ready, wanted = self._members.ready, self._settings
        if last.stop_reason is not None or not last.unfinished or last.has_success:
            return ()
        if last.is_full(wanted.max_nodes) or not ready:
            return ()
        gathered_at = next(iter(ready.values())).came_at + wanted.newcomer_window_s
        if not self._deadlines.is_due(max(gathered_at, last.at + wanted.min_round_s), now):
            return ()
        if self._reach.is_pending:
            return ()  # until it is known which nodes reach each other
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
        """Return peers that all reach each other, as far as is known (R13).

        The leader's own node goes before the members of the `last` round, in the order of their
        ranks, and those before newcomers, in the order of their claims.
        """
        if not self._reach.unreached:
            return peers
        ranks = [peer.node.incarnation for peer in last.roster] if last is not None else []
        here = {one.node.incarnation for one in peers}
        own = [each for each in (self._own.incarnation,) if each in here]
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
        if gaps := self._reach.described():
            reason += f"; {gaps}"
        elif last is None and len(here) < wanted.min_nodes:
            reason += (
                ". Start the others with the same --rdzv-endpoint and --rdzv-id, and see that they "
                "can reach this node; --rdzv-conf join_timeout is how long they may take"
            )
        return TooFew(reason=reason)


# How long a leader may need for a look at the endpoint, at most: it has as long for an answer.
_LOOK_S = 1.0
# By how much longer a node that may live is waited for: an election may have to be tried again, and
# a link that is cut for longer than it takes to notice heals as a rule. There has to be an end, as
# some nodes that have lost each other can do nothing without this host.
_PATIENCE = 3
# Without a token any peer may claim an earlier job; each that does is dialled once a beat.
_MAX_ELDERS = 64


@dataclass(slots=True)
class _Elder:
    """A node that may go on with the job of before."""

    entry: Node
    outcome: Outcome = Outcome.SILENT
    is_asked: bool = False
    has_end: bool = False


class FirstRound(LeaderPart):
    """Asked when enough nodes are ready for the first round of a leader that has found nothing."""

    def __init__(self, shared: LeaderShared, recovered: Recovered) -> None:
        super().__init__(shared)
        settings, began_at, mark = self._settings, recovered.began_at, recovered.mark
        is_new = recovered.record.number == 0
        self._is_guarded = is_new and settings.has_succession and not settings.endpoints
        self._job = mark.job if mark is not None and self._is_guarded else None
        self._elders: dict[str, _Elder] = {}
        self._of_before: dict[str, int] = {}  # the newest round that a node knew of when it came
        self._number = self._restarts_used = 0
        self._ask_at = began_at
        self._asked_at: float | None = None
        self._has_few_new = False
        self._told = ""
        announce_s = announced_within_s(settings)
        self._announced_by = began_at + announce_s
        self._waits_until = self._announced_by if settings.could_be_two else began_at
        self._heard_by = began_at
        self._elders_until = began_at + _PATIENCE * announce_s
        if mark is not None and self._job is not None:
            self._take_mark(mark, began_at, announce_s)

    def _take_mark(self, mark: Mark, began_at: float, announce_s: float) -> None:
        job, beat_s = mark.job, self._settings.beat_interval_s
        renewed_at = min(mark.renewed_at, began_at) + beat_s
        # A leader that was elected long ago looks at the endpoint all the time.
        self._heard_by = max(renewed_at + announce_s, began_at + 2 * beat_s + _LOOK_S)
        patient_until = renewed_at + _PATIENCE * announce_s
        self._elders_until = max(patient_until, self._heard_by + self._settings.lease_s)
        # The record that was accepted last may be younger than what else the mark says.
        self._restarts_used = max(job.restarts_used, job.record.restart_count)
        self._number = job.number
        for record in (job.base, job.record):
            for entry in record.roster:
                if entry.incarnation in record.configuration.voters:
                    self._elders[entry.incarnation] = _Elder(entry)

    # --- nodes that come, and elders that are dialled ----------------------------------------

    def meet(self, request: JoinRequest) -> None:
        """Note a node that is let in, and whether it knows of a job.

        The first time decides: later ones may tell of what this leader has said.
        """
        incarnation = request.node.incarnation
        if self._is_guarded and self._of_before.setdefault(incarnation, request.number):
            self._waits_until = max(self._waits_until, self._announced_by)

    def must_wait_for(self, request: JoinRequest, now: float) -> bool:
        """Tell whether a node that has promised a higher term may still go on with its own job."""
        if not self._is_guarded or self._deadlines.is_due(self._elders_until, now):
            return False
        incarnation = request.node.incarnation
        if incarnation not in self._elders and len(self._elders) >= _MAX_ELDERS:
            return True
        elder = self._elders.setdefault(incarnation, _Elder(request.node))
        elder.outcome = Outcome.ALIVE
        self._number = max(self._number, request.number)
        self._restarts_used = max(self._restarts_used, request.restarts_used)
        return True

    def watch(self, here: Collection[str], now: float) -> None:
        """Dial the elders that are not `here` (incarnations of members)."""
        if not self._elders or not self._deadlines.is_due(self._ask_at, now):
            return
        self._ask_at = now + self._settings.beat_interval_s
        self._deadlines.is_due(self._ask_at, now)
        for elder in self._left(here):
            if not elder.is_asked:
                elder.is_asked = True
                self._out.add(Ask(node=elder.entry))

    def take_answer(self, answer: Answered) -> None:
        """Note what a dial has shown; a tombstone is the last word."""
        elder = self._elders.get(answer.incarnation)
        if elder is None or not elder.is_asked:
            return
        elder.is_asked = False
        if elder.outcome is not Outcome.TOMBSTONE:
            elder.outcome = answer.outcome
        if answer.answer is not None:
            elder.has_end |= answer.answer.has_end
            self._number = max(self._number, answer.answer.number)
            self._restarts_used = max(self._restarts_used, answer.answer.restarts_used)

    def _left(self, here: Collection[str], *outcomes: Outcome) -> Sequence[_Elder]:
        return [
            elder
            for incarnation, elder in self._elders.items()
            if incarnation not in here and elder.outcome is not Outcome.TOMBSTONE
            if not outcomes or elder.outcome in outcomes
        ]

    def _have_ended(self, here: Collection[str]) -> bool:
        """Tell whether no elder can go on with its job, as far as they say."""
        if self._left(here, Outcome.SILENT):
            return False  # one may be in a later round, made with others that have ended since
        alive = self._left(here, Outcome.ALIVE)
        voters = {elder.entry.incarnation for elder in alive}
        job = self._job
        is_later = job is None or self._number > job.number
        can_elect = job is not None and any(
            each.configuration.has_quorum(voters) for each in (job.base, job.record)
        )
        return not (alive and (is_later or can_elect or any(each.has_end for each in alive)))

    # --- whether to begin --------------------------------------------------------------------

    def may_begin(self, ready: Iterable[str], here: Collection[str], now: float) -> bool:
        """Tell whether a round may be proposed; `ready` could be in it, `here` are all members."""
        if not self._is_guarded:
            return True
        new = sum(self._is_new(incarnation, here) for incarnation in ready)
        self._has_few_new = new < self._settings.min_nodes
        wait_s, why = self._wait(here, now)
        if wait_s <= 0 and self._has_few_new:
            wait_s = self._settings.join_timeout_s
        if wait_s <= 0:
            return True
        if self._asked_at is None or (why and why != self._told):
            self._told = why
            self._out.emit(FirstRoundDelayed(wait_s=round(wait_s, 1), reason=why))
        if self._asked_at is None:
            self._asked_at = now
        return False

    def _wait(self, here: Collection[str], now: float) -> tuple[float, str]:
        is_due = self._deadlines.is_due
        if not is_due(self._waits_until, now):
            return self._waits_until - now, ""
        if not is_due(self._heard_by, now):
            return self._heard_by - now, "its members may be going on with it"
        if self._have_ended(here) or is_due(self._elders_until, now):
            return 0.0, ""
        alive = [each.entry.name for each in self._left(here, Outcome.ALIVE)]
        silent = [each.entry.name for each in self._left(here, Outcome.SILENT)]
        why = f"{', '.join(alive)} live" if alive else f"{', '.join(silent)} may live"
        return self._elders_until - now, why

    def _is_new(self, incarnation: str, here: Collection[str]) -> bool:
        number = self._of_before.get(incarnation, 0)
        is_of_mark = self._job is not None and number <= self._job.number
        return number == 0 or (is_of_mark and self._have_ended(here))

    def numbers(self, here: Collection[str]) -> tuple[int, int]:
        """Return the highest round and restarts used that an elder may know; zeros for none."""
        is_left = self._left(here, Outcome.ALIVE, Outcome.SILENT)
        is_remembered = any(self._of_before.get(incarnation) for incarnation in here)
        if not is_left and not is_remembered:
            return 0, 0
        return self._number, self._restarts_used

    def is_given_up(self, now: float) -> bool:
        """Tell whether the ready nodes should wait no longer."""
        timeout_s = self._settings.join_timeout_s
        return self._asked_at is not None and self._deadlines.is_due(
            self._asked_at + timeout_s, now
        )

    @property
    def why_lost(self) -> str:
        """Say what was missing."""
        within = f"within {self._settings.join_timeout_s:g} s"
        if self._has_few_new:
            return (
                "enough nodes were ready, but some were told of a job that runs, and without them "
                f"fewer than {self._settings.min_nodes}; no leader of that job was heard of "
                f"{within}"
            )
        return (
            f"enough nodes were ready, but run {self._settings.run_id!r} was here before, and "
            f"{self._told}; none of them has joined, or named a leader, {within}"
        )


def _are_ready(nodes: int) -> str:
    return "1 node is ready" if nodes == 1 else f"{nodes} nodes are ready"
