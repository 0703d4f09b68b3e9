"""Whether the learning rate fits the size of the batch, where the number of ranks changes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from statistics import mode
from typing import Any, Literal

from elastic_harness.history.checkers.liveness import formed_worlds
from elastic_harness.history.checkers.registry import Parameters, checker
from elastic_harness.history.events import SamplesDrawn, StepCompleted
from elastic_harness.history.history import Entry, History
from elastic_harness.history.verdict import Verdict, invalid, unknown, valid
from elastic_harness.history.worlds import World

__all__ = ["learning_rate"]

# A schedule may move the rate by a part of this from one step to the next.
_TOLERANCE = 0.1


class LearningRateParameters(Parameters):
    """`learning_rate: follows_batch`: rate and global batch change by the same factor."""

    rule: Literal["follows_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """The rate at one step of one round, and the samples that all ranks use for a step."""

    rate: float
    batch: int
    seq: int


@checker(
    "learning_rate",
    LearningRateParameters,
    shorthand="rule",
    observes=("samples", "learning_rate"),
)
def learning_rate(history: History, _: LearningRateParameters) -> Verdict:
    """Where the number of ranks changes, learning rate and global batch change by one factor."""
    batches = _batches(history)
    changes = 0
    proof: list[int] = []
    for old, new in pairwise(formed_worlds(history)):
        if (old.run_id, old.job) != (new.run_id, new.job) or old.world_size == new.world_size:
            continue
        changes += 1
        before = _moment(history, batches, old, -1)
        after = _moment(history, batches, new, 0)
        if before is None or after is None:
            unseen = old if before is None else new
            return unknown(
                f"the learning rate or the batch of round {unseen.ordinal} was not observed: it "
                "takes a step of torch's optimizer, and a DataLoader over a dataset with indices "
                "or the script's own report"
            )
        proof += [before.seq, after.seq]
        wanted = before.rate * after.batch / before.batch
        if abs(after.rate - wanted) > _TOLERANCE * abs(wanted):
            return invalid(
                f"from round {old.ordinal} to {new.ordinal} the global batch went from "
                f"{before.batch} to {after.batch} samples, and the learning rate from "
                f"{before.rate:g} to {after.rate:g}: {wanted:g} was expected",
                (before.seq, after.seq),
            )
    if not changes:
        return unknown("the number of ranks did not change")
    return valid(f"the learning rate followed the batch over {changes} changes of ranks", proof)


def _batches(history: History) -> dict[tuple[int, int], dict[int, int]]:
    """Return how many samples each rank used, by world (its ordinal) and step count."""
    sizes: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    drawn = history.of_kind(SamplesDrawn)
    if not drawn:
        return {}
    training = mode(entry.event.loader for entry in drawn)  # others: an evaluation's
    for entry in (each for each in drawn if each.event.loader == training):
        found = history.worlds.worker_of(entry.event.pid)
        if found is not None:
            key = (found[0].ordinal, entry.event.count)
            sizes[key][entry.event.rank] += map(len, entry.event.batches)
    everywhere = [len(each) for ranks in sizes.values() for each in ranks.values()]
    later: dict[int, list[int]] = defaultdict(list)
    for (ordinal, count), ranks in sizes.items():
        if count > 1:  # before a first step it draws what it leaves out, to get to its place
            later[ordinal] += map(len, ranks.values())
    per_step = {ordinal: mode(later[ordinal] or everywhere) for ordinal, _ in sizes}
    return {
        (ordinal, count): {rank: sum(each[-per_step[ordinal] :]) for rank, each in ranks.items()}
        for (ordinal, count), ranks in sizes.items()
    }


def _moment(
    history: History, batches: dict[tuple[int, int], dict[int, int]], world: World, place: int
) -> _Moment | None:
    """Return the first (0) or last (-1) step of a round of which all is known.

    The batch is the round's largest: at the end of an epoch a step may use less.
    """
    steps: list[Entry[StepCompleted]] = []
    sizes: list[int] = []
    for step in world.workers[min(world.workers)].steps:  # the rate is one for all ranks
        entry: Entry[Any] = history[step.seq]
        used = batches.get((world.ordinal, step.count), {})
        if entry.event.learning_rate is not None and len(used) == world.world_size:
            steps.append(entry)
            sizes.append(sum(used.values()))
    if not steps:
        return None
    chosen = steps[place]
    assert chosen.event.learning_rate is not None, "only steps with a rate were taken"
    return _Moment(rate=chosen.event.learning_rate, batch=max(sizes), seq=chosen.seq)
