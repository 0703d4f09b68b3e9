"""The leader of a term: decides when a round starts, when it ends, how the job ends.

Every input changes what is known; then `_advance` looks at the phase and at what is known, and goes
on until nothing more follows. So no decision depends on the order in which two pieces of news come,
and a timer is nothing but a look at the clock.

    GATHERING   no round; waits until enough members are ready, then proposes one   gathering.py
    STARTING    a round is proposed; waits for its acceptances, its worker store
                (R8), and until no worker of a lost member can still run (R5, R6)    rounds.py
    RUNNING     workers run; waits for the end of the job, or a reason to stop       rounds.py
    STOPPING    waits until every worker is gone, or its node lost (R2)              rounds.py
    ENDING      the end is proposed; waits until all nodes have it (R10)             ending.py
    OVER        it is decided; answers late comers as long as its agent stays        ending.py
    DEPOSED     leads no more: its lease is over, or it has left
"""

from __future__ import annotations

from typing_extensions import assert_never

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import End
from pytest_elastic.rendezvous.consensus.replication import Recovered, Replication
from pytest_elastic.rendezvous.leader.ending import JobEnd, Leavers
from pytest_elastic.rendezvous.leader.gathering import Enough, FirstRound, Gathering, TooFew
from pytest_elastic.rendezvous.leader.members import Members
from pytest_elastic.rendezvous.leader.rounds import Rounds
from pytest_elastic.rendezvous.leader.state import (
    LEADER_ALLOWED,
    Change,
    Here,
    LeaderPhase,
    LeaderShared,
    Peer,
    Standing,
    Suspected,
    Went,
)
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.reachability import Reachability
from pytest_elastic.rendezvous.settings import Settings

__all__ = ["Leader"]


class Leader:
    """Leads one job under one term; `node` is where it runs, `recovered` what it goes on with."""

    def __init__(self, *, settings: Settings, node: Node, recovered: Recovered, now: float) -> None:
        self.settings = settings
        self.node = node
        self.term = term = recovered.term
        self._started_at = now
        self._replication = Replication(settings, node.incarnation, recovered, now)
        shared = LeaderShared(settings=settings, own=node, term=term, replication=self._replication)
        self._out, self._deadlines = shared.out, shared.deadlines
        self._members = Members(shared)
        self._reach = Reachability(shared, self._members)
        self._gathering = Gathering(shared, self._members, self._reach)
        self._rounds = Rounds(shared, self._members, now)
        self._job_end = JobEnd(shared, self._members)
        self._first_round = FirstRound(shared, recovered)
        self._leavers = Leavers(shared, self._members, self._rounds)
        self.ready = self._members.ready  # nodes that could be in the next round, by incarnation
        is_new = recovered.record.number == 0
        self.phase = LeaderPhase.GATHERING if is_new else self._recover(recovered, now)
        self._deadlines.wake_at = now  # for its first look, whatever comes before

    def _recover(self, recovered: Recovered, now: float) -> LeaderPhase:
        """Begin in the middle: with a record that is proposed again, and members yet to come."""
        record, settings = self._replication.newest, self.settings
        leases_end = recovered.contact_at + settings.lease_s
        is_started = recovered.started is not None
        self._rounds.use(
            restarts_used=max(recovered.restarts_used, record.restart_count),
            idle_rounds=record.idle_rounds + (not is_started),
        )
        left = set(record.configuration.voters) if settings.has_succession else None
        entries = record.roster if record.round > 0 else ()  # before it, hosts by their place
        roster = self._members.inherit(
            [entry for entry in entries if left is None or entry.incarnation in left],
            record.round,
            until=leases_end,
            lost=recovered.record.configuration.tie_breaker,
            why=recovered.why_followed,
            now=now,
        )
        self._rounds.inherit(record, roster, recovered, now)
        self._job_end.expect_strangers(now)
        if record.spares:
            self._gathering.wait_for_spares(now + settings.beat_interval_s)
        if record.end is not None:
            self._job_end.go_on(record.end, now)
            return LeaderPhase.ENDING
        if is_started:
            return LeaderPhase.RUNNING
        # Whether its workers run is not known, nor those of the round before.
        self._rounds.close_gate(leases_end + settings.drift_s)
        return LeaderPhase.STOPPING

    def step(self, input: v.LeaderInput, now: float) -> tuple[v.LeaderCommand, ...]:
        """Take one input in; return what is to be done, in order."""
        if self._is_deposed:
            return ()
        wake_at = self._deadlines.wake_at
        if wake_at is not None and now > wake_at + self.settings.beat_interval_s:
            self._members.doubt_ourselves(now)
        match input:
            case v.PeerMessage(connection=connection):
                message: object = input.message
                was_in_doubt = bool(self._members.unheard)
                self._on_message(connection, message, now)
                has_news = was_in_doubt or self._members.changes
                is_passing = isinstance(message, m.Heartbeat) and not has_news
                if is_passing and self._deadlines.are_ahead(now):
                    return self._out.take()  # beats come most often, and only move deadlines on
            case v.PeerLost(connection=connection, reason=reason):
                self._members.lose_connection(connection, reason)
            case v.Answered():
                self._members.take_answer(input, now)
                self._first_round.take_answer(input)
            case v.LeaderHeard(leader=leader):
                # With something decided, only its lease, or a voter of it, can say that it is over.
                if self.address.is_founding and leader.goes_before(self.address):
                    reason = f"{leader.name} leads, under term {leader.term.counter}"
                    self._resign(reason, higher=leader.term.counter)
            case v.HandOver(reason=reason):
                if self._job_end.end is None:
                    self._resign(f"{self.node.name} {reason}", has_left=True)
            case v.LeaseExtended(until=until):
                self._replication.extend(until)
            case v.RecordWritten(number=number):
                self._replication.take_written(number)
            case v.TimePassed():
                pass
            case _:
                assert_never(input)
        if not self._is_deposed:
            self._advance(now)
        return self._out.take()

    @property
    def address(self) -> m.LeaderAddress:
        """Where others find this leader."""
        is_founding = self._replication.base.number == 0 and self._rounds.last is None
        return m.LeaderAddress.of(self.node, self.term, is_founding=is_founding)

    def wake_at(self) -> float | None:
        """Return when `TimePassed` is wanted, or None."""
        return None if self._is_deposed else self._deadlines.wake_at

    @property
    def _is_deposed(self) -> bool:
        return self.phase is LeaderPhase.DEPOSED

    # --- going on ----------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Follow up on what is known, until nothing more follows from it."""
        while True:
            self._deadlines.clear()
            before, number = self.phase, self._replication.base.number
            leads_until = self._replication.leads_until(now)
            if leads_until != float("inf") and self._deadlines.is_due(leads_until, now):
                self._resign(self._replication.why_over)
                return
            if self._job_end.end is None:
                self._members.judge_silence(now)
            changes = self._members.changes
            has_news = bool(changes)
            while changes:
                self._on_change(changes.popleft(), now)
            if self._job_end.end is None:
                self._reach.watch(now)
            self._settle(now)
            if self.phase is not LeaderPhase.OVER:
                is_ending, others = self._job_end.end is not None, self._job_end.has_others(now)
                left = self._leavers.watch(now, is_ending=is_ending, has_others=others)
                if left is not None:
                    self._resign(left, has_left=True)
                    return
            self._look(now)
            is_same = self.phase is before and self._replication.base.number == number
            if is_same and not has_news and not changes:
                return

    def _settle(self, now: float) -> None:
        """Take what was found, or proposed for a leaver, for decided once quorums have it."""
        is_own_round = self._rounds.next is not None or self._job_end.end is not None
        if not is_own_round and self._replication.has_quorums:
            self._replication.settle()
            for peer in self._members.peers.values():
                if self._replication.has_voter(peer.node.incarnation):
                    self._out.send_to(peer.connection, self._rounds.decided())

    def _look(self, now: float) -> None:
        match self.phase:
            case LeaderPhase.GATHERING:
                self._gather(now)
            case LeaderPhase.STARTING:
                if self._rounds.may_start(now):
                    self._rounds.start(now)
                    self._gathering.end()
                    for peer in self._members.ready.values():
                        self._tell_spare(peer)
                    self._become(LeaderPhase.RUNNING)
                elif self._rounds.next is None:
                    self._become(LeaderPhase.GATHERING)
            case LeaderPhase.RUNNING:
                self._watch_round(now)
            case LeaderPhase.STOPPING:
                if self._rounds.is_stopped(now):
                    self._become(LeaderPhase.GATHERING)
            case LeaderPhase.ENDING:
                is_decided = self._job_end.look(now)
                if is_decided:
                    self._become(LeaderPhase.OVER)
                elif is_decided is False:
                    self._resign("too few have heard how the job ends for that to hold")
            case LeaderPhase.OVER:
                self._job_end.linger(now)
            case LeaderPhase.DEPOSED:
                pass
            case _:
                assert_never(self.phase)

    def _become(self, phase: LeaderPhase) -> None:
        assert phase in LEADER_ALLOWED[self.phase], f"a job cannot go from {self.phase} to {phase}"
        self.phase = phase

    # --- the phases --------------------------------------------------------------------------

    def _gather(self, now: float) -> None:
        if self._replication.pending is not None:
            return  # one record at a time
        if self._leavers.why_job_ends is not None:
            self._end("lost", self._leavers.why_job_ends, now)
            return
        if self._rounds.last is None:
            self._first_round.watch(self._members.peers, now)
        match self._gathering.look(self._rounds.last, now):
            case Enough() if not self._may_begin(now):
                if self._first_round.is_given_up(now):
                    self._end("lost", self._first_round.why_lost, now)
            case Enough() as enough:
                problem = self._rounds.propose(enough.roster, enough.reason, now)
                if problem is None:
                    self._rounds.send_record()
                    self._become(LeaderPhase.STARTING)
                else:
                    self._end("failed", problem, now)
            case TooFew(reason=reason):
                self._end("lost", reason, now)
            case None:
                pass

    def _may_begin(self, now: float) -> bool:
        if self._rounds.last is not None:
            return True
        here = self._members.peers
        if not self._first_round.may_begin(self._members.ready, here, now):
            return False
        number, restarts_used = self._first_round.numbers(here)
        self._replication.round = max(self._replication.round, number)
        self._rounds.use(restarts_used=restarts_used)
        return True

    def _watch_round(self, now: float) -> None:
        last = self._rounds.last
        assert last is not None, "a round runs"
        self._leavers.end_round_when_overdue(now)
        self._rounds.look_for_newcomers(self._gathering.newcomers(last, now))
        if last.stop_reason is not None:
            self._rounds.stop(now)
            self._gathering.look_ahead(last)
            self._become(LeaderPhase.STOPPING)
        elif not last.unfinished and self._replication.pending is None:
            self._end("succeeded", "the workers of all nodes succeeded", now)

    def _end(self, result: str, reason: str, now: float) -> None:
        last, failure = self._rounds.last, None
        if last is not None:
            self._rounds.emit_ended(last.number, last.stop_reason or reason, charged=False)
            failure = last.first_failure if result == "failed" else None
        self._job_end.propose(End(result=result, reason=reason, first_failure=failure), now)
        self._become(LeaderPhase.ENDING)

    # --- what members say --------------------------------------------------------------------

    def _on_message(self, connection: int, message: object, now: float) -> None:
        peer = self._members.hear(connection)
        if peer is not None and isinstance(message, m.Heartbeat):  # most often
            self._members.take_heartbeat(peer, message, now)
            return
        if isinstance(message, m.JoinRequest):
            self._on_join_request(connection, message, now)
            return
        if peer is None:
            return  # it was refused or given up, and this was already on its way
        match message:
            case m.RecordAccepted(term=self.term, number=number):
                self._replication.take_acceptance(peer.node.incarnation, number)
                self._rounds.take_acceptance(peer, number)
                if self._job_end.end is not None and number == self._replication.newest.number:
                    self._job_end.take_acceptance(peer)
            case m.PeersDialled(term=self.term):
                self._reach.take(peer, message)
            case ports.StoreOpened() | ports.StoreFailed():
                self._rounds.take_store(peer, message, now)
            case ports.GroupSucceeded(round=round_):
                if self.phase is LeaderPhase.RUNNING:
                    self._rounds.take_success(peer, round_)
            case ports.GroupFailed():
                if self.phase is LeaderPhase.RUNNING:  # what ends later was told to end
                    self._rounds.take_failure(peer, message)
                elif self.phase is LeaderPhase.STOPPING:
                    self._rounds.explain(peer, message)
            case ports.WorkersGone(round=round_):
                is_news = self._rounds.take_gone(peer, round_)
                if is_news and not peer.is_leaving:
                    is_running = self.phase is LeaderPhase.RUNNING
                    self._rounds.end_without(peer, is_running=is_running)
            case ports.DrainRequested():
                is_ending = self._job_end.end is not None
                self._leavers.take_drain(peer, message, now, is_ending=is_ending)
            case _:
                self._members.lose_connection(connection, f"it sent {type(message).__name__}")
                self._out.disconnect(connection)

    def _on_join_request(self, connection: int, request: m.JoinRequest, now: float) -> None:
        if request.meant_for not in {"", self.node.incarnation}:
            self._out.disconnect(connection)  # the promise that it gave was to another incarnation
        elif self._is_outdated_by(request):
            name, counter = request.node.name, request.term.counter
            if self._replication.base.number == 0 and self._first_round.must_wait_for(request, now):
                self._rounds.break_off(f"{name} is in a job of before")
                self._out.disconnect(connection)
                return
            self._resign(f"{name} has promised to obey term {counter}", higher=counter)
        elif self._members.peer_at(connection) is None:
            if self._rounds.last is None:
                self._first_round.meet(request)
            self._members.take_request(connection, request, now)

    def _is_outdated_by(self, request: m.JoinRequest) -> bool:
        if request.run_id != self.settings.run_id:
            return False  # what is promised in another run says nothing about terms of this one
        is_over = self.phase is LeaderPhase.OVER  # nothing is left to decide
        return self.settings.has_succession and request.term > self.term and not is_over

    # --- leading no more ---------------------------------------------------------------------

    def _resign(self, reason: str, *, has_left: bool = False, higher: int = 0) -> None:
        """Lead no more; all connected nodes hear why."""
        if self.phase is LeaderPhase.OVER:
            return
        order = m.LeaderResigned(
            term=self.term,
            reason=reason,
            left=has_left,
            successor=self._leavers.choose_successor() if has_left else "",
            higher=higher,
        )
        for peer in self._members.peers.values():
            self._out.send_to(peer.connection, order)
        self._out.emit(events.CoordinatorSteppedDown(term=self.term.counter, reason=reason))
        self._out.add(v.SteppedDown(reason=reason))
        self._become(LeaderPhase.DEPOSED)

    # --- what became of members --------------------------------------------------------------

    def _on_change(self, change: Change, now: float) -> None:
        match change:
            case Here(peer=peer, is_back=is_back):
                self._on_here(peer, now, is_back=is_back)
            case Suspected(peer=peer):
                self._on_suspected(peer, now)
            case Went():
                self._on_went(change, now)
            case _:
                assert_never(change)

    def _on_here(self, peer: Peer, now: float, *, is_back: bool) -> None:
        """Tell a member that is here (again) what it may have missed; it knows what it has seen."""
        members, replication = self._members, self._replication
        if members.number > replication.round:
            replication.round = members.number
            if not is_back and replication.base.number == 0:
                # An earlier leader's workers may be running on nodes that have not come back.
                lease_end = self._started_at + self.settings.lease_s + self.settings.drift_s
                self._rounds.close_gate(lease_end)
                self._rounds.use(restarts_used=members.restarts_used)
        if is_back:
            # What we asked may be gone with the connection of before.
            self._reach.set_aside(peer.node.incarnation)
        if self._job_end.meet(peer, now):
            return
        is_voter = replication.has_voter(peer.node.incarnation)
        has_round = peer.standing is not Standing.WAITING
        if has_round or (is_voter and replication.newest.number > 0):
            self._out.send_to(peer.connection, replication.message())
        if self.phase is LeaderPhase.STOPPING and has_round:
            self._out.send_to(peer.connection, self._rounds.stop_order())
        elif self.phase is LeaderPhase.RUNNING and has_round:
            self._out.send_to(peer.connection, self._rounds.decided())
        elif self.phase is LeaderPhase.RUNNING:
            self._tell_spare(peer)

    def _tell_spare(self, peer: Peer) -> None:
        """Tell a node that it is a spare, if it is one; and which nodes to ask if we are lost."""
        last = self._rounds.last
        assert last is not None, "a round runs"
        gaps = self._reach.described(peer.node.incarnation)
        if not last.is_full(self.settings.max_nodes) and not gaps:
            return
        number, base = self._replication.round, self._replication.base
        self._out.send_to(
            peer.connection,
            m.Standby(
                term=self.term,
                number=number,
                round=last.number,
                reason=gaps or f"round {last.number} is full",
                restarts_used=base.restart_count,
                roster=base.roster if self.settings.has_succession else (),
            ),
        )

    def _on_suspected(self, peer: Peer, now: float) -> None:
        self._rounds.suspect(peer)
        self._reach.set_aside(peer.node.incarnation)
        self._job_end.lose(peer, now)
        if self._job_end.end is None:
            self._leavers.lose(peer)

    def _on_went(self, gone: Went, now: float) -> None:
        incarnation = gone.peer.node.incarnation
        self._job_end.part_from(gone, now)
        self._leavers.forget(incarnation)
        self._reach.forget(incarnation)
        self._rounds.miss(gone)
