"""What the last checkpoint of a run holds, beside that of a run without a fault.

Averaged weights, statistics of layers: a training may go on with much that no optimizer has, and
that is seen nowhere but in what the script saves. What is in it the `checkpoint_reader` says.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from elastic_harness.checkup.measured import UNDER_WAY, Measured, pattern_of
from elastic_harness.history.events import FileWritten
from elastic_harness.history.history import History

__all__ = ["Part", "last_saved", "what_differs", "why_not_compared"]

# Of a part: its `size` in numbers; `digest`, `norm` and `sketch` as `ParametersHashed` has them.
Part = Mapping[str, Any]


def what_differs(
    one: Mapping[str, Part],
    other: Mapping[str, Part],
    found: Mapping[str, Part],
    *,
    tolerance: float,
) -> str:
    """Say which parts of a checkpoint differ from those of two undisturbed runs; "" for none.

    Only parts that are the same to the bit in both can differ. The largest of them has to be as it
    was within `tolerance` (relative), or the checkpoint is of another step.
    """
    same = {
        name: part
        for name, part in one.items()
        if name in other and part["digest"] == other[name]["digest"]
    }
    if not same:
        return ""
    apart = {name: _distance(part, found.get(name)) for name, part in same.items()}
    if apart[max(same, key=lambda name: same[name]["size"])] > tolerance:
        return ""
    return " and ".join(
        f"another {name!r}" + (f", by {far:.2g} (relative)" if math.isfinite(far) else "")
        if name in found
        else f"no {name!r}"
        for name, far in sorted(apart.items())
        if far > tolerance
    )


def _distance(part: Part, other: Part | None) -> float:
    """Return how far another part is from one, as a part of its norm; inf where that is unknown."""
    if other is None or part["size"] != other["size"]:
        return math.inf
    if part["digest"] == other["digest"]:
        return 0.0
    one, two = part["sketch"], other["sketch"]
    if len(one) != len(two) or not part["norm"]:
        return math.inf
    return math.dist(one, two) / float(part["norm"])


def last_saved(history: History, seen: Measured) -> str | None:
    """Return what a run saved last of the checkpoints that were `seen`: a file, or its folder.

    Relative, as scripts write; None if it saved none, or another step than the undisturbed run.
    """
    if seen.checkpoints is None:
        return None
    pattern = seen.checkpoints.named
    written = [e for e in history.of_kind(FileWritten) if pattern_of(e.event.path) == pattern]
    if not written:
        return None
    done = _steps_by(history, written[-1].at)
    last = seen.checkpoints.steps[-1]
    if seen.is_global and not last - UNDER_WAY <= max(done, default=0) <= last + UNDER_WAY:
        return None
    path = written[-1].event.path
    # A folder for each checkpoint has several files.
    return os.path.dirname(path) if "*" in os.path.dirname(pattern) else path


def why_not_compared(named: str, paths: Sequence[str | None]) -> str:
    """Say why nothing is compared with what the undisturbed runs saved last (`last_saved`)."""
    why = "could not be read as a file of torch.save or safetensors of less than 1 GB"
    if None in paths:
        why = "was not seen to be of the same step in both runs without a fault"
    return (
        f"checkpoint: the last {named} {why}: what it holds beside parameters and optimizer is not "
        "compared"
    )


def _steps_by(history: History, at: float) -> list[int]:
    """Return the steps that the ranks had told of at a time."""
    workers = [worker for world in history.worlds.rounds for worker in world.workers.values()]
    steps = [step for worker in workers for step in worker.steps]
    return [step.step for step in steps if step.step is not None and step.at <= at]
