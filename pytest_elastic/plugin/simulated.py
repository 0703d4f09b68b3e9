"""Scenario items under `--elastic-cluster=simulated`: run in virtual time, judged like others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_elastic.plugin.hub import RUN_KEY, Hub, RunOfTest
from pytest_elastic.plugin.verdicts import judge_scenario

if TYPE_CHECKING:
    from elastic_harness.scenario.loader import LoadedScenario

__all__ = ["is_simulated", "simulate_scenario"]


def is_simulated(hub: Hub) -> bool:
    """Tell whether scenarios are simulated in this session."""
    return hub.kind == "simulated"


def simulate_scenario(run: RunOfTest, loaded: LoadedScenario, hub: Hub, item: pytest.Item) -> None:
    """Simulate a planned run and judge it; skips, with the reason, what cannot be simulated."""
    from elastic_harness.scenario.planner import encode_plan
    from elastic_harness.simulation.run import SimulatedRun, why_not

    problem = why_not(run.plan)
    if problem is None and hub.options.launcher != "pytest-elastic":
        problem = f"only pytest-elastic is simulated, not {hub.options.launcher!r}"
    if problem is not None:
        hub.discard(run.directory)
        pytest.skip(f"cannot be simulated: {problem}")
    with open(run.directory.plan, "w", encoding="utf-8") as file:
        file.write(encode_plan(run.plan))
    item.stash[RUN_KEY] = run
    faults = hub.session.faults
    run.result = SimulatedRun(run.plan, faults, faults, directory=run.directory.path).run()
    judge_scenario(run, hub, item, loaded)
