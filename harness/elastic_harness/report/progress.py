"""How much of a run advanced its job: steps lost, goodput, and each worker's part in each round."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from elastic_harness.history.checkers.training import losses, why_no_step
from elastic_harness.history.history import History
from elastic_harness.history.worlds import WorkerView, World
from elastic_harness.report.spans import end_of
from pytest_elastic.rendezvous.model import natural_key

__all__ = ["Goodput", "PlaceRow", "goodput", "places", "steps_lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """The rank-seconds of a job, and those of them that were spent in steps that counted."""

    useful_s: float
    total_s: float

    @property
    def share(self) -> float:
        """The part that advanced the job, from 0 to 1."""
        return self.useful_s / self.total_s if self.total_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRow:
    """What one local rank of one node did: a text for each round, empty where it had no worker."""

    node: str
    local_rank: int
    cells: tuple[str, ...]


def steps_lost(history: History) -> str:
    """Return how many steps were executed again after resumes, in words."""
    if not any(
        worker.steps for world in history.worlds.rounds for worker in world.workers.values()
    ):
        return "no step was completed"
    found = losses(history)
    if found is None:
        return f"not known: {why_no_step(history)}"
    if not found:
        return "0 (the job never resumed)"
    total = sum(loss.steps for loss in found)
    return f"{total} in {len(found)} {'resume' if len(found) == 1 else 'resumes'}"


def goodput(history: History) -> Goodput | None:
    """Return the share of rank-seconds that advanced the job; None where that is not known.

    All rank-seconds: the ranks of each round, from its first worker to the first one of the next
    round, or to its own end. Useful are those in steps that no later round did again. The first
    step of a worker counts nothing, as the history does not say when its work began.
    """
    worlds = [world for world in history.worlds.rounds if world.workers]
    if not worlds or losses(history) is None:
        return None
    starts = [world.started_at for world in worlds]
    ends = [*starts[1:], worlds[-1].ended_at or end_of(history)]
    total = sum(
        world.world_size * max(0.0, end - start)
        for world, start, end in zip(worlds, starts, ends, strict=True)
    )
    useful = 0.0
    # Later rounds did again what lies behind the step at which they resumed.
    kept = float("inf")
    for world in reversed(worlds):
        for worker in world.workers.values():
            for before, step in pairwise(worker.steps):
                if step.step is not None and step.step <= kept:
                    useful += max(0.0, step.at - max(step.began_at, before.at))
        resumed = [w.resumed_at_step for w in world.workers.values() if w.steps]
        kept = min([kept, *(step for step in resumed if step is not None)])
    return Goodput(useful_s=useful, total_s=total)


def places(history: History) -> tuple[list[str], list[PlaceRow]]:
    """Return a table of ranks by round: the titles of the rounds, and a row for each local rank."""
    worlds = history.worlds.rounds
    titles = [f"round {world.number}: {world.world_size} ranks" for world in worlds]
    keys = {
        (worker.node, worker.local_rank) for world in worlds for worker in world.workers.values()
    }
    rows = [
        PlaceRow(
            node=node,
            local_rank=local_rank,
            cells=tuple(_cell(world, node, local_rank) for world in worlds),
        )
        for node, local_rank in sorted(keys, key=lambda key: (natural_key(key[0]), key[1]))
    ]
    return titles, rows


def _cell(world: World, node: str, local_rank: int) -> str:
    workers = [
        worker
        for worker in world.workers.values()
        if (worker.node, worker.local_rank) == (node, local_rank)
    ]
    return "; ".join(f"rank {worker.rank}: {_deeds(worker)}" for worker in workers)


def _deeds(worker: WorkerView) -> str:
    if not worker.steps:
        steps = "no step"
    elif worker.first_step == worker.last_step:
        steps = f"step {worker.last_step}"
    else:
        steps = f"steps {worker.first_step}-{worker.last_step}"
    if worker.gone_at is None:
        return f"{steps}, not seen to end"
    return f"{steps}, {'ended' if worker.finished else 'gone'}"
