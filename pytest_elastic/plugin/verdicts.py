"""From a finished run to a test's outcome: nothing, or a failure that fits one screen."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from elastic_harness.history.checkers.registry import as_text
from elastic_harness.history.verdict import Outcome
from elastic_harness.report.failure_screen import Place, UnmetClause, failure_screen
from elastic_harness.report.last_words import last_words
from elastic_harness.report.moments import node_of_first_failure
from elastic_harness.scenario.planner import encode_plan
from elastic_harness.scenario.storm import STORM_ID

if TYPE_CHECKING:
    from elastic_harness.scenario.loader import LoadedScenario
    from elastic_harness.scenario.runner import RunResult

    from pytest_elastic.plugin.hub import Hub, RunOfTest

__all__ = [
    "conclude",
    "explain_failure",
    "judge_job",
    "repeat_command",
    "shown_path",
    "unmet_of_scenario",
]


def unmet_of_scenario(run: RunOfTest, loaded: LoadedScenario) -> list[UnmetClause]:
    """Return the clauses of a scenario that a run has not met, and what went wrong in ours."""
    result = _result_of(run)
    unmet = [
        *_problems(result),
        *_unmet_clauses(result, loaded),
        *_unmet_judgements(result, loaded),
    ]
    if result.outcome == "aborted" and not unmet:
        unmet.append(
            UnmetClause(
                text="the run ends by itself", outcome=Outcome.UNKNOWN, reason=result.reason
            )
        )
    return unmet


def judge_job(run: RunOfTest, hub: Hub, item: pytest.Item) -> None:
    """Fail a test that has passed unless what holds for every run held for its job.

    What the test waited for is its own business: it has raised, or the test expected that. A job
    that runs on when the test is over is ended then; what could not be judged of it does not count,
    because the test did not want to know.
    """
    result = _result_of(run)
    unmet = [*_problems(result), *_unmet_judgements(result, None)]
    if result.outcome == "aborted":
        unmet = [clause for clause in unmet if clause.outcome is Outcome.INVALID]
    conclude(run, hub, item, unmet)


def explain_failure(run: RunOfTest, hub: Hub, item: pytest.Item, error: BaseException) -> None:
    """Write down what happened in a job of a test that has failed, and keep the screen for it."""
    result = _result_of(run)
    said = str(error).strip().splitlines()
    first = UnmetClause(
        text=f"test {item.name}",
        outcome=Outcome.INVALID,
        reason=f"{type(error).__name__}: {said[0]}" if said else type(error).__name__,
    )
    unmet = [first, *_problems(result), *_unmet_judgements(result, None)]
    if hub.options.shrink and run.plan.storm_ids:
        run.note = "not tried: the storm is one that a Python test has asked for"
    run.screen = _screen(run, hub, item, unmet)


def repeat_command(item: pytest.Item, hub: Hub, run: RunOfTest) -> str:
    """Return the command that makes this very run again, from where pytest was called."""
    config = item.config
    inside = item.nodeid.partition("::")[2]
    words = ["pytest", f"{shown_path(str(item.path), config)}::{inside}"]
    if config.option.inifilename:
        words += ["-c", str(config.option.inifilename)]
    if config.option.rootdir:
        words.append(f"--rootdir={config.option.rootdir}")
    for setting in config.getoption("override_ini") or ():
        words += ["-o", setting]
    given = {**hub.options.given, "--elastic-seed": str(run.plan.seed.value)}
    words += [f"{flag}={value}" for flag, value in given.items()]
    if run.must_replay or (run.result is not None and run.result.targets):
        # The seed alone would choose among whoever is there next time.
        words.append(f"--elastic-replay={shown_path(run.directory.plan, config)}")
    return shlex.join(words)


def conclude(run: RunOfTest, hub: Hub, item: pytest.Item, unmet: list[UnmetClause]) -> None:
    """Fail the test unless everything was met; then discard the traces."""
    if unmet:
        # The screen says all there is: a traceback could only show how it was made.
        pytest.fail(_screen(run, hub, item, unmet), pytrace=False)
    if hub.options.keep == "all":
        _write_reports(run, hub, item)
    else:
        hub.discard(run.directory)


def _screen(run: RunOfTest, hub: Hub, item: pytest.Item, unmet: list[UnmetClause]) -> str:
    """Write a failed run's reports, and return its screen."""
    _write_reports(run, hub, item)
    history = _result_of(run).history
    failed_on = node_of_first_failure(history)
    return failure_screen(
        history,
        unmet,
        last_words=last_words(run.directory.end_of_log(failed_on)) if failed_on else "",
        note=run.note,
        run_directory=shown_path(run.directory.path, item.config),
        command=repeat_command(item, hub, run),
    )


def _write_reports(run: RunOfTest, hub: Hub, item: pytest.Item) -> None:
    result = _result_of(run)
    with open(run.directory.plan, "w", encoding="utf-8") as file:
        file.write(encode_plan(run.plan, targets=result.targets))
    run.directory.write_reports(
        result.history, result.judgements, command=repeat_command(item, hub, run)
    )


def _result_of(run: RunOfTest) -> RunResult:
    assert run.result is not None, "only finished runs are judged"
    return run.result


def _problems(result: RunResult) -> Iterator[UnmetClause]:
    for problem in result.problems:
        yield UnmetClause(
            text="the harness did its part", outcome=Outcome.UNKNOWN, reason=problem, place=None
        )


def _unmet_clauses(result: RunResult, loaded: LoadedScenario) -> Iterator[UnmetClause]:
    for clause in result.clauses:
        if clause.verdict is not None and not clause.verdict.is_valid:
            yield UnmetClause(
                text=f"{clause.bucket.value}: {clause.text}",
                outcome=clause.verdict.outcome,
                reason=clause.verdict.reason,
                place=_place_of_key(clause.key, loaded),
                events=clause.verdict.events,
            )


def _unmet_judgements(result: RunResult, loaded: LoadedScenario | None) -> Iterator[UnmetClause]:
    for judgement in result.judgements:
        if not judgement.verdict.is_valid:
            yield UnmetClause(
                text=judgement.text,
                outcome=judgement.verdict.outcome,
                reason=judgement.verdict.reason,
                place=None if loaded is None else _place_of_clause(judgement.text, loaded),
                events=judgement.verdict.events,
            )


def _place_of_key(key: str, loaded: LoadedScenario) -> Place | None:
    """Return where a clause of the engine stands: its key is `bucket[index]`, or `entry[index]`."""
    bucket, _, rest = key.partition("[")
    index = rest.removesuffix("]")
    for number, entry in enumerate(loaded.scenario.timeline, start=1):
        if (entry.id or f"entry-{number}") == bucket:
            return _place(loaded, ("timeline", number - 1, entry.action.name))
    if bucket == STORM_ID:
        return _place(loaded, ("storm",))
    return _place(loaded, ("expect", bucket, int(index))) if index.isdecimal() else None


def _place_of_clause(text: str, loaded: LoadedScenario) -> Place | None:
    """Return where a checker's clause stands, or None for an invariant that is on by default."""
    expect = loaded.tree.data.get("expect") if isinstance(loaded.tree.data, dict) else None
    for bucket, clauses in (expect or {}).items():
        for index, clause in enumerate(clauses if isinstance(clauses, list) else [clauses]):
            if text in _texts(clause):
                return _place(loaded, ("expect", bucket, index))
    return None


def _texts(clause: object) -> Iterator[str]:
    """Yield what a checker's clause is called in a judgement: a name, or `name: value`."""
    if isinstance(clause, str):
        yield clause
    elif isinstance(clause, dict):
        for name, value in clause.items():
            yield str(name) if value is None or value is True else f"{name}: {as_text(value)}"


def _place(loaded: LoadedScenario, path: tuple[str | int, ...]) -> Place:
    at = loaded.locate(path)
    return Place(file=at.path, line=at.line, column=at.column, source=at.text)


def shown_path(path: str, config: pytest.Config) -> str:
    """Return a path as it is seen from where pytest was called, if it lies below."""
    relative = os.path.relpath(path, config.invocation_params.dir)
    return path if relative.startswith("..") else relative
