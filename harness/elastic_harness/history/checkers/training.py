"""The steps of a training: where a round resumes, what that costs, where the job ends."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from elastic_harness.history.checkers.registry import Parameters, checker
from elastic_harness.history.events import SamplesDrawn
from elastic_harness.history.history import History
from elastic_harness.history.verdict import Verdict, invalid, unknown, valid
from elastic_harness.history.worlds import WorkerView, World

__all__ = [
    "NO_GLOBAL_STEP",
    "finished_at",
    "forgotten",
    "losses",
    "resumed_at",
    "steps_lost",
    "why_no_step",
]

NO_GLOBAL_STEP = (
    "steps are counted per process only: the optimizer keeps no step in its state, the parameters "
    "before the first step are not those that exactly one step before has left, and the script "
    "does not report one (`observe: {step: REGEX}` reads it off what every rank prints)"
)
_FROM_THE_RUN = "counted from where the run began, as the optimizer keeps no step in its state"
_NO_START = (
    "it is not certain how many steps were done before: the script's reports and its optimizer's "
    "steps do not agree, or the first report came after several steps "
    "(`elastic_harness.observe.report_resume(step)` says it)"
)
_FORGOTTEN = (
    "a sampler began round {} with a later epoch than the job, and the optimizer with step 1 as in "
    "the beginning: the script resumed, and its optimizer does not say where"
)

_COUNTS_OTHERS = (
    "the optimizer of rank {} counted {} steps, and then not one more for each step (is there "
    "another that steps more often, or takes its place?): which steps of the whole training they "
    "are is not known, unless the script reports it (`elastic_harness.observe.report_step(step)`)"
)


class ResumedAtParameters(Parameters):
    """`resumed_at: {round: 2, step: 20}`: round by ordinal; `step` steps were done already."""

    round: int
    step: int

    def model_post_init(self, context: object) -> None:
        if self.round < 1 or self.step < 0:
            raise ValueError("rounds are counted from 1, and steps that are done from 0")


@checker("resumed_at", ResumedAtParameters)
def resumed_at(history: History, asked: ResumedAtParameters) -> Verdict:
    """Every rank of a round resumes with so many steps done."""
    world, last = history.worlds.find(asked.round), history.worlds.current
    if last is None:
        return unknown("no worker was observed")
    if world is None:
        seen = [each.hello_seq for each in last.workers.values()]
        return invalid(f"there was no round {asked.round}", seen)
    if (problem := _miscounted(history)) is not None:
        return problem
    ranks = [world.workers[rank] for rank in sorted(world.workers)]
    for worker in ranks:
        is_assumed = worker.began_with is not None and asked.round == 1
        if worker.resumed_at_step not in (None, asked.step) and not is_assumed:
            return invalid(
                f"rank {worker.rank} resumed round {asked.round} with {worker.resumed_at_step} "
                f"steps done, {asked.step} were expected{_since(worker)}",
                (worker.resumed_seq,),
            )
    if not any(worker.steps for worker in ranks):
        return unknown(f"no step of round {asked.round} was observed")
    for worker in ranks:
        if not worker.steps and not (worker.finished and worker.resumed_at_step is not None):
            return unknown(f"rank {worker.rank} made no step in round {asked.round}")
        if worker.resumed_at_step is None:
            return unknown(f"rank {worker.rank}: {_why_not(worker)}", (worker.steps[0].seq,))
        if worker.began_with is not None and asked.round == 1:
            return unknown(f"rank {worker.rank}: {_FROM_THE_RUN}", (worker.resumed_seq,))
    if (missing := _missing(world)) is not None:
        return unknown(missing)
    return valid(
        f"every rank resumed round {asked.round} with {asked.step} steps done{_since(ranks[0])}",
        [worker.resumed_seq for worker in ranks],
    )


def _missing(world: World) -> str | None:
    missing = sorted(set(range(world.world_size)) - set(world.workers))
    if not missing:
        return None
    return f"rank {missing[0]} of round {world.ordinal} was not observed"


def _why_not(worker: WorkerView) -> str:
    """Say why it is not known where a worker resumed."""
    return NO_GLOBAL_STEP if all(step.step is None for step in worker.steps) else _NO_START


def _since(worker: WorkerView) -> str:
    """Say from where its steps are counted, where its optimizer counts none."""
    return "" if worker.began_with is None else f" ({_FROM_THE_RUN})"


def _miscounted(history: History) -> Verdict | None:
    """Find steps that cannot be a count of what is done, over the whole training."""
    if (found := forgotten(history)) is not None:
        return found
    for world in history.worlds.rounds:
        for worker in world.workers.values():
            for step in worker.steps:
                if step.step is not None and step.step < 1:
                    return unknown(
                        f"rank {worker.rank} reported step {step.step} as done: steps are to be "
                        "reported after they were made, and counted from 1",
                        (step.seq,),
                    )
            for before, after in pairwise(worker.steps):
                if before.step is None or after.step is None:
                    continue
                if before.source == "parameters" != after.source:
                    continue  # the script counts for itself, which it had not said yet
                if after.step <= before.step:
                    return unknown(
                        f"rank {worker.rank} reported step {after.step} after step {before.step}: "
                        "that is no count over the whole training",
                        (before.seq, after.seq),
                    )
    return None


def forgotten(history: History) -> Verdict | None:
    """Find an optimizer that counts something else than the steps of the whole training (unknown).

    The probe sees that of one that does not go up by one, and says no steps any more. Of one that
    counts anew in a round though the script goes on, the sampler tells: a job that really begins
    anew has the epochs for its first step that it had when it began.
    """
    for world in history.worlds.rounds:
        for worker in world.workers.values():
            for before, after in pairwise(worker.steps):
                if before.source == "state" and after.step is None:
                    return unknown(
                        _COUNTS_OTHERS.format(worker.rank, before.step), (before.seq, after.seq)
                    )
    epochs: dict[tuple[str, int], tuple[int, int]] = {}  # and the record that says so
    for entry in history.of_kind(SamplesDrawn):
        drawn, found = entry.event, history.worlds.worker_of(entry.event.pid)
        if drawn.epoch is None or drawn.epoch_source != "sampler" or drawn.count != 1:
            continue
        if found is not None and found[1].resumed_at_step == 0:
            key, told = (drawn.loader, found[0].ordinal), (drawn.epoch, entry.seq)
            epochs[key] = max(epochs.get(key, told), told)
    for (loader, ordinal), (epoch, seq) in epochs.items():
        begin, begin_seq = next(each for key, each in epochs.items() if key[0] == loader)
        if epoch > begin:
            return unknown(_FORGOTTEN.format(ordinal), (begin_seq, seq))
    return None


def why_no_step(history: History) -> str:
    """Say why it is not known which step of the whole training the steps are."""
    found = forgotten(history)
    return NO_GLOBAL_STEP if found is None else found.reason


class StepsLostParameters(Parameters):
    """`steps_lost: {at_most: 5}`, for each resume."""

    at_most: int

    def model_post_init(self, context: object) -> None:
        if self.at_most < 0:
            raise ValueError(f"{self.at_most} steps cannot be lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one resume cost: steps that any rank had completed and that were executed again.

    `unseen` steps lie between the last that was seen and the first after the resume.
    """

    world: World
    steps: int
    unseen: int
    events: tuple[int, ...]


def losses(history: History) -> list[Loss] | None:
    """Return the steps lost at each resume, in order; None where global steps are not known."""
    if forgotten(history) is not None:
        return None
    found: list[Loss] = []
    done: tuple[int, int] | None = None
    for world in history.worlds.rounds:
        stepped = [worker for worker in world.workers.values() if worker.steps]
        if not stepped:
            continue
        begun: list[tuple[int, int]] = []
        ended: list[tuple[int, int]] = []
        for worker in stepped:
            last = worker.steps[-1]
            if worker.resumed_at_step is None or last.step is None:
                return None
            begun.append((worker.resumed_at_step, worker.resumed_seq))
            ended.append((last.step, last.seq))
        if done is not None:
            first = min(begun)
            again = done[0] - first[0]
            loss = Loss(
                world=world, steps=max(0, again), unseen=max(0, -again), events=(done[1], first[1])
            )
            found.append(loss)
        done = max(ended)
    return found


@checker("steps_lost", StepsLostParameters, shorthand="at_most")
def steps_lost(history: History, asked: StepsLostParameters) -> Verdict:
    """At each resume, at most so many completed steps are executed again."""
    workers = [each for world in history.worlds.rounds for each in world.workers.values()]
    if not any(worker.steps for worker in workers):
        return unknown("no step of any worker was observed")
    if (problem := _miscounted(history)) is not None:
        return problem
    found = losses(history)
    if found is None:
        vague = [each for each in workers if each.steps and each.resumed_at_step is None]
        return unknown(_why_not(vague[0]) if vague else NO_GLOBAL_STEP)
    for loss in found:
        if loss.steps > asked.at_most:
            return invalid(
                f"round {loss.world.ordinal} executed {loss.steps} steps again, at most "
                f"{asked.at_most} were expected",
                loss.events,
            )
    for loss in found:
        if loss.unseen:
            return unknown(
                f"round {loss.world.ordinal} resumed {loss.unseen} steps after the last one that "
                "was seen: they were left out, or not seen",
                loss.events,
            )
    if not found:
        return unknown("no round resumed after another had made steps: there was nothing to lose")
    worst = max(loss.steps for loss in found)
    return valid(
        f"{len(found)} resumes, at most {worst} steps executed again at one",
        [seq for loss in found for seq in loss.events],
    )


class FinishedAtParameters(Parameters):
    """`finished_at: {step: 60}`: the global step that the job's last one is to be.

    `at_least: 60` in its place: a job that counts epochs makes more steps with fewer ranks.
    """

    step: int | None = None
    at_least: int | None = None

    def model_post_init(self, context: object) -> None:
        if (self.step is None) == (self.at_least is None):
            raise ValueError("say which step: a number, or at_least")
        if self.fewest < 1:
            raise ValueError(f"steps are counted from 1, and none is {self.fewest}")

    @property
    def fewest(self) -> int:
        """The first step that may be the last one."""
        return self.step or self.at_least or 0


@checker("finished_at", FinishedAtParameters, shorthand="step")
def finished_at(history: History, asked: FinishedAtParameters) -> Verdict:
    """Every rank of the last round completed this global step as its last, and ended by itself."""
    world = history.worlds.current
    if world is None:
        return unknown("no worker was observed")
    if (problem := _miscounted(history)) is not None:
        return problem
    proof: list[int] = []
    vague: list[str] = []
    ends: list[int] = []
    for worker in (world.workers[rank] for rank in sorted(world.workers)):
        # One that resumes with everything done has nothing left to do.
        step, seq = worker.resumed_at_step, worker.resumed_seq
        if worker.steps:
            last = worker.steps[-1]
            step, seq = last.step, last.seq
        if step is None:
            why = NO_GLOBAL_STEP if worker.steps else "it made no step"
            vague.append(f"rank {worker.rank}: {why}")
        elif (asked.step is not None and step > asked.step) or (
            step < asked.fewest and not worker.is_alive
        ):
            wanted = f"{asked.fewest} or a later one" if asked.step is None else f"{asked.step}"
            return invalid(
                f"rank {worker.rank} ended after step {step}, {wanted} was expected to be the "
                f"last one{_since(worker)}",
                (seq,),
            )
        elif not worker.finished:
            vague.append(f"rank {worker.rank} did not end by itself, after step {step}")
        else:
            ends.append(step)
        proof.append(seq)
    if (missing := _missing(world)) is not None:
        vague.append(missing)
    if vague:
        return unknown(vague[0], proof)
    since = _since(world.workers[0])
    return valid(f"all {world.world_size} ranks ended after step {max(ends)}{since}", proof)
