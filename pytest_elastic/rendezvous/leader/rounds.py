"""A round as its leader sees it: proposed, started, running, stopping; and what it costs.

`next` is a round that was proposed and not started, `last` the newest one that was started. The
budget and the start gate (before which no worker may start, as one of a lost member may still run)
go on from round to round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from pytest_elastic.events import model as events
from pytest_elastic.exit_codes import exit_text
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.consensus.records import Record
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.leader.members import Members
from pytest_elastic.rendezvous.leader.state import (
    Budget,
    Cause,
    LeaderPart,
    LeaderShared,
    Peer,
    Round,
    Standing,
    Verdict,
    Went,
    judge,
)
from pytest_elastic.rendezvous.vocabulary import WriteRecord

__all__ = ["Rounds"]

# What an order and its answer may take on their way.
_REPORT_S = 1.0


class Rounds(LeaderPart):
    """The round that runs, the one that is being started, and what they cost."""

    def __init__(self, shared: LeaderShared, members: Members, now: float) -> None:
        super().__init__(shared)
        self.last: Round | None = None
        self.next: Round | None = None
        self.budget = Budget(max_restarts=self._settings.max_restarts)
        self._members = members
        self._gate = now

    def close_gate(self, until: float | None) -> None:
        """Start no worker before that; None changes nothing."""
        if until is not None:
            self._gate = max(self._gate, until)

    def is_gate_open(self, now: float) -> bool:
        """Tell whether no worker of a member that was lost can still run."""
        return self._deadlines.is_due(self._gate, now)

    def use(self, *, restarts_used: int, idle_rounds: int | None = None) -> None:
        """Go on with what was used of the budget, as others tell."""
        idle = self.budget.idle_rounds if idle_rounds is None else idle_rounds
        used = max(self.budget.used, restarts_used)
        self.budget = replace(self.budget, used=used, idle_rounds=idle)

    def _count_idle(self, *, has_run: bool) -> None:
        idle_rounds = 0 if has_run else self.budget.idle_rounds + 1
        self.budget = replace(self.budget, idle_rounds=idle_rounds)

    def emit_ended(self, round_: int, reason: str, *, charged: bool) -> None:
        """Say that a round has ended, and what it cost."""
        used = self.budget.used
        self._out.emit(
            events.RoundEnded(round=round_, reason=reason, charged=charged, restarts_used=used)
        )

    # --- another leader's round --------------------------------------------------------------

    def inherit(
        self, record: Record, roster: Sequence[Peer], recovered: Recovered, now: float
    ) -> None:
        """Go on with the round of an earlier leader: `roster` is what is left of it.

        A round that may have been started, for all that is known, is stopped.
        """
        started = recovered.started
        present = frozenset(peer.node.incarnation for peer in roster)
        self.last = inherited = Round(
            record=record,
            roster=roster,
            at=now - self._settings.min_round_s,
            unfinished=set(present),
            holding=set(present),
            absent={entry.incarnation for entry in record.roster} - present,
            store=None if started is None else (started.store_address, started.store_port),
            stopped_at=now,
        )
        gone = [entry.name for entry in record.roster if entry.incarnation not in present]
        reason = f"{', '.join(gone)} went" if gone else recovered.why_followed
        if gone or started is None:
            is_change = gone or recovered.has_left
            inherited.stop_because(reason, Cause.CHANGE if is_change else Cause.LOSS)
            inherited.lost_or_gained = reason

    # --- starting a round --------------------------------------------------------------------

    def propose(self, roster: Sequence[Peer], reason: str, now: float) -> str | None:
        """Propose a round to follow the last one; or say why the job fails (R3)."""
        incarnations = tuple(peer.node.incarnation for peer in roster)
        verdict, why = judge(self.budget, self.last, incarnations)
        if verdict is Verdict.JOB_FAILS:
            return why
        in_it = frozenset(incarnations)
        ready = self._members.ready
        spares = tuple(peer.node.name for each, peer in ready.items() if each not in in_it)
        self._replication.round += 1
        record = self._replication.propose(
            now,
            round=self._replication.round,
            roster=tuple(peer.node for peer in roster),
            configuration=self._replication.configuration_of(incarnations),
            spares=spares,
            restart_count=self.budget.used + (verdict is Verdict.CHARGED),
            max_restarts=self._settings.max_restarts,
            idle_rounds=self.budget.idle_rounds,
        )
        self.next = Round(
            record=record,
            roster=roster,
            at=now,
            verdict=verdict,
            missing=set(in_it),
            unfinished=set(in_it),
            holding=set(in_it),
        )
        for peer in roster:
            peer.round = record.round
            self._members.update(peer, Standing.PROPOSED)
        self._out.emit(
            events.RoundSealed(
                round=record.round,
                term=self._term.counter,
                roster=tuple(self.next.names),
                spares=spares,
                restart_count=record.restart_count,
                reason=f"{reason}; {why}",
            )
        )
        return None

    def send_record(self) -> None:
        """Send the newest record to every node that has to accept it."""
        message = self._replication.message()
        roster = self.next.incarnations if self.next is not None else frozenset()
        for incarnation, peer in self._members.peers.items():
            if incarnation in roster or self._replication.has_voter(incarnation):
                self._out.send_to(peer.connection, message)

    def take_acceptance(self, peer: Peer, number: int) -> None:
        """Note that a member has accepted the record of the next round."""
        if self.next is not None and number == self._replication.newest.number:
            self.next.missing.discard(peer.node.incarnation)

    def take_store(
        self, peer: Peer, answer: ports.StoreOpened | ports.StoreFailed, now: float
    ) -> None:
        """Note the worker store that the member of group rank 0 has opened, or not (R8)."""
        next_ = self.next
        if next_ is None or answer.round != next_.number or peer is not next_.roster[0]:
            return
        if isinstance(answer, ports.StoreOpened):
            next_.store = (answer.address, answer.port)
        else:
            self._members.evict(peer, f"it could not open a worker store: {answer.reason}", now)

    def suspect(self, peer: Peer) -> None:
        """Have a member accept again that the start could not reach."""
        if self.next is not None and peer.standing is Standing.PROPOSED:
            self.next.missing.add(peer.node.incarnation)

    def break_off(self, reason: str) -> None:
        """Give the next round up, if there is one, at the next look."""
        if self.next is not None:
            self.next.broken_by = reason

    def may_start(self, now: float) -> bool:
        """Look after the next round; tell whether it is to be started."""
        next_, settings = self.next, self._settings
        assert next_ is not None, "there is a round to start"
        if next_.broken_by is not None:
            self._abandon(next_, next_.broken_by)
        elif next_.store is None and self._is_late(next_.at + settings.store_timeout_s, now):
            limit = f"within {settings.store_timeout_s:g} s"
            self._members.evict(next_.roster[0], f"it opened no worker store {limit}", now)
        elif next_.missing or not (self._settings.is_granted or self._replication.has_quorums):
            # A member that is there answers at once; one that is not is lost by its lease anyway.
            if self._is_late(next_.at + settings.lease_s, now):
                for peer in next_.roster:
                    if peer.node.incarnation in next_.missing:
                        self._members.evict(peer, "it did not acknowledge the round", now)
                self.break_off("it was not decided within a lease")
        elif next_.store is not None and self.is_gate_open(now):
            if self._replication.must_be_written():
                record = self._replication.newest
                decided = self._decided(record.number, next_.store)
                self._out.add(WriteRecord(record=record, decided=decided))
            return self._replication.has_quorums
        return False

    def _abandon(self, next_: Round, reason: str) -> None:
        """Give up a round that was never started; its number is not used again."""
        self._replication.withdraw()
        for peer in next_.roster:
            if peer.node.incarnation in self._members.peers:
                self._members.update(peer, Standing.WAITING)
        self.next = None
        self._count_idle(has_run=False)
        self.emit_ended(next_.number, f"given up before it was started: {reason}", charged=False)

    def start(self, now: float) -> None:
        """Decide and start the next round: the last one is paid for."""
        next_, self.next = self.next, None
        assert next_ is not None, "there is a round to start"
        self._replication.settle()
        if self.last is not None:
            charged = next_.verdict is Verdict.CHARGED
            if charged:
                self.budget = replace(self.budget, used=self.budget.used + 1)
            self.emit_ended(self.last.number, self.last.why_ended(), charged=charged)
        next_.at = now
        self.last = next_
        for peer in next_.roster:
            self._members.update(peer, Standing.RUNNING)
            self._out.send_to(peer.connection, self.decided())

    def decided(self) -> m.RecordDecided:
        """Return what tells that the newest record is decided, and where its round's store is."""
        store = self.last.store if self.last is not None else None
        return self._decided(self._replication.base.number, store)

    def _decided(self, number: int, store: tuple[str, int] | None) -> m.RecordDecided:
        address, port = store or ("", 0)
        return m.RecordDecided(
            term=self._term, number=number, store_address=address, store_port=port
        )

    # --- what members report -----------------------------------------------------------------

    def _concerns(self, round_: int, peer: Peer, *standings: Standing) -> Round | None:
        is_last = self.last is not None and self.last.number == round_ == peer.round
        return self.last if is_last and peer.standing in standings else None

    def take_success(self, peer: Peer, round_: int) -> None:
        """Note that all workers of a member ended with status 0."""
        last = self._concerns(round_, peer, Standing.RUNNING)
        if last is not None:
            last.unfinished.discard(peer.node.incarnation)
            last.has_success = True
            self._members.update(peer, Standing.SUCCEEDED)

    def take_failure(self, peer: Peer, failed: ports.GroupFailed) -> None:
        """Note that a worker failed: the round is over."""
        last = self._concerns(failed.round, peer, Standing.RUNNING)
        if last is None:
            return
        if not failed.failures:
            last.stop_because(f"workers of {peer.node.name} failed", Cause.FAILURE)
            return
        first = failed.failures[0]
        if last.first_failure is None:
            last.first_failure = replace(first, node=peer.node.name)
        how = exit_text(first.exit_code)
        last.stop_because(f"rank {first.rank} on {peer.node.name} failed ({how})", Cause.FAILURE)

    def explain(self, peer: Peer, failed: ports.GroupFailed) -> None:
        """Note why a round was stopped that another leader had stopped: it is charged."""
        last = self._concerns(failed.round, peer, Standing.RUNNING)
        if last is not None and last.unexplained is not None:
            last.unexplained = last.stop_reason = last.stop_cause = None
            self.take_failure(peer, failed)

    def take_gone(self, peer: Peer, round_: int) -> bool:
        """Note that no worker of a member is left; tell whether that was news."""
        last = self._concerns(round_, peer, Standing.RUNNING, Standing.SUCCEEDED)
        if last is None:
            return False
        last.holding.discard(peer.node.incarnation)
        self._members.update(peer, Standing.WAITING)
        return True

    def end_without(self, peer: Peer, *, is_running: bool) -> None:
        """End the round, as workers of a member are gone that does not leave."""
        assert self.last is not None, "a round runs, or is stopped"
        reason = f"the workers of {peer.node.name} are gone"
        self.last.stop_because(reason, Cause.LOSS)
        if is_running and self.last.record.origin != self._term:
            # The leader of before had stopped it; the reason is lost, unless a member reports it.
            self.last.unexplained = reason

    def miss(self, gone: Went) -> None:
        """Go on without a member, or stop for it."""
        peer, incarnation = gone.peer, gone.peer.node.incarnation
        self.close_gate(gone.safe_at)
        if self.next is not None and peer.standing is Standing.PROPOSED:
            self.break_off(gone.reason)
        last = self.last
        if last is None or incarnation not in last.incarnations:
            return
        last.absent.add(incarnation)
        last.holding.discard(incarnation)
        if gone.how == "evicted":
            last.evicted.add(incarnation)
        if gone.how != "evicted" or last.stop_cause is not Cause.FAILURE:
            last.lost_or_gained = last.lost_or_gained or gone.reason
        if peer.standing is not Standing.SUCCEEDED:
            last.unfinished.discard(incarnation)
            last.stop_because(gone.reason, Cause.CHANGE if gone.how == "left" else Cause.LOSS)

    # --- stopping ----------------------------------------------------------------------------

    def look_for_newcomers(self, newcomers: Iterable[Peer]) -> None:
        """End the round for nodes that wait and could be in the next one (R7)."""
        names = ", ".join(peer.node.name for peer in newcomers)
        if names and self.last is not None:
            self.last.stop_because(f"{names} came", Cause.CHANGE)
            self.last.lost_or_gained = self.last.lost_or_gained or f"{names} came"

    def stop(self, now: float) -> None:
        """Order the members to stop, as the round is over."""
        last = self.last
        assert last is not None, "a round runs"
        last.stopped_at = now
        for peer in last.roster:
            if peer.node.incarnation in last.holding:
                self._out.send_to(peer.connection, self.stop_order())
        self._count_idle(has_run=now >= last.at + self._settings.min_round_s)

    def stop_order(self) -> m.StopRound:
        """Return what tells a member to stop its workers."""
        assert self.last is not None, "a round runs, or is stopped"
        return m.StopRound(
            term=self._term,
            round=self.last.number,
            grace_s=self._grace_s,
            reason=self.last.stop_reason or "",
        )

    @property
    def _grace_s(self) -> float:
        if self.last is not None and self.last.stop_cause in {Cause.FAILURE, Cause.LOSS}:
            return self._settings.failure_grace_s
        return self._settings.shutdown_timeout_s

    def _is_late(self, limit: float, now: float) -> bool:
        """Tell whether what was due by `limit` has not come, and does not wait to be read."""
        return self._deadlines.is_due(max(limit, self._members.judges_from), now)

    def is_stopped(self, now: float) -> bool:
        """Tell whether every worker is gone, or its node lost; give up nodes that are slow (R2).

        One that has answered since it was told is slow, and evicted; one that has not is lost (R3).
        """
        last = self.last
        assert last is not None, "a round is stopped"
        if not last.holding:
            return True
        patience_s = self._settings.kill_timeout_s + _REPORT_S
        limit_s = self._grace_s + patience_s
        if not self._is_late(last.stopped_at + limit_s, now):
            return False
        for peer in last.roster:
            drained_at = (peer.leaves_by or 0.0) + patience_s
            if peer.node.incarnation not in last.holding or not self._deadlines.is_due(
                drained_at, now
            ):
                continue
            heard_from = peer.lease.heard_from
            if heard_from is not None and heard_from >= last.stopped_at:
                reason = f"its workers were not gone {limit_s:g} s after the stop order"
                self._members.evict(peer, reason, now)
            else:
                reason = f"it has not answered for {limit_s:g} s, since the stop order"
                self._members.give_up(peer, reason, now)
        return False
