"""From a finished run to a test's outcome: nothing, or a failure that fits one screen."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import pytest
from elastic_harness.history.verdict import Outcome
from elastic_harness.report.failure_screen import Place, UnmetClause, failure_screen

if TYPE_CHECKING:
    from elastic_harness.scenario.loader import LoadedScenario
    from elastic_harness.scenario.runner import RunResult

    from pytest_elastic.plugin.hub import FinishedRun, Hub

__all__ = ["RunFailed", "judge_run", "replay_command"]


class RunFailed(AssertionError):
    """A run's verdict is invalid or unknown; the message is the screen."""


def judge_run(
    run: FinishedRun, hub: Hub, item: pytest.Item, loaded: LoadedScenario | None = None
) -> None:
    """Raise RunFailed unless every clause of a finished run is valid; else discard its traces."""
    result = run.result
    assert result is not None, "only finished runs are judged"
    unmet = _unmet(result, loaded)
    command = replay_command(item, hub, run)
    if not unmet:
        hub.discard(run)
        return
    run.directory.write_reports(result.history, result.judgements, command=command)
    screen = failure_screen(
        result.history,
        unmet,
        run_directory=_short(run.directory.path),
        command=command,
    )
    raise RunFailed(screen)


def replay_command(item: pytest.Item, hub: Hub, run: FinishedRun) -> str:
    """Return the command that runs this very plan again."""
    options = hub.options
    words = ["pytest", item.nodeid, f"--elastic-seed={run.plan.seed.value}"]
    if options.launcher != "pytest-elastic":
        words.append(f"--elastic-launcher={options.launcher}")
    if options.cluster != "auto":
        words.append(f"--elastic-cluster={options.cluster}")
    return shlex.join(words)


def _unmet(result: RunResult, loaded: LoadedScenario | None) -> list[UnmetClause]:
    unmet = [
        UnmetClause(
            text="the harness did its part", outcome=Outcome.UNKNOWN, reason=problem, place=None
        )
        for problem in result.problems
    ]
    for clause in result.clauses:
        if clause.verdict is not None and not clause.verdict.is_valid:
            unmet.append(
                UnmetClause(
                    text=f"{clause.bucket.value}: {clause.text}",
                    outcome=clause.verdict.outcome,
                    reason=clause.verdict.reason,
                    place=_place_of_key(clause.key, loaded),
                    events=clause.verdict.events,
                )
            )
    for judgement in result.judgements:
        if not judgement.verdict.is_valid:
            unmet.append(
                UnmetClause(
                    text=judgement.text,
                    outcome=judgement.verdict.outcome,
                    reason=judgement.verdict.reason,
                    place=_place_of_clause(judgement.name, loaded),
                    events=judgement.verdict.events,
                )
            )
    if result.outcome == "aborted" and not unmet:
        unmet.append(
            UnmetClause(
                text="the run ends by itself", outcome=Outcome.UNKNOWN, reason=result.reason
            )
        )
    return unmet


def _place_of_key(key: str, loaded: LoadedScenario | None) -> Place | None:
    """Return where a clause of the engine stands; its key is `bucket[index]`."""
    bucket, _, rest = key.partition("[")
    if loaded is None or not rest.endswith("]"):
        return None
    return _place(loaded, ("expect", bucket, int(rest[:-1])))


def _place_of_clause(name: str, loaded: LoadedScenario | None) -> Place | None:
    """Return where a checker's clause stands, or None for an invariant that is on by default."""
    if loaded is None:
        return None
    expect = loaded.tree.data.get("expect") if isinstance(loaded.tree.data, dict) else None
    for bucket, clauses in (expect or {}).items():
        for index, clause in enumerate(clauses if isinstance(clauses, list) else [clauses]):
            if clause == name or (isinstance(clause, dict) and name in clause):
                return _place(loaded, ("expect", bucket, index))
    return None


def _place(loaded: LoadedScenario, path: tuple[str | int, ...]) -> Place:
    at = loaded.locate(path)
    return Place(file=at.path, line=at.line, column=at.column, source=at.text)


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
