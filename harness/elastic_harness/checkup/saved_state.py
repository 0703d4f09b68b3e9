"""What the last checkpoint of a run holds, beside that of a run without a fault.

Averaged weights, statistics of layers: a training may go on with much that no optimizer has, and
that is seen nowhere but in what the script saves. What is in it the `checkpoint_reader` says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from elastic_harness.checkup.measured import UNDER_WAY, Measured, pattern_of
from elastic_harness.history.checkers.distance import UNKNOWN, Distance, distance
from elastic_harness.history.events import FileWritten
from elastic_harness.history.history import History

__all__ = [
    "Part",
    "Saved",
    "is_known",
    "is_lost",
    "last_saved",
    "of_another_step",
    "other_numbers",
    "what_differs",
    "why_not_compared",
]

# Of a part: its `size` in numbers, and as `ParametersHashed` has them its `digest`, `norm`, `norms`
# and `sketch`; `is_number` where it is a number under a name of its own, or a list of them.
Part = Mapping[str, Any]
# Numbers that a training goes on with, as they are called.
_KNOWN = re.compile(
    r"(^|[._])(best|patience|bad|wait|cooldown|last_epoch|scale|loss|score|metric|acc|f1|auc|bleu|"
    r"ppl|perplexity|lr|seen|tokens|samples|ema|avg|average)",
    re.IGNORECASE,
)


def what_differs(
    one: Mapping[str, Part],
    other: Mapping[str, Part],
    found: Mapping[str, Part],
    *,
    tolerance: float,
    is_same_step: bool = False,
) -> Mapping[str, str] | None:
    """Say which parts of a checkpoint differ from those of two undisturbed runs, and how.

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
        return {}
    apart = {name: _distance(part, found.get(name)) for name, part in same.items()}
    large = max(part["size"] for part in same.values()) / 2
    of_large = [far for name, far in apart.items() if same[name]["size"] >= large]
    if not is_same_step and min(far.of_all for far in of_large) > tolerance:
        return None
    return {
        name: f"another {name!r}{apart[name]}" if name in found else f"no {name!r}"
        for name in sorted(apart, key=lambda name: (" " in name, name))  # those of its own first
        if not apart[name].is_within(tolerance * _larger_share(same[name]))
    }


def is_known(name: str) -> bool:
    """Tell whether a number is one that a training goes on with, by its name."""
    return _KNOWN.search(name) is not None


def is_lost(name: str, part: Part) -> bool:
    """Tell whether a training that has another one has lost it; a number may be of the process.

    A list of numbers may be a log, whatever its name is.
    """
    return not part.get("is_number") or (part["size"] == 1 and is_known(name))


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


def last_saved(history: History, seen: Measured, like: Saved | None = None) -> Saved | None:
    """Return what a run saved last of the checkpoints that were `seen`.

    None if it saved none, or another step than the undisturbed run. Where each rank has a file of
    its own, any of them may be the last one: it is that of another run, `like`, if it can be.
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
    paths = [_place_of(e.event.path, pattern) for e in reversed(written)]
    with_it = takewhile(
        lambda e: max(_steps_by(history, e.at), default=0) >= done - UNDER_WAY, reversed(written)
    )
    at_once = paths[: sum(1 for _ in with_it)]
    path = like.path if like is not None and like.path in at_once else paths[0]
    newest = {pattern_of(e.event.path): e.event.path for e in history.of_kind(FileWritten)}
    others = [newest[each] for each in seen.checkpoints.others if each in newest]
    inside = f"{path}/"
    return Saved(path, done, tuple(each for each in others if not each.startswith(inside)))


def _place_of(path: str, pattern: str) -> str:
    """Return the file of a checkpoint, or its folder.

    A folder for each checkpoint has several files, and so has one that torch divides by ranks.
    """
    has_several = "*" in os.path.dirname(pattern) or path.endswith((".distcp", "/.metadata"))
    return os.path.dirname(path) or "." if has_several else path


def why_not_compared(named: str, saved: Sequence[Saved | None]) -> str:
    """Say why nothing is compared with what the undisturbed runs saved last."""
    why = "could not be read as what torch, safetensors, numpy or pickle wrote, of less than 1 GB"
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


def other_numbers(found: Mapping[str, Sequence[str]]) -> str:
    """Say which numbers of no known meaning differ, by the tests that they differ in."""
    names = " and ".join(repr(name) for name in sorted(found))
    tests = ", ".join(dict.fromkeys(test for each in found.values() for test in each))
    return (
        f"checkpoint: in {tests} the last one has another {names} than without a fault: that is "
        "right if it says where or when a process began; else it is lost in a restart"
    )


def _steps_by(history: History, at: float) -> list[int]:
    """Return the steps that the ranks had told of at a time."""
    workers = [worker for world in history.worlds.rounds for worker in world.workers.values()]
    steps = [step for worker in workers for step in worker.steps]
    return [step.step for step in steps if step.step is not None and step.at <= at]
