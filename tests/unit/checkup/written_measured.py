"""What is measured of a few undisturbed runs, as `measured.txt` has it.

python -m tests.unit.checkup.written_measured > tests/unit/checkup/measured.txt
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec
from elastic_harness.checkup.measured import (
    FEWEST_STEPS,
    UNDER_WAY,
    Measured,
    measure,
    why_not_comparable,
    without_unseeded,
    without_what_differs,
)
from elastic_harness.history.events import (
    FilesUnseen,
    FileWritten,
    LastLinesSeen,
    ParametersHashed,
    ResumeObserved,
    SamplesDrawn,
    StepCompleted,
    WorkerRaised,
)

from pytest_elastic.errors import UsageError
from pytest_elastic.events.model import JobEnded, LeaseLost, WorkerExited
from tests.unit.checkup.undisturbed import Saved, undisturbed
from tests.unit.history.story import Story

__all__ = ["written"]

Saves = Callable[[int], Saved]


def _told(
    story: Story, kind: type[msgspec.Struct], rank: int, *, since: float = 0, **changed: object
) -> Story:
    """Change every record of a kind that one rank has told since then."""
    for place, record in enumerate(story.records):
        is_told = isinstance(record.event, kind) and getattr(record.event, "rank", None) == rank
        if is_told and record.at >= since:
            event = msgspec.structs.replace(record.event, **changed)
            story.records[place] = msgspec.structs.replace(record, event=event)
    return story


def _only_at_its_end(*files: tuple[str, str, int]) -> Saves:
    return lambda step: files if step == 12 else ()


def _each(*files: tuple[str, str, int], every: int = 3) -> Saves:
    return lambda step: [
        (path.format(step), how, size) for path, how, size in files if step % every == 0
    ]


def _at(*steps: int) -> Saves:
    return lambda step: [("ck.pt", "moved", 900)] if step in steps else []


def _from(saves: dict[int, list[tuple[str, str, int]]], step: int) -> list[tuple[str, str, int]]:
    return saves.get(step, [])


def _of_sizes(path: str, how: str, sizes: Sequence[int]) -> Saves:
    return lambda step: [(path.format(step), how, sizes[step // 3 - 1])] if step % 3 == 0 else []


def _beside(steps: dict[int, int]) -> Saves:
    """Save after some steps, and be done so many steps later."""
    return lambda step: [
        *([(f"k/{step}/0.distcp", "written", 900)] if step in steps else []),
        *[
            (f"k/{begun}/.metadata", "moved", 400)
            for begun, later in steps.items()
            if begun + later == step
        ],
    ]


def _two_rounds() -> Story:
    """All is shown by the last round, and one rank of it makes a step less."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, 0).gone(1).round(2, ["n1", "n2"])
    for rank in (1, 0):
        story.resume(2, rank, 0)
    for step in range(1, 13):
        for rank in (0, 1) if step < 12 else (0,):
            story.wait(0.25 if step == 1 else 1).step(2, rank, step)
    return story.finish(2).end()


def _saves_before_and_with_a_step() -> Story:
    """A file is found before the first step, and one at the moment of another."""
    story = Story().round(1, ["n1"]).resume(1, 0, 0)
    story.tell("cluster", "", FileWritten(path="ck.pt", how="written", size=999))
    for step in range(1, 12):
        story.step(1, 0, step)
        if step in (4, 9):
            story.at -= 0.01
            story.tell("cluster", "", FileWritten(path="ck.pt", how="written", size=999))
    return story.finish(1).end()


def _restarted(*, steps: int, lease: bool = False) -> Story:
    """Tell a run that is restarted after so many steps, though nothing disturbs it."""
    story = Story().round(1, ["n1", "n2"]).steps(1, 1, steps)
    raised = WorkerRaised(pid=story.pids[1, 1], rank=1, error="OSError", message="a flaky disk")
    if lease:
        story.tell("agent", "n2", LeaseLost(round=1, reason="silence"))
    else:
        story.tell("worker", "n2", raised)
    return story.gone(1).round(2, ["n1", "n2"]).steps(2, steps + 1, 12).finish(2).end()


def _runs() -> Iterator[tuple[str, Story]]:
    yield "a checkpoint each third step, renamed", undisturbed()
    yield "ten steps, one rank ends with nothing", undisturbed(steps=10, saves=lambda _: ())
    yield "the last of two rounds counts", _two_rounds()
    yield "files of 256 bytes", undisturbed(saves=_each(("a.pt", "written", 256)))
    yield "files of 255 bytes", undisturbed(saves=_each(("a.pt", "written", 255)))
    yield "files whose size is not known", undisturbed(saves=_each(("a.pt", "written", 0)))
    yield "one file at the end", undisturbed(saves=_only_at_its_end(("a.pt", "written", 900)))
    yield (
        "two files at the end",
        undisturbed(saves=_only_at_its_end(("a1.pt", "written", 900), ("a2.pt", "written", 900))),
    )
    yield "a file before the first step, and with a step", _saves_before_and_with_a_step()
    twice = (("x/{}.tmp/w.bin", "moved", 900), ("x/{}/w.bin", "moved", 900))
    yield "written and renamed in a folder that is renamed", undisturbed(saves=_each(*twice))
    yield (
        "written first in a folder that is renamed, beside a file that is not",
        undisturbed(
            saves=_each(
                ("x/tmp-{}/w.bin", "written", 900),
                ("x/{}/w.bin", "moved", 900),
                ("x/big.bin", "written", 9000),
            )
        ),
    )
    yield (
        "only the last was renamed",
        undisturbed(
            saves=lambda step: (
                [("b.pt", "written" if step < 12 else "moved", 500), ("c.pt", "written", 900)]
                if step % 3 == 0
                else []
            )
        ),
    )
    yield (
        "only the last was not renamed",
        undisturbed(
            saves=lambda step: (
                [("b.pt", "moved" if step < 12 else "written", 500), ("c.pt", "written", 900)]
                if step % 3 == 0
                else []
            )
        ),
    )
    yield (
        "two are renamed alike: the largest one, by its largest file",
        undisturbed(
            saves=lambda step: (
                [
                    ("t/b", "written", 0),
                    ("b.pt", "moved", 300),
                    ("t/c", "written", 0),
                    ("c.pt", "moved", 900 if step == 6 else 260),
                    ("d", "written", 0),
                ]
                if step % 3 == 0
                else []
            )
        ),
    )
    yield (
        "names that chance draws: any file beside it may be one",
        undisturbed(
            saves=lambda step: [(f"a/{chr(96 + step) * 6}", "written", 0), ("a/b.pt", "moved", 900)]
        ),
    )
    yield (
        "names that chance draws, once the same",
        undisturbed(
            saves=lambda step: (
                [
                    (f"k/{'same' if step in (3, 6) else chr(96 + step)}", "written", 0),
                    ("elsewhere/log", "written", 0),
                    ("k/b.pt", "moved", 300),
                ]
                if step % 3 == 0
                else []
            )
        ),
    )
    yield (
        "renamed without having been seen before",
        undisturbed(saves=_each(("k/{}/b.pt", "moved", 300), ("k/{}/c.txt", "moved", 300))),
    )
    yield (
        "three names in two saves are not shared by all ranks; one is",
        undisturbed(
            saves=lambda step: (
                [(f"s-{step}/{each}.pt", "written", 300) for each in range(step // 4)]
                + [("all.pt", "written", 290)]
                if step in (4, 8)
                else []
            )
        ),
    )
    yield (
        "random numbers of each rank are larger than the model that all ranks share",
        undisturbed(
            saves=_each(
                ("step-{}/rng_0.pth", "written", 9000),
                ("step-{}/rng_1.pth", "written", 9000),
                ("step-{}/model.bin", "written", 800),
                every=4,
            )
        ),
    )
    yield (
        "on a busy machine, in a new folder: what is shared is told of twice, or late",
        undisturbed(
            saves=lambda step: [
                *([("out/step-9/all.pt", "written", 5000)] if step == 12 else []),
                *([(f"out/step-{step}/all.pt", "written", 5000)] * 2 if step in (3, 6, 12) else []),
                *_each(("out/step-{}/0.pt", "written", 9000))(step),
                *_each(("out/step-{}/1.pt", "written", 9000))(step),
            ]
        ),
    )
    for last in (0, 2):
        yield (
            f"each is written beside the steps to come, the last beside {last}",
            undisturbed(saves=_beside({4: 1, 8: 0, 10: last})),
        )
    yield (
        "a log is written more often than a checkpoint",
        undisturbed(
            saves=lambda step: [
                *_each(("ckpt/step-{}/model.bin", "written", 9000), every=4)(step),
                ("log.txt", "written", 20000),
            ]
        ),
    )
    for name, how, grown in (
        ("metrics.jsonl", "written", (300, 300, 500, 500)),
        ("metrics.pt", "written", (300, 300, 500, 500)),
        ("metrics", "moved", (300, 300, 500, 500)),
        ("metrics-{}", "written", (300, 300, 500, 500)),
        ("metrics", "written", (300, 600, 400, 500)),
        ("metrics", "written", (300, 300, 300, 300)),
    ):
        yield f"{name} is {how} with sizes {grown}", undisturbed(saves=_of_sizes(name, how, grown))
    digests = {3: "3fa9c1d0", 6: "abcdef00", 9: "00decade", 12: "C0FFEE12"}
    yield (
        "names with a digest",
        undisturbed(
            saves=lambda step: (
                [(f"ck-{step}-{digests[step]}.pt", "written", 900)] if step in digests else []
            )
        ),
    )
    uuids = (f"{part}-00aa-abcd-beef-abcdefabcdef" for part in ("abcdefab", "fedcbafe"))
    names = dict(zip((6, 12), uuids, strict=True))
    yield (
        "names with a UUID",
        undisturbed(
            saves=lambda step: [(f"{names[step]}.pt", "written", 900)] if step in names else []
        ),
    )
    words = {6: "decade", 12: "facade"}
    yield (
        "names of words are files of their own",
        undisturbed(
            saves=lambda step: [(f"{words[step]}.pt", "written", 900)] if step in words else []
        ),
    )
    both = [("best.pt", "written", 2000), ("last.pt", "written", 900)]
    yield (
        "the best one is not the last",
        undisturbed(saves=lambda step: both if step % 6 == 0 else []),
    )
    dump = [("checkpoints/last.pt", "written", 900), ("preds.npz", "moved", 2000)]
    yield (
        "what an evaluation leaves is no checkpoint",
        undisturbed(saves=lambda step: dump if step % 6 == 0 else []),
    )
    pointed = [("ck/newest.json", "moved", 400), ("ck/a.pt", "written", 900)]
    yield (
        "what names the newest is no checkpoint",
        undisturbed(saves=lambda step: pointed if step % 6 == 0 else []),
    )
    spread = [("out/last.pt", "written", 900), ("ckpt/last.pt", "written", 800)]
    yield (
        "a folder may be named after checkpoints",
        undisturbed(saves=lambda step: spread if step % 6 == 0 else []),
    )
    for what, at in (
        ("a thread writes it", (19, 29, 37, 40)),
        ("it is seen a little late", (12, 22, 31, 40)),
        ("it is saved at odd steps", (13, 25, 33, 40)),
        ("too few are seen to say that a thread writes it", (16, 26)),
        ("three are enough", (13, 23, 33)),
    ):
        yield what, undisturbed(steps=40, saves=_at(*at))
    for what, first, latest in (
        ("it takes unequally long", 13, 47),
        ("it is seen at any step", 13, 48),
        ("one is seen as soon as it is begun", 12, 43),
    ):
        yield what, undisturbed(steps=60, saves=_at(first, 23, 33, latest, 53, 60))
    parts = [("ck/ema.pt", "moved", 300), ("ck/model.pt", "moved", 900), ("ck/a.npz", "moved", 300)]
    more = {6: [("ck/best.pt", "moved", 300)], 9: [("ck/odd.pt", "moved", 300)]}
    once = ("ck/early.pt", "moved", 300)
    more |= {6: [*more[6], once], 9: [*more[9], once]}
    yield (
        "a checkpoint of several files",
        undisturbed(
            saves=lambda step: [
                *(parts if step % 6 == 0 else []),
                *(more.get(step, []) if step != 12 else more[6]),
                *([("ck/odd.pt", "moved", 300)] if step == 3 else []),
            ]
        ),
    )
    files_by_letter = {
        "e": ("ema.pt", "moved", 300),
        "m": ("model.pt", "moved", 900),
        "n": ("net.pt", "moved", 900),
        "x": ("x.npz", "moved", 300),
    }
    for what, seen in (
        ("two files that are seen late, in their order", {6: "e", 10: "m em em", 12: "em"}),
        ("two files that are told of three times each", {6: "eeemmm", 12: "eeemmm"}),
        ("two files, one of them told of later again", {3: "e", 5: "em", 9: "e", 11: "em"}),
        ("two files, each with a third one", {3: "ex", 6: "mx", 9: "ex", 12: "mx"}),
        ("two files a little apart", {4: "e", 6: "m", 10: "e", 12: "m"}),
        ("two files, mostly together", {3: "em", 6: "m", 9: "em"}),
        ("two files, together at both ends", {3: "me", 8: "m", 12: "em"}),
        ("two files of one size, in another order at last", {3: "mn", 6: "nm"}),
        ("two files, half of the one alone", {3: "em", 6: "m", 9: "em", 12: "m"}),
        ("two files, half of the other alone", {3: "em", 6: "e", 9: "em", 12: "e"}),
    ):
        saves = {
            step: [files_by_letter[each] for each in files.replace(" ", "")]
            for step, files in seen.items()
        }
        yield what, undisturbed(saves=functools.partial(_from, saves))
    numbered = {2: 9, 4: 10, 8: 99, 12: 100}
    yield (
        "numbers get another digit twice",
        undisturbed(
            saves=lambda step: (
                [(f"ck-{numbered[step]}.pt", "moved", 900)] if step in numbered else []
            )
        ),
    )
    yield "nothing is saved, and no end is seen", undisturbed(saves=lambda _: [], digest=None)
    yield "rank 1 began elsewhere", _told(undisturbed(), ResumeObserved, 1, step=3)
    yield "where rank 1 began is not known", _told(undisturbed(), ResumeObserved, 1, step=None)
    yield (
        "what rank 1 ended with is not known",
        _told(undisturbed(), ParametersHashed, 1, digest=None),
    )
    gone = undisturbed()
    gone.records = [
        each
        for each in gone.records
        if not isinstance(each.event, ParametersHashed) or each.event.rank == 0
    ]
    yield "rank 1 does not say what it ended with", gone
    yield "rank 1 ended after another step", _told(undisturbed(), ParametersHashed, 1, step=11)
    others = _told(undisturbed(), StepCompleted, 1, since=100.3, step=None, step_source="process")
    yield "what rank 1 counts are not steps, as its fifth one shows", others
    yield "rank 1 draws of another epoch", _told(undisturbed(), SamplesDrawn, 1, epoch=7)
    yield "the steps of rank 0 draw unnumbered", _told(undisturbed(), SamplesDrawn, 0, step=None)
    yield "rank 0 tells no epoch", _told(undisturbed(), SamplesDrawn, 0, epoch=None)
    no_epoch = _told(undisturbed(), SamplesDrawn, 0, since=100.3, epoch=None)
    yield "rank 0 tells no epoch after its fifth step", no_epoch
    yield "an epoch each step", undisturbed(per_epoch=1)
    yield "each step changes the parameters", undisturbed(leaves=str)
    same = undisturbed(leaves=lambda _: "same", began_with="same")
    yield "no step changes anything", same
    yield "only rank 1 changes", _told(undisturbed(leaves=str), StepCompleted, 0, parameters="a")
    yield "only rank 0 changes", _told(undisturbed(leaves=str), StepCompleted, 1, parameters="a")
    missing = undisturbed().tell("cluster", "", FilesUnseen(reason="the first"))
    yield "files were missed twice", missing.tell("cluster", "", FilesUnseen(reason="the second"))
    yield "one rank begins late, and nothing counts", _told(same, ResumeObserved, 1, step=None)
    yield "nine steps", undisturbed(steps=9)
    yield "no step", undisturbed(steps=0)
    yield "no worker", Story()
    yield "a rank raises after its second step", _restarted(steps=2)
    yield "a rank raises before its first step", _restarted(steps=0)
    yield "a lease is lost after the second step", _restarted(steps=2, lease=True)
    for sizes in ((300, 900), (900, 300), (1, 0), (0, 1)):
        files = [(f"{name}/x", "written", size) for name, size in zip("pq", sizes, strict=True)]
        story = undisturbed(begins=2, saves=lambda step, f=files: f if step == 4 else ())  # type: ignore[misc]
        yield f"begins late, having written files of {sizes}", story
    yield "begins late, nothing was written", undisturbed(begins=2, saves=lambda _: ())


def _failures() -> Iterator[tuple[str, Story, str, str]]:
    """Yield what does not end well, with its outcome and what was printed where it failed."""
    yield "no end", Story(), "limit", ""
    yield "no end, and a lease is lost", _restarted(steps=2, lease=True), "limit", ""
    yield "the cluster is lost", Story(), "aborted", "ValueError: no"
    yield "a read-only file", Story(), "failed", "OSError: Read-only file system: 'x'"
    printed = ("Loading", "ValueError: no", "printed last")
    for message in ("", "ValueError: no"):
        story = Story().round(1, ["n1"]).steps(1, 1, 2)
        pid = story.pids[1, 0]
        exited = WorkerExited(
            round=1, local_rank=0, rank=0, pid=pid, exit_code=7, signal=0, cause="failed",
            message=message,
        )  # fmt: skip
        yield (
            f"it exits with the message {message!r}",
            story.tell("agent", "n1", exited),
            "failed",
            "",
        )
        lines = LastLinesSeen(pid=pid, rank=0, file="log", lines=printed)
        yield "and its output is known", story.tell("cluster", "n1", lines), "failed", ""
    story = Story().round(1, ["n1"])
    raised = WorkerRaised(
        pid=story.pids[1, 0], rank=0, error="E", message="m", frames=("a:1 in b",)
    )
    story.tell("worker", "n1", raised).gone(1)
    yield "it raises", story, "failed", ""
    story.tell("agent", "n1", JobEnded(result="failed", reason="no restart is left"))
    yield "it raises, and no restart is left", story, "failed", ""


def _measured(story: Story, outcome: str, said: str) -> Iterator[str]:
    try:
        seen = measure(story.history, outcome, "a reason", "train.py", said=said)
    except UsageError as error:
        yield f"  {error.message}"
        yield f"  {error.hint}"
        return
    whole = f"{'' if seen.is_global else 'not '}counted over the whole training"
    yield (
        f"  from {seen.start_s:.2f} s on, {seen.steps} steps of {seen.step_s:.3f} s"
        f" on {seen.world_size} ranks, {whole}"
    )
    if (saved := seen.checkpoints) is not None:
        beside = f", beside {saved.beside}" if saved.beside else ""
        beside += f", with {', '.join(saved.others)}" if saved.others else ""
        beside += f", with longer names from {saved.longer} on" if saved.longer else ""
        yield (
            f"  writes {saved.written}, named {saved.named}, at {saved.steps}: "
            f"{saved.interval}{beside}"
        )
    samples = None if seen.samples is None else {e: len(u) for e, u in seen.samples[1].items()}
    limit = seen.loss_limit
    yield f"  samples {samples}, epochs end at {sorted(seen.epoch_ends)}"
    yield f"  state {seen.state is not None}, loss limit {limit and round(limit, 3)}"
    if seen.began_with or seen.misses_files:
        yield f"  began with {sorted(seen.began_with)}, misses files: {seen.misses_files}"
    for name, reason in seen.unseen.items():
        yield f"  {name}: {reason}"


def _pairs() -> Iterator[tuple[str, Measured, Measured]]:
    one = measure(undisturbed().history, "succeeded", "", "train.py")
    for samples in (one.samples, None):
        for state in (one.state, None):
            yield (
                f"other samples {samples is None}, other state {state is None}",
                one,
                replace(one, samples=samples, state=state),
            )
    seeded = {"python": "a", "torch": "b", "cuda": "c"}
    first, second = (
        measure(
            _told(undisturbed(), ParametersHashed, 0, random={**seeded, **more}).history,
            "succeeded",
            "",
            "train.py",
        )
        for more in ({}, {"python": "z", "numpy": "d"})
    )
    yield "other random numbers of python", first, second
    yield "the second state is known", replace(one, state=None), one
    yield "neither state is known", replace(one, state=None), replace(one, state=None)
    yield "no samples but the other's", replace(one, samples=None), one
    lone = replace(one, steps=1)
    yield f"{lone.seconds / lone.step_s:.1f} steps in a run of one", lone, replace(lone, steps=2)


def written() -> str:
    """Return what is measured of each run, a line for each part."""
    lines = [f"at least {FEWEST_STEPS} steps; seen {UNDER_WAY} later"]
    for title, story in _runs():
        lines += ["", title, *_measured(story, "succeeded", "")]
    for title, story, outcome, said in _failures():
        lines += ["", title, *_measured(story, outcome, said)]
    for title, one, other in _pairs():
        lines += ["", title, f"  {why_not_comparable(one, other) or 'comparable'}"]
        lines += [f"  kept samples: {without_what_differs(one, other).samples is not None}"]
        state = without_unseeded(one, other).state
        if state is not None and any(each["random"] for each in state.states):
            lines += [f"  kept random numbers: {[sorted(s['random']) for s in state.states]}"]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.stdout.write(written())
