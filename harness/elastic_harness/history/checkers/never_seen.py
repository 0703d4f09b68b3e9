"""Workers and ranks that were never heard of, and why that may be.

Who kills all nodes of a job, or tells them to leave, does not ask whether its workers had got as
far as to say hello by then; a slow machine must not make a difference. And a round may end before
all of its launchers have begun with it. What was seen is judged as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

from elastic_harness.history.events import (
    FaultFired,
    FaultHealed,
    NodeStarted,
    NodeStopped,
    ProcessExited,
    ProcessStarted,
    RunEnded,
    WorkerGone,
    WorkerRaised,
)
from elastic_harness.history.history import Entry, History
from elastic_harness.history.verdict import Verdict, compose, invalid, unknown, valid
from elastic_harness.history.worlds import WorkerView, World
from pytest_elastic.events.model import (
    Event,
    JobEnded,
    RoundCommitted,
    WorkerExited,
    WorkersStarted,
)

__all__ = [
    "NOBODY",
    "dead_at_the_end",
    "held_twice",
    "is_stopped",
    "never_started",
    "nodes_ended_by_faults",
    "not_observed",
    "unexplained_ranks",
]

NOBODY: Final = "no worker said hello"

# torchrun gives a worker so long to end by itself before it kills it; most are dead much sooner.
_STOP_S: Final = 30.0
_MOMENT_S: Final = 1.0
# The exit code of a worker of Ray that is told to end.
_BY_RAY: Final = 1
# For which a launcher may begin a round.
_REASONS: Final[tuple[type[Event], ...]] = (
    FaultFired,
    FaultHealed,
    NodeStarted,
    NodeStopped,
    ProcessExited,
    ProcessStarted,
    WorkerGone,
    WorkerRaised,
)


def is_stopped(history: History) -> bool:
    """Tell whether the test itself ended the run, while the job was still going on."""
    ended = history.last(RunEnded)
    return ended is not None and ended.event.outcome == "stopped"


def nodes_ended_by_faults(history: History) -> frozenset[str]:
    """Return the nodes whose launcher a fault has ended, or has broken for good."""
    ended = history.last(RunEnded)
    return frozenset(ended.event.ended_by_faults if ended is not None else ())


def dead_at_the_end(history: History) -> list[tuple[WorkerView, int]]:
    """Return the workers of the last round that certainly died, and the records that say so.

    They died by a fault or an exception, or their exit code says so: where nothing tells that, one
    that went without a word may have ended by os._exit(0). What a node that a fault took away had
    is not asked.
    """
    killed = [
        (entry.seq, *worker[:2])
        for entry in history.of_kind(FaultFired)
        if not entry.event.pauses
        for worker in entry.event.workers
    ]
    exempt = nodes_ended_by_faults(history)
    return [
        (worker, gone)
        for world in history.worlds.rounds[-1:]
        for worker in world.workers.values()
        if worker.node not in exempt and (gone := worker.gone_seq) is not None
        if (worker.has_failed and not _are_ended_by_ray(world))
        or any(
            not worker.finished
            and (node, rank) == (worker.node, worker.rank)
            and seq in range(worker.hello_seq, gone)
            for seq, node, rank in killed
        )
    ]


def _are_ended_by_ray(world: World) -> bool:
    """Tell whether all workers went alike, without a word, as Ray ends those that are done."""
    return all(
        worker.exit_code in (None, _BY_RAY) and not (worker.finished or worker.raised)
        for worker in world.workers.values()
    )


def not_observed(history: History, reason: str) -> Verdict:
    """Judge that there was nothing to see: unknown, unless the test has ended the job before."""
    if is_stopped(history):
        return valid(f"{reason}, and the test itself ended the run", _end_of(history))
    launchers = [
        entry for entry in history.of_kind(ProcessStarted) if entry.event.role == "launcher"
    ]
    if launchers and {entry.node for entry in launchers} <= nodes_ended_by_faults(history):
        return valid(f"{reason}, and the test itself had ended every launcher", _end_of(history))
    if history.of_kind(JobEnded) and not history.of_kind(WorkersStarted):
        # The launchers say that none was started: that may be what the scenario is about.
        reason += " (if none is to be started, `no_workers` asks for that)"
    return unknown(reason)


def _end_of(history: History) -> tuple[int, ...]:
    ended = history.last(RunEnded)
    return () if ended is None else (ended.seq,)


def unexplained_ranks(history: History, world: World) -> list[int]:
    """Return the ranks of a round that were never heard of without a known reason, lowest first.

    What may have kept them: a fault, or a worker, a launcher or a node that was lost, while the
    round was forming; a launcher that says it never started them or that they ended without a word;
    or the end of the run by its test.
    """
    missing = set(range(world.world_size)) - set(world.workers)
    if is_stopped(history):
        return []
    later = [each.started_at for each in history.worlds.rounds if each.ordinal > world.ordinal]
    until = min(later, default=float("inf"))
    ended = history.last(RunEnded)
    for entry in history.entries[: None if ended is None else ended.seq]:
        if _is_loss(history, entry) and world.started_at <= entry.at <= until:
            return []
    for entry in history.of_kind(WorkerExited):
        if (entry.event.round, history.worlds.job_of(entry.seq)) == (world.round, world.job):
            missing.discard(entry.event.rank)
    return sorted(missing.difference(never_started(history, world)))


def _is_loss(history: History, entry: Entry[Event]) -> bool:
    """Tell whether a record says that something ended, and not by itself and well."""
    match entry.event:
        case ProcessExited(exit_code=0) | FaultFired(disturbs=False):
            return False
        case WorkerGone(pid=pid):
            found = history.worlds.worker_of(pid)
            return found is None or not found[1].finished
        case FaultFired() | NodeStopped() | ProcessExited():
            return True
        case _:
            return False


def never_started(history: History, world: World) -> list[int]:
    """Return the ranks of a round that no launcher has started, lowest first.

    A round may end before one of its nodes has begun with it. That is known only where launchers
    say which workers they start, and where each silent one was heard of after the round
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


def held_twice(history: History) -> Verdict | None:
    """Judge ranks of rounds that never formed which workers on two nodes held at a time.

    Where launchers name no rounds, a second worker of a rank opens a world of its own. It is one of
    a new round if something happened since the first said hello; if nothing did, the first may
    still be ending for a reason that was not seen.
    """
    found = []
    for first, second in _held_at_a_time(history):
        ended = history.last(RunEnded) or history.entries[-1]
        until = [ended.at, *(each.gone_at for each in (first, second) if each.gone_at is not None)]
        together_s = min(until) - second.hello_at
        if together_s > _MOMENT_S:
            judge = invalid if together_s > _STOP_S else unknown
            said = (
                f"rank {first.rank} was held for {together_s:.1f} s by two workers of one restart "
                f"count, on {first.node} and on {second.node}, and one of their rounds never formed"
            )
            found.append(judge(said, (first.hello_seq, second.hello_seq)))
    return compose(found) if found else None


def _held_at_a_time(history: History) -> Iterator[tuple[WorkerView, WorkerView]]:
    """Yield pairs of workers of one rank between whose hellos nothing had happened."""
    worlds = [world for world in history.worlds.rounds if world.round is None]
    reasons = [entry.at for kind in _REASONS for entry in history.of_kind(kind)]
    pairs = (each for each in combinations(worlds, 2) if any(w.formed_at is None for w in each))
    for one, other in pairs:
        for rank in sorted(one.workers.keys() & other.workers.keys()):
            pair = one.workers[rank], other.workers[rank]
            first, second = sorted(pair, key=lambda worker: worker.hello_at)
            are_alike = _told(one, pair[0]) == _told(other, pair[1])
            is_known = first.hello.restart_count is not None and first.node != second.node
            is_new = any(first.hello_at <= at <= second.hello_at for at in reasons)
            if are_alike and is_known and not is_new:
                yield first, second


def _told(world: World, worker: WorkerView) -> tuple[object, ...]:
    return world.run_id, world.job, world.world_size, worker.hello.restart_count
