"""Whom the launchers have started, by what they say themselves."""

from __future__ import annotations

from elastic_harness.history.history import Entry, History
from elastic_harness.history.worlds import World
from pytest_elastic.events.model import RoundCommitted, WorkersStarted

__all__ = ["never_started"]


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
