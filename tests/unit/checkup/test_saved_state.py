"""What checkpoints hold, compared with the undisturbed runs; and which of them was the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from elastic_harness.checkup.measured import Checkpoints, measure
from elastic_harness.checkup.saved_state import (
    Part,
    Saved,
    is_lost,
    last_saved,
    other_numbers,
    what_differs,
    why_not_compared,
)
from elastic_harness.history.events import FileWritten

from tests.unit.checkup.undisturbed import undisturbed
from tests.unit.history.story import Story


def differing(
    one: Mapping[str, Part],
    other: Mapping[str, Part],
    found: Mapping[str, Part],
    *,
    tolerance: float = 1e-6,
    is_same_step: bool = False,
) -> str | None:
    """Say what differs in one sentence."""
    parts = what_differs(one, other, found, tolerance=tolerance, is_same_step=is_same_step)
    return None if parts is None else " and ".join(parts.values())


def part(digest: str, *sketch: float, size: int = 4, norm: float = 2.0) -> Part:
    """Return a part of a checkpoint."""
    return {"digest": digest, "size": size, "norm": norm, "norms": [], "sketch": list(sketch)}


MODEL = part("m", 1.0, 1.0, size=100)
ALIKE = {"model": MODEL, "ema": part("e", 1.0, 0.0)}
# The same with a block of its own for a small tensor.
SMALL = {"model": MODEL, "ema": {**part("e", 1.0, 0.0), "norms": [2.0, 1e-3]}}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (ALIKE, ""),
        ({**ALIKE, "ema": part("f", 1.0, 0.5)}, "another 'ema', by 0.25 (relative)"),
        ({**ALIKE, "ema": part("f", 1.0000001, 0.0)}, ""),  # rounding
        ({**ALIKE, "ema": part("f", 1.0, 0.0, size=5)}, "another 'ema'"),
        ({**ALIKE, "ema": part("f", norm=0.0)}, "another 'ema'"),  # nan has no sketch
        ({"model": MODEL}, "no 'ema'"),
        ({**ALIKE, "more": part("x", 1.0)}, ""),
        # Of another step: then everything is another one.
        ({"model": part("n", 1.0, 1.1, size=100), "ema": part("f", 1.0, 0.5)}, None),
        # A large part says which step it is of, whatever a small one that stays the same says.
        ({"model": part("n", 1.0, 1.1, size=100), "ema": ALIKE["ema"]}, None),
        ({"model": part("n", 1.0000001, 1.0, size=100), "ema": part("f", 9.0, 0.0)}, "another"),
    ],
)
def test_a_part_differs_where_the_step_is_the_same(
    found: Mapping[str, Part], said: str | None
) -> None:
    """Averaged weights that were not loaded are nowhere else to be seen."""
    differ = differing(ALIKE, ALIKE, found)
    assert (what_differs(ALIKE, ALIKE, found, tolerance=1e-6) is None) == (said is None)
    assert differ == said or (said == "another" and (differ or "").startswith("another 'ema'"))


def test_a_small_tensor_of_a_part_is_not_lost_beside_a_large_one() -> None:
    """Of its own block it is more."""
    found = {**SMALL, "ema": part("f", 1.0, 9e-7)}
    assert differing(SMALL, SMALL, found) == ""
    found = {**SMALL, "ema": part("f", 1.0, 1.1e-6)}
    said = "another 'ema', by 5.5e-07 (relative) of all, and some of the tensors by 0.0011"
    assert differing(SMALL, SMALL, found) == said


@pytest.mark.parametrize(
    ("number", "other", "size", "is_same"),
    [
        (0.25, 0.25 + 2.5e-4, 1, True),  # a loss
        (0.25, 0.25 + 2.501e-4, 1, False),
        (0.25, 0.25 + 2.5e-4, 2, False),  # several numbers
        (60.0, 60.001, 1, False),  # a count
        (0.0, 1e-9, 1, False),
    ],
)
def test_a_number_that_is_measured_may_be_rounded_more(
    number: float, other: float, size: int, *, is_same: bool
) -> None:
    """The same parameters but for a millionth have another small loss."""
    known = {"model": MODEL, "x": part("a", number, size=size, norm=number)}
    found = {"model": MODEL, "x": part("b", other, size=size, norm=other)}
    assert (differing(known, known, found) == "") == is_same


@pytest.mark.parametrize(("size", "vouches"), [(49, False), (50, True), (100, True)])
def test_the_largest_part_may_be_the_one_that_was_lost(size: int, *, vouches: bool) -> None:
    """Statistics lie beside the weights: another part, half as large, can say which step it is."""
    known = {"momentum": part("o", 1.0, 0.0, size=size), "model": MODEL}
    found = {**known, "model": part("n", 1.0, 1.1, size=100)}
    said = "another 'model', by 0.05 (relative)"
    assert differing(known, known, found) == (said if vouches else None)
    assert differing(known, known, found, is_same_step=True) == said
    assert differing({"a": MODEL}, {"a": MODEL}, {}, is_same_step=True) == "no 'a'"


def test_what_differs_without_a_fault_is_not_compared() -> None:
    """A time, or what was drawn by chance."""
    other = {**ALIKE, "ema": part("g", 0.0, 1.0)}
    found = {**ALIKE, "ema": part("f", 1.0, 0.5)}
    assert differing(ALIKE, other, found) == ""
    assert differing({}, {}, found) == ""
    assert differing(ALIKE, {"model": MODEL}, found) == ""
    both = {"model": part("x", 1.0)}
    assert differing(both, {"model": part("y", 1.0)}, found) == ""


def test_without_a_tolerance_parts_are_the_same_to_the_bit() -> None:
    """Also those of which no distance can be told: some have nan in them, and others are zero."""
    lost = {"digest": "n", "size": 1, "norm": None, "norms": [], "sketch": []}
    zero = part("z", 0.0, 0.0, norm=0.0)
    known = {**ALIKE, "lost": lost, "zero": zero}
    assert differing(known, known, known, tolerance=0.0) == ""
    found = {**known, "zero": part("y", 0.0, 1.0), "lost": {**lost, "digest": "m"}}
    said = "another 'lost' and another 'zero'"
    assert differing(known, known, found, tolerance=0.0) == said
    found = {**known, "ema": part("f", 1.0, 0.5)}
    said = "another 'ema', by 0.25 (relative)"
    assert differing(known, known, found, tolerance=0.0) == said


@pytest.mark.parametrize(
    ("path", "pattern", "after", "is_global", "found"),
    [
        ("ck.pt", "ck.pt", 12, True, "ck.pt"),
        ("ck-12.pt", "ck-*.pt", 12, True, "ck-12.pt"),
        ("out-12/model.bin", "out-*/model.bin", 12, True, "out-12"),
        ("out/__0_0.distcp", "out/__*_*.distcp", 12, True, "out"),
        ("out/.metadata", "out/.metadata", 12, True, "out"),
        ("x.metadata", "x.metadata", 12, True, "x.metadata"),
        ("__0_0.distcp", "__*_*.distcp", 12, True, "."),
        ("other.pt", "ck.pt", 12, True, None),
        ("ck.pt", "ck.pt", 10, True, "ck.pt"),  # seen late
        ("ck.pt", "ck.pt", 14, True, "ck.pt"),
        ("ck.pt", "ck.pt", 15, True, None),
        ("ck.pt", "ck.pt", 9, True, None),
        ("ck.pt", "ck.pt", 9, False, "ck.pt"),  # how many steps were done is not known
    ],
)
def test_the_last_checkpoint_is_of_the_same_step_or_none(
    path: str, pattern: str, after: int, *, is_global: bool, found: str | None
) -> None:
    """The undisturbed run has saved its last one after step 12; a folder is one."""
    story = undisturbed(steps=after)
    story.tell("cluster", "", FileWritten(path=path, how="moved", size=4000))
    seen = measure(undisturbed().history, "succeeded", "", "train.py")
    checkpoints = Checkpoints(written=pattern, named=pattern, steps=(6, 12), beside=0)
    seen = replace(seen, checkpoints=checkpoints, is_global=is_global)
    saved = last_saved(story.history, seen)
    assert saved == (None if found is None else Saved(found, after))
    assert last_saved(story.history, replace(seen, checkpoints=None)) is None


@pytest.mark.parametrize(
    ("written", "like", "found"),
    [
        ((("rank0.pt", 12), ("rank1.pt", 12)), None, "rank1.pt"),
        ((("rank0.pt", 12), ("rank1.pt", 12)), "rank0.pt", "rank0.pt"),
        ((("rank1.pt", 12), ("rank0.pt", 12)), "rank1.pt", "rank1.pt"),
        ((("rank0.pt", 10), ("rank1.pt", 12)), "rank0.pt", "rank0.pt"),
        ((("rank0.pt", 9), ("rank1.pt", 12)), "rank0.pt", "rank1.pt"),  # an earlier checkpoint's
        ((("rank1.pt", 12),), "rank0.pt", "rank1.pt"),
    ],
)
def test_of_files_of_each_rank_the_same_one_is_compared(
    written: Sequence[tuple[str, int]], like: str | None, found: str
) -> None:
    """Which of them is written last is a matter of chance."""
    story = undisturbed(steps=6)
    for step in range(7, 13):
        story.step(1, 0, step)
        for path in (path for path, at in written if at == step):
            story.tell("cluster", "", FileWritten(path=path, how="moved", size=4000))
    seen = measure(undisturbed().history, "succeeded", "", "train.py")
    checkpoints = Checkpoints(written="rank*.pt", named="rank*.pt", steps=(6, 12), beside=0)
    seen = replace(seen, checkpoints=checkpoints)
    wanted = None if like is None else Saved(like, 12)
    assert last_saved(story.history, seen, wanted) == Saved(found, 12)


@pytest.mark.parametrize(
    ("name", "is_training"),
    [("best", True), ("stop.bad_epochs", True), ("x.y.last_epoch", True), ("lr", True),
     ("args.workers", False), ("abest", False), ("step", False)],
)  # fmt: skip
def test_a_number_that_is_lost_is_known_by_its_name(name: str, *, is_training: bool) -> None:
    """Another one may say where or when a process ran; what is no number is the training's."""
    assert is_lost(name, {**part("a", 1.0, size=1), "is_number": True}) == is_training
    assert not is_lost(name, {**part("a", 1.0, size=2), "is_number": True}), "it may be a log"
    assert is_lost(name, part("a", 1.0))
    said = other_numbers({"x.workers": ["worker-killed", "preempted"], "a": ["preempted"]})
    assert said.startswith(
        "checkpoint: in worker-killed, preempted the last one has another 'a' and "
    )


def test_what_is_written_with_a_checkpoint_is_a_part_of_it() -> None:
    """The newest file of each name; what lies in the checkpoint's own folder is read with it."""
    story = undisturbed(steps=12)
    for path in ("a/ema-6.pt", "ck.pt", "a/ema-12.pt", "other.pt"):
        story.tell("cluster", "", FileWritten(path=path, how="moved", size=4000))
    seen = measure(undisturbed().history, "succeeded", "", "train.py")
    others = ("a/ema-*.pt", "gone.pt")
    found = Checkpoints(written="ck.pt", named="ck.pt", steps=(6, 12), beside=0, others=others)
    seen = replace(seen, checkpoints=found)
    assert last_saved(story.history, seen) == Saved("ck.pt", 12, ("a/ema-12.pt",))
    inside = replace(found, named="a-*/ck.pt", others=("a-*/ema.pt",))
    story.tell("cluster", "", FileWritten(path="a-12/ema.pt", how="moved", size=4000))
    story.tell("cluster", "", FileWritten(path="a-12/ck.pt", how="moved", size=4000))
    saved = last_saved(story.history, replace(seen, checkpoints=inside))
    assert saved == Saved("a-12", 12)


def test_what_was_written_before_or_without_known_steps_is_not_the_last() -> None:
    """Of several it is the newest, by the steps that were told by then."""
    story = undisturbed(steps=10).tell(
        "cluster", "", FileWritten(path="ck-6.pt", how="moved", size=9)
    )
    story.tell("cluster", "", FileWritten(path="ck-12.pt", how="moved", size=9))
    seen = measure(undisturbed().history, "succeeded", "", "train.py")
    checkpoints = Checkpoints(written="ck-*.pt", named="ck-*.pt", steps=(6, 12), beside=0)
    seen = replace(seen, checkpoints=checkpoints)
    assert last_saved(story.history, seen) == Saved("ck-12.pt", 10)
    story = Story().round(1, ["n1", "n2"]).step(1, 0, 9)
    story.tell("cluster", "", FileWritten(path="ck-9.pt", how="moved", size=9))
    story.step(1, 0, 12).step(1, 1, None)
    assert last_saved(story.history, seen) is None
    story.tell("cluster", "", FileWritten(path="ck-12.pt", how="moved", size=9))
    assert last_saved(story.history, seen) == Saved("ck-12.pt", 12)
    story.step(1, 0, 15).tell("cluster", "", FileWritten(path="ck-15.pt", how="moved", size=9))
    assert last_saved(story.history, seen) is None


def test_a_checkpoint_that_was_not_opened_is_not_said_to_be_unreadable() -> None:
    """One of another step is not even looked at."""
    saved = Saved("ck.pt", 12)
    assert "ck.pt could not be read" in why_not_compared("ck.pt", [saved, saved])
    for found in ([None, saved], [saved, None], [None, None]):
        said = why_not_compared("ck.pt", found)
        assert said.startswith("checkpoint: the last ck.pt was not seen to be of the same step")
        assert said.endswith("what it holds beside parameters and optimizer is not compared")
