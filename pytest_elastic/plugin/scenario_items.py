"""Scenario files as pytest items: `file.elastic.yaml::id`, one for each scenario.

The items are ordinary `pytest.Function`s, so that fixtures, marks, `-k`, `--lf` and xdist work as
they do for any test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.history.checkers import bind
from elastic_harness.scenario.checks import needed_capabilities
from elastic_harness.scenario.loader import LoadedScenario, load_file
from elastic_harness.scenario.planner import decode_plan, encode_plan, make_plan
from elastic_harness.scenario.problems import ScenarioError

from pytest_elastic.errors import UsageError
from pytest_elastic.plugin.hub import FinishedRun, Hub
from pytest_elastic.plugin.verdicts import RunFailed, judge_run

if TYPE_CHECKING:
    from elastic_harness.scenario.planner import Plan

__all__ = ["ScenarioFile", "ScenarioItem"]


class ScenarioFile(pytest.File):
    """A scenario file; broken ones fail the collection with `file:line:column` and a caret."""

    # What pytest's own machinery expects of a collector of functions.
    obj = None

    def collect(self) -> Iterable[pytest.Item]:
        """Read the file and return an item for each scenario."""
        try:
            scenarios = load_file(
                _shown_path(self.path, self.config),
                built_in_faults(),
                check_clause=_check_clause,
            )
        except ScenarioError as error:
            raise self.CollectError(str(error)) from error
        for loaded in scenarios:
            yield ScenarioItem.from_parent(
                self, name=loaded.scenario.id, callobj=_call_for(loaded), loaded=loaded
            )


class ScenarioItem(pytest.Function):
    """One scenario."""

    def __init__(self, *, loaded: LoadedScenario, **rest: Any) -> None:  # pytest's own arguments
        super().__init__(**rest)
        self.loaded = loaded
        for name in loaded.scenario.marks:
            self.add_marker(name)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Point at the scenario's own line."""
        return self.path, self.loaded.locate().line - 1, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any) -> Any:
        """Show a failed run as its one screen, and our errors without a traceback."""
        if isinstance(excinfo.value, (RunFailed, UsageError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args)


def _shown_path(path: os.PathLike[str], config: pytest.Config) -> str:
    """Return the path as messages show it: relative to where pytest was called, if it is below."""
    relative = os.path.relpath(path, config.invocation_params.dir)
    return os.fspath(path) if relative.startswith("..") else relative


def _check_clause(bucket: str, name: str, expected: object) -> None:
    """Refuse clauses that no checker knows, while the file is read."""
    bind(name, expected)


def _call_for(loaded: LoadedScenario) -> Callable[..., None]:
    def run_scenario(elastic_cluster: Hub, request: pytest.FixtureRequest) -> None:
        run_loaded(loaded, elastic_cluster, request.node)

    return run_scenario


def run_loaded(loaded: LoadedScenario, hub: Hub, item: pytest.Item) -> None:
    """Run a scenario and judge it; raises RunFailed, or skips what the cluster cannot do."""
    scenario = loaded.scenario
    missing = hub.choice.capabilities.missing(needed_capabilities(scenario, hub.session.faults))
    if missing:
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in missing)
        pytest.skip(f"needs what this cluster lacks: {reasons}")
    plan = _plan(loaded, hub)
    directory = hub.new_directory(item.nodeid)
    directory.write_scenario("\n".join(loaded.tree.lines) + "\n")
    with open(directory.plan, "w", encoding="utf-8") as file:
        file.write(encode_plan(plan))
    run = FinishedRun(plan, directory)
    with hub.turn():
        opened = hub.open(
            plan,
            hub.launcher(scenario.job.launcher),
            directory,
            base_dir=os.path.dirname(os.path.abspath(item.path)),
        )
        run.result = opened.wait()
    judge_run(run, hub, item, loaded)


def _plan(loaded: LoadedScenario, hub: Hub) -> Plan:
    if not hub.options.replay:
        return make_plan(loaded.scenario, hub.options.seed)
    try:
        with open(hub.options.replay, encoding="utf-8") as file:
            return decode_plan(file.read())
    except OSError as error:
        raise UsageError(
            f"--elastic-replay={hub.options.replay}: cannot be read: {error.strerror}"
        ) from error
