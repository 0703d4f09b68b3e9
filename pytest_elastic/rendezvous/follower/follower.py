"""One node's side of the rendezvous: follow the leader, keep the lease, do what is decided.

Its parts: the **connection** to the leader, the **worker group** of the newest round, the **voter**
(what was promised and accepted), and the **candidate**, for when the leader is lost. Here is what
passes between them, how a node leaves, and when it gives the job up.

The node's own safety depends on no other: with workers running and the lease about to end, it
fences, whatever the connection is doing (R6). It asks to join without its round only when no worker
is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from typing_extensions import assert_never

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.candidate import Candidate
from pytest_elastic.rendezvous.consensus.records import End, KnownJob
from pytest_elastic.rendezvous.consensus.voter import Voter
from pytest_elastic.rendezvous.follower.connection import Connection, ConnectionPhase
from pytest_elastic.rendezvous.follower.departure import Departure
from pytest_elastic.rendezvous.follower.elections import Elections
from pytest_elastic.rendezvous.follower.worker_group import GroupPhase, WorkerGroup
from pytest_elastic.rendezvous.machine import Shared
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.reachability import PeerDials
from pytest_elastic.rendezvous.settings import Settings

__all__ = ["Follower"]

_WHEN_OVER = v.Asked | v.TimePassed


class Follower:
    """Decides for one agent; see `vocabulary` for how it is driven."""

    def __init__(self, *, node: Node, settings: Settings) -> None:
        self.settings = settings
        shared = Shared(settings=settings)
        self._out, self._deadlines = shared.out, shared.deadlines
        self.voter = Voter(node.incarnation)
        self.candidate = Candidate(settings, self.voter)
        self._connection = Connection(shared, self.voter, node)
        self._group = WorkerGroup(shared, node.incarnation, self._connection)
        self._elections = Elections(
            shared, self.voter, self.candidate, self._connection, self._group
        )
        self._peer_dials = PeerDials()
        self._roster: Sequence[Node] = ()  # of a round that goes on without this node
        self._departure = Departure(
            shared, self.voter, self._connection, self._group, self._elections
        )

    @property
    def node(self) -> Node:
        """This node, where it is and as the leader has named it."""
        return self._connection.node

    @property
    def connection(self) -> ConnectionPhase:
        """What stands between this node and its leader."""
        return self._connection.phase

    @property
    def group(self) -> GroupPhase:
        """What its worker group is in the middle of."""
        return self._group.phase

    @property
    def may_move(self) -> bool:
        """Whether no leader was ever told where this node is."""
        return (
            not self._connection.was_accepted
            and self._connection.phase is not ConnectionPhase.JOINING
        )

    @property
    def ending(self) -> End | None:
        """How the job ends, if this node has accepted that."""
        return self._departure.pending_end

    @property
    def has_ended(self) -> bool:
        """Whether this node was told how the job ends, and has ended that way."""
        return self._departure.is_over and self._departure.pending_end is not None

    @property
    def known_job(self) -> KnownJob | None:
        """What is known of the job that this node is in, if it has accepted a record of one."""
        voter = self.voter
        record, base, number = voter.record, voter.base, voter.number
        if record is None or base is None:
            return None
        return KnownJob(record=record, base=base, number=number, restarts_used=voter.restarts_used)

    def step(self, input: v.FollowerInput, now: float) -> tuple[v.FollowerCommand, ...]:
        """Take one input in; return what is to be done, in order."""
        if self._departure.is_over and not isinstance(input, _WHEN_OVER):
            return ()
        wake_at = self._deadlines.wake_at
        if wake_at is not None and now >= wake_at:
            if now > wake_at + self.settings.beat_interval_s:
                # We were away ourselves (stopped, suspended): the leader may be well.
                self._departure.forgive(now)
            if now > wake_at + self.settings.lease_s / 2:
                self._out.emit(events.AgentStalled(stalled_s=round(now - wake_at, 3)))
            if not self._departure.is_over:
                self._watch_lease(now)
        self._handle(input, now)
        is_dialled = isinstance(input, v.Answered) and input.term is None
        is_passing = is_dialled and self._connection.is_joined
        if not (is_passing and self._deadlines.are_ahead(now)):  # no deadline hangs on an answer
            self._advance(now)
        return self._out.take()

    def wake_at(self) -> float | None:
        """Return when `TimePassed` is wanted, or None."""
        return self._deadlines.wake_at

    # --- dispatch ----------------------------------------------------------------------------

    def _handle(self, input: v.FollowerInput, now: float) -> None:
        connection = self._connection
        match input:
            case v.MessageReceived(message=message):  # most often
                self._on_message(message, now)
            case v.TimePassed():
                pass
            case v.Answered(term=None):
                self._tell_dialled(self._peer_dials.take(input))
            case v.Start():
                assert connection.phase is ConnectionPhase.UNSTARTED, "a follower starts once"
                self._departure.seek_from(now)
                connection.seek((), now)
            case v.Bootstrap():
                self._elections.bootstrap(input, now)
            case v.Moved(address=address, port=port):
                connection.node = replace(connection.node, address=address, port=port)
            case v.LeaderFound(leader=leader):
                connection.take_found(leader, now)
            case v.LeaderNotFound(reason=reason):
                if connection.phase is ConnectionPhase.SEEKING:
                    if connection.leads:
                        connection.lose()  # if it still led here, it would have been found
                    connection.rest(reason, now)
            case v.LeaderHeard(leader=leader):
                self._on_leader_heard(leader, now)
            case v.EndHeard(record=record):
                self._departure.hear_end(record)
            case v.Asked(connection=number, question=question):
                self._elections.answer(number, question, now)
            case v.Answered(answer=answer):
                self.candidate.take_answer(input, now)
                if answer is not None and answer.base is not None:
                    self._departure.hear_end(answer.base)
            case v.Connected():
                self._on_connected(now)
            case v.DialFailed():
                self._on_dial_failed(input, now)
            case v.ConnectionLost(reason=reason):
                self._on_connection_lost(reason, now)
            case ports.DrainRequested():
                self._departure.take_drain(input, now)
            case ports.WorkersGone(round=round_):
                self._on_workers_gone(round_, now)
            case ports.GroupSucceeded():
                self._group.take_success(input)
            case ports.GroupFailed():
                self._on_group_failed(input, now)
            case ports.StoreOpened() | ports.StoreFailed():
                self._group.take_store(input)
            case _:
                assert_never(input)

    def _on_message(self, message: object, now: float) -> None:
        if self.connection is ConnectionPhase.JOINING:
            match message:
                case m.JoinAccepted():
                    self._on_accepted(message, now)
                case m.Dismissed():
                    self._on_refused(message, now)
                case m.Answer(is_tombstone=True):
                    self._on_tombstone(message, now)
            return
        leader = self._connection.leader
        if not self._connection.is_joined or leader is None:
            return
        term = leader.term
        match message:
            case m.Heartbeat():
                if self._connection.take_heartbeat(message, now):
                    self._group.tell_lease()
            case m.AppendRecord() if message.term == term:
                self._on_append(message, now)
            case m.RecordDecided() if message.term == term:
                self._on_decided(message, now)
            case m.StopRound() if message.term == term:
                self._group.take_stop(message)
            case m.DialPeers() if message.term == term:
                self._out.add(*self._peer_dials.begin(message))
                self._tell_dialled(self._peer_dials.answer())
            case m.Standby() if message.term == term:
                self.voter.hear_of(message.number, message.restarts_used)
                self._roster = message.roster
                self._out.emit(events.NodeSpared(round=message.round, reason=message.reason))
                self._out.notify(ports.Spared(round=message.round))
            case ports.PeerDraining():
                self._out.notify(message)
            case m.Dismissed(is_final=False, reason=reason) if message.term == term:
                self._leave_round(f"evicted: {reason}", now, as_told=True)
            case m.Dismissed(reason=reason) if message.term == term:
                self._departure.finish(End(result="drained", reason=f"left: {reason}"))
            case m.LeaderResigned() if message.term == term:
                self._on_resigned(message, now)
            case _:
                pass  # of another term, or not for a follower: it changes nothing

    def _tell_dialled(self, report: m.PeersDialled | None) -> None:
        """Report the unreached nodes; asked again after joining, if the report was lost (R13)."""
        leader = self._connection.leader
        if report is None or leader is None or not self._connection.is_joined:
            return
        if report.term == leader.term:
            self._out.send(report)

    def _on_connected(self, now: float) -> None:
        if self.connection is ConnectionPhase.DIALING:
            self._connection.request_join(now, resumes_round=self._group.round)

    def _on_dial_failed(self, failed: v.DialFailed, now: float) -> None:
        if self.connection is not ConnectionPhase.DIALING:
            return
        self._connection.rest(f"{self._connection.where}: {failed.reason}", now)
        if self.settings.has_succession:
            # A port that refuses proves nothing, but nodes in contact with the leader will say so.
            if failed.outcome is not v.Outcome.SILENT:
                self._connection.lose()
        elif failed.outcome is v.Outcome.TOMBSTONE:
            self._lose_ended(f"its agent has ended: {failed.reason}")

    def _on_tombstone(self, tombstone: m.Answer, now: float) -> None:
        """Hear from a keeper, which answers instead of it, that the leader's agent has ended."""
        leader = self._connection.leader
        self._connection.break_off(f"{self._connection.where}: the agent there has ended", now)
        if leader is not None and leader.incarnation == tombstone.incarnation:
            self._lose_ended("its agent has ended; its keeper said so")

    def _lose_ended(self, problem: str) -> None:
        """Go on without a leader that has certainly ended, where another may follow it."""
        if self.settings.outlives_coordinator:
            self._connection.lose()
        elif self.voter.number > 0:
            self._departure.lose_job(problem)

    def _on_connection_lost(self, reason: str, now: float) -> None:
        connection = self._connection
        if not connection.leads_somewhere:
            return
        if self._departure.pending_end is not None and not self.settings.outlives_coordinator:
            self._departure.finish(self._departure.pending_end)
        elif connection.is_joined:
            self._group.hold(f"contact to {connection.name} is lost: {reason}")
            self._departure.seek_from(now)
            connection.last_problem = reason
            connection.dial(now)
        else:
            if connection.phase is ConnectionPhase.JOINING and self.settings.has_succession:
                connection.lose()  # it leads no more; if it does, others will say so
            connection.rest(reason, now)

    def _on_accepted(self, accepted: m.JoinAccepted, now: float) -> None:
        if not self._connection.take_accepted(accepted, now):
            return
        self._elections.end()
        self._departure.be_patient(now, for_s=0.0)
        self.voter.hear_of(accepted.number)
        self._group.tell_lease()
        if accepted.is_over:
            return  # its end follows
        if not accepted.resumed and self._group.record is not None:
            reason = f"{accepted.leader} knows nothing of round {self._group.round}"
            self._leave_round(reason, now)
            return
        self._group.release()
        if self._departure.leaving is not None:
            self._out.send(self._departure.leaving)
        self._group.report_again()

    def _on_refused(self, refused: m.Dismissed, now: float) -> None:
        if refused.is_final:
            self._departure.finish(End(result="refused", reason=refused.reason))
        else:
            self._leave_round(refused.reason, now, as_told=True)

    def _on_resigned(self, resigned: m.LeaderResigned, now: float) -> None:
        leader = self._connection.leader
        if resigned.left and self._connection.leads and self._departure.leaving is not None:
            self._departure.finish(End(result="drained", reason=f"left: {resigned.reason}"))
            return
        self._elections.has_leader_left = resigned.left
        self._connection.lose()
        self.candidate.hear_of_term(resigned.higher)
        self._departure.seek_from(now)
        self._group.hold(resigned.reason)
        self._connection.break_off(resigned.reason, now)
        if resigned.successor == self.node.incarnation and leader is not None:
            self.candidate.stand(now, leader.incarnation, at_once=True)

    def _on_leader_heard(self, leader: m.LeaderAddress, now: float) -> None:
        """Turn to the leader that another node names."""
        known = self._connection.leader
        is_on = self.settings.has_succession or self.voter.may_found
        if not is_on or self.connection in {ConnectionPhase.UNSTARTED, ConnectionPhase.OVER}:
            return
        may_give_way = known is None or (known.is_founding and leader.goes_before(known))
        if self._connection.is_joined and not may_give_way:
            return  # the one that it is in contact with says itself when it leads no more
        if not leader.is_founding and leader.incarnation != self.node.incarnation:
            self.voter.give_way()
        if not self._connection.may_dial(leader, now):
            return
        reason = f"{leader.name} leads now, under term {leader.term.counter}"
        if self._connection.turn_to(leader, now):
            self._group.hold(reason)
            self.candidate.withdraw()

    # --- records -----------------------------------------------------------------------------

    def _on_append(self, append: m.AppendRecord, now: float) -> None:
        record = append.record
        if not self._group.may_be_in(record):
            return  # its workers of before are not gone
        if not self.voter.accept(record, append.base):
            return
        self.voter.contact_at = now
        self._out.send(m.RecordAccepted(term=append.term, number=record.number))
        if record.end is None:
            self._group.take_record(record)

    def _on_decided(self, decided: m.RecordDecided, now: float) -> None:
        if not self.voter.learn_decided(decided):
            return
        record = self.voter.record
        assert record is not None, "a record that is decided was accepted"
        leader = self._connection.leader
        if leader is not None and leader.is_founding:
            self._connection.leader = replace(leader, is_founding=False)
        if record.end is not None:
            self._departure.take_decided(record.end, may_be_asked=bool(decided.unaware))
        elif decided.store_port and self._group.waits_for(record.round):
            if self._departure.leaving is not None:
                self._group.report_gone()
            elif self._connection.must_fence(now):
                self._leave_round("the lease ran out before the start came", now)
            else:
                self._group.start(decided)

    # --- the worker group --------------------------------------------------------------------

    def _on_group_failed(self, failed: ports.GroupFailed, now: float) -> None:
        if self.group is not GroupPhase.RUNNING or failed.round != self._group.round:
            return
        if failed.is_lease_over:
            # The keeper looks at the clock for itself, a moment earlier than this machine does.
            self._leave_round(f"the lease of {self.settings.lease_s:g} s ran out", now)
        else:
            self._group.report(failed)

    def _on_workers_gone(self, round_: int, now: float) -> None:
        group = self._group
        if group.record is None or round_ != group.round:
            return
        if group.phase is GroupPhase.FENCING:
            group.forget()
            self._departure.be_patient(now)
        elif group.has_workers or group.phase is GroupPhase.SUCCEEDED:
            group.report_gone()

    def _leave_round(self, reason: str, now: float, *, as_told: bool = False) -> None:
        """Be in no round from here on; first, no worker may be left.

        `as_told`: the leader lives and said so: it is not lost, however long killing takes.
        """
        self._group.fence(reason)
        if as_told:
            if self.group is GroupPhase.FENCING:
                self._departure.be_patient(now, for_s=self.settings.join_timeout_s)
            else:
                self._departure.be_patient(now)
        self._connection.break_off(reason, now)

    # --- time --------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Do what time asks for; every deadline looked at and not yet over is one to wake for."""
        self._deadlines.clear()
        if not self._departure.is_over:
            if self._group.has_workers:
                self._watch_lease(now)
            self._watch_election(now)
            may_join = self.group is not GroupPhase.FENCING
            self._connection.watch(lambda: self.peers, now, may_join=may_join)
            self._departure.watch_leaving(now)
            self._departure.watch_contact(now)
        if self._departure.is_over:
            self._deadlines.clear()
            self._departure.linger(now)

    @property
    def peers(self) -> Sequence[m.Agent]:
        """Nodes to ask for the leader: of its newest round, of a later one, and its last leader.

        A newcomer that has lost its leader before any round knows no others.
        """
        own, leader = self.voter.record, self._connection.followed
        known: dict[str, m.Agent] = {
            entry.incarnation: entry
            for entry in (*(own.roster if own is not None else ()), *self._roster)
        }
        if leader is not None:
            known.setdefault(leader.incarnation, leader)
        known.pop(self.node.incarnation, None)
        return tuple(known.values()) if self.settings.has_succession else ()

    def _watch_lease(self, now: float) -> None:
        """Kill the workers early enough before the lease ends, whatever else is going on (R6)."""
        if self._group.has_workers and self._connection.must_fence(now):
            lease_s, name = self.settings.lease_s, self._connection.name
            self._leave_round(f"the lease of {lease_s:g} s from {name} ran out", now)

    def _watch_election(self, now: float) -> None:
        """Succeed a lost leader, or find its successor."""
        is_idle = self._departure.leaving is not None and self._group.is_idle
        leader = self._elections.watch(now, may_stand=not is_idle)
        if leader is not None:
            self._on_leader_heard(leader, now)
