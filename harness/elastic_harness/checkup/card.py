"""The report card of a check-up: a row for each test, and a sentence for what went wrong."""

from __future__ import annotations

import math
import textwrap
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from elastic_harness.checkup.measured import Measured
from elastic_harness.history.checkers import bind
from elastic_harness.history.checkers.final_state import NEARLY_SAME, loss_found
from elastic_harness.history.checkers.samples import samples_by_epoch
from elastic_harness.history.checkers.training import losses
from elastic_harness.history.events import FaultFired
from elastic_harness.history.history import History
from elastic_harness.history.judge import Judgement, judge, judge_checks, overall, unmet
from elastic_harness.history.verdict import Outcome
from elastic_harness.report.cause import (
    failed_first,
    hung_when_done,
    leases_lost_unasked,
    why_it_ended,
)
from pytest_elastic.events.model import WorkersStopped

__all__ = [
    "Row",
    "card_text",
    "judge_undisturbed",
    "row_of",
    "row_without_run",
    "what_is_wrong_without_a_fault",
]

_UNKNOWN = "?"
_WIDTH = 100
_MOST_CAUSES = 3
# From a fault in the middle, the notice of 5 s has to fit in what is left of the job.
_SECONDS_BEHIND_A_NOTICE = 14.0

# What mends it, by the clause that does not hold: the first that fits is said.
_ADVICE: Mapping[str, str] = {
    "steps_lost": "Save more often; load the newest checkpoint (as text, step_90 comes after "
    "step_100); for a preemption, save when SIGTERM comes.",
    "samples": "Save the place in the data (epoch and position) with the weights, and begin there; "
    "the position in samples, not in steps, where the number of ranks may change.",
    "parameters": "Save and load weights, optimizer, learning rate schedule and random numbers "
    "together, and at the same step.",
    "loss": "Save and load weights, optimizer and learning rate schedule together; and keep the "
    "global batch and its learning rate where the number of ranks changes.",
    "checkpoint": "Load all that is saved, also averaged weights, statistics and the best loss.",
    "optimizer": "Save and load the optimizer's state and its schedule with the weights.",
    "finished_at": "Save how many steps are done; and let an error end the script with an exit "
    "code that is not 0, or the launcher does not start it again.",
    "no_survivors": "End the processes that the script starts, also when it is killed.",
    "no_strays": "End the processes that the script starts before it ends.",
    "world_sizes": "Look for time limits that are too short for a slow network.",
}
# What a machine that is short of processor time may cost a right script.
_COST_BY_DELAYS = frozenset({"ends_in_time", "job", "restarts", "steps_lost", "world_sizes"})
_ADVICE_FOR_A_HANG = (
    "Have every rank call the same collectives in the same order, also after a restart, where "
    "some ranks may have found a checkpoint and others not."
)
_NOT_FRESH = (
    "it went on from a checkpoint of an earlier run, which it must have saved elsewhere: have it "
    "save below the working folder, or below $ELASTIC_CHECKPOINT_DIR"
)
_ADVICE_FOR_TEST: Mapping[str, str] = {
    "checkpoint-torn": "Keep the checkpoint before the newest, and load that one where the newest "
    "cannot be read.",
    "node-replaced": "Keep checkpoints where every node finds them (a shared file system, an "
    "object store): the disk of a node goes with it.",
    "killed-while-saving": "Write a checkpoint beside the old one, fsync it, and os.replace it; "
    "where a framework writes it, resume from the newest one that is complete.",
    "preempted": "Handle SIGTERM: save at the next step, and exit.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came out of one test; `None` where it is not known, or was not asked."""

    name: str
    title: str
    outcome: str
    survived: bool | None = None
    pause_s: float | None = None
    steps_lost: int | None = None
    samples_lost: int | None = None
    samples_again: int | None = None
    state: str = ""
    left_behind: str = ""
    causes: Sequence[str] = ()
    directory: str = ""
    has_run: bool = True


def row_of(
    name: str,
    title: str,
    history: History,
    judgements: Sequence[Judgement],
    seen: Measured,
    *,
    tolerance: float,
    directory: str,
) -> Row:
    """Return the row of a test that has run."""
    by_name = {each.name: each for each in judgements}
    job = by_name.get("job")
    has_survived = bool(job)
    survived = None if job is None or job.verdict.outcome is Outcome.UNKNOWN else has_survived
    # Of a job that did not survive, all that it did not come to would be lost.
    lost, again = _samples(history, seen) if has_survived else (None, None)
    lost_steps = losses(history)
    outcome = overall(judgements).outcome.value
    causes = tuple(_causes(name, history, judgements, seen))
    if has_survived and _began_late(history, seen):
        outcome, causes = Outcome.UNKNOWN.value, (_NOT_FRESH,)
    elif excuse := _excuse(history, judgements, seen):
        found = (each for each in causes if not each.startswith("to mend it"))
        outcome, causes = Outcome.UNKNOWN.value, (excuse, *found)
        survived = survived or None
    return Row(
        name=name,
        title=title,
        outcome=outcome,
        survived=survived,
        pause_s=_longest_pause(history) if has_survived else None,
        steps_lost=None if lost_steps is None else sum(loss.steps for loss in lost_steps),
        samples_lost=lost,
        samples_again=again,
        state=_state(by_name, history, tolerance),
        left_behind="processes" if any(_is_left(each) for each in judgements) else "nothing",
        causes=causes,
        directory=directory,
    )


def _excuse(history: History, judgements: Sequence[Judgement], seen: Measured) -> str:
    """Say why a job may not have ended as it should by no fault of the script's; "" if not."""
    found = {each.name for each in judgements if _is_invalid(each)}
    if all(judgements) or found - _COST_BY_DELAYS:
        return ""
    if lost := leases_lost_unasked(history):
        return f"leases were lost {lost}"
    if "ends_in_time" in found and not history.of_kind(FaultFired):
        return "it had not come to the fault by its limit: was this machine busy? Try --jobs=1"
    if seen.is_global and (at := hung_when_done(history, seen.steps)):
        return (
            f"all its steps were done, and it did not end: {at}, in no function. There torch may "
            "hang with gloo if a function lets a DistributedDataParallel model go after it has "
            "destroyed the process group: `del model` before the last barrier"
        )
    return ""


def judge_undisturbed(history: History) -> Sequence[Judgement]:
    """Judge the run without any fault, beside what it was only asked for to be observed.

    What a launcher says of processes that its workers leave is asked where it says so.
    """
    judged = [each for each in judge(history) if each.name not in ("samples", "parameters")]
    told = history.of_kind(WorkersStopped)
    return [*judged, *judge_checks(history, [bind("no_strays")] if told else [])]


def what_is_wrong_without_a_fault(history: History) -> str:
    """Say that the ranks of an undisturbed run ended with nan or different parameters; "" if not.

    A job that divides its model among the ranks ends so, too, and that cannot be told apart.
    """
    (replicas,) = judge_checks(history, [bind("parameters", "identical")])
    if replicas.verdict.outcome is not Outcome.INVALID:
        return ""
    return f"without any fault, {replicas.verdict.reason}"


def row_without_run(name: str, title: str, reason: str, outcome: str = "skipped") -> Row:
    """Return the row of a test that cannot be made of this script, or on this machine."""
    return Row(name=name, title=title, outcome=outcome, causes=(reason,), has_run=False)


def _longest_pause(history: History) -> float | None:
    """Return the longest time without a step of any rank, from the fault on; None: none came."""
    fired = history.first(FaultFired)
    if fired is None:
        return None
    times = sorted(
        step.at
        for world in history.worlds.rounds
        for worker in world.workers.values()
        for step in worker.steps
    )
    since = times[max(0, bisect_right(times, fired.at) - 1) :]
    return max((b - a for a, b in pairwise(since)), default=None)


def _samples(history: History, seen: Measured) -> tuple[int | None, int | None]:
    """Return how many samples were used less, and more often, than without a fault."""
    used = samples_by_epoch(history)
    if seen.samples is None or isinstance(used, str):
        return None, None
    wanted, found = seen.samples[1], used[1]
    none: Counter[int] = Counter()
    epochs = wanted.keys() | found.keys()
    # As many steps of fewer ranks end in an earlier epoch: what comes after that is not lost.
    has_changed = any(world.world_size != seen.world_size for world in history.worlds.rounds)
    reached = [e for e in epochs if not has_changed or e < max(found, default=0)]
    lost = sum((_once(wanted.get(e, none)) - found.get(e, none)).total() for e in reached)
    again = sum((found.get(e, none) - wanted.get(e, none)).total() for e in epochs)
    return lost, again


def _once(uses: Counter[int]) -> Counter[int]:
    """Return the uses of an epoch without those that only gave all ranks equally many samples."""
    return Counter(dict.fromkeys(uses, min(uses.values(), default=0)))


def _state(by_name: Mapping[str, Judgement], history: History, tolerance: float) -> str:
    """Say how the parameters and the optimizer ended, beside those of the undisturbed run.

    Of another number of ranks, the loss is said, with the undisturbed run's in brackets; where that
    is higher and the parameters are not, what they are within.
    """
    if "loss" in by_name:
        found = loss_found(history)
        if isinstance(found, str):
            return _UNKNOWN
        if found.value > found.at_most and found.is_nearly_same:
            return f"within {NEARLY_SAME:g}"
        return f"loss {found.value:.2g} ({found.wanted:.2g})"
    compared = [by_name[name] for name in ("parameters", "optimizer") if name in by_name]
    if not compared:
        return "-"
    if all(compared):
        is_exact = all("to the bit" in each.verdict.reason for each in compared)
        return "same" if is_exact else f"within {tolerance:g}"
    return _UNKNOWN if not any(_is_invalid(each) for each in compared) else "DIFFERS"


def _began_late(history: History, seen: Measured) -> bool:
    """Tell whether a job found in its first round what an earlier run had saved."""
    rounds = history.worlds.rounds
    for worker in (each for world in rounds[:1] for each in world.workers.values()):
        # Where only its parameters tell, it has to begin with those of the undisturbed run.
        others = seen.began_with if worker.began_with is not None else ()
        if worker.resumed_at_step or (others and worker.began_with not in others):
            return True
    return not any(worker.steps_done for world in rounds for worker in world.workers.values())


def _steps_after_a_new_count(history: History) -> int:
    """Return how many steps an optimizer counted that had made others in an earlier round.

    It is 0 where the last round went on with the steps before it.
    """
    *before, last = history.worlds.rounds
    if not any(world.last_step for world in before):
        return 0
    workers = last.workers.values()
    if any(w.resumed_at_step != 0 or {s.source for s in w.steps} != {"state"} for w in workers):
        return 0
    return min(worker.steps_done for worker in workers)


def _ended_with_the_fault(history: History) -> bool:
    """Tell whether all steps were made in the first round, and later ones had nothing to do."""
    first, *later = history.worlds.rounds
    return bool(first.last_step and later) and not any(world.last_step for world in later)


def _is_left(judgement: Judgement) -> bool:
    return judgement.name in ("no_survivors", "no_strays") and _is_invalid(judgement)


def _is_invalid(judgement: Judgement) -> bool:
    return judgement.verdict.outcome is Outcome.INVALID


def _causes(
    name: str, history: History, judgements: Sequence[Judgement], seen: Measured
) -> Iterable[str]:
    """Yield what went wrong, the worst first, the first failure, and what mends it."""
    found = unmet(judgements)
    names = [each.name for each in found if _is_invalid(each)]
    # Of a job that failed, all else that is unmet follows from that.
    for each in found[: 1 if "job" in names else _MOST_CAUSES]:
        if each.name == "steps_lost" and "steps" in seen.unseen:
            yield "steps lost: not known, see the note on steps"
        else:
            yield f"{each.title}: {each.verdict.reason}"
    if "job" in names:
        failed, ended = failed_first(history), why_it_ended(history)
        if failed is not None:
            yield f"first failure: {failed}"
        if ended and ended.partition(":")[0] != "failed":
            yield f"job ended: {ended}"
            return  # by no fault of the script's
    if "finished_at" in names and (more := _steps_after_a_new_count(history)):
        # An optimizer that counts anew makes all clauses about steps invalid: one cause, one mend.
        yield (
            "to mend it: Save and load the optimizer's state with the weights: after the restart "
            f"its count of steps began anew, and the script ended {more} steps later."
        )
        return
    if "ends_in_time" in names:
        mend = _ADVICE_FOR_A_HANG
        for last in history.worlds.rounds[-1:]:
            if (came := len(last.workers)) < last.world_size:
                mend = (
                    f"Of the {last.world_size} ranks that the launcher told of, {came} came up: "
                    "have it start all, or make do with fewer."
                )
        yield f"to mend it: {mend}"
        return
    if name == "preempted" and not names and _ended_with_the_fault(history):
        yield (
            "the job was over before the power was cut, so that what it does with SIGTERM was not "
            f"seen: give it {math.ceil(_SECONDS_BEHIND_A_NOTICE / seen.step_s)} steps"
        )
        return
    # What mends a test's own loss does not mend the others: a preemption may lose samples, too.
    own = _ADVICE_FOR_TEST.get(name)
    if own is not None and ("job" in names or (name == "preempted" and "steps_lost" in names)):
        yield f"to mend it: {own}"
        names = [] if "job" in names else [each for each in names if each != "steps_lost"]
    if "samples" in names:
        # Who uses samples again, or leaves some out, comes to the end at another step for that.
        names = [each for each in names if each != "finished_at"]
    if (advice := next((_ADVICE[each] for each in names if each in _ADVICE), None)) is not None:
        yield f"to mend it: {advice}"


# --- text ---------------------------------------------------------------------------------------

_HEADINGS = (
    "test", "survived", "without steps", "steps lost", "samples lost", "again", "state",
    "left behind",
)  # fmt: skip


def card_text(program: str, rows: Sequence[Row], notes: Sequence[str]) -> str:
    """Return the card for a person to read; at most 100 columns wide."""
    table = [_HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_HEADINGS))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in table]
    counts = Counter(row.outcome for row in rows)
    summary = ", ".join(
        f"{counts[each]} {each}"
        for each in ("valid", "invalid", "unknown", "skipped")
        if counts[each]
    )
    text = [f"Check-up of {program}: {summary}", "", *(line.rstrip() for line in lines), ""]
    text += [line for note in notes for line in _wrapped(f"Note: {note}", "")]
    told: dict[str, Row] = {}
    for row in (row for row in rows if row.causes and row.outcome != "valid"):
        text.append(f"{row.name}: {row.outcome}. {row.title}.")
        before = told.setdefault(row.causes[0], row)
        if before is not row:
            text.append(f"  for the same reason as {before.name}")
        own = row.causes if before is row else [c for c in row.causes if c not in before.causes]
        text += [line for cause in own for line in _wrapped(cause, "  ")]
        if row.directory:
            text.append(f"  see {row.directory}/timeline.html")
    return "\n".join(text).rstrip()


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,  # an option is copied from the card
    )


def _cells(row: Row) -> tuple[str, ...]:
    if not row.has_run:
        return (row.name, row.outcome, *["-"] * (len(_HEADINGS) - 2))
    survived = {True: "yes", False: "NO", None: _UNKNOWN}[row.survived]
    return (
        row.name,
        survived if row.outcome == "valid" or row.survived is not True else f"yes ({row.outcome})",
        "-" if row.pause_s is None else f"{row.pause_s:.2f} s",
        _number(row.steps_lost),
        _number(row.samples_lost),
        _number(row.samples_again),
        row.state,
        row.left_behind,
    )


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else str(value)
