"""Which of a storm's faults a failure needs: tries fewer of them, within a number of runs.

Pure but for asking. A run of a real job may come out otherwise the next time: what is found is what
was seen to fail, and no proof that nothing less would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from elastic_harness.scenario.planning.planner import Plan

__all__ = ["Shrunk", "keep_of_storm", "shrink"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """What is left; `is_smallest` tells that leaving out any one of it was tried in vain."""

    kept: tuple[str, ...]
    runs: int
    is_smallest: bool


def shrink(
    names: Sequence[str], still_fails: Callable[[tuple[str, ...]], bool], *, at_most: int
) -> Shrunk:
    """Return fewer names with which it still fails, after asking `at_most` times.

    Nothing at all is tried first: a job that fails without its storm has another problem. Then
    halves are left out, quarters, and at last each one.
    """
    kept, runs = tuple(names), 0
    if kept and at_most > 0:
        runs += 1
        if still_fails(()):
            return Shrunk(kept=(), runs=runs, is_smallest=True)
    size = max(1, len(kept) // 2)
    while len(kept) > 1:
        place, was_smaller = 0, False
        while place < len(kept) and len(kept) > 1:
            if runs >= at_most:
                return Shrunk(kept=kept, runs=runs, is_smallest=False)
            fewer = kept[:place] + kept[place + size :]
            runs += bool(fewer)
            if fewer and still_fails(fewer):
                kept, was_smaller = fewer, True
            else:
                place += size
        if size == 1 and not was_smaller:
            break
        size = max(1, size // 2)
    return Shrunk(kept=kept, runs=runs, is_smallest=runs > 0 or not kept)


def keep_of_storm(plan: Plan, names: Sequence[str]) -> Plan:
    """Return the plan with only these of its storm's faults, each at its own time."""
    left_out = set(plan.storm_ids) - set(names)
    return replace(plan, entries=tuple(entry for entry in plan.entries if entry.id not in left_out))
