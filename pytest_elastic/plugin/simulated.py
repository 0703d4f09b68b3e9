"""Scenario items under `--elastic-cluster=simulated`: run in virtual time."""

from __future__ import annotations

import pytest

from pytest_elastic.plugin.hub import Hub, RunOfTest

__all__ = ["is_simulated", "simulate_scenario"]


def is_simulated(hub: Hub) -> bool:
    """Tell whether scenarios are simulated in this session."""
    return hub.kind == "simulated"


def simulate_scenario(run: RunOfTest, hub: Hub) -> None:
    """Simulate a planned run; skips, with the reason, what cannot be simulated."""
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
    faults, checkers = hub.session.faults, hub.session.checkers
    simulated = SimulatedRun(
        run.plan, faults, faults, directory=run.directory.path, checkers=checkers
    )
    run.result = simulated.run()
