"""The same job without any fault, for clauses that compare a run with an uninterrupted one."""

from __future__ import annotations

from dataclasses import replace

from elastic_harness.history.checkers.final_state import reference_of
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.history.events import ClausePlanned, ReferenceObserved
from elastic_harness.history.history import History
from elastic_harness.scenario.model import Clause, Expect, Nodes
from elastic_harness.scenario.planning.planner import Plan
from elastic_harness.scenario.runner import RunResult
from pytest_elastic.errors import UsageError

__all__ = ["needs_reference", "read_reference", "reference_plan"]


def needs_reference(history: History, checkers: Registry) -> bool:
    """Tell whether a planned clause compares the run with an uninterrupted one."""
    for planned in history.of_kind(ClausePlanned):
        if planned.event.checker in checkers.names:
            try:
                check = checkers.bind(planned.event.checker, planned.event.expected)
            except UsageError:
                continue  # which its judgement says
            if check.checker.needs_reference(check.parameters):
                return True
    return False


def reference_plan(plan: Plan) -> Plan:
    """Return the plan of the same job with the same seed, which nothing disturbs.

    Scenarios of one job have one plan: nothing of it is a scenario's own but the job and its nodes.
    """
    state = Clause(name="parameters", expected="identical")  # so that final states are taken
    expect = Expect.model_validate({"finally": [state, Clause(name="job", expected="succeeded")]})
    scenario = plan.scenario.model_copy(
        update={
            "id": "uninterrupted",
            "title": "The job without any fault",
            "nodes": Nodes.model_validate(plan.scenario.nodes.initial),
            "timeline": (),
            "storm": None,
            "expect": expect,
            "proxies": {},
            "requires": (),
        }
    )
    return replace(plan, scenario=scenario, entries=(), targets={})


def read_reference(result: RunResult) -> ReferenceObserved:
    """Return what the job ended with; raises UsageError where it cannot be compared with."""
    if result.outcome != "succeeded":
        raise UsageError(f"it {result.outcome}: {result.reason}")
    workers = [w for world in result.history.worlds.rounds for w in world.workers.values()]
    for worker in workers:
        if worker.resumed_at_step != 0:
            found = "an unknown step" if worker.resumed_at_step is None else "a later step"
            raise UsageError(
                f"rank {worker.rank} began at {found}, where a fresh start is needed",
                hint="Checkpoints belong below $ELASTIC_CHECKPOINT_DIR, which each run has for "
                "itself; steps that no optimizer of torch makes need `report_step`.",
            )
    found_state = reference_of(result.history)
    if found_state is None:
        raise UsageError("what it ended with was not seen on every rank")
    return found_state
