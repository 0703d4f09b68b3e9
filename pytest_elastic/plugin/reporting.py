"""What a session says about itself: the header, and what a failed test's run has left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_elastic.plugin.hub import hub_of

if TYPE_CHECKING:
    from pytest_elastic.plugin.hub import Hub

__all__ = ["complete_report", "header_lines"]


def header_lines(config: pytest.Config) -> list[str]:
    """Return the lines that say which cluster runs are made on, why, and with which seed."""
    hub: Hub = hub_of(config)
    choice = hub.choice
    able = [entry.name for entry in choice.capabilities.entries if entry.available]
    lines = [
        f"elastic: {choice.cluster.kind} cluster ({choice.reason}); "
        f"launcher {hub.options.launcher}; seed {hub.options.seed}",
        f"elastic: can do {', '.join(able) or 'nothing but processes'}",
    ]
    lines += [
        f"elastic: cannot do {entry.name}: {entry.reason}"
        for entry in choice.capabilities.entries
        if not entry.available
    ]
    return lines


def complete_report(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> None:
    """Add to a failed report where the run's traces are, for JUnit and its like."""
    from pytest_elastic.plugin.fixtures import RUN_KEY

    run = item.stash.get(RUN_KEY, None)
    if run is not None and report.failed and call.when == "call":
        report.user_properties.append(("elastic_run_directory", run.directory.path))
