"""`--elastic-shrink N`: up to N more runs of a failed storm, each with fewer of its faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic_harness.history.verdict import Outcome
from elastic_harness.scenario.planning.shrink import keep_of_storm, shrink

if TYPE_CHECKING:
    from elastic_harness.report.failure_screen import UnmetClause
    from elastic_harness.scenario.planning.planner import Plan

    from pytest_elastic.plugin.hub import Hub, RunOfTest

__all__ = ["shrink_storm"]


def shrink_storm(
    run: RunOfTest,
    unmet: list[UnmetClause],
    hub: Hub,
    attempt: Callable[[Plan], tuple[RunOfTest, list[UnmetClause]]],
    *,
    shown: Callable[[str], str],
) -> tuple[RunOfTest, list[UnmetClause]]:
    """Return the run with the fewest faults that failed like this one, and what did not hold in it.

    A failure is the same if one clause that was invalid is so again. The run's note says what was
    found; `shown` says how a path is shown.
    """
    invalid = {clause.text for clause in unmet if clause.outcome is Outcome.INVALID}
    names = run.plan.storm_ids
    if not invalid or not names or hub.options.shrink < 1:
        return run, unmet
    assert run.result is not None, "it has ended"
    # Targets that were drawn at random outside the random fault schedule are hit again.
    plan = replace(run.plan, targets={**run.plan.targets, **run.result.targets})
    best, best_unmet = run, unmet

    def still_fails(kept: Sequence[str]) -> bool:
        nonlocal best, best_unmet
        tried, found = attempt(keep_of_storm(plan, kept))
        if not invalid & {clause.text for clause in found if clause.outcome is Outcome.INVALID}:
            hub.discard(tried.directory)
            return False
        if best is not run:
            hub.discard(best.directory)
        best, best_unmet = tried, found
        return True

    found = shrink(names, still_fails, at_most=hub.options.shrink)
    faults = [
        f"{each.id} ({each.entry.action.name})" for each in plan.entries if each.id in found.kept
    ]
    what = f"{len(faults)} of {len(names)} faults: {', '.join(faults)}" if faults else "no fault"
    more = "" if found.is_smallest else "; less was not tried"
    best.note = f"fails with {what} ({found.runs} more runs{more})"
    if best is not run:
        best.note += f"; the first run: {shown(run.directory.path)}"
        best.must_replay = True
    return best, best_unmet
