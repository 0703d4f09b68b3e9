"""What a session says about itself: its header, what failed runs have left, and what was slow."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from pytest_elastic.errors import UsageError
from pytest_elastic.events.model import EXEC_ASKED_FOR, NOT_OUR_PYTHON, WorkersStarted
from pytest_elastic.plugin.hub import RUN_KEY, Hub, hub_in_use, hub_of
from pytest_elastic.plugin.hub import __file__ as hub_file
from pytest_elastic.plugin.options import options_of
from pytest_elastic.plugin.verdicts import shown_path
from pytest_elastic.whole_file import replace_file

if TYPE_CHECKING:
    from elastic_harness.report.session_page import RunSummary

__all__ = ["complete_report", "header_lines", "write_session_page"]

# GitHub shows nothing of a step whose summary is larger than 1 MiB.
_STEP_SUMMARY_BYTES = 1_000_000


def header_lines(config: pytest.Config) -> list[str]:
    """Return the lines that say which cluster runs are made on, why, and with which seed."""
    hub: Hub = hub_of(config)
    try:
        choice = hub.choice
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    able = [entry.name for entry in choice.capabilities.entries if entry.available]
    unable: dict[str, list[str]] = {}
    for entry in choice.capabilities.entries:
        if not entry.available:
            unable.setdefault(entry.reason, []).append(entry.name)
    launcher, seed = hub.options.launcher, hub.options.seed
    return [
        f"elastic: {hub.kind} cluster ({choice.reason}); launcher {launcher}; seed {seed}",
        f"elastic: can do {', '.join(able) or 'nothing but processes'}",
        *(f"elastic: cannot do {', '.join(names)}: {why}" for why, names in unable.items()),
    ]


def complete_report(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> None:
    """Add to a failed report what its run has left, and say of a skipped test where it stands.

    Attributes of a report, if they are plain, reach the controller of pytest-xdist with it.
    """
    if isinstance(report.longrepr, tuple) and report.longrepr[0] == hub_file:
        # pytest shows where `skip` was called, and counts all skips of one line as one.
        path, line, _ = item.reportinfo()
        report.longrepr = (os.fspath(path), (line or 0) + 1, report.longrepr[2])
    if call.when == "teardown" and (hub := hub_in_use(item.config)) is not None:
        vars(report)["elastic_cold"] = _cold_starts(hub)
        vars(report)["elastic_runs"] = [*hub.summaries]
        hub.summaries.clear()
    is_last = call.when == "call" or (call.when == "setup" and not report.passed)
    if is_last and (hub := hub_in_use(item.config)) is not None:
        _add_properties(item, report, hub)
    run = item.stash.get(RUN_KEY, None)
    if run is not None and hasattr(item.config, "workerinput"):
        vars(report)["elastic_seed"] = run.plan.seed.value
    if run is None or not report.failed or not is_last:
        return
    found = ("elastic_run_directory", run.directory.path)
    report.user_properties.append(found)
    item.user_properties.append(found)  # JUnit's file has what the report of the teardown says
    if run.screen:
        report.sections.append(("elastic job", run.screen))


def _add_properties(item: pytest.Item, report: pytest.TestReport, hub: Hub) -> None:
    """Say of each run what came out, for JUnit's file and other readers of properties."""
    for run in hub.summaries:
        properties = [(f"elastic_{name}", run[name]) for name in ("outcome", "seed", "seconds")]
        if run["cause"]:
            properties.append(("elastic_cause", run["cause"]))
        report.user_properties += properties
        item.user_properties += properties  # JUnit's file has what the report of the teardown says
    _add_links(item.config, report, [str(run["directory"]) for run in hub.summaries])


def _add_links(config: pytest.Config, report: pytest.TestReport, directories: list[str]) -> None:
    """Link the pages of kept runs, and that of the session, in the report of pytest-html."""
    html = config.getoption("htmlpath", None)
    kept = [directory for directory in directories if directory]
    if not html or not kept:
        return
    folder = os.path.dirname(os.path.join(config.invocation_params.dir, os.path.expandvars(html)))
    links = [(os.path.join(directory, "timeline.html"), "timeline") for directory in kept]
    links.append((os.path.join(options_of(config).artifacts, "index.html"), "all runs"))
    vars(report)["extras"] = [
        *vars(report).get("extras", ()),
        *(
            # The plain fields of pytest_html.extras.url: so they are with pytest-xdist, too.
            {
                "name": name,
                "format_type": "url",
                "content": quote(os.path.relpath(path, folder)),
                "mime_type": None,
                "extension": None,
            }
            for path, name in links
        ),
    ]


def write_session_page(config: pytest.Config, runs: Sequence[Mapping[str, Any]]) -> str:
    """Write the page of a session's runs into the artifacts folder; return a line that says so.

    Where GitHub wants a summary it gets one.
    """
    from elastic_harness.report.run_directory import earlier_runs, remove_old_runs
    from elastic_harness.report.session_page import RunSummary, counts_of, session_html

    summaries = [RunSummary(**run) for run in runs]
    folder = options_of(config).artifacts
    path = os.path.join(folder, "index.html")
    if summary_file := os.environ.get("GITHUB_STEP_SUMMARY"):
        _add_to_step_summary(summary_file, summaries)
    removed = remove_old_runs(
        folder,
        now=time.time(),
        newest=options_of(config).keep_runs,
        max_bytes=options_of(config).keep_bytes,
        spared={run.directory for run in summaries},
    )
    less = f"; removed {removed} of earlier sessions" if removed else ""
    try:
        os.makedirs(folder, exist_ok=True)
        earlier = earlier_runs(folder, without={run.directory for run in summaries})
        replace_file(path, session_html(summaries, folder=folder, earlier=earlier))
    except OSError as error:
        return f"{counts_of(summaries)}; {path} cannot be written: {error.strerror}"
    return f"{counts_of(summaries)}: {shown_path(path, config)}{less}"


def _add_to_step_summary(path: str, runs: Sequence[RunSummary]) -> None:
    """Append the summary to GitHub's file: what other tools have written there counts too."""
    from elastic_harness.report.session_page import step_summary

    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(step_summary(runs, at_most=_STEP_SUMMARY_BYTES - file.tell()))
    except OSError as error:
        warnings.warn(
            pytest.PytestWarning(f"elastic: no summary in {path}: {error.strerror}"), stacklevel=1
        )


def _cold_starts(hub: Hub) -> dict[str, int]:
    """Return how many workers of this test's runs could not be started warm, by reason."""
    counted: Counter[str] = Counter()
    for run in hub.opened:
        for entry in () if run.result is None else run.result.history.of_kind(WorkersStarted):
            reason = entry.event.start_reason
            is_chosen = reason.endswith((EXEC_ASKED_FOR, NOT_OUR_PYTHON))
            if entry.event.start == "exec" and not is_chosen:
                counted[reason] += len(entry.event.pids)
    hub.opened.clear()
    return dict(counted)
