"""What a run that nothing disturbs shows of a script: how long it is, what it saves, what it uses.

The battery is made to measure from it, and its runs are compared with it.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_high

import msgspec

from elastic_harness.history.checkers.final_state import loss_limit, losses_of, reference_of
from elastic_harness.history.checkers.samples import samples_by_epoch
from elastic_harness.history.events import (
    FilesUnseen,
    FileWritten,
    ParametersHashed,
    ReferenceObserved,
    SamplesDrawn,
    StepCompleted,
)
from elastic_harness.history.history import History
from elastic_harness.history.worlds import WorkerView
from elastic_harness.report.cause import (
    failed_first,
    leases_lost_unasked,
    lines_of,
    why_it_ended,
)
from pytest_elastic.errors import UsageError

__all__ = [
    "ALL_ALIKE",
    "FEWEST_STEPS",
    "NO_STEPS",
    "UNDER_WAY",
    "Checkpoints",
    "Measured",
    "measure",
    "pattern_of",
    "why_not_comparable",
    "without_unseeded",
    "without_what_differs",
]

# With fewer there is no middle that a fault could come in.
FEWEST_STEPS = 10
# A checkpoint is seen a step or two after it was written.
UNDER_WAY = 2
# Said where nothing counts the steps of the whole training: what shows them, in one line.
_TO_SHOW_STEPS = (
    "so that the step it goes on with after a restart is not known, and neither are the steps and "
    "samples that are lost. To show it, call `elastic_harness.observe.report_step(step)` after "
    "each step, with the number of steps that are done over the whole training; or, where every "
    r"rank prints that number, give --observe-step='step (\d+)'"
)
NO_STEPS = f"no optimizer of torch counts its steps over the whole training, {_TO_SHOW_STEPS}"
ALL_ALIKE = (
    "its optimizer counts no steps, and the parameters that were looked at are the same after each "
    f"of them (is the gradient of its loss 0?), {_TO_SHOW_STEPS}"
)
UNEVEN = (
    "its ranks make different numbers of steps, so that neither the steps nor the samples that are "
    "lost are known"
)
NO_CHECKPOINT = (
    "no checkpoint was seen: no file was written again and again below the working folder or "
    "$ELASTIC_CHECKPOINT_DIR, but for logs, which only grow. If the script saves elsewhere, by an "
    "absolute path, give it a relative one: each run would find what an earlier one has saved"
)
MISSED_FILES = (
    "whether the script saves checkpoints, and how often, is not known, because files may have "
    "been written unseen"
)
# Fewer bytes are a note (a step number, a log line) and no checkpoint.
_SMALLEST_CHECKPOINT = 256
_VARIES = re.compile(
    r"(?<![^\W_])(?:[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}|(?=[a-f]*\d)[\da-f]{6,})(?![^\W_])|\d+",
    re.IGNORECASE,
)
_OF_TORCH = re.compile(r"\.(pt|pth|bin|ckpt|distcp|safetensors)\b|/\.metadata$")
_USUAL = re.compile(rf"{_OF_TORCH.pattern}|\.(npz|pkl|pickle)\b")
_FOLDER = re.compile(r"checkpoint|ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The files that a script saves again and again, as patterns with `*` in place of numbers.

    `written` is what they are called while they are written, `named` when they are complete.
    `steps` are how many steps were done when each was; `beside` the most that were made from the
    first file of one to its last, by a script that saves in the background. `others` are what else
    torch wrote each time. `longer` is how many steps were done when a number in the name got
    another digit, the last time (None: none did).
    """

    written: str
    named: str
    steps: tuple[int, ...]
    beside: int
    others: tuple[str, ...] = ()
    longer: int | None = None

    @property
    def interval(self) -> int:
        """The steps from one to the next, as a rule."""
        return median_high(b - a for a, b in pairwise((0, *self.steps)))

    def most_lost(self, step: int, number: int) -> int:
        """Return the most steps that a fault at `step` may cost that takes `number` intervals.

        Checkpoints need not be equally far apart: the gaps count that lie before and around it.
        """
        before = [0, *(each for each in self.steps if each <= step)]
        after = self.steps[len(before) - 1 :]
        around = (after[0] if after else step) - before[-number:][0]
        usual = number * self.interval
        # A smaller difference is one of when they were seen.
        return around if around > usual + 2 * UNDER_WAY else usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was seen of the run; what could not be seen is None, with the reason in `unseen`.

    The first step was done after `start_s`, the last one `seconds` later.
    `epoch_ends` are the steps behind which an epoch of the data ends and another one begins.
    `misses_files`: whether the script saves, and how often, is not known. `began_with` are digests
    of the parameters that the ranks began with, where only these tell how many steps were done;
    there are none of a script that begins with others each time.
    """

    world_size: int
    steps: int
    start_s: float
    seconds: float
    is_global: bool
    checkpoints: Checkpoints | None
    state: ReferenceObserved | None
    samples: tuple[int, Mapping[int, Counter[int]]] | None
    epoch_ends: frozenset[int]
    unseen: Mapping[str, str]
    misses_files: bool
    began_with: frozenset[str]

    @property
    def loss_limit(self) -> float | None:
        """The highest mean of the last losses that a job of another world size may end with."""
        losses = [] if self.state is None else _losses_of(self.state)
        return loss_limit(losses)

    @property
    def step_s(self) -> float:
        """The seconds a step takes."""
        return self.seconds / max(1, self.steps - 1)


def measure(
    history: History, outcome: str, reason: str, program: str, *, said: str = ""
) -> Measured:
    """Return what an undisturbed run has shown; `said` was printed where it failed first.

    Raises UsageError, in one sentence, for a program that the battery cannot be made for.
    """
    if outcome != "succeeded" or any(world.last_step for world in history.worlds.rounds[:-1]):
        raise _unfit(history, outcome, reason, program, said)
    workers = [worker for world in history.worlds.rounds[-1:] for worker in world.workers.values()]
    if not workers:
        raise UsageError(
            f"{program} ended well, but no Python process with the harness's probe was seen in it",
            hint="What a check-up can follow is a program that Python runs on each rank.",
        )
    steps = min(worker.steps_done for worker in workers)
    if steps < FEWEST_STEPS:
        seen = "no step was seen" if steps == 0 else f"{steps} steps were seen"
        raise UsageError(
            f"{program} ended well, but {seen}: at least {FEWEST_STEPS} are needed for faults to "
            "come in the middle",
            hint=f"If it found the checkpoint of an earlier run: {_how_to_begin_afresh(history)} "
            "If it is short, make it longer. If it steps without an optimizer of torch, "
            r"--observe-step='step (\d+)' reads its steps off its output.",
        )
    first = next(worker for worker in workers if worker.rank == 0)
    unseen: dict[str, str] = {}
    if any(worker.resumed_at_step not in (0, None) for worker in workers):
        raise UsageError(
            f"{program} did not begin afresh: it found a checkpoint of an earlier run",
            hint=_how_to_begin_afresh(history),
        )
    state = reference_of(history)
    if state is None or any(each.get("digest") is None for each in state.states):
        state, unseen["state"] = None, _why_no_state(workers)
    elif loss_limit(_losses_of(state)) is None:
        unseen["loss"] = (
            "the loss was not seen, so that the end of a job with fewer nodes is compared with "
            "nothing: no step came after a backward() of torch on a single number"
        )
    is_global = all(
        worker.resumed_at_step == 0 and worker.steps[-1].step is not None for worker in workers
    )
    if is_global and _changes_nothing(history):
        is_global, unseen["steps"] = False, ALL_ALIKE
    elif not is_global:
        unseen["steps"] = NO_STEPS
    elif len({worker.last_step for worker in workers}) > 1:
        is_global, unseen["steps"] = False, UNEVEN
    used = samples_by_epoch(history)
    if isinstance(used, str):
        unseen["samples"] = used
    missed = history.first(FilesUnseen)
    checkpoints = _checkpoints(history, first) if missed is None else None
    if missed is not None:
        unseen["checkpoints"] = f"{MISSED_FILES}: {missed.event.reason}"
    elif checkpoints is None:
        unseen["checkpoints"] = NO_CHECKPOINT
    return Measured(
        world_size=len(workers),
        steps=steps,
        start_s=first.steps[0].at - history.start,
        seconds=first.steps[-1].at - first.steps[0].at,
        is_global=is_global,
        checkpoints=checkpoints,
        state=state,
        samples=None if isinstance(used, str) else used,
        epoch_ends=_epoch_ends(history),
        unseen=unseen,
        misses_files=missed is not None,
        began_with=frozenset(filter(None, (worker.began_with for worker in workers))),
    )


def why_not_comparable(one: Measured, other: Measured) -> str:
    """Say why two undisturbed runs are not alike, so that no third can be compared; "" if so."""
    if one.steps != other.steps:
        return f"one made {one.steps} steps, the other {other.steps}"
    if one.began_with != other.began_with:
        return "they began with different parameters (does the script set its seeds?)"
    if one.samples is not None and other.samples is not None and one.samples != other.samples:
        return "they used the samples of an epoch differently (is the sampler seeded?)"
    if (one.state is None) != (other.state is None):
        return "what it ended with was seen of one only"
    first, second = (
        None if state is None else [each.get("digest") for each in state.states]
        for state in (one.state, other.state)
    )
    if first != second:
        return "they ended with different parameters (does the script set its seeds?)"
    return ""


def without_what_differs(one: Measured, other: Measured) -> Measured:
    """Return what was measured, but for what a third run cannot be expected to show."""
    one = replace(one, state=None, samples=one.samples if one.samples == other.samples else None)
    if one.began_with != other.began_with:
        one = replace(one, began_with=frozenset())
        if one.steps != other.steps:
            # Perhaps it began where the other had ended: then nothing tells what its steps count.
            one = replace(one, is_global=False, unseen={**one.unseen, "steps": NO_STEPS})
    return one


def without_unseeded(one: Measured, other: Measured) -> Measured:
    """Return what was measured, but for random numbers that differ in two undisturbed runs.

    No seed sets these, so that they are no reason for other parameters.
    """
    if one.state is None or other.state is None:
        return one
    states = tuple(
        {
            **mine,
            "random": {k: v for k, v in mine["random"].items() if theirs["random"].get(k) == v},
        }
        for mine, theirs in zip(one.state.states, other.state.states, strict=True)
    )
    return replace(one, state=msgspec.structs.replace(one.state, states=states))


def _unfit(history: History, outcome: str, reason: str, program: str, said: str) -> UsageError:
    """Say why nothing can be compared with a run without a fault; the machine's part goes first."""
    ended = why_it_ended(history)
    if lost := leases_lost_unasked(history):
        why = f"lost leases in a run without any fault, {lost}"
        return UsageError(f"the launcher of {program} {why}", hint="Try --jobs=1 first.")
    if outcome == "aborted":
        return UsageError(f"the run of {program} without any fault was broken off: {reason}")
    if outcome == "limit":
        return UsageError(
            f"{program} had not ended by its limit, without any fault",
            hint="Give it fewer steps, or more time: --limit=20m.",
        )
    failed = failed_first(history)
    why = said or reason
    if ended and not ended.startswith("failed: "):
        why = ended
    elif failed is not None:
        why = f"{failed}"
        if failed.raised is None and not failed.message and (lines := lines_of(history, failed)):
            why += f": {lines[-1]}"
    hint = "Have it end well first: pytest-elastic run, with the same words."
    if "Read-only file system" in why:
        hint = (
            "In a check-up it may read, and not write, what an argument or a link names outside "
            "the working folder, and large files: they are your own. Let it save by a relative "
            "path, in a folder that is new."
        )
    if outcome == "succeeded":
        return UsageError(f"{program} is restarted without any fault: {why}", hint=hint)
    return UsageError(f"{program} fails without any fault: {why}", hint=hint)


def _why_no_state(workers: Sequence[WorkerView]) -> str:
    ends = [worker.digest for worker in workers if worker.digest is not None]
    if not ends:
        why = "no optimizer of torch made a step, or none had ended in time"
        return f"what it ended with was not seen of any rank: {why}"
    if len({end.step for end in ends}) > 1:
        return "what it ended with is not compared: its ranks ended after different steps"
    return "what it ended with was not seen of every rank: is the machine too busy?"


def _how_to_begin_afresh(history: History) -> str:
    """Say how to keep old checkpoints from the runs; name where this one wrote most at once."""
    written = [each.event for each in history.of_kind(FileWritten)]
    largest = max(written, key=_size, default=None)
    where = "FOLDER" if largest is None else largest.path.partition("/")[0]
    return (
        f"--leave-out={where} leaves old files out of the copy of the "
        "working folder that each run has. What is saved elsewhere, by an absolute path, is the "
        "same for all runs: have it saved below the working folder, or $ELASTIC_CHECKPOINT_DIR."
    )


def _losses_of(state: ReferenceObserved) -> list[float]:
    return losses_of([ParametersHashed(**each) for each in state.states])


def _epoch_ends(history: History) -> frozenset[int]:
    first: dict[int, int] = {}
    for entry in history.of_kind(SamplesDrawn):
        event = entry.event
        if event.rank == 0 and event.step is not None and event.epoch is not None:
            first[event.epoch] = min(event.step, first.get(event.epoch, event.step))
    return frozenset(step - 1 for step in first.values() if step > 1)


def _changes_nothing(history: History) -> bool:
    """Tell whether an optimizer that counts no steps has left the same parameters after each."""
    steps = [e.event for e in history.of_kind(StepCompleted) if e.event.rank == 0]
    return {step.step_source for step in steps} == {"parameters"} and (
        len({step.parameters for step in steps}) == 1
    )


def _checkpoints(history: History, first: WorkerView) -> Checkpoints | None:
    """Find which files are checkpoints: those written again and again, the largest of them.

    What torch writes, and what lies in a folder named so, goes before other files. One that all
    ranks share goes before files of each rank, such as the states of random numbers; one that is
    named after the best model is what is used later, not what a script goes on with.
    """
    groups: dict[str, list[tuple[FileWritten, int]]] = defaultdict(list)
    began: dict[str, int] = {}  # by folder
    written: list[tuple[str, int]] = []
    for entry in history.of_kind(FileWritten):
        done = sum(1 for step in first.steps if step.at <= entry.at)
        began.setdefault(os.path.dirname(entry.event.path), done)
        if done and _size(entry.event) >= _SMALLEST_CHECKPOINT:
            groups[pattern_of(entry.event.path)].append((entry.event, done))
            written.append((pattern_of(entry.event.path), done))
    named = {pattern: found for pattern, found in groups.items() if len(found) > 1}
    named = {pattern: found for pattern, found in named.items() if not _is_log(found)}
    if not named:
        return None

    def preference(pattern: str) -> tuple[int, bool, bool, bool, bool, int, int]:
        files = named[pattern]
        folder, name = os.path.split(pattern.lower())
        # A file may be told of twice, and late; of each rank's own there are twice as many names.
        names = len({(event.path, done) for event, done in files})
        is_shared = 2 * names < 3 * len({done for _, done in files})
        return (
            bool(_USUAL.search(pattern)) + bool(_OF_TORCH.search(pattern)),
            _FOLDER.search(folder) is not None,
            files[-1][0].how == "moved",  # else what was written may be given this name
            is_shared,
            "best" not in name,
            max(_size(e) for e, _ in files),
            # The later one is what a script goes on with, as a copy of the numbered one before; and
            # a folder that is renamed has its files twice, and keeps them under the later name.
            max(place for place, (each, _) in enumerate(written) if each == pattern),
        )

    chosen = max(named, key=preference)
    found = Checkpoints(
        written=_written_as(chosen, history),
        named=chosen,
        steps=tuple(sorted({done for _, done in named[chosen]})),
        beside=_made_beside(named[chosen], began),
        longer=max(
            (
                done
                for (one, _), (other, done) in pairwise(named[chosen])
                if len(other.path) > len(one.path)
            ),
            default=None,
        ),
    )
    others = [
        pattern
        for pattern in named
        if _OF_TORCH.search(pattern)
        and preference(pattern)[3:5] == (True, True)
        and _are_written_together({pattern, chosen}, written)
    ]
    late = max(found.beside, _seen_late(found))
    return replace(found, beside=late, others=tuple(sorted(others)))


def _made_beside(found: list[tuple[FileWritten, int]], began: Mapping[str, int]) -> int:
    """Return the most steps from the first file of a checkpoint's folder to its last.

    Of files that share one folder nothing tells where another checkpoint begins.
    """
    ended = {os.path.dirname(event.path): done for event, done in found}
    if len(ended) == 1:
        return 0
    return max(done - began[folder] for folder, done in ended.items())


def _are_written_together(two: Collection[str], written: Sequence[tuple[str, int]]) -> bool:
    """Tell whether of two patterns one file is mostly seen next to the other.

    All files are seen in their order, however late; and what is told twice counts once.
    """
    order: list[tuple[str, int]] = []
    for pattern, done in written:
        is_again = order and order[-1][0] == pattern and done - order[-1][1] <= UNDER_WAY
        if pattern in two and not is_again:
            order.append((pattern, done))
    paired = {
        place
        for first, ((_, done), (_, later)) in enumerate(pairwise(order))
        if later - done <= UNDER_WAY
        for place in (first, first + 1)
    }
    times = Counter(pattern for pattern, _ in order)
    near = Counter(order[place][0] for place in paired)
    return all(2 * near[each] > times[each] for each in two)


def _seen_late(found: Checkpoints) -> int:
    """Return how many steps after a multiple of its interval each checkpoint was seen.

    A file is seen when it is complete: it may have been begun that much earlier, by a thread. A few
    steps are no more than any file is seen late.
    """
    late = [step % found.interval for step in found.steps[:-1]]
    if len(late) < 2 or min(late) <= UNDER_WAY or max(late) - min(late) > 2 * UNDER_WAY:
        return 0
    return max(late)


def _is_log(found: list[tuple[FileWritten, int]]) -> bool:
    """Tell whether files are one that was added to: written in place, it only grows."""
    ways, sizes = {(e.path, e.how) for e, _ in found}, [_size(e) for e, _ in found]
    (path, how), *more = ways
    return (
        not more
        and how == "written"
        and not _USUAL.search(path)
        and sizes == sorted(sizes)
        and len(set(sizes)) > 1
    )


def _written_as(named: str, history: History) -> str:
    """Return what files are called while they are written that are then given another name."""
    folder = named.rpartition("/")[0]
    before: Counter[str] = Counter()
    last = ""
    for entry in history.of_kind(FileWritten):
        if entry.event.how == "written" and entry.event.path.rpartition("/")[0].startswith(
            folder.partition("*")[0]
        ):
            last = pattern_of(entry.event.path)
        elif pattern_of(entry.event.path) == named and last:
            before[last] += 1
    if not before:
        return named
    pattern = max(before, key=lambda each: before[each])
    # Names drawn by chance are never the same: then any file of the folder is meant.
    return pattern if before[pattern] > 1 else os.path.join(folder, "*")


def _size(event: FileWritten) -> int:
    return event.size or 0


def pattern_of(path: str) -> str:
    """Return a path with `*` in place of its numbers, digests and UUIDs."""
    return _VARIES.sub("*", path)
