"""What the training itself must not lose: steps, parameters, samples."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Literal

from elastic_harness.history.checkers.liveness import formed_worlds
from elastic_harness.history.checkers.registry import Checker, checker
from elastic_harness.history.events import SamplesDrawn
from elastic_harness.history.history import Entry, History
from elastic_harness.history.verdict import Verdict, invalid, unknown, valid
from elastic_harness.history.worlds import World

__all__ = ["NO_GLOBAL_STEP", "losses", "parameters", "resumed_at", "samples", "steps_lost"]

NO_GLOBAL_STEP = (
    "steps are counted per process only: the optimizer keeps no step in its state, and the script "
    "does not report one (`observe: {step: REGEX}` reads it off what every rank prints)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedAtParameters:
    """`resumed_at: {round: 2, step: 20}`: round by ordinal; `step` steps were done already."""

    round: int
    step: int

    def __post_init__(self) -> None:
        if self.round < 1 or self.step < 0:
            raise ValueError("rounds are counted from 1, and steps that are done from 0")


@checker("resumed_at", ResumedAtParameters)
def resumed_at(history: History, asked: ResumedAtParameters) -> Verdict:
    """Every rank of a round resumes with so many steps done."""
    world = history.worlds.find(asked.round)
    if world is None:
        return invalid(f"there was no round {asked.round}")
    if not any(worker.steps for worker in world.workers.values()):
        return unknown(f"no step of round {asked.round} was observed")
    for worker in world.workers.values():
        if worker.resumed_at_step is None or worker.resumed_seq is None:
            if worker.steps:
                return unknown(NO_GLOBAL_STEP, (worker.steps[0].seq,))
            return unknown(f"rank {worker.rank} made no step in round {asked.round}")
        if worker.resumed_at_step != asked.step:
            return invalid(
                f"rank {worker.rank} resumed round {asked.round} with {worker.resumed_at_step} "
                f"steps done, {asked.step} were expected",
                (worker.resumed_seq,),
            )
    return valid(
        f"every rank resumed round {asked.round} with {asked.step} steps done",
        [worker.resumed_seq for worker in world.workers.values() if worker.resumed_seq],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsLostParameters:
    """`steps_lost: {at_most: 5}`, for each resume."""

    at_most: int

    def __post_init__(self) -> None:
        if self.at_most < 0:
            raise ValueError(f"{self.at_most} steps cannot be lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one resume cost: steps that any rank had completed and that were executed again."""

    world: World
    steps: int
    events: tuple[int, ...]


def losses(history: History) -> list[Loss] | None:
    """Return the steps lost at each resume, in order; None where global steps are not known."""
    found: list[Loss] = []
    done = 0
    done_seq: int | None = None
    for world in history.worlds.rounds:
        stepped = [worker for worker in world.workers.values() if worker.steps]
        if not stepped:
            continue
        resumes = [worker for worker in stepped if worker.resumed_at_step is not None]
        if len(resumes) < len(stepped):
            return None
        first = min(resumes, key=lambda worker: worker.resumed_at_step or 0)
        if done_seq is not None:
            lost = max(0, done - (first.resumed_at_step or 0))
            proof = (done_seq, first.resumed_seq or first.hello_seq)
            found.append(Loss(world=world, steps=lost, events=proof))
        last = max(stepped, key=lambda worker: worker.last_step or 0)
        done, done_seq = last.last_step or 0, last.steps[-1].seq
    return found


@checker("steps_lost", StepsLostParameters, shorthand="at_most")
def steps_lost(history: History, asked: StepsLostParameters) -> Verdict:
    """At each resume, at most so many completed steps are executed again."""
    if not any(
        worker.steps for world in history.worlds.rounds for worker in world.workers.values()
    ):
        return unknown("no step of any worker was observed")
    found = losses(history)
    if found is None:
        return unknown(NO_GLOBAL_STEP)
    for loss in found:
        if loss.steps > asked.at_most:
            return invalid(
                f"round {loss.world.ordinal} executed {loss.steps} steps again, at most "
                f"{asked.at_most} were expected",
                loss.events,
            )
    worst = max((loss.steps for loss in found), default=0)
    return valid(f"{len(found)} resumes, at most {worst} steps executed again at one")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersParameters:
    """`parameters: identical`."""

    are: Literal["identical"]


@checker("parameters", ParametersParameters, shorthand="are")
def parameters(history: History, _: ParametersParameters) -> Verdict:
    """All replicas end with the same parameters (data-parallel training)."""
    formed = formed_worlds(history)
    if not formed:
        return unknown("no round formed")
    last = formed[-1]
    digests: dict[str, list[int]] = {}
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, worker in sorted(last.workers.items()):
        if worker.digest is None or worker.digest_seq is None:
            why = "it did not end by itself" if not worker.finished else "none was taken"
            return unknown(f"no digest of rank {rank}'s parameters in the last round: {why}")
        digests.setdefault(worker.digest.digest, []).append(worker.digest_seq)
        ranks[worker.digest.digest].append(rank)
    if len(digests) > 1:
        groups = " and ".join(f"ranks {', '.join(map(str, each))}" for each in ranks.values())
        return invalid(
            f"parameters differ at the end between {groups}",
            [seq for seqs in digests.values() for seq in seqs],
        )
    return valid(
        f"{last.world_size} replicas ended with the same parameters",
        [seq for seqs in digests.values() for seq in seqs],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesParameters:
    """`samples: {each_epoch: exactly_once}`.

    `padding: allowed` forgives the samples that a DistributedSampler repeats so that all ranks have
    equally many. `loader` chooses among several data loaders by a part of its name.
    """

    each_epoch: Literal["exactly_once", "at_least_once", "at_most_once"]
    padding: Literal["allowed", "forbidden"] = "forbidden"
    loader: str | None = None


@checker("samples", SamplesParameters, shorthand="each_epoch")
def samples(history: History, asked: SamplesParameters) -> Verdict:
    """Each sample of an epoch is used as often as asked, by the last execution of each step."""
    drawn = history.of_kind(SamplesDrawn)
    if not drawn:
        return unknown(
            "samples were not observed: they must be asked for, and come from a DataLoader over a "
            "dataset with indices, or from the script's own report"
        )
    chosen = _loader_of(drawn, asked.loader)
    if chosen is None:
        return unknown(f"no data loader is called {asked.loader!r}")
    drawn = [entry for entry in drawn if entry.event.loader == chosen]
    if any(entry.event.step is None for entry in drawn):
        return unknown(NO_GLOBAL_STEP)
    if any(entry.event.epoch is None or entry.event.size is None for entry in drawn):
        return unknown(
            f"the epoch or the size of {chosen} is not known: its sampler keeps no `epoch`"
        )
    return _judge_samples(_last_executions(history, drawn), asked)


def _loader_of(drawn: list[Entry[SamplesDrawn]], wanted: str | None) -> str | None:
    """Return the loader that was used for most steps: that of the training."""
    counts = Counter(entry.event.loader for entry in drawn)
    names = [name for name, _ in counts.most_common() if wanted is None or wanted in name]
    return names[0] if names else None


def _last_executions(
    history: History, drawn: list[Entry[SamplesDrawn]]
) -> list[Entry[SamplesDrawn]]:
    """Return what was drawn for the last execution of each step: by the newest world to do it."""
    newest: dict[int, int] = {}
    worlds: dict[int, int] = {}
    for entry in drawn:
        found = history.worlds.worker_of(entry.event.pid)
        worlds[entry.seq] = found[0].ordinal if found is not None else 0
        step = entry.event.step or 0
        newest[step] = max(newest.get(step, 0), worlds[entry.seq])
    return [entry for entry in drawn if worlds[entry.seq] == newest[entry.event.step or 0]]


def _judge_samples(drawn: list[Entry[SamplesDrawn]], asked: SamplesParameters) -> Verdict:
    uses: dict[int, Counter[int]] = defaultdict(Counter)
    proof: dict[int, list[Entry[SamplesDrawn]]] = defaultdict(list)
    usual = _batches_per_step(drawn)
    for entry in drawn:
        epoch = entry.event.epoch or 0
        proof[epoch].append(entry)
        # More than usual before a first step is what the script skipped when it resumed.
        for batch in entry.event.batches[-usual:]:
            uses[epoch].update(batch)
    size = max(entry.event.size or 0 for entry in drawn)
    ranks = max(1, len({entry.event.rank for entry in drawn}))
    last_epoch = max(uses)
    for epoch, counts in sorted(uses.items()):
        repeated = sorted(sample for sample, count in counts.items() if count > 1)
        extra = sum(counts[sample] - 1 for sample in repeated)
        allowed = ranks - 1 if asked.padding == "allowed" else 0
        if asked.each_epoch != "at_least_once" and extra > allowed:
            return invalid(
                f"epoch {epoch} used {len(repeated)} samples more than once, first "
                f"{_first(repeated)}",
                [e.seq for e in proof[epoch] if _uses(e, repeated[0])],
            )
        missing = [sample for sample in range(size) if sample not in counts]
        # The last epoch may have been cut short by the job's own end.
        if asked.each_epoch != "at_most_once" and missing and epoch != last_epoch:
            return invalid(
                f"epoch {epoch} never used {len(missing)} of {size} samples, first "
                f"{_first(missing)}",
                [e.seq for e in proof[epoch]][-8:],
            )
    return valid(f"{len(uses)} epochs of {size} samples: {asked.each_epoch.replace('_', ' ')}")


def _batches_per_step(drawn: list[Entry[SamplesDrawn]]) -> int:
    return Counter(len(entry.event.batches) for entry in drawn).most_common(1)[0][0]


def _uses(entry: Entry[SamplesDrawn], sample: int) -> bool:
    return any(sample in batch for batch in entry.event.batches)


def _first(values: list[int]) -> str:
    return ", ".join(map(str, values[:5])) + (" ..." if len(values) > 5 else "")


CHECKERS: tuple[Checker[Any], ...] = (resumed_at, steps_lost, parameters, samples)
