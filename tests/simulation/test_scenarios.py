"""The scenario library in virtual time, and some of it beside its real run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.history.judge import unmet
from elastic_harness.scenario.model import Expect
from elastic_harness.scenario.runner import RunResult
from elastic_harness.session import HarnessSession
from elastic_simulation.scenarios.run import SimulatedRun, why_not

from pytest_elastic.errors import UsageError
from tests.simulation.compare import (
    CATALOG,
    plans,
    real_rounds,
    simulated_rounds,
)

ALL = {plan.scenario.id: (path, plan) for path, plan in plans()}
SIMULATED = {name: plan for name, (_, plan) in ALL.items() if why_not(plan) is None}
# The rest of the library is compared by `python -m tests.simulation.compare`.
COMPARED = ("node-crashes",)


def _unmet(result: RunResult) -> list[str]:
    return [f"{each.title}: {each.verdict.reason}" for each in unmet(result.judgements)]


@pytest.mark.parametrize("name", list(SIMULATED))
def test_a_scenario_of_the_library_holds_in_virtual_time(name: str) -> None:
    """The same file, engine, faults and checkers; only nodes and time are simulated."""
    assert _unmet(SimulatedRun(SIMULATED[name], CATALOG).run()) == []


def test_the_library_is_simulated_as_far_as_it_is_about_the_control_plane() -> None:
    """What is left out has a reason, and the rest is more than a handful."""
    assert {"crash-resume", "node-loses-power", "isolated-node-heals"} <= set(SIMULATED)
    assert len(SIMULATED) >= 8


def test_a_simulated_run_is_the_same_each_time() -> None:
    """Every record, at the same moment."""
    plan = SIMULATED["isolated-node-heals"]
    one, other = (SimulatedRun(plan, CATALOG).run() for _ in range(2))
    assert one.history.records == other.history.records


def test_a_scenario_that_cannot_hold_is_unmet() -> None:
    """The simulated run is judged: where other rounds are expected, it fails."""
    plan = SIMULATED["node-crashes"]
    expect = plan.scenario.expect
    wrong = tuple(
        clause.model_copy(update={"expected": [3, 3]}) if clause.name == "world_sizes" else clause
        for clause in expect.finally_
    )
    changed = plan.scenario.model_copy(
        update={"expect": expect.model_copy(update={"finally_": wrong})}
    )
    result = SimulatedRun(dataclasses.replace(plan, scenario=changed), CATALOG).run()
    assert any("world sizes were [3, 2]" in line for line in _unmet(result))


def test_what_is_not_simulated_is_refused_with_the_reason() -> None:
    """A scenario is never weakened in silence."""
    _, plan = ALL["disk-full"]
    with pytest.raises(UsageError, match="disk_full is no fault of the control plane"):
        SimulatedRun(plan, CATALOG)


LINE = {"log": "."}


@pytest.mark.parametrize(
    "expect",
    [
        {"never": [LINE]},
        {"sometimes": [LINE]},
        {"eventually": [{**LINE, "within": "5s"}]},
        {"never": [{"log_contains": "."}]},
    ],
)
def test_nothing_is_said_of_lines_that_are_not_printed(expect: dict[str, object]) -> None:
    """`never: {log: "."}` would hold, and mean nothing."""
    plan = SIMULATED["node-crashes"]
    asked = Expect.model_validate(expect)
    changed = dataclasses.replace(plan, scenario=plan.scenario.model_copy(update={"expect": asked}))
    with pytest.raises(UsageError, match="simulated processes print nothing"):
        SimulatedRun(changed, CATALOG)


@pytest.fixture(scope="module")
def session() -> Iterator[HarnessSession]:
    """Return a session of the best real cluster that this machine has."""
    session = HarnessSession(choose_cluster("auto"))
    _ = session.cluster  # started here, and not in the first test
    yield session
    session.close()


@pytest.mark.parametrize("name", COMPARED)
def test_real_nodes_have_the_same_rounds(
    name: str, session: HarnessSession, tmp_path: Path
) -> None:
    """The same members in the same order, and the same restart counts."""
    path, plan = ALL[name]
    assert real_rounds(session, plan, path, str(tmp_path)) == simulated_rounds(plan)
