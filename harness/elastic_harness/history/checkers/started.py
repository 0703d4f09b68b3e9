"""Which ranks of a round were never heard of, and why that may be."""

from __future__ import annotations

from elastic_harness.history.checkers.cut_short import is_stopped
from elastic_harness.history.events import (
    FaultFired,
    NodeStopped,
    ProcessExited,
    WorkerGone,
)
from elastic_harness.history.history import Entry, History
from elastic_harness.history.worlds import World
from pytest_elastic.events.model import RoundCommitted, WorkerExited, WorkersStarted

__all__ = ["never_started", "unexplained_ranks"]


def unexplained_ranks(history: History, world: World) -> list[int]:
    """Return the ranks of a round that nobody heard of though nothing kept them, lowest first.

    What may have kept them: a fault, a worker, a launcher or a node that ended while the round was
    forming, a launcher that says it never started them or that they ended without a word, or the
    end of the run by its test.
    """
    missing = set(range(world.world_size)) - set(world.workers)
    if is_stopped(history):
        return []
    later = [each.started_at for each in history.worlds.rounds if each.ordinal > world.ordinal]
    until = min(later, default=float("inf"))
    for entry in history:
        if isinstance(entry.event, FaultFired | NodeStopped | ProcessExited | WorkerGone) and (
            world.started_at <= entry.at <= until
        ):
            return []
    for entry in history.of_kind(WorkerExited):
        if (entry.event.round, history.worlds.job_of(entry.seq)) == (world.round, world.job):
            missing.discard(entry.event.rank)
    return sorted(missing.difference(never_started(history, world)))


def never_started(history: History, world: World) -> list[int]:
    """Return the ranks of a round that no launcher has started, lowest first.

    A round may end before one of its nodes has begun with it. That is known only where launchers
    say whom they start, and where each one that has said nothing of it was heard of after the round
    was committed; else the list is empty.
    """

    def is_of_it(entry: Entry[RoundCommitted] | Entry[WorkersStarted]) -> bool:
        job = history.worlds.job_of(entry.seq)
        own = (world.run_id, world.job, world.round)
        return (entry.record.run_id, job, entry.event.round) == own

    committed = [entry for entry in history.of_kind(RoundCommitted) if is_of_it(entry)]
    started = [entry for entry in history.of_kind(WorkersStarted) if is_of_it(entry)]
    if not committed:
        return []
    roster = {name for entry in committed for name in entry.event.roster}
    heard = {
        entry.node
        for entry in history
        if entry.seq > committed[0].seq and entry.record.source == "agent"
    }
    if not roster <= {entry.node for entry in started} | heard:
        return []
    ranks = {rank for entry in started for rank in entry.event.ranks}
    return [rank for rank in range(world.world_size) if rank not in ranks]
