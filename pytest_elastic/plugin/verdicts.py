"""From a finished run to a test's outcome: nothing, or a failure that fits one screen.

Nothing is decided here: what a test adds to what was to hold is written into its run's history, and
the verdict is what `judge` reads there.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from elastic_harness.history.events import ClausePlanned, PythonTestFailed
from elastic_harness.history.judge import Judgement, unmet
from elastic_harness.report.cause import node_of_first_failure
from elastic_harness.report.failure_screen import Place, UnmetClause, failure_screen
from elastic_harness.report.last_words import last_words
from elastic_harness.report.session_page import summary_of
from elastic_harness.scenario.model import storm_of
from elastic_harness.scenario.planning.planner import encode_plan

from pytest_elastic.errors import UsageError

if TYPE_CHECKING:
    from elastic_harness.scenario.reading.loader import LoadedScenario
    from elastic_harness.scenario.runner import RunResult

    from pytest_elastic.plugin.hub import Hub, RunOfTest

__all__ = [
    "conclude",
    "explain_failure",
    "judge_job",
    "repeat_command",
    "shown_path",
    "unmet_clauses",
]


def unmet_clauses(run: RunOfTest, loaded: LoadedScenario | None = None) -> list[UnmetClause]:
    """Return what a run's verdict says that is not valid, with its places in a scenario file."""
    return [
        UnmetClause(
            text=each.title,
            outcome=each.verdict.outcome,
            reason=each.verdict.reason,
            place=None if loaded is None else _place_of(each, loaded),
            events=each.verdict.events,
        )
        for each in unmet(_result_of(run).judgements)
    ]


def judge_job(
    run: RunOfTest, hub: Hub, item: pytest.Item, asked: Sequence[tuple[str, object]]
) -> None:
    """Fail a test that has passed unless the verdict on its run is valid.

    `asked` are clauses that the test has named, with what it expects, and did not look at itself.
    """
    for number, (name, expected) in enumerate(asked):
        check = _result_of(run).checkers.bind(name, expected)
        key = f"test[{number}]"
        _result_of(run).history.append_after_end(
            ClausePlanned(key=key, bucket="test", text=check.text, checker=name, expected=expected)
        )
    hub.add_reference(run)
    conclude(run, hub, item, unmet_clauses(run))


def explain_failure(run: RunOfTest, hub: Hub, item: pytest.Item, error: BaseException) -> None:
    """Write down what happened in a job of a test that has failed, and keep the screen for it."""
    said = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    _result_of(run).history.append_after_end(PythonTestFailed(test=item.name, reason=reason))
    if hub.options.shrink and run.plan.storm_ids:
        run.note = "not tried: the storm is one that a Python test has asked for"
    found = unmet_clauses(run)
    if _result_of(run).outcome != "aborted":  # else the test may have failed for that
        # What the test itself says comes first.
        found.sort(key=lambda clause: clause.text != f"test {item.name}")
    run.screen = _screen(run, hub, item, found)


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
        # The seed alone would choose among the targets that are there next time.
        words.append(f"--elastic-replay={shown_path(run.directory.plan, config)}")
    return shlex.join(words)


def conclude(run: RunOfTest, hub: Hub, item: pytest.Item, unmet: list[UnmetClause]) -> None:
    """Fail the test unless everything was met; then discard the traces."""
    if unmet:
        # The screen says all there is: a traceback could only show how it was made.
        pytest.fail(_screen(run, hub, item, unmet), pytrace=False)
    if hub.options.keep == "all":
        _write_reports(run, hub, item)
    _tell_reporters(run, item)
    _sum_up(run, hub, item, is_kept=hub.options.keep == "all")
    if hub.options.keep != "all":
        hub.discard(run.directory)


def _tell_reporters(run: RunOfTest, item: pytest.Item) -> None:
    """Call the hook that reports the run."""
    result = _result_of(run)
    item.ihook.pytest_elastic_run_judged(
        item=item,
        history=result.history,
        judgements=result.judgements,
        directory=run.directory.path,
    )


def _screen(run: RunOfTest, hub: Hub, item: pytest.Item, unmet: list[UnmetClause]) -> str:
    """Write a failed run's reports, and return its screen."""
    unwritten = ""
    try:
        _write_reports(run, hub, item)
    except UsageError as error:  # the disk is full: what failed is to be read all the same
        unwritten = f"\n\n{error}"
    _tell_reporters(run, item)
    history = _result_of(run).history
    failed_on = node_of_first_failure(history)
    screen = failure_screen(
        history,
        unmet,
        last_words=last_words(run.directory.end_of_log(failed_on)) if failed_on else "",
        note=run.note,
        run_directory=shown_path(run.directory.path, item.config),
        command=repeat_command(item, hub, run),
    )
    screen += unwritten
    _sum_up(run, hub, item, screen=screen)
    return screen


def _sum_up(
    run: RunOfTest, hub: Hub, item: pytest.Item, *, screen: str = "", is_kept: bool = True
) -> None:
    """Note what the session's page says of a run."""
    result = _result_of(run)
    summary = summary_of(
        result.history,
        result.judgements,
        name=item.nodeid,
        directory=run.directory.path if is_kept else "",
        screen=screen,
    )
    hub.summaries.append(asdict(summary))


def _write_reports(run: RunOfTest, hub: Hub, item: pytest.Item) -> None:
    result = _result_of(run)
    run.directory.write_plan(encode_plan(run.plan, targets=result.targets))
    run.directory.write_reports(
        result.history, result.judgements, command=repeat_command(item, hub, run)
    )


def _result_of(run: RunOfTest) -> RunResult:
    assert run.result is not None, "only finished runs are judged"
    return run.result


def _place_of(judgement: Judgement, loaded: LoadedScenario) -> Place | None:
    """Return where a clause stands: its key is `bucket[index]`, or `entry[index]` of a `check`."""
    owner, _, rest = judgement.key.partition("[")
    index = rest.removesuffix("]")
    if judgement.bucket == "check":
        if storm_of(owner):
            return _place(loaded, ("storm",))
        name = owner.partition("#")[0]
        for number, entry in enumerate(loaded.scenario.timeline, start=1):
            if (entry.id or f"entry-{number}") == name:
                return _place(loaded, ("timeline", number - 1, entry.action.name))
    is_written = judgement.bucket in ("always", "never", "sometimes", "eventually", "finally")
    return _place(loaded, ("expect", owner, int(index))) if is_written else None


def _place(loaded: LoadedScenario, path: tuple[str | int, ...]) -> Place:
    at = loaded.locate(path)
    return Place(file=at.path, line=at.line, column=at.column, source=at.text)


def shown_path(path: str, config: pytest.Config) -> str:
    """Return a path as it is seen from where pytest was called, if it lies below."""
    relative = os.path.relpath(path, config.invocation_params.dir)
    return path if relative.startswith("..") else relative
