"""What a node has to do with a round: accepted, started, its workers, and what it reports.

News that must not get lost with a connection (a failure, workers gone) is kept until the next round
and said again whenever this node is taken in; the leader knows what it has heard before.
"""

from __future__ import annotations

from enum import Enum

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.consensus.records import Record
from pytest_elastic.rendezvous.follower.connection import Connection
from pytest_elastic.rendezvous.machine import Part, Shared
from pytest_elastic.rendezvous.model import Assignment

__all__ = ["GROUP_ALLOWED", "WITH_WORKERS", "GroupPhase", "WorkerGroup"]

_Report = (
    ports.GroupFailed
    | ports.GroupSucceeded
    | ports.WorkersGone
    | ports.StoreOpened
    | ports.StoreFailed
)


class GroupPhase(Enum):
    """What a node's worker group is in the middle of."""

    __hash__ = object.__hash__

    NONE = "none"  # in no round
    ACCEPTED = "accepted"  # has accepted a round, waits for its start; no worker
    RUNNING = "running"
    SUCCEEDED = "succeeded"  # its workers ended with status 0
    STOPPING = "stopping"  # its workers are being stopped as ordered
    GONE = "gone"  # its workers are gone, as ordered
    FENCING = "fencing"  # its workers are being killed: the round goes on without us, or may


GROUP_ALLOWED: dict[GroupPhase, frozenset[GroupPhase]] = {
    GroupPhase.NONE: frozenset({GroupPhase.ACCEPTED}),
    GroupPhase.ACCEPTED: frozenset({GroupPhase.RUNNING, GroupPhase.GONE, GroupPhase.NONE}),
    GroupPhase.RUNNING: frozenset(
        {GroupPhase.SUCCEEDED, GroupPhase.STOPPING, GroupPhase.GONE, GroupPhase.FENCING}
    ),
    GroupPhase.SUCCEEDED: frozenset({GroupPhase.STOPPING, GroupPhase.GONE, GroupPhase.FENCING}),
    GroupPhase.STOPPING: frozenset({GroupPhase.GONE, GroupPhase.FENCING}),
    GroupPhase.GONE: frozenset({GroupPhase.ACCEPTED, GroupPhase.NONE}),
    GroupPhase.FENCING: frozenset({GroupPhase.NONE}),
}

WITH_WORKERS = frozenset({GroupPhase.RUNNING, GroupPhase.STOPPING})


class WorkerGroup(Part):
    """One node's worker group; `phase` is what it is in the middle of."""

    def __init__(self, shared: Shared, incarnation: str, connection: Connection) -> None:
        super().__init__(shared)
        self.phase = GroupPhase.NONE
        self.record: Record | None = None
        """The record of the round that this node is in."""
        self.is_held = False
        """Whether the workers are stopped for a moment."""
        self._incarnation = incarnation
        self._connection = connection
        self._reports: list[_Report] = []
        self._ranked: tuple[Record, int | None] | None = None
        self._made_by: Record | None = None  # the record that made the round
        self._newest_round = 0  # that it was ever in: it is in none of them again

    def become(self, phase: GroupPhase) -> None:
        """Go from one phase to another, as the table has it."""
        allowed = GROUP_ALLOWED[self.phase]
        assert phase in allowed, f"a worker group cannot go from {self.phase} to {phase}"
        self.phase = phase
        if not self.has_workers:
            self.is_held = False

    @property
    def has_workers(self) -> bool:
        """Whether workers run, or are being stopped."""
        return self.phase in WITH_WORKERS

    @property
    def is_free(self) -> bool:
        """Whether it can be in the next round."""
        return self.phase in {GroupPhase.NONE, GroupPhase.ACCEPTED, GroupPhase.GONE}

    @property
    def is_idle(self) -> bool:
        """Whether no worker is left here."""
        return not self.has_workers and self.phase is not GroupPhase.FENCING

    @property
    def round(self) -> int:
        """The number of the round, 0 for none."""
        return 0 if self.record is None else self.record.round

    # --- reports -----------------------------------------------------------------------------

    def report(self, report: _Report) -> None:
        """Tell the leader, now and whenever this node is taken in, until the next round."""
        self._reports.append(report)
        if self._connection.is_joined:
            self._out.send(report)

    def report_again(self) -> None:
        """Tell a leader that has just taken this node in what it may not have heard."""
        for report in self._reports:
            self._out.send(report)

    def _rank_in(self, record: Record) -> int | None:
        """Return this node's group rank in the round of a record; None: it is not in it."""
        if self._ranked is None or self._ranked[0] is not record:  # a roster may be long
            own, roster = self._incarnation, enumerate(record.roster)
            rank = next((rank for rank, entry in roster if entry.incarnation == own), None)
            self._ranked = (record, rank)
        return self._ranked[1]

    def _is_new_in(self, record: Record) -> bool:
        return record.round > self._newest_round and self._rank_in(record) is not None

    def may_be_in(self, record: Record) -> bool:
        """Tell whether this node can be in the round of a record, if it is to be in that at all."""
        return self.is_free or not self._is_new_in(record)

    def take_record(self, record: Record) -> None:
        """Be in the round of a record that was accepted, if it names this node."""
        if record.round == self.round:
            self.record = record  # proposed again, or without a node that leaves
        if not self._is_new_in(record):
            return
        self._newest_round = record.round
        self.record = self._made_by = record
        self._reports.clear()
        if self.phase is not GroupPhase.ACCEPTED:
            self.become(GroupPhase.ACCEPTED)
        if self._rank_in(record) == 0:
            world_size = sum(entry.slots for entry in record.roster)
            self._out.notify(ports.OpenStore(round=record.round, world_size=world_size))

    def waits_for(self, round_: int) -> bool:
        """Tell whether this node waits for the start of a round."""
        return self.phase is GroupPhase.ACCEPTED and self.round == round_

    def start(self, decided: m.RecordDecided) -> None:
        """Start the workers of the round."""
        record = self._made_by  # a record without a leaver may have come since
        assert record is not None, "what is started was accepted"
        self.become(GroupPhase.RUNNING)
        self.tell_lease()
        group_rank = self._rank_in(record)
        assert group_rank is not None, "a node is started in a round that names it"
        assignment = Assignment(
            round=record.round,
            term=record.origin.counter,
            roster=record.roster,
            group_rank=group_rank,
            restart_count=record.restart_count,
            max_restarts=record.max_restarts,
            store_address=decided.store_address,
            store_port=decided.store_port,
            spares=record.spares,
        )
        self._out.notify(ports.StartWorkers(assignment=assignment))

    def take_stop(self, order: m.StopRound) -> None:
        """Stop the workers as ordered."""
        if order.round != self.round:
            # Nothing of it was ever started here.
            self._out.send(ports.WorkersGone(round=order.round))
        elif self.phase is GroupPhase.ACCEPTED:
            self.report_gone()
        elif self.phase in {GroupPhase.RUNNING, GroupPhase.SUCCEEDED}:
            self.become(GroupPhase.STOPPING)
            stop = ports.StopWorkers(round=order.round, grace_s=order.grace_s, reason=order.reason)
            self._out.notify(stop)

    def report_gone(self) -> None:
        """Report that no worker of the round is left here, or that none was ever started."""
        gone = ports.WorkersGone(round=self.round)
        self.become(GroupPhase.GONE)
        self.report(gone)

    # --- what the agent says -----------------------------------------------------------------

    def take_success(self, succeeded: ports.GroupSucceeded) -> None:
        """Report that all workers ended well."""
        if self.phase is GroupPhase.RUNNING and succeeded.round == self.round:
            self.become(GroupPhase.SUCCEEDED)
            self.report(succeeded)

    def take_store(self, answer: ports.StoreOpened | ports.StoreFailed) -> None:
        """Report where the worker store of the round is, or that there is none."""
        if self.phase is GroupPhase.ACCEPTED and answer.round == self.round:
            self.report(answer)

    # --- holding and fencing -----------------------------------------------------------------

    def hold(self, reason: str) -> None:
        """Stop the workers for a moment, until it is clear whether their round stands."""
        if self.has_workers and not self.is_held:
            self.is_held = True
            self._out.notify(ports.HoldWorkers(round=self.round, reason=reason))

    def release(self) -> None:
        """Let workers go on that are held: their round stands."""
        if self.is_held:
            self.is_held = False
            self._out.notify(ports.ReleaseWorkers(round=self.round))

    def tell_lease(self) -> None:
        """Hand the deadline to the keeper while it has workers to kill."""
        if self.has_workers:
            self._out.notify(ports.LeaseExtended(until=self._connection.held_until))

    def fence(self, reason: str) -> None:
        """Have nothing to do with the round any more; workers that are left are killed."""
        if self.has_workers or self.phase is GroupPhase.SUCCEEDED:
            self.become(GroupPhase.FENCING)
            self._reports.clear()
            self._out.notify(ports.Fence(round=self.round, reason=reason))
        elif self.phase is not GroupPhase.FENCING:
            self.forget()

    def forget(self) -> None:
        """Be in no round."""
        if self.phase is not GroupPhase.NONE:
            self.become(GroupPhase.NONE)
        self.record = None
        self._reports.clear()
