"""The rows of a few tests, and the card that they make, as `cards.txt` has them.

python -m tests.unit.checkup.written_cards > tests/unit/checkup/cards.txt
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from elastic_harness.checkup.card import (
    Row,
    card_text,
    judge_undisturbed,
    row_of,
    row_without_run,
)
from elastic_harness.checkup.measured import Measured, measure
from elastic_harness.history.checkers import bind
from elastic_harness.history.events import StackSeen, WorkerFinished
from elastic_harness.history.judge import judge_checks

from pytest_elastic.events.model import AgentStalled, LeaseLost, WorkersStopped
from tests.unit.checkup.undisturbed import undisturbed
from tests.unit.history import trained
from tests.unit.history.story import Story

__all__ = ["ALL", "resumed", "use", "written"]

Asked = tuple[str, Any]

JOB: Asked = ("job", "succeeded")
LOST: Asked = ("steps_lost", 3)
SAMPLES: Asked = ("samples", "exactly_once")
LEFT: Asked = ("no_survivors", True)
FINISHED: Asked = ("finished_at", 12)
ALL = (JOB, LOST, SAMPLES, LEFT)


def use(story: Story, number: int, steps: range, skips: int) -> None:
    """Let both ranks of a round make steps, each with a sample of its own."""
    for step in steps:
        epoch, place = divmod(step - 1 + skips, 4)
        for rank in (0, 1):
            story.drawn(number, rank, step, 2 * place + rank, epoch=epoch).step(number, rank, step)


def resumed(at: int, *, skips: int = 0) -> Story:
    """Tell a job that is killed after step 6 and resumes at a step, in the data `skips` later."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 0)
    use(story, 1, range(1, 7), 0)
    story.fault("fault").wait(2.5).gone(1)
    story.round(2, ["n1", "n2"])
    for rank in (0, 1):
        story.resume(2, rank, at)
    use(story, 2, range(at + 1, 13), skips)
    return story.finish(2).end()


def _begins_its_epoch_anew() -> Story:
    """Tell a job that resumes after step 6, with the first two steps' samples of the epoch."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 0)
    use(story, 1, range(1, 7), 0)
    story.fault("fault").gone(1).round(2, ["n1", "n2"])
    for rank in (0, 1):
        story.resume(2, rank, 6)
    use(story, 2, range(7, 15), -2)
    return story.finish(2).end()


def _failed_at(step: int) -> Story:
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, step)
    return story.fault("fault").wait(1).gone(1)


def _left(story: Story) -> Story:
    """Let the launchers have left processes behind."""
    return story.tell("agent", "n1", WorkersStopped(round=1, duration_s=1, strays=("sleep 9",)))


def _delayed(
    *,
    ranks: int = 2,
    fires: bool = False,
    finishes: bool = False,
    stalls: str = "",
    stalled_s: float = 0.02,
) -> Story:
    """Tell a job that loses a lease before its fault, and resumes five steps before."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 8)
    if fires:
        story.fault("fault", nodes=("n2",))
    if stalls and stalled_s:
        story.tell("agent", stalls, AgentStalled(stalled_s=stalled_s))
    story.tell("agent", "n2", LeaseLost(round=1, reason="silence"))
    if stalls and not stalled_s:
        story.tell("agent", stalls, AgentStalled(stalled_s=stalled_s))
    story.gone(1)
    for rank in range(ranks):
        story.hello(2, f"n{rank + 1}", rank, 2)
    if ranks == 2:
        story.steps(2, 4, 12)
    return story.finish(2).end() if finishes else story.end("limit")


def _hangs_when_done(
    *frames: str, last: int = 12, finishes: bool = True, reason: str = ""
) -> Story:
    """Tell a job whose rank 0 ends, and whose rank 1 stands still after the last step."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 6).fault("fault").gone(1)
    story.round(2, ["n1", "n2"]).steps(2, 7, last)
    done, left = story.pids[2, 0], story.pids[2, 1]
    if finishes:
        story.tell("worker", "n1", WorkerFinished(pid=done, rank=0))
    story.gone(2, 0).end("limit")
    seen = StackSeen(pid=left, rank=1, frames=frames, source="main()", reason=reason)
    return story.tell("worker", "n2", seen).gone(2, 1)


def _counts_anew(
    last: dict[int, int], *, before: int = 6, resumes: Sequence[int] = (0, 0)
) -> Story:
    """Tell a job whose ranks begin their count of steps again, and end after so many."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, before).fault("fault").gone(1)
    story.round(2, ["n1", "n2"])
    for rank, steps in last.items():
        story.resume(2, rank, resumes[rank])
        for step in range(resumes[rank] + 1, steps + 1):
            story.step(2, rank, step)
    return story.finish(2).end()


def _three_rounds(*steps: int, ends: bool = True) -> Story:
    """Tell a job of three rounds, each of which begins its count again."""
    story = Story()
    for number, last in enumerate(steps, start=1):
        story.round(number, ["n1", "n2"]).steps(number, 1, last)
        if number < len(steps):
            story.fault(f"fault-{number}").gone(number)
    return story.finish(len(steps)).end() if ends else story


def _preempted(*, after: int = 0, before: int = 12) -> Story:
    """Tell a job that makes its steps before it is restarted, and some after that."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, before).fault("fault").gone(1)
    story.round(2, ["n1", "n2"])
    if after:
        story.steps(2, before + 1, before + after)
    return story.finish(2).end()


def _pauses() -> Iterator[tuple[str, Story]]:
    story = Story().round(1, ["n1"]).steps(1, 1, 2).wait(9).steps(1, 3, 4).wait(1)
    story.fault("one").wait(2).steps(1, 5, 5).wait(1).fault("two").wait(1).steps(1, 6, 12)
    yield (
        "9 s before the first fault, 3 s around it, and 2 s around the second",
        story.finish(1).end(),
    )
    story = Story().round(1, ["n1"]).steps(1, 1, 3)
    story.at -= 0.01
    story.fault("fault").wait(2).steps(1, 4, 12)
    yield "a step with the fault", story.finish(1).end()
    yield "no step after the fault", _failed_at(3).end()
    story = Story().round(1, ["n1"]).fault("fault").wait(1).steps(1, 1, 1).wait(2).steps(1, 2, 12)
    yield "no step before the fault, and 2 s after the first", story.finish(1).end()


def _cases() -> Iterator[tuple[str, str, Story, Sequence[Asked], Measured]]:
    """Yield a title, the test's name, its run, what was asked, and the undisturbed run."""
    seen = measure(undisturbed().history, "succeeded", "", "train.py")
    name = "worker-killed"
    yield "two steps again", name, resumed(4), ALL, seen
    yield "a step of samples left out", name, resumed(4, skips=1), ALL, seen
    yield "too many steps again", name, resumed(1), ALL, seen
    yield "a preemption loses steps", "preempted", resumed(1), ALL, seen
    yield "a preemption loses steps and samples", "preempted", resumed(2, skips=1), ALL, seen
    yield "a preemption loses samples", "preempted", resumed(6, skips=1), ALL, seen
    yield (
        "a torn checkpoint costs samples, which its advice does not mend",
        "checkpoint-torn",
        resumed(4, skips=1),
        ALL,
        seen,
    )
    yield (
        "a torn checkpoint ends the job",
        "checkpoint-torn",
        _failed_at(3).end("failed"),
        ALL,
        seen,
    )
    yield "a killed worker ends the job", name, _failed_at(3).end("failed"), ALL, seen
    yield "it hangs", name, _failed_at(3).end("limit"), (("ends_in_time", None), SAMPLES), seen
    limit = ("ends_in_time", None)
    yield "a lease is lost, and it hangs", name, _delayed(), (limit, JOB), seen
    yield "a lease is lost to the fault, and it hangs", name, _delayed(fires=True), (limit,), seen
    for title, stalled in {
        "another agent stood still": _delayed(fires=True, stalls="n1"),
        "its agent stood still": _delayed(fires=True, stalls="n2"),
        "another agent stood still later": _delayed(fires=True, stalls="n1", stalled_s=0),
    }.items():
        yield f"a lease is lost after the fault, and {title}", name, stalled, (limit,), seen
    end, function = "a/train.py:9 in <module>", "a/train.py:7 in save"
    for title, story, of in (
        ("", _hangs_when_done(end), seen),
        (", in a function", _hangs_when_done(function, end), seen),
        (", and nobody knows where", _hangs_when_done(reason="no stack"), seen),
        (", but for the last one", _hangs_when_done(end, last=11), seen),
        (", and the other rank was killed", _hangs_when_done(end, finishes=False), seen),
        (", as far as can be known", _hangs_when_done(end), replace(seen, is_global=False)),
    ):
        yield f"it hangs when all steps are done{title}", name, story, (limit,), of
    yield "a lease is lost, and steps with it", name, _delayed(finishes=True), (JOB, LOST), seen
    asked: Sequence[Asked] = (JOB, LOST, ("finished_at", 13))
    yield "a lease is lost, and a step is missing", name, _delayed(finishes=True), asked, seen
    asked = (JOB, SAMPLES)
    yield "a lease is lost, and no samples are known", name, _delayed(finishes=True), asked, seen
    yield "a lease is lost, and all is well", name, _delayed(finishes=True), (JOB,), seen
    yield "a rank does not come up", name, _delayed(ranks=1, fires=True), (limit,), seen
    half = Story().hello(1, "n1", 0, 2).fault("fault").gone(1).round(2, ["n1", "n2"]).end("limit")
    yield "a rank does not come up at first", name, half, (limit,), seen
    slow = Story().round(1, ["n1", "n2"]).steps(1, 1, 4).end("limit")
    yield "it does not come to the fault", name, slow, (limit,), seen
    yield (
        "it does not come to the fault, and loses steps",
        name,
        slow,
        (("world_sizes", [1]),),
        seen,
    )
    none = Story().end("limit")
    yield "no rank comes up", name, none, (limit, SAMPLES), seen
    none = Story().fault("fault").end("limit")
    yield "no rank comes up after the fault", name, none, (limit, SAMPLES), seen
    yield "what became of the job is not known", name, _failed_at(3), ALL, seen
    yield "the job was not asked for", name, resumed(4), (LOST, SAMPLES), seen
    yield (
        "four clauses do not hold",
        name,
        resumed(1, skips=1),
        (*ALL, ("epochs", 9), ("restarts", 0), ("finished_at", 99)),
        seen,
    )
    yield "processes are left", name, _left(resumed(4)), (*ALL, ("no_strays", None)), seen
    yield (
        "samples are lost, and no process is left",
        name,
        _left(resumed(4, skips=1)),
        (JOB, SAMPLES),
        seen,
    )
    no_steps = replace(seen, unseen={"steps": "nothing counts them"})
    unknown = Story().round(1, ["n1", "n2"])
    for rank in (0, 1):
        unknown.step(1, rank, None)
    unknown.fault("fault").gone(1).round(2, ["n1", "n2"])
    for rank in (0, 1):
        unknown.step(2, rank, None)
    unknown.finish(2).end()
    yield "no step is known", name, unknown, (JOB, LOST, FINISHED), no_steps
    yield "no step is known here, but was without a fault", name, unknown, (JOB, LOST), seen
    for title, last, more in (
        ("the count of steps begins anew", {0: 12, 1: 12}, {}),
        ("one rank ends earlier", {0: 9, 1: 11}, {}),
        ("no step was made before", {0: 9, 1: 9}, {"before": 0}),
        ("one step was made before", {0: 9, 1: 9}, {"before": 1}),
        ("it begins with the second step", {0: 9, 1: 9}, {"resumes": (1, 1)}),
        ("one of two begins with the third step", {0: 9, 1: 9}, {"resumes": (0, 2)}),
        ("rank 1 counts nothing", {0: 9, 1: 0}, {}),
        ("rank 0 counts nothing", {0: 0, 1: 9}, {}),
    ):
        yield title, name, _counts_anew(last, **more), (JOB, FINISHED), seen
    asked = (JOB, ("finished_at", 9), SAMPLES)
    yield "the second round makes no step", name, _three_rounds(6, 0, 9), (JOB, FINISHED), seen
    yield "it ends where it should", name, _counts_anew({0: 9, 1: 9}), asked, seen
    yield (
        "all was done before the power was cut",
        "preempted",
        _preempted(),
        (JOB, ("steps_lost", 0)),
        seen,
    )
    yield (
        "all was done before a worker was killed",
        name,
        _preempted(),
        (JOB, ("steps_lost", 0)),
        seen,
    )
    yield (
        "all was done, and the samples are wrong",
        "preempted",
        _preempted(),
        (JOB, SAMPLES, ("epochs", 4)),
        seen,
    )
    yield (
        "some was done after the power was cut",
        "preempted",
        _preempted(after=2),
        (JOB, ("steps_lost", 0), FINISHED),
        seen,
    )
    yield (
        "nothing was done before the power was cut",
        "preempted",
        _preempted(before=0),
        (JOB, LOST),
        seen,
    )
    yield "one round", "preempted", undisturbed(), (JOB, LOST), seen
    unfit = (JOB, SAMPLES)
    yield "no samples are known of a preempted job", "preempted", _preempted(after=2), unfit, seen
    yield "and it makes no step at first", "preempted", _three_rounds(6, 0, 9), unfit, seen
    yield "and makes steps at first only", "preempted", _three_rounds(6, 0), (JOB,), seen
    asked = (JOB, ("finished_at", 99))
    yield "and ends too early", "preempted", _three_rounds(6, 0), asked, seen
    story = _three_rounds(0, 0, ends=False)
    yield "and it has not ended, nor made a step", "preempted", story, (JOB,), seen
    yield "a torn checkpoint costs steps", "checkpoint-torn", resumed(1), ALL, seen
    for title, story in _pauses():
        yield title, name, story, (JOB,), seen
    yield from _data(name, seen)
    yield from _states(name, seen)
    late = Story().round(1, ["n1", "n2"]).steps(1, 4, 12).finish(1).end()
    yield "it goes on from an earlier run", name, late, (JOB,), seen
    idle = Story().round(1, ["n1", "n2"]).steps(1, 1, 0).finish(1).end()
    yield "it makes no step", name, idle, (JOB,), seen
    lame = Story().round(1, ["n1", "n2"]).steps(1, 1, 0)
    yield "one rank makes a step", name, lame.step(1, 1, 1).finish(1).end(), (JOB,), seen
    asked = (JOB, FINISHED, SAMPLES)
    yield "an epoch begins anew, and it ends later", name, _begins_its_epoch_anew(), asked, seen


def _data(name: str, seen: Measured) -> Iterator[tuple[str, str, Story, Sequence[Asked], Measured]]:
    assert seen.samples is not None
    size, uses = seen.samples
    yield (
        "no samples are known without a fault",
        name,
        resumed(4),
        (JOB,),
        replace(seen, samples=None),
    )
    more = replace(seen, samples=(size, {**uses, 3: Counter({0: 1, 1: 2})}))
    yield "an epoch is not come to", name, resumed(4), (JOB,), more
    yield (
        "an epoch is not come to, by fewer ranks",
        name,
        resumed(4),
        (JOB,),
        replace(more, world_size=3),
    )
    less = replace(seen, samples=(size, {1: uses[1]}))
    yield "two epochs more than without a fault", name, resumed(4), (JOB,), less
    empty = replace(seen, samples=(size, {**uses, 1: Counter()}))
    yield "an epoch of no samples", name, resumed(4), (JOB,), empty
    unused = Story().round(1, ["n1"]).steps(1, 1, 0).drawn(1, 0, 1, 1).finish(1).end()
    yield "nothing is used, by fewer ranks", name, unused, (JOB,), seen
    twice = replace(seen, samples=(size, {epoch: used + used for epoch, used in uses.items()}))
    yield "each sample is used twice without a fault", name, resumed(4), (JOB,), twice


def _states(
    name: str, seen: Measured
) -> Iterator[tuple[str, str, Story, Sequence[Asked], Measured]]:
    same = {"are": "same_as_uninterrupted", "within": 1e-6}
    both = (JOB, ("parameters", same), ("optimizer", "same_as_uninterrupted"))
    near = {"digest": "y", "norm": 2.0, "sketch": (1.0, 1.0 + 1e-9), "optimizer": "o", "lr": (0.1,)}

    def ending(**changed: Any) -> Story:  # noqa: ANN401 (fields of an event)
        return trained.trained(state=lambda _: {**trained.alike(0), **changed})()

    yield "it ends with the same", name, ending(), both, seen
    yield "it ends with nearly the same", name, ending(**near), both, seen
    yield "it ends with another optimizer", name, ending(optimizer="p"), both, seen
    yield "it ends with other parameters", name, ending(digest="y", sketch=(1.0, 1.2)), both, seen
    yield (
        "it ends with other parameters, alone",
        name,
        ending(digest="y", sketch=(1.0, 1.2)),
        both[:2],
        seen,
    )
    yield "nobody says what it ends with", name, trained.trained(ends=False)(), both, seen
    usual = tuple(1 + 0.1 * (n % 2) for n in range(6))
    more = tuple(3 * each for each in usual)
    ends: tuple[tuple[str, tuple[float, ...], dict[str, Any]], ...] = (
        ("ends", usual, {}),
        ("does not say how it ends", (), {}),
        ("ends with a higher loss", more, {}),
        ("ends with a higher loss of nearly the same parameters", more, near),
        ("ends with the highest allowed loss", (seen.loss_limit or 0,), near),
    )
    for title, losses, state in ends:
        story = Story().tell("engine", "", seen.state) if seen.state is not None else Story()
        story.round(1, ["n1"]).steps(1, 1, 12)
        story.hashed(1, 0, **{"digest": "z", **state, "step": 12, "losses": losses})
        yield (
            f"one rank {title}",
            name,
            story.finish(1).end(),
            (JOB, ("loss", "as_uninterrupted")),
            seen,
        )


def _row_lines(row: Row) -> Iterator[str]:
    pause = None if row.pause_s is None else round(row.pause_s, 2)
    yield f"  {row.outcome}, survived {row.survived}, without steps {pause} s"
    yield f"  steps lost {row.steps_lost}"
    yield f"  samples lost {row.samples_lost}, again {row.samples_again}"
    yield f"  state {row.state}, left behind {row.left_behind}"
    for cause in row.causes:
        yield f"  - {cause}"


def written() -> str:
    """Return the rows, a line for each part, and the card that some of them make."""
    lines: list[str] = []
    rows: list[Row] = []
    for number, (title, name, story, asked, seen) in enumerate(_cases()):
        judged = judge_checks(story.history, [bind(*each) for each in asked])
        directory = f"runs/{number}" if number % 2 else ""
        row = row_of(name, title, story.history, judged, seen, tolerance=1e-6, directory=directory)
        rows.append(replace(row, name=f"{name}-{number}"))
        lines += [f"{title} ({name})", *_row_lines(row), ""]
    rows.append(row_without_run("links", "The links", "there is no link to cut"))
    rows.append(row_without_run("files", "The files", "files were missed", "unknown"))
    rows.append(Row(name="reason", title="It has no reason", outcome="unknown"))
    notes = ["no samples were seen", f"{'word ' * 40}end"]
    lines += ["=" * 100, card_text("train.py", rows, notes), "", "=" * 100]
    for title, story in (("launchers tell nothing", resumed(4)), ("and tell", _left(resumed(4)))):
        names = [
            f"{each.title} {each.verdict.outcome.value}"
            for each in judge_undisturbed(story.history)
        ]
        lines += ["", f"the run without a fault, where {title}:", f"  {', '.join(names)}"]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.stdout.write(written())
