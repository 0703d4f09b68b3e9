"""Scenario files as pytest items: `file.elastic.yaml::id`, one for each scenario.

The items are ordinary `pytest.Function`s, so that fixtures, marks, `-k`, `--lf` and xdist work as
they do for any test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
from elastic_harness.finding import Finding, ScenarioError
from elastic_harness.report.failure_screen import UnmetClause
from elastic_harness.scenario.checks.scenario_checks import needed_capabilities
from elastic_harness.scenario.planning.planner import Plan, make_plan
from elastic_harness.scenario.reading.loader import LoadedScenario, load_file

from pytest_elastic.errors import ElasticError, InternalError, UsageError
from pytest_elastic.plugin.hub import (
    RUN_KEY,
    Hub,
    RunOfTest,
    known_checkers,
    known_faults,
    learn_launchers,
)
from pytest_elastic.plugin.verdicts import conclude, shown_path, unmet_clauses

__all__ = ["ScenarioFile", "ScenarioItem"]


class ScenarioFile(pytest.File):
    """A scenario file; broken ones fail the collection with `file:line:column` and a caret."""

    # What pytest's own machinery expects of a collector of functions.
    obj = None

    def collect(self) -> Iterable[pytest.Item]:
        """Read the file and return an item for each scenario."""
        path = os.fspath(self.path)
        shown = shown_path(path, self.config)
        try:
            learn_launchers(self.config)
            scenarios = load_file(
                shown if os.path.abspath(shown) == path else path,  # a conftest may change folders
                known_faults(self.config),
                checkers=known_checkers(self.config),
                folders=(str(self.config.rootpath),),
            )
            findings = [each for loaded in scenarios for each in _findings_here(loaded)]
            if findings:
                raise ScenarioError(findings)
        except UsageError as error:
            raise self.CollectError(str(error)) from error
        for loaded in scenarios:
            yield ScenarioItem.from_parent(
                self, name=loaded.scenario.id, callobj=_call_for(loaded), loaded=loaded
            )


class ScenarioItem(pytest.Function):
    """One scenario."""

    def __init__(self, *, loaded: LoadedScenario, **rest: Any) -> None:  # noqa: ANN401 (pytest's)
        super().__init__(**rest)
        self.loaded = loaded
        for name in loaded.scenario.marks:
            self.add_marker(name)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Point at the scenario's own line."""
        return self.path, self.loaded.locate().line - 1, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]  # noqa: ANN401 (pytest's own)
        """Show errors of a scenario's author, or of pytest's command line, without a traceback."""
        error = excinfo.value
        if isinstance(error, ElasticError) and not isinstance(error, InternalError):
            return str(error)
        return super().repr_failure(excinfo)


def _findings_here(loaded: LoadedScenario) -> Iterator[Finding]:
    """Yield what is wrong with a scenario for this pytest: unregistered marks."""
    for index, name in enumerate(loaded.scenario.marks):
        try:
            getattr(pytest.mark, name)
        except (pytest.fail.Exception, AttributeError) as error:
            yield Finding(str(error), at=loaded.locate(("marks", index)))


def _call_for(loaded: LoadedScenario) -> Callable[..., None]:
    def run_scenario(
        elastic_cluster: Hub,
        tmp_path_factory: pytest.TempPathFactory,
        request: pytest.FixtureRequest,
    ) -> None:
        _run(loaded, elastic_cluster, request.node, str(tmp_path_factory.getbasetemp()))

    return run_scenario


def _run(loaded: LoadedScenario, hub: Hub, item: pytest.Item, temporary_folder: str) -> None:
    """Run a scenario and judge it; skips what the cluster cannot do."""
    scenario = loaded.scenario
    hub.skip_unless_able(needed_capabilities(scenario, hub.session.faults))
    plan = hub.replay or make_plan(scenario, hub.options.seed, hub.session.faults.recipes)

    def attempt(plan: Plan) -> tuple[RunOfTest, list[UnmetClause]]:
        run = _perform(plan, loaded, hub, item, temporary_folder)
        return run, unmet_clauses(run, loaded if _is_as_written(plan, loaded) else None)

    run, unmet = attempt(plan)
    if unmet and plan.storm_ids and hub.options.shrink:
        from pytest_elastic.plugin.shrinking import shrink_storm

        shown = partial(shown_path, config=item.config)
        run, unmet = shrink_storm(run, unmet, hub, attempt, shown=shown)
        item.stash[RUN_KEY] = run
    conclude(run, hub, item, unmet)


def _is_as_written(plan: Plan, loaded: LoadedScenario) -> bool:
    """Tell whether a plan's scenario still stands in its file: a replay's may have changed."""
    now, then = (each.model_dump(mode="json") for each in (loaded.scenario, plan.scenario))
    return now == then


def _perform(
    plan: Plan, loaded: LoadedScenario, hub: Hub, item: pytest.Item, temporary_folder: str
) -> RunOfTest:
    """Run a plan of a scenario to its end."""
    launcher = hub.launcher(plan.scenario.job.launcher)
    run = RunOfTest(plan, hub.new_directory(item.nodeid))
    item.stash[RUN_KEY] = run
    if _is_as_written(plan, loaded):  # else the plan has all that is known of it
        run.directory.write_scenario("\n".join(loaded.tree.lines) + "\n")
    with hub.turn():
        opened = hub.open(
            run,
            launcher,
            base_dir=os.path.dirname(os.path.abspath(item.path)),
            shared=(temporary_folder,),
        )
        try:
            run.result = opened.wait()
            hub.add_reference(run)
        finally:
            hub.end_of_test()
    return run
