"""The side of the rendezvous that decides: when a round is sealed, when it ends, when the job does.

Every input changes what is known; then `_advance` looks at the phase and at what is known, and
goes on until nothing more follows. So no decision depends on the order in which two pieces of news
arrive, and a timer is nothing but a look at the clock: whatever deadline was looked at and not yet
over is what `wake_at` returns.

    GATHERING   no round; waits until enough members are ready, then seals       gathering.py
    SEALING     a roster is sealed; waits for its acknowledgements, its worker
                store (R8), and until no worker of a lost member can still run
                (R5, R6), then commits                                           sealing.py
    RUNNING     workers run; waits for the end of the job, or for a reason to
                stop (R3, R4, R5, R7)                                            running.py
    STOPPING    the stop order was given; waits until every worker is gone, or
                its node lost (R2)                                               running.py
    ENDING      the end of the job is decided; waits until everybody has heard
                of it (R10)                                                      farewell.py
    OVER        everybody has; answers late comers as long as its agent stays    farewell.py
    DEPOSED     decides no more: its mandate is lost, or it leaves and has
                handed over (R11)

The parts decide within a phase, and say what came of it; the phases, and what passes from one part
to another, are here. A coordinator that follows another one begins in the middle: with a round that
runs, and members none of whom has come yet (following.py).
"""

from __future__ import annotations

from typing_extensions import assert_never

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.belief import is_believable, what_is_unbelievable_in
from pytest_elastic.rendezvous.changes import Back, Came, Change, Suspected, Went
from pytest_elastic.rendezvous.coordinator_phases import ALLOWED, Phase
from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.desk import Desk
from pytest_elastic.rendezvous.farewell import Farewell, Heard
from pytest_elastic.rendezvous.first_round import FirstRound
from pytest_elastic.rendezvous.following import follow
from pytest_elastic.rendezvous.gathering import Enough, Gathering, TooFew
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.leaving import Leaving
from pytest_elastic.rendezvous.mandate import GrantedMandate, Mandate, mandate_for
from pytest_elastic.rendezvous.mark import Mark
from pytest_elastic.rendezvous.membership import Membership
from pytest_elastic.rendezvous.model import Node, Settings
from pytest_elastic.rendezvous.objection import objection_in
from pytest_elastic.rendezvous.outbox import Outbox
from pytest_elastic.rendezvous.peer import Peer, Standing
from pytest_elastic.rendezvous.reachability import Reachability
from pytest_elastic.rendezvous.round import Cause
from pytest_elastic.rendezvous.running import Running
from pytest_elastic.rendezvous.sealing import Sealing
from pytest_elastic.rendezvous.vocabulary import (
    CoordinatorCommand,
    CoordinatorInput,
    EndHeard,
    FoundingLost,
    HandOver,
    JobFound,
    JobFounded,
    MandateExtended,
    PeerLost,
    PeerMessage,
    ProbeAnswered,
    SteppedDown,
    Superseded,
    TimePassed,
)

__all__ = ["ALLOWED", "CoordinatorMachine", "Phase"]


class CoordinatorMachine:
    """Decides for the whole job; see `vocabulary` for how it is driven.

    `node` is the node it runs on, whose member needs no lease if nobody else has to allow anything;
    `now` is when it starts. `mandate`: who allows it to decide, if not whom the settings say.
    `heritage`: what it goes on with, if it follows another coordinator. `mark`: what was left here
    by whoever hosted the endpoint before (R12).
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
        mark: Mark | None = None,
    ) -> None:
        self.phase = Phase.GATHERING
        self.settings = settings
        self.node = node
        self.term = term
        self._out = Outbox()
        self._deadlines = Deadlines()
        self._mandate = mandate or mandate_for(settings)
        self._members = Membership(
            settings=settings, own=node, term=term, outbox=self._out, mandate=self._mandate
        )
        self.ready = self._members.ready  # who could be in the next round, by incarnation
        self._reach = Reachability(self._out, term=term, answer_within_s=settings.lease_s)
        self._desk = desk = Desk(
            settings=settings,
            node=node,
            term=term,
            out=self._out,
            members=self._members,
            mandate=self._mandate,
            deadlines=self._deadlines,
            reach=self._reach,
        )
        self._gathering = Gathering(desk)
        self._sealing = Sealing(desk, now)
        self._leaving = Leaving(desk)
        self._running = Running(desk)
        self._farewell = Farewell(desk)
        self._started_at = now
        self._own_leave: str | None = None
        self._is_heir = heritage is not None
        # What this job goes on with, if nobody knows that any round of it was committed.
        self._first_seal = heritage.seal if heritage and heritage.is_of_first_seal else None
        self._first_round = FirstRound(
            settings, self._out, self._deadlines, now, is_heir=self._is_heir, mark=mark
        )
        if heritage is not None:
            self.phase = follow(
                heritage,
                desk,
                now,
                sealing=self._sealing,
                running=self._running,
                gathering=self._gathering,
                farewell=self._farewell,
            )

    def step(self, input: CoordinatorInput, now: float) -> tuple[CoordinatorCommand, ...]:
        """Take one input in; return what is to be done, in order."""
        if self._is_deposed:
            return ()
        wake_at = self._deadlines.wake_at
        if wake_at is not None and now > wake_at + self.settings.beat_interval_s:
            self._members.doubt_ourselves(now)
        match input:
            case PeerMessage(connection=connection, message=message):
                self._on_message(connection, message, now)
                is_passing = isinstance(message, m.Beat) and not self._members.changes
                if is_passing and self._deadlines.are_ahead(now):
                    return self._out.take()  # beats come most often, and only move deadlines on
            case PeerLost(connection=connection, reason=reason):
                self._members.lose_connection(connection, reason)
            case ProbeAnswered():
                self._members.take_answer(input, now)
                self._first_round.take_answer(input)
                self._hear_of_end(input.ended)
            case EndHeard(ending=ended):  # of which anybody may tell us, where nothing is signed
                if self._farewell.ending is not None:
                    self._hear_of_end(ended)
                elif self._running.round is not None and self.phase is Phase.GATHERING:
                    self._farewell.ask(self._running.round.seal.roster, now)
            case MandateExtended(until=until):
                assert isinstance(self._mandate, GrantedMandate), "nobody outside has a say here"
                self._mandate.extend(until)
            case Superseded(term=term):
                if term > self.term:
                    self._step_down(f"{self.node.name} has voted in the election of term {term}")
            case HandOver(reason=reason):
                self._on_own_left(reason)
            case JobFound(place=place):
                is_newer = place.term > self.term and is_believable(place.term, self.term)
                if is_newer and self.settings.has_succession:  # or nobody can have been elected
                    reason = f"{place.name} decides, under term {place.term}"
                    # Who has committed nothing has nobody who could follow.
                    has_round = self._running.round is not None
                    self._step_down(reason, promised=place.term if has_round else None)
            case JobFounded():
                self._first_round.found()
            case FoundingLost(reason=reason):
                if self._first_round.is_founding and self.phase is Phase.GATHERING:
                    self._step_down(reason)
            case TimePassed():
                pass
            case _:
                assert_never(input)
        if not self._is_deposed:
            self._advance(now)
        return self._out.take()

    def wake_at(self) -> float | None:
        """Return when `TimePassed` is wanted, or None."""
        return None if self._is_deposed else self._deadlines.wake_at

    @property
    def _is_deposed(self) -> bool:
        return self.phase is Phase.DEPOSED

    # --- going on ----------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Follow up on what is known, until nothing more follows from it."""
        while True:
            self._deadlines.clear()
            before = self.phase
            if self._has_lost_mandate(now):
                self._step_down(self._mandate.why_over)
                return
            self._judge_silence(now)
            changes = self._members.changes
            has_news = bool(changes)
            while changes:
                self._on_change(changes.popleft(), now)
            if self._farewell.ending is None:
                for peer, report in self._reach.overdue(
                    self._members.peers,
                    self._deadlines,
                    now,
                    judges_from=self._members.judges_from,
                ):
                    self._on_peers_checked(peer, report)
                self._reach.watch(self._deadlines, self._members.peers, now)
            self._look(now)
            if self.phase is before and not has_news and not changes:
                return

    def _has_lost_mandate(self, now: float) -> bool:
        if self.phase is Phase.OVER:
            return False
        until = self._mandate.until(now)
        return until != float("inf") and self._deadlines.is_due(until, now)

    def _judge_silence(self, now: float) -> None:
        if self._farewell.ending is not None:
            return
        judgement = self._members.next_judgement()
        while judgement is not None and self._deadlines.is_due(judgement, now):
            self._members.drop_silent(now)
            judgement = self._members.next_judgement()  # to be woken for it, too

    def _hear_of_end(self, ended: m.JobEnding | None) -> None:
        """Begin no other round: a member of the last one knows that the job has ended."""
        if self._farewell.hear(ended) and ended is not None:
            self._sealing.break_off(f"the job has ended: {ended.reason}")

    def _look(self, now: float) -> None:
        heard = self._farewell.heard
        if heard is not None and Phase.ENDING in ALLOWED[self.phase]:
            self._farewell.go_on(heard, now)
            self._become(Phase.ENDING)
        match self.phase:
            case Phase.GATHERING:
                self._gather(now)
            case Phase.SEALING:
                self._watch_seal(now)
            case Phase.RUNNING:
                self._watch_round(now)
            case Phase.STOPPING:
                if self._running.watch_stop(now):
                    self._become(Phase.GATHERING)
            case Phase.ENDING:
                self._watch_ending(now)
            case Phase.OVER:
                self._farewell.linger(now)
            case Phase.DEPOSED:
                pass
            case _:
                assert_never(self.phase)

    def _become(self, phase: Phase) -> None:
        assert phase in ALLOWED[self.phase], f"a job cannot go from {self.phase} to {phase}"
        self.phase = phase

    # --- the phases --------------------------------------------------------------------------

    def _gather(self, now: float) -> None:
        if self._own_leave is not None:
            own = self._members.peers.get(self.node.incarnation)
            if own is None or not self._hands_over(own, now):  # to somebody who has come meanwhile
                self._end("lost", self._own_leave, now)
            return
        if self._running.round is None:
            self._first_round.watch(self._members.peers.keys(), now)
        match self._gathering.look(self._running.round, now):
            case Enough() if not self._may_begin(now):
                if self._first_round.is_given_up(now):
                    self._end("lost", self._first_round.why_lost, now)
            case Enough() as enough:
                problem = self._sealing.begin(enough, self._running.round, now)
                if problem is None:
                    self._become(Phase.SEALING)
                else:
                    self._end("failed", problem, now)
            case TooFew(reason=reason):
                self._end("lost", reason, now)
            case None:
                pass

    def _may_begin(self, now: float) -> bool:
        """Tell whether a round may be sealed: the first one needs more than nodes (R12)."""
        if self._running.round is not None:
            return True
        if not self._first_round.may_begin(self._members.ready, self._members.peers.keys(), now):
            return False
        self._sealing.take_over(*self._first_round.numbers(self._members.peers.keys()))
        return True

    def _watch_seal(self, now: float) -> None:
        store = self._sealing.look(now)
        if store is not None:
            self._running.round = self._sealing.commit(self._running.round, store, now)
            self._gathering.forget_spares()
            self._reach.end_sweep()
            self._running.tell_spares(self._sealing.newest)
            self._become(Phase.RUNNING)
        elif self._sealing.seal is None:
            self._become(Phase.GATHERING)

    def _watch_round(self, now: float) -> None:
        committed = self._running.round
        assert committed is not None, "there is a committed round while it runs"
        for peer in self._leaving.overdue(now):
            reason = f"{peer.node.name} leaves and its grace is over"
            committed.stop_because(reason, Cause.CHANGE)
        self._running.look_for_newcomers(self._gathering.may_join, now)
        if committed.stop_reason is not None:
            self._sealing.count_idle(has_run=self._running.stop(now))
            self._gathering.look_ahead(committed)
            self._become(Phase.STOPPING)
        elif not committed.unfinished:
            self._end("succeeded", "the workers of all nodes succeeded", now)

    def _end(self, result: str, reason: str, now: float) -> None:
        committed, failure = self._running.round, None
        if committed is not None:
            why = committed.stop_reason or reason
            self._sealing.emit_ended(committed.number, why, charged=False)
            failure = committed.first_failure if result == "failed" else None
        self._farewell.decide(result, reason, failure, now)
        self._become(Phase.ENDING)

    def _watch_ending(self, now: float) -> None:
        heard = self._farewell.look(now)
        if heard is Heard.BY_ALL:
            self._become(Phase.OVER)
        elif heard is Heard.BY_TOO_FEW:
            self._step_down("too few have heard how the job ends for that to hold")

    # --- what members say --------------------------------------------------------------------

    def _on_message(self, connection: int, message: m.Message, now: float) -> None:
        peer = self._members.peer_at(connection)
        if peer is not None and isinstance(message, m.Beat):  # most often
            self._members.take_beat(peer, message, now)
            return
        if isinstance(message, m.Hello):
            self._on_hello(connection, message, now)
            return
        if peer is None:
            return  # it was refused or given up, and this was already on its way
        match message:
            case m.SealAcknowledged(term=self.term, round=round_):
                self._sealing.take_acknowledgement(peer, round_)
            case m.PeersChecked(term=self.term):
                self._on_peers_checked(peer, message)
            case m.EndAcknowledged(term=self.term):
                self._farewell.take_acknowledgement(peer)
            case ports.StoreOpened() | ports.StoreFailed():
                self._sealing.take_store(peer, message, now)
            case ports.GroupSucceeded(round=round_):
                if self.phase is Phase.RUNNING:
                    self._running.take_success(peer, round_)
            case ports.GroupFailed():
                if self.phase is Phase.RUNNING:  # what ends after the stop order was told to end
                    self._running.take_failure(peer, message)
                elif self.phase is Phase.STOPPING:
                    self._running.explain(peer, message)
            case ports.WorkersGone(round=round_):
                self._on_workers_gone(peer, round_, now)
            case ports.DrainRequested():
                self._on_drain(peer, message, now)
            case _:
                self._members.lose_connection(connection, f"it sent {type(message).__name__}")
                self._out.disconnect(connection)

    def _on_hello(self, connection: int, hello: m.Hello, now: float) -> None:
        round_, incarnation = self._running.round, hello.node.incarnation
        is_open = round_ is not None and round_.is_inherited
        first_seal = self._first_seal if is_open else None
        against = objection_in(hello, settings=self.settings, term=self.term, first_seal=first_seal)
        strange = what_is_unbelievable_in(
            hello,
            term=self.term if round_ is not None else 0,
            round_=self._sealing.newest,
            max_restarts=self.settings.max_restarts,
        )
        if hello.meant_for not in {"", self.node.incarnation}:
            self._out.disconnect(connection)  # nobody here has the promise that it gave
        elif strange is not None:
            self._members.refuse(connection, strange, is_final=True)
        elif against is None:
            if self._members.peer_at(connection) is None:
                self._first_round.meet(incarnation, hello.newest_round)
                self._members.greet(connection, hello, now)
        elif not self._is_heir and round_ is None and not self._first_round.has_met(incarnation):
            if self._first_round.meet_elder(hello):
                self._sealing.break_off(f"{hello.node.name} is in a job of before")
            self._out.disconnect(connection)
        else:
            self._step_down(
                against.reason,
                promised=against.promised,
                newest_round=against.newest_round,
            )

    def _on_peers_checked(self, peer: Peer, report: m.PeersChecked) -> None:
        peers = self._members.peers
        news = self._reach.take(peer, report, peers)
        if news:
            unreached = {peers[incarnation].node.name: how for incarnation, how in news.items()}
            self._out.emit(events.PeersUnreached(member=peer.node.name, unreached=unreached))

    def _on_workers_gone(self, peer: Peer, round_: int, now: float) -> None:
        if not self._running.take_gone(peer, round_):
            return
        if peer.is_leaving:
            self._let_go(peer, now)
        else:
            self._running.end_without(peer, is_running=self.phase is Phase.RUNNING)

    # --- who leaves (R4) ---------------------------------------------------------------------

    def _on_drain(self, peer: Peer, drain: ports.DrainRequested, now: float) -> None:
        goes_anyway = self._desk.is_own(peer) and self._farewell.ending is not None
        if peer.is_leaving or goes_anyway:
            return
        self._leaving.announce(peer, drain, now)
        if self._desk.is_own(peer) and not self.settings.outlives_coordinator:
            self._own_leave = (
                f"{peer.node.name} leaves ({drain.reason}), which hosts the rendezvous, and there "
                "is no succession"
            )
        if not peer.has_workers:
            self._let_go(peer, now)

    def _let_go(self, peer: Peer, now: float) -> None:
        """Let a member go whose workers are gone; with the coordinator's own goes the job (R4)."""
        if self._desk.is_own(peer) and self.settings.outlives_coordinator:
            if self._hands_over(peer, now):
                return
            self._own_leave = f"{peer.node.name} leaves ({peer.leave_reason}), and nobody is left"
        if self._own_leave is None or not self._desk.is_own(peer):
            self._mandate.excuse(peer.node.incarnation)
            self._members.let_go(peer, peer.leave_reason, now)
            return
        self._sealing.break_off(self._own_leave)
        if self._running.round is not None:
            self._running.round.stop_because(self._own_leave, Cause.CHANGE)

    def _hands_over(self, own: Peer, now: float) -> bool:
        """Leave, and name who follows, if anybody can: nobody has to wait for a lease (R4)."""
        named = self._leaving.choose_successor(self._running.roster)
        # Who is merely out of our reach may be named by whoever grants this.
        can_follow = named or (self.settings.is_granted and self._farewell.has_others(now))
        if can_follow and self.settings.outlives_coordinator:
            self._out.emit(events.MemberLeft(member=own.node.name, reason=own.leave_reason))
            self._leave(f"left ({own.leave_reason})")
        return self._is_deposed

    def _on_own_left(self, reason: str) -> None:
        """Go with this node, whose member has left before it found its own coordinator."""
        if self._farewell.ending is None:
            self._leave(reason)

    def _leave(self, why: str) -> None:
        self._step_down(f"{self.node.name} {why}", left=self.node.incarnation)

    def _step_down(
        self,
        reason: str,
        *,
        left: str = "",
        promised: int | None = None,
        newest_round: int = 0,
    ) -> None:
        """Decide no more; whoever is connected hears why."""
        if self.phase is Phase.OVER:
            return
        order = m.StepDown(
            term=self.term,
            reason=reason,
            left=left,
            left_after=max(
                (each.round for each in self._mandate.electorates), default=self._sealing.newest
            ),
            successor=self._leaving.choose_successor(self._running.roster) if left else "",
            promised=promised,
            newest_round=newest_round,
        )
        for peer in self._members.peers.values():
            self._out.send(peer, order)
        self._out.emit(events.CoordinatorSteppedDown(term=self.term, reason=reason))
        self._out.add(SteppedDown(reason=reason))
        self._become(Phase.DEPOSED)

    # --- what became of members --------------------------------------------------------------

    def _on_change(self, change: Change, now: float) -> None:
        match change:
            case Came(peer=peer):
                self._on_came(peer, now)
            case Back(peer=peer):
                self._on_back(peer, now)
            case Suspected(peer=peer):
                self._on_suspected(peer, now)
            case Went():
                self._on_went(change, now)
            case _:
                assert_never(change)

    def _on_came(self, peer: Peer, now: float) -> None:
        # What is news to an heir was sealed once, and never committed.
        if self._sealing.skip_numbers() and not self._is_heir:
            # An earlier coordinator's workers may be running on nodes that have not come back.
            lease_end = self._started_at + self.settings.lease_s + self.settings.drift_s
            self._sealing.close_gate(lease_end)
            if self._running.round is None:
                self._sealing.take_over_restarts()
        if not self._farewell.meet(peer, now) and self.phase is Phase.RUNNING:
            self._running.tell_spare(peer, self._sealing.newest)

    def _on_suspected(self, peer: Peer, now: float) -> None:
        self._sealing.suspect(peer)
        self._reach.set_aside(peer.node.incarnation)
        self._farewell.lose(peer, now)
        is_ending = self._farewell.ending is not None
        can_return = self.settings.outlives_coordinator  # it gives a round up like any other member
        if self._desk.is_own(peer) and self._own_leave is None and not is_ending and not can_return:
            # In this very process nothing else can end a connection: its agent takes no part.
            self._own_leave = f"{peer.node.name}, which hosts the rendezvous, has left"
            self._let_go(peer, now)

    def _on_back(self, peer: Peer, now: float) -> None:
        """Tell a member again what it may have missed; it knows which it has seen."""
        self._sealing.skip_numbers()
        # It may have seen its connection end before we did, and what we asked went with that.
        self._reach.set_aside(peer.node.incarnation)
        if self._farewell.meet(peer, now):
            return
        if self._sealing.seal is not None and self._sealing.awaits(peer):
            self._out.send(peer, self._sealing.seal.message)
        elif peer.standing in {Standing.RUNNING, Standing.SUCCEEDED}:
            self._running.tell_again(peer, is_stopping=self.phase is Phase.STOPPING)
        elif self.phase is Phase.RUNNING:
            self._running.tell_spare(peer, self._sealing.newest)

    def _on_went(self, gone: Went, now: float) -> None:
        self._farewell.part_from(gone, now)
        self._sealing.close_gate(gone.safe_at)
        self._leaving.forget(gone.peer.node.incarnation)
        self._reach.forget(gone.peer.node.incarnation)
        self._sealing.lose(gone.peer, gone.reason)
        self._running.miss(gone)
