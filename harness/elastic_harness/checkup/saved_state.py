"""What the last checkpoint of a run holds, beside that of a run without a fault.

Averaged weights, statistics of layers: a training may go on with much that no optimizer has, and
that is seen nowhere but in what the script saves. What is in it the `checkpoint_reader` says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_harness.checkup.measured import UNDER_WAY, Measured, pattern_of
from elastic_harness.history.checkers.distance import UNKNOWN, Distance, distance
from elastic_harness.history.events import FileWritten
from elastic_harness.history.history import History

__all__ = ["Part", "Saved", "last_saved", "of_another_step", "what_differs", "why_not_compared"]

# Of a part: its `size` in numbers, and as `ParametersHashed` has them its `digest`, `norm`, `norms`
# and `sketch`.
Part = Mapping[str, Any]


def what_differs(
    one: Mapping[str, Part],
    other: Mapping[str, Part],
    found: Mapping[str, Part],
    *,
    tolerance: float,
    is_same_step: bool = False,
) -> str | None:
    """Say which parts of a checkpoint differ from those of two undisturbed runs; "" for none.

    Only parts that are the same to the bit in both can differ. Unless it is known to be of the same
    step, a large one of them (half the largest) has to be as it was within `tolerance` (relative);
    else the checkpoint may be of another step, and None is returned.
    """
    same = {
        name: part
        for name, part in one.items()
        if name in other and part["digest"] == other[name]["digest"]
    }
    if not same:
        return ""
    apart = {name: _distance(part, found.get(name)) for name, part in same.items()}
    large = max(part["size"] for part in same.values()) / 2
    of_large = [far for name, far in apart.items() if same[name]["size"] >= large]
    if not is_same_step and min(far.of_all for far in of_large) > tolerance:
        return None
    return " and ".join(
        f"another {name!r}{apart[name]}" if name in found else f"no {name!r}"
        for name in sorted(apart)
        if not apart[name].is_within(tolerance * _larger_share(same[name]))
    )


def _larger_share(part: Part) -> int:
    """Return how many times as large a share of a part errors of rounding may be.

    A loss is the smaller the better the parameters are, and a number by itself.
    """
    is_measured = part["size"] == 1 and not float(part["norm"] or 0).is_integer()
    return 1000 if is_measured else 1


def _distance(part: Part, other: Part | None) -> Distance:
    """Return how far another part is from one."""
    if other is None or part["size"] != other["size"]:
        return UNKNOWN
    if part["digest"] == other["digest"]:
        return Distance(0.0)
    return distance(other["sketch"], part["sketch"], part["norm"], part["norms"])


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint: its file, or its folder (relative, as scripts write); how many steps were done.

    They are those that were told when it was seen: it may be of an earlier one. `others` are the
    files that were written with it.
    """

    path: str
    step: int
    others: tuple[str, ...] = ()


def last_saved(history: History, seen: Measured) -> Saved | None:
    """Return what a run saved last of the checkpoints that were `seen`.

    None if it saved none, or another step than the undisturbed run.
    """
    if seen.checkpoints is None:
        return None
    pattern = seen.checkpoints.named
    written = [e for e in history.of_kind(FileWritten) if pattern_of(e.event.path) == pattern]
    if not written:
        return None
    done = max(_steps_by(history, written[-1].at), default=0)
    last = seen.checkpoints.steps[-1]
    if seen.is_global and not last - UNDER_WAY <= done <= last + UNDER_WAY:
        return None
    path = written[-1].event.path
    # A folder for each checkpoint has several files, and so has one that torch divides by ranks.
    has_several = "*" in os.path.dirname(pattern) or path.endswith((".distcp", "/.metadata"))
    path = os.path.dirname(path) or "." if has_several else path
    newest = {pattern_of(e.event.path): e.event.path for e in history.of_kind(FileWritten)}
    others = [newest[each] for each in seen.checkpoints.others if each in newest]
    inside = f"{path}/"
    return Saved(path, done, tuple(each for each in others if not each.startswith(inside)))


def why_not_compared(named: str, saved: Sequence[Saved | None]) -> str:
    """Say why nothing is compared with what the undisturbed runs saved last."""
    why = "could not be read as what torch or safetensors wrote, of less than 1 GB"
    if None in saved:
        why = "was not seen to be of the same step in both runs without a fault"
    return (
        f"checkpoint: the last {named} {why}: what it holds beside parameters and optimizer is not "
        "compared"
    )


def of_another_step(tests: Sequence[str]) -> str:
    """Say in which tests nothing was compared, though both undisturbed runs were alike."""
    return (
        f"checkpoint: the last one in {', '.join(tests)} was not seen to be of the same step as "
        "without a fault: what it holds beside parameters and optimizer is not compared there"
    )


def _steps_by(history: History, at: float) -> list[int]:
    """Return the steps that the ranks had told of at a time."""
    workers = [worker for world in history.worlds.rounds for worker in world.workers.values()]
    steps = [step for worker in workers for step in worker.steps]
    return [step.step for step in steps if step.step is not None and step.at <= at]
