"""The side of the rendezvous that decides: when a round is sealed, when it ends, when the job does.

Every input changes what is known; then `_advance` looks at the phase and at what is known, and
goes on until nothing more follows. So no decision depends on the order in which two pieces of news
arrive, and a timer is nothing but a look at the clock: whatever deadline was looked at and not yet
over is what `wake_at` returns.

    GATHERING   no round; waits until enough members are ready (R1, R2), then seals
    SEALING     a roster is sealed; waits for its acknowledgements, its worker store (R8), and
                until no worker of a lost member can still run (R5, R6), then commits
    RUNNING     workers run; waits for the end of the job, or for a reason to stop (R3, R4, R5, R7)
    STOPPING    the stop order was given; waits until every worker is gone, or its node lost (R2)
    ENDING      the end of the job is decided; waits until everybody has heard of it (R10)
    OVER        everybody has; answers late comers for a while
    DEPOSED     decides no more: its mandate is lost, or it leaves and has handed over (R11)

A coordinator that follows another one begins in the middle: with a round that runs, and members
none of whom has come yet (`_inherit`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import Enum

from typing_extensions import assert_never

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.ballot import electorate_of
from pytest_elastic.rendezvous.budget import Budget, Verdict, judge
from pytest_elastic.rendezvous.changes import Back, Came, Change, Suspected, Went
from pytest_elastic.rendezvous.farewell import Farewell
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.mandate import GrantedMandate, Mandate, mandate_for
from pytest_elastic.rendezvous.membership import Membership
from pytest_elastic.rendezvous.model import Node, RosterEntry, Settings
from pytest_elastic.rendezvous.ordering import natural_key
from pytest_elastic.rendezvous.outbox import Outbox
from pytest_elastic.rendezvous.peer import Peer, Standing
from pytest_elastic.rendezvous.round import (
    CommittedRound,
    SealedRound,
    choose_roster,
    inherited_round,
)
from pytest_elastic.rendezvous.vocabulary import (
    CoordinatorCommand,
    CoordinatorInput,
    Finished,
    JobFound,
    MandateExtended,
    PeerLost,
    PeerMessage,
    ProbeAnswered,
    SteppedDown,
    Superseded,
    TimePassed,
)

__all__ = ["ALLOWED", "CoordinatorMachine", "Phase"]

# What a stop may take beyond its grace before the member is given up: SIGKILL, and its report.
EVICTION_MARGIN_S = 5.0


class Phase(Enum):
    """What the job is doing."""

    # There is one object of each; Enum hashes by name, in Python, at every look into a set.
    __hash__ = object.__hash__

    GATHERING = "gathering"
    SEALING = "sealing"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDING = "ending"
    OVER = "over"
    DEPOSED = "deposed"


ALLOWED: dict[Phase, frozenset[Phase]] = {
    Phase.GATHERING: frozenset({Phase.SEALING, Phase.ENDING, Phase.DEPOSED}),
    Phase.SEALING: frozenset({Phase.RUNNING, Phase.GATHERING, Phase.DEPOSED}),
    Phase.RUNNING: frozenset({Phase.STOPPING, Phase.ENDING, Phase.DEPOSED}),
    Phase.STOPPING: frozenset({Phase.GATHERING, Phase.DEPOSED}),
    Phase.ENDING: frozenset({Phase.OVER, Phase.DEPOSED}),
    Phase.OVER: frozenset(),
    Phase.DEPOSED: frozenset(),
}


class CoordinatorMachine:
    """Decides for the whole job; see `vocabulary` for how it is driven.

    `node` is the node it runs on, whose member needs no lease if nobody else has to allow anything;
    `now` is when it starts. `mandate`: who allows it to decide, if not whom the settings say.
    `heritage`: what it goes on with, if it follows another coordinator.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        node: Node,
        term: int,
        now: float,
        mandate: Mandate | None = None,
        heritage: Heritage | None = None,
    ) -> None:
        self.phase = Phase.GATHERING
        self.settings = settings
        self.node = node
        self.term = term
        self._out = Outbox()
        self._mandate = mandate or mandate_for(settings)
        self._members = Membership(
            settings=settings, own=node, term=term, outbox=self._out, mandate=self._mandate
        )
        self._budget = Budget(max_restarts=settings.max_restarts)
        self._round = 0
        self._seal: SealedRound | None = None
        self._committed: CommittedRound | None = None
        self._started_at = now
        self._not_before = now
        self._too_few_since: float | None = now
        self._enough_since: float | None = None
        self._farewell = Farewell(settings)
        self._leaving: dict[str, Peer] = {}
        self._own_leave: str | None = None
        self._ending: m.JobEnding | None = None
        self._ending_at = 0.0
        self._over_at = 0.0
        self._aware: set[str] = set()
        self._spares_until: float | None = None
        self._is_heir = heritage is not None
        self._is_finished = False
        self._wake: float | None = None
        if heritage is not None:
            self._inherit(heritage, now)

    def step(self, input: CoordinatorInput, now: float) -> tuple[CoordinatorCommand, ...]:
        """Take one input in; return what is to be done, in order."""
        if self._is_finished:
            return ()
        if self._wake is not None and now > self._wake + self.settings.beat_interval_s:
            self._members.doubt_ourselves(now)
        match input:
            case PeerMessage(connection=connection, message=message):
                self._on_message(connection, message, now)
            case PeerLost(connection=connection, reason=reason):
                self._members.lose_connection(connection, reason)
            case ProbeAnswered():
                self._members.take_answer(input, now)
            case MandateExtended(until=until):
                assert isinstance(self._mandate, GrantedMandate), "nobody outside has a say here"
                self._mandate.extend(until)
            case Superseded(term=term):
                if term > self.term:
                    self._step_down(f"{self.node.name} has voted in the election of term {term}")
            case JobFound(place=place):
                if place.term > self.term:
                    self._step_down(f"{place.name} decides, under term {place.term}")
            case TimePassed():
                pass
            case _:
                assert_never(input)
        if not self._is_finished:
            self._advance(now)
        return self._out.take()

    def wake_at(self) -> float | None:
        """Return when `TimePassed` is wanted, or None."""
        return self._wake

    # --- going on ----------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Follow up on what is known, until nothing more follows from it."""
        while True:
            self._wake = None
            before = self.phase
            if self._has_lost_mandate(now):
                self._step_down(self._mandate.why_over)
                return
            judgement = self._members.next_judgement()
            if self._ending is None and judgement is not None and self._is_due(judgement, now):
                self._members.drop_silent(now)
            has_news = bool(self._members.changes)
            while self._members.changes:
                self._on_change(self._members.changes.popleft(), now)
            self._look(now)
            if self.phase is before and not has_news and not self._members.changes:
                return

    def _look(self, now: float) -> None:
        match self.phase:
            case Phase.GATHERING:
                self._gather(now)
            case Phase.SEALING:
                self._watch_seal(now)
            case Phase.RUNNING:
                self._watch_round(now)
            case Phase.STOPPING:
                self._watch_stop(now)
            case Phase.ENDING:
                self._watch_ending(now)
            case Phase.OVER:
                self._linger(now)
            case Phase.DEPOSED:
                pass
            case _:
                assert_never(self.phase)

    def _become(self, phase: Phase) -> None:
        assert phase in ALLOWED[self.phase], f"a job cannot go from {self.phase} to {phase}"
        self.phase = phase

    def _is_due(self, deadline: float, now: float) -> bool:
        """Tell whether a deadline has passed; if not, make sure that we wake up for it."""
        if now >= deadline:
            return True
        if self._wake is None or deadline < self._wake:
            self._wake = deadline
        return False

    # --- what members say --------------------------------------------------------------------

    def _on_message(self, connection: int, message: m.Message, now: float) -> None:
        peer = self._members.peer_at(connection)
        if isinstance(message, m.Hello):
            if self.settings.has_succession and message.term > self.term:
                self._step_down(f"{message.node.name} has promised to obey term {message.term}")
            elif peer is None:
                self._members.greet(connection, message, now)
            return
        if peer is None:
            return  # it was refused or given up, and this was already on its way
        match message:
            case m.Beat():
                self._members.take_beat(peer, message, now)
            case m.SealAcknowledged(term=self.term, round=round_):
                if self._seal is not None and round_ == self._seal.number:
                    self._seal.missing.discard(peer.node.incarnation)
                    self._mandate.hear(peer.node.incarnation, self._seal.sealed_at)
            case m.EndAcknowledged(term=self.term):
                self._aware.add(peer.node.incarnation)
                self._farewell.forget(peer.node.incarnation)
            case ports.StoreOpened() | ports.StoreFailed():
                self._on_store(peer, message, now)
            case ports.GroupSucceeded(round=round_):
                self._on_success(peer, round_)
            case ports.GroupFailed():
                self._on_failure(peer, message)
            case ports.WorkersGone(round=round_):
                self._on_workers_gone(peer, round_, now)
            case ports.DrainRequested():
                self._on_drain(peer, message, now)
            case _:
                self._members.lose_connection(connection, f"it sent {type(message).__name__}")
                self._out.disconnect(connection)

    def _on_store(
        self, peer: Peer, answer: ports.StoreOpened | ports.StoreFailed, now: float
    ) -> None:
        seal = self._seal
        if seal is None or answer.round != seal.number or peer is not seal.store_host:
            return
        if isinstance(answer, ports.StoreOpened):
            seal.store = (answer.address, answer.port)
        else:
            self._members.evict(peer, f"it could not open a worker store: {answer.reason}", now)

    def _on_success(self, peer: Peer, round_: int) -> None:
        committed = self._committed
        if committed is None or round_ != committed.number or peer.round != round_:
            return
        if self.phase is Phase.RUNNING and peer.standing is Standing.RUNNING:
            committed.unfinished.discard(peer.node.incarnation)
            committed.has_success = True
            self._members.update(peer, Standing.SUCCEEDED)

    def _on_failure(self, peer: Peer, failed: ports.GroupFailed) -> None:
        committed = self._committed
        if committed is None or failed.round != committed.number:
            return
        if self.phase is not Phase.RUNNING or peer.standing is not Standing.RUNNING:
            return  # what ends after the stop order was told to end
        if not failed.failures:
            committed.stop_because(f"workers of {peer.node.name} failed")
            return
        first = failed.failures[0]
        committed.first_failure = dataclasses.replace(first, node=peer.node.name)
        how = first.signal_name or f"exit code {first.exit_code}"
        committed.stop_because(f"rank {first.rank} on {peer.node.name} failed ({how})")

    def _on_workers_gone(self, peer: Peer, round_: int, now: float) -> None:
        committed = self._committed
        if committed is None or round_ != committed.number or peer.round != round_:
            return
        if peer.standing not in {Standing.RUNNING, Standing.SUCCEEDED}:
            return
        committed.holding.discard(peer.node.incarnation)
        self._members.update(peer, Standing.WAITING)
        if peer.is_leaving:
            self._let_go(peer, now)
        else:
            reason = f"the workers of {peer.node.name} are gone"
            committed.stop_because(reason)
            if committed.is_inherited and self.phase is Phase.RUNNING:
                # The coordinator of before had stopped it; why, went with it.
                committed.lost_or_gained = committed.lost_or_gained or reason

    def _on_drain(self, peer: Peer, drain: ports.DrainRequested, now: float) -> None:
        if peer.is_leaving:
            return
        peer.leaves_by = now + max(drain.grace_s, 0.0)
        peer.leave_reason = drain.reason
        self._members.update(peer)
        notice = ports.PeerDraining(node=peer.node.name, grace_s=drain.grace_s)
        for other in self._members.peers.values():
            if other is not peer:
                self._out.send(other, notice)
        self._leaving[peer.node.incarnation] = peer
        if (
            peer.node.incarnation == self.node.incarnation
            and not self.settings.outlives_coordinator
        ):
            self._own_leave = (
                f"{peer.node.name} leaves ({drain.reason}), which hosts the rendezvous, and there "
                "is no succession"
            )
        if not peer.has_workers:
            self._let_go(peer, now)

    def _let_go(self, peer: Peer, now: float) -> None:
        """Let a member go whose workers are gone; with the coordinator's own goes the job (R4)."""
        is_own = peer.node.incarnation == self.node.incarnation
        if is_own and self.settings.outlives_coordinator:
            successor = self._choose_successor()
            if successor is not None:
                self._hand_over(peer, successor)
                return
            self._own_leave = f"{peer.node.name} leaves ({peer.leave_reason}), and nobody is left"
        if self._own_leave is None or not is_own:
            self._mandate.excuse(peer.node.incarnation)
            self._members.let_go(peer, peer.leave_reason, now)
            return
        if self._seal is not None:
            self._seal.broken_by = self._own_leave
        if self._committed is not None:
            self._committed.stop_because(self._own_leave)

    # --- what became of members --------------------------------------------------------------

    def _on_change(self, change: Change, now: float) -> None:
        match change:
            case Came(peer=peer):
                self._on_came(peer)
            case Back(peer=peer):
                self._on_back(peer)
            case Suspected(peer=peer):
                self._on_suspected(peer, now)
            case Went():
                self._on_went(change, now)
            case _:
                assert_never(change)

    def _on_came(self, peer: Peer) -> None:
        self._farewell.meet(peer.node.incarnation)
        if self._members.newest_round > self._round and self._is_heir:
            self._round = self._members.newest_round  # sealed once, and never committed
        elif self._members.newest_round > self._round:
            # An earlier coordinator's workers may be running on nodes that have not come back.
            self._round = self._members.newest_round
            lease_end = self._started_at + self.settings.lease_s + self.settings.drift_s
            self._not_before = max(self._not_before, lease_end)
            if self._committed is None:
                used = max(self._budget.used, self._members.restarts_used)
                self._budget = dataclasses.replace(self._budget, used=used)
        if self._ending is not None:
            self._tell_ending(peer)
        elif self.phase is Phase.RUNNING and self._is_full():
            self._out.send(peer, self._spare_notice())

    def _on_suspected(self, peer: Peer, now: float) -> None:
        incarnation = peer.node.incarnation
        if self._seal is not None and peer.standing is Standing.SEALED:
            self._seal.missing.add(incarnation)  # the commit could not reach it
        self._farewell.lose(incarnation, now)
        is_own = incarnation == self.node.incarnation
        can_return = self.settings.outlives_coordinator  # it gives a round up like any other member
        if is_own and self._own_leave is None and self._ending is None and not can_return:
            # In this very process nothing else can end a connection: its agent takes no part.
            self._own_leave = f"{peer.node.name}, which hosts the rendezvous, has left"
            self._let_go(peer, now)

    def _on_back(self, peer: Peer) -> None:
        """Tell a member again what it may have missed; it knows which it has seen."""
        self._round = max(self._round, self._members.newest_round)
        self._farewell.meet(peer.node.incarnation)
        if self._ending is not None:
            self._tell_ending(peer)
        elif peer.standing is Standing.SEALED and self._seal is not None:
            self._out.send(peer, self._seal.message)
        elif peer.standing in {Standing.RUNNING, Standing.SUCCEEDED}:
            assert self._committed is not None, "workers run in a committed round"
            if self.phase is Phase.STOPPING:
                self._out.send(peer, self._stop_order(self._committed))
            else:
                self._out.send(peer, self._committed.seal)
                self._out.send(peer, self._committed.commit)
        elif self.phase is Phase.RUNNING and self._is_full():
            self._out.send(peer, self._spare_notice())

    def _on_went(self, gone: Went, now: float) -> None:
        incarnation = gone.peer.node.incarnation
        if gone.may_return:
            self._farewell.part_from(incarnation, now)
        else:
            self._farewell.forget(incarnation)
        if gone.safe_at is not None:
            self._not_before = max(self._not_before, gone.safe_at)
        self._leaving.pop(incarnation, None)
        seal, committed = self._seal, self._committed
        if seal is not None and gone.peer.standing is Standing.SEALED:
            seal.broken_by = gone.reason
        if committed is not None and incarnation in committed.incarnation_set:
            committed.absent.add(incarnation)
            committed.holding.discard(incarnation)
            committed.lost_or_gained = committed.lost_or_gained or gone.reason
            if gone.peer.standing is not Standing.SUCCEEDED:
                committed.unfinished.discard(incarnation)
                committed.stop_because(gone.reason)

    def _is_full(self) -> bool:
        committed = self._committed
        if committed is None:
            return False
        return len(committed.roster) - len(committed.absent) >= self.settings.max_nodes

    # --- gathering ---------------------------------------------------------------------------

    def _gather(self, now: float) -> None:
        if self._own_leave is not None:
            self._end("lost", self._own_leave, now)
            return
        ready, wanted = self._members.ready, self.settings
        committed = self._committed
        if committed is not None and any(
            incarnation in committed.incarnation_set for incarnation in self._members.suspects
        ):
            return  # until its fate is known: it decides what the last round costs
        if len(ready) < wanted.min_nodes or not self._is_allowed():
            self._wait_for_more(now)
            return
        waits_for_spares = self._spares_until is not None and len(ready) < wanted.max_nodes
        if waits_for_spares and not self._is_due(self._spares_until or now, now):
            return
        self._too_few_since = None
        if self._enough_since is None:
            self._enough_since = now
        reason = f"{len(ready)} nodes are ready"
        if committed is None and len(ready) < wanted.max_nodes:
            if not self._is_due(self._enough_since + wanted.last_call_s, now):
                return
            reason += f" and the last call of {wanted.last_call_s:g} s is over"
        elif len(ready) >= wanted.max_nodes:
            reason = f"{wanted.max_nodes} nodes are ready, and no more may be"
        else:
            reason += ", and nobody else is left of the last round"
        self._seal_round(reason, now)

    def _is_allowed(self) -> bool:
        """Tell whether those who are ready may be a round, by whoever has a say in it."""
        if not self._mandate.electorates:
            return True
        wanted = self.settings.max_nodes
        roster = choose_roster(self._members.ready.values(), self._committed, wanted)
        return self._mandate.allows({peer.node.incarnation for peer in roster})

    def _wait_for_more(self, now: float) -> None:
        self._enough_since = None
        if self._too_few_since is None:
            self._too_few_since = now
        wanted = self.settings
        if not self._is_due(self._too_few_since + wanted.join_timeout_s, now):
            return
        here = sorted((peer.node.name for peer in self._members.ready.values()), key=natural_key)
        reason = (
            f"{len(here)} of at least {wanted.min_nodes} nodes were ready within "
            f"{wanted.join_timeout_s:g} s: {', '.join(here) or 'none'}"
        )
        if len(here) >= wanted.min_nodes:
            reason += ", which is no majority of the last round"
        if self._committed is not None:
            missing = [name for name in self._committed.names if name not in here]
            reason += f"; missing since round {self._committed.number}: {', '.join(missing)}"
        self._end("lost", reason, now)

    def _seal_round(self, reason: str, now: float) -> None:
        ready = self._members.ready.values()
        roster = choose_roster(ready, self._committed, self.settings.max_nodes)
        incarnations = tuple(peer.node.incarnation for peer in roster)
        missing = set(incarnations)
        ended = self._committed.as_ended() if self._committed is not None else None
        verdict, why = judge(self._budget, ended, incarnations)
        if verdict is Verdict.JOB_FAILS:
            self._end("failed", why, now)
            return
        self._round += 1
        self._members.newest_round = self._round
        names = tuple(peer.node.name for peer in roster)
        spares = tuple(
            peer.node.name
            for incarnation, peer in self._members.ready.items()
            if incarnation not in missing
        )
        restart_count = self._budget.used + (verdict is Verdict.CHARGED)
        message = m.Seal(
            term=self.term,
            round=self._round,
            roster=tuple(peer.as_entry() for peer in roster),
            spares=spares,
            restart_count=restart_count,
            max_restarts=self.settings.max_restarts,
            sealed_by=self.node.incarnation,
            electorates=self._mandate.electorates,
            idle_rounds=self._budget.idle_rounds,
        )
        self._seal = SealedRound(
            message=message,
            roster=roster,
            sealed_at=now,
            verdict=verdict,
            missing=missing,
        )
        for peer in roster:
            peer.round = self._round
            self._members.update(peer, Standing.SEALED)
            self._out.send(peer, message)
        self._out.emit(
            events.RoundSealed(
                round=self._round,
                term=self.term,
                roster=names,
                spares=spares,
                restart_count=restart_count,
                reason=f"{reason}; {why}",
            )
        )
        self._become(Phase.SEALING)

    # --- sealing -----------------------------------------------------------------------------

    def _watch_seal(self, now: float) -> None:
        seal = self._seal
        assert seal is not None, "there is a seal while sealing"
        if seal.broken_by is not None:
            self._abandon(seal, seal.broken_by)
            return
        limit_s = self.settings.store_timeout_s
        if seal.store is None and self._is_due(seal.sealed_at + limit_s, now):
            self._members.evict(
                seal.store_host, f"it opened no worker store within {limit_s:g} s", now
            )
            return
        if seal.missing:
            # A member that is there answers at once; one that is not is lost by its lease anyway.
            if self._is_due(seal.sealed_at + self.settings.lease_s, now):
                for peer in seal.roster:
                    if peer.node.incarnation in seal.missing:
                        self._members.evict(peer, "it did not acknowledge the round", now)
            return
        if seal.store is not None and self._is_due(self._not_before, now):
            self._commit(seal, seal.store, now)

    def _abandon(self, seal: SealedRound, reason: str) -> None:
        """Give a sealed round up that nobody has started; its number is not used again."""
        for peer in seal.roster:
            if peer.node.incarnation in self._members.peers:
                self._members.update(peer, Standing.WAITING)
        self._seal = None
        self._budget = dataclasses.replace(self._budget, idle_rounds=self._budget.idle_rounds + 1)
        self._emit_ended(seal.number, f"given up before it was committed: {reason}", charged=False)
        self._become(Phase.GATHERING)

    def _commit(self, seal: SealedRound, store: tuple[str, int], now: float) -> None:
        if self._committed is not None:
            charged = seal.verdict is Verdict.CHARGED
            if charged:
                self._budget = dataclasses.replace(self._budget, used=self._budget.used + 1)
            reason = self._committed.stop_reason or "it ended"
            if self._committed.lost_or_gained not in {None, reason}:
                reason += f"; free: {self._committed.lost_or_gained}"
            self._emit_ended(self._committed.number, reason, charged=charged)
        incarnations = tuple(peer.node.incarnation for peer in seal.roster)
        commit = m.Commit(
            term=self.term, round=seal.number, store_address=store[0], store_port=store[1]
        )
        self._seal = None
        self._mandate.rest_on([electorate_of(seal.message)])
        self._spares_until = None
        self._committed = CommittedRound(
            seal=seal.message,
            commit=commit,
            roster=seal.roster,
            names=tuple(peer.node.name for peer in seal.roster),
            incarnation_set=frozenset(incarnations),
            committed_at=now,
            unfinished=set(incarnations),
            holding=set(incarnations),
        )
        for peer in seal.roster:
            self._members.update(peer, Standing.RUNNING)
            self._out.send(peer, commit)
        if self._is_full():
            for peer in self._members.ready.values():
                self._out.send(peer, self._spare_notice())
        self._become(Phase.RUNNING)

    def _emit_ended(self, round_: int, reason: str, *, charged: bool) -> None:
        self._out.emit(
            events.RoundEnded(
                round=round_, reason=reason, charged=charged, restarts_used=self._budget.used
            )
        )

    # --- running and stopping ----------------------------------------------------------------

    def _watch_round(self, now: float) -> None:
        committed = self._committed
        assert committed is not None, "there is a committed round while it runs"
        for peer in self._leaving.values():
            if peer.leaves_by is not None and self._is_due(peer.leaves_by, now):
                committed.stop_because(f"{peer.node.name} leaves and its grace is over")
        if committed.stop_reason is None and not committed.unfinished:
            self._end("succeeded", "the workers of all nodes succeeded", now)
            return
        if committed.stop_reason is None:
            self._look_for_newcomers(committed, now)
        if committed.stop_reason is not None:
            self._stop(committed, now)

    def _look_for_newcomers(self, committed: CommittedRound, now: float) -> None:
        """End the round for nodes that wait, if there is room for them and nobody is done (R7)."""
        if committed.has_success or self._is_full() or not self._members.ready:
            return
        first = next(iter(self._members.ready.values()))
        gathered_at = first.came_at + self.settings.newcomer_window_s
        if self._is_due(max(gathered_at, committed.committed_at + self.settings.min_round_s), now):
            names = ", ".join(peer.node.name for peer in self._members.ready.values())
            committed.stop_because(f"{names} came")
            committed.lost_or_gained = committed.lost_or_gained or f"{names} came"

    def _stop(self, committed: CommittedRound, now: float) -> None:
        committed.stopped_at = now
        has_run = now >= committed.committed_at + self.settings.min_round_s
        idle_rounds = 0 if has_run else self._budget.idle_rounds + 1
        self._budget = dataclasses.replace(self._budget, idle_rounds=idle_rounds)
        order = self._stop_order(committed)
        for peer in committed.roster:
            if peer.node.incarnation in committed.holding:
                self._out.send(peer, order)
        self._become(Phase.STOPPING)

    def _stop_order(self, committed: CommittedRound) -> m.StopOrder:
        return m.StopOrder(
            term=self.term,
            round=committed.number,
            grace_s=self.settings.shutdown_timeout_s,
            reason=committed.stop_reason or "",
        )

    def _watch_stop(self, now: float) -> None:
        committed = self._committed
        assert committed is not None, "there is a committed round while it is stopped"
        if not committed.holding:
            self._become(Phase.GATHERING)
            return
        limit_s = self.settings.shutdown_timeout_s + EVICTION_MARGIN_S
        if not self._is_due(committed.stopped_at + limit_s, now):
            return
        for peer in committed.roster:
            if peer.node.incarnation not in committed.holding:
                continue
            drained_at = (peer.leaves_by or 0.0) + EVICTION_MARGIN_S
            if self._is_due(drained_at, now):
                reason = f"its workers were not gone {limit_s:g} s after the stop order"
                self._members.evict(peer, reason, now)

    # --- the end -----------------------------------------------------------------------------

    def _end(self, result: str, reason: str, now: float) -> None:
        committed = self._committed
        if committed is not None:
            self._emit_ended(committed.number, committed.stop_reason or reason, charged=False)
        failure = committed.first_failure if committed is not None and result == "failed" else None
        self._ending = m.JobEnding(
            term=self.term, result=result, reason=reason, first_failure=failure
        )
        self._ending_at = now
        self._out.emit(events.JobEnding(result=result, reason=reason))
        self._tell_all_ending(now)
        self._become(Phase.ENDING)

    def _tell_all_ending(self, now: float) -> None:
        self._members.close(now)
        for peer in self._members.peers.values():
            if peer.is_suspect:
                self._farewell.part_from(peer.node.incarnation, now)
            else:
                self._tell_ending(peer)

    def _tell_ending(self, peer: Peer) -> None:
        assert self._ending is not None, "the end is decided"
        self._out.send(peer, self._ending)
        if self.phase is Phase.OVER:
            self._out.send(peer, m.JobEnded(term=self.term))
        else:
            self._farewell.tell(peer.node.incarnation)

    def _watch_ending(self, now: float) -> None:
        """Wait for the acknowledgements, for at most a lease; then say the last word."""
        deadline = self._ending_at + self.settings.lease_s
        if not self._farewell.is_known_to_all and not self._is_due(deadline, now):
            return
        if not self._mandate.allows(self._aware):
            if self._is_due(deadline, now):
                self._step_down("no majority of the last round has heard how the job ends")
            return
        self._farewell.give_up_the_unaware(now)
        for peer in self._members.peers.values():
            self._out.send(peer, m.JobEnded(term=self.term))
        self._over_at = now
        self._become(Phase.OVER)

    def _linger(self, now: float) -> None:
        """Stay for those who may come to ask; without any, go at once."""
        assert self._ending is not None, "the end is decided"
        if self._is_due(self._farewell.stays_until(self._over_at), now):
            self._out.add(Finished(result=self._ending.result))
            self._is_finished = True
            self._wake = None

    # --- succession --------------------------------------------------------------------------

    def _inherit(self, heritage: Heritage, now: float) -> None:
        """Go on where another coordinator was lost: with its round, and members yet to come."""
        seal = dataclasses.replace(heritage.seal, term=self.term)
        self._round = self._members.newest_round = max(heritage.newest_round, seal.round)
        is_clear = heritage.commit is not None
        self._budget = dataclasses.replace(
            self._budget,
            used=max(heritage.restarts_used, seal.restart_count),
            idle_rounds=seal.idle_rounds + (not is_clear),
        )
        self._mandate.rest_on(heritage.electorates)
        for incarnation, heard_at in heritage.heard_at.items():
            self._mandate.hear(incarnation, heard_at)
        leases_end = heritage.contact_at + self.settings.lease_s
        roster = self._members.inherit(
            [entry for entry in seal.roster if entry.incarnation not in heritage.left],
            seal.round,
            until=leases_end,
            lost=seal.sealed_by,
            now=now,
        )
        self._committed = inherited_round(
            seal, heritage, roster, committed_at=now - self.settings.min_round_s
        )
        for incarnation in sorted(heritage.left):
            self._mandate.excuse(incarnation)
        if seal.spares:
            self._spares_until = now + self.settings.beat_interval_s
        if heritage.ending is not None:
            self._ending = dataclasses.replace(heritage.ending, term=self.term)
            self._ending_at = now
            self._tell_all_ending(now)
            self.phase = Phase.ENDING
        elif is_clear:
            self.phase = Phase.RUNNING
        else:
            # Whether its workers run is not known, nor those of the round before.
            self._not_before = leases_end + self.settings.drift_s
            self._committed.stopped_at = now
            self.phase = Phase.STOPPING

    def _has_lost_mandate(self, now: float) -> bool:
        if self.phase is Phase.OVER:
            return False
        until = self._mandate.until(now)
        return until != float("inf") and self._is_due(until, now)

    def _choose_successor(self) -> Peer | None:
        """Return the first of the last round who could follow; None if nobody could."""
        for peer in self._committed.roster if self._committed is not None else ():
            is_here = self._members.peers.get(peer.node.incarnation) is peer
            is_own = peer.node.incarnation == self.node.incarnation
            if is_here and not is_own and not peer.is_suspect and not peer.is_leaving:
                return peer
        return None

    def _hand_over(self, own: Peer, successor: Peer) -> None:
        """Leave, and name who follows: nobody has to wait for a lease (R4)."""
        self._out.emit(events.MemberLeft(member=own.node.name, reason=own.leave_reason))
        self._step_down(
            f"{own.node.name} left ({own.leave_reason})",
            left=own.node.incarnation,
            successor=successor.node.incarnation,
        )

    def _step_down(self, reason: str, *, left: str = "", successor: str = "") -> None:
        """Decide no more; whoever is connected hears why."""
        if self.phase is Phase.OVER:
            return
        order = m.StepDown(term=self.term, reason=reason, left=left, successor=successor)
        for peer in self._members.peers.values():
            self._out.send(peer, order)
        self._out.emit(events.CoordinatorSteppedDown(term=self.term, reason=reason))
        self._out.add(SteppedDown(reason=reason))
        self._become(Phase.DEPOSED)
        self._is_finished = True
        self._wake = None

    def _spare_notice(self) -> m.SpareNotice:
        """Tell a spare whom to ask, should this coordinator be lost."""
        roster: Sequence[RosterEntry] = ()
        if self.settings.has_succession and self._committed is not None:
            roster = self._committed.seal.roster
        return m.SpareNotice(term=self.term, round=self._round, roster=roster)
