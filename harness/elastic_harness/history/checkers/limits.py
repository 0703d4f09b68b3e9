"""What was asked for: how many restarts, how many nodes, how many workers on each."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from elastic_harness.history.checkers.never_seen import NOBODY, not_observed
from elastic_harness.history.checkers.registry import NoParameters, checker
from elastic_harness.history.events import (
    FaultFired,
    NodeStarted,
    NodeStopped,
    ProcessExited,
    ProcessStarted,
    RunStarted,
    WorkerHello,
)
from elastic_harness.history.history import History
from elastic_harness.history.verdict import Verdict, invalid, unknown, valid
from elastic_harness.history.worlds import World
from pytest_elastic.events.model import RoundEnded

__all__ = ["budget", "membership"]


@checker("budget", NoParameters, is_default=True)
def budget(history: History, _: NoParameters) -> Verdict:
    """The restart count never exceeds max_restarts and never goes back while the job lives."""
    run = history.run
    worlds = history.worlds.rounds
    if not worlds:
        return not_observed(history, NOBODY)
    limits: list[int | None] = [run.event.max_restarts] if run is not None else []
    limits += [hello.event.max_restarts for hello in history.of_kind(WorkerHello)]
    limit = next((each for each in limits if each is not None), None)
    if limit is None:
        return unknown("nothing says how many restarts were allowed")
    for ended in history.of_kind(RoundEnded):
        if ended.event.restarts_used > limit:
            used = ended.event.restarts_used
            return invalid(f"{used} restarts were used, {limit} allowed", (ended.seq,))
    counts: dict[tuple[str, int], int] = defaultdict(int)  # of each job
    for world in worlds:
        count = world.restart_count
        if count is None:
            return unknown(f"workers of round {world.name} were told no restart count")
        proof = [worker.hello_seq for worker in world.workers.values()]
        if count > limit:
            return invalid(f"round {world.name} has restart count {count}, {limit} allowed", proof)
        job = (world.run_id, world.job)
        if count < counts[job]:
            return invalid(
                f"the restart count went back from {counts[job]} to {count} in round {world.name}",
                proof,
            )
        counts[job] = count
    return _uncounted(history) or valid(f"{max(counts.values())} of {limit} restarts were used")


def _uncounted(history: History) -> Verdict | None:
    """Find a failure after which a round of the same nodes has the restart count of before.

    Of each node, as torchrun keeps one for each and does not raise all of them.
    """
    formed = [world for world in history.worlds.rounds if world.formed_at is not None]
    fired = history.of_kind(FaultFired)
    hit = {pid for entry in fired if entry.event.disturbs for *_, pid in entry.event.workers}
    for old, new in pairwise(formed):
        if _counts(old) != _counts(new) or _began_otherwise(history, old, new):
            continue
        for worker in old.workers.values():
            has_failed = worker.has_failed or (worker.pid in hit and not worker.finished)
            if has_failed and worker.gone_seq is not None:
                return unknown(
                    f"rank {worker.rank} of round {old.name} failed on {worker.node}, and the "
                    f"restart count of round {new.name} is {new.restart_count}, as it was: "
                    "restarts are not counted, or this was none",
                    (worker.gone_seq, *(each.hello_seq for each in new.workers.values())),
                )
    return None


def _counts(world: World) -> tuple[object, ...]:
    """Return the job of a round, and what each of its nodes was told of restarts."""
    told = {each.node: each.hello.restart_count for each in world.workers.values()}
    return world.run_id, world.job, told


def _began_otherwise(history: History, old: World, new: World) -> bool:
    """Tell whether a round may have begun for another reason than a worker's failure."""
    for entry in history:
        match entry.event:
            case FaultFired(workers=workers, nodes=nodes, links=links) if entry.at < new.started_at:
                if nodes or links or not workers:
                    return True
            case RoundEnded(charged=False, round=number) if number == old.round:
                return True
            case NodeStarted() | NodeStopped() | ProcessStarted() | ProcessExited():
                if old.started_at < entry.at < new.started_at:
                    return True
            case _:
                pass
    return False


@checker("membership", NoParameters, is_default=True)
def membership(history: History, _: NoParameters) -> Verdict:
    """Every round has between min and max nodes, and nproc workers on each."""
    run = history.first(RunStarted)
    if run is None:
        return unknown("the history does not say how many nodes were allowed")
    formed = [world for world in history.worlds.rounds if world.formed_at is not None]
    if not formed:
        return not_observed(history, "no round formed")
    low, high, nproc = run.event.nodes_min, run.event.nodes_max, run.event.nproc_per_node
    for world in history.worlds.rounds:
        is_formed = world.formed_at is not None
        # Of a round that did not form, its workers were told how large it was to be.
        count = len(world.nodes) if is_formed else -(-world.world_size // nproc)
        proof = [worker.hello_seq for worker in world.workers.values()]
        if not low <= count <= high:
            return invalid(
                f"round {world.name} has {count} nodes, {low} to {high} were asked for", proof
            )
        expected = count * nproc
        if world.world_size != expected:
            return invalid(
                f"round {world.name} has {world.world_size} workers on {count} nodes, "
                f"{expected} were asked for",
                proof,
            )
        counts = Counter(worker.node for worker in world.workers.values())
        for node, found in counts.items():
            if is_formed and found != nproc:
                return invalid(
                    f"round {world.name} has {found} workers on {node}, {nproc} were asked for",
                    proof,
                )
    return valid(f"{len(formed)} rounds with {low} to {high} nodes")
