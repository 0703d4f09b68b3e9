"""What is to hold in a run: invariants that are on by default, and the scenario's own clauses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from elastic_harness.finding import AstPath
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.history.events import ClausePlanned
from elastic_harness.scenario.actions import CHECK, read_check
from elastic_harness.scenario.model import Clause, Entry, Expect, Scenario
from elastic_harness.scenario.triggers import Condition, EventCondition, LogCondition

__all__ = [
    "AT_THE_END",
    "NO_WORKERS",
    "clauses_in",
    "planned_checks",
    "planned_clauses",
    "text_of",
]

AT_THE_END: Final = "finally"
# Asked for, there is nothing that a clause about workers could be judged by, and nothing to miss.
NO_WORKERS: Final = "no_workers"
# One of these says how the job is to end; without any, it has to succeed.
_SAY_HOW_IT_ENDS: Final = frozenset({"job", "exit_codes", NO_WORKERS})


def clauses_in(scenario: Scenario) -> Iterator[tuple[str, Clause, AstPath]]:
    """Yield every clause that a checker judges, with its bucket (or `check`) and its place."""
    expect = scenario.expect
    for bucket in ("always", "never", "sometimes", AT_THE_END):
        clauses = expect.finally_ if bucket == AT_THE_END else getattr(expect, bucket)
        for index, clause in enumerate(clauses):
            if isinstance(clause, Clause):
                yield bucket, clause, ("expect", bucket, index)
    for index, entry in enumerate(scenario.timeline):
        for clause in read_check(entry.action.value) if entry.action.name == CHECK else ():
            yield CHECK, clause, ("timeline", index, CHECK)


def planned_clauses(
    scenario: Scenario, registry: Registry, *, is_open: bool = False
) -> Iterator[ClausePlanned]:
    """Yield everything that is to hold in a run of a scenario, save the `check`s of its timeline.

    `is_open`: a test decides what to make of the job's end, so that nothing is asked of that.
    """
    expect = scenario.expect
    off = [clause.name for clause in expect.always if clause.is_off]
    asked = {clause.name for clause in (*expect.always, *expect.finally_) if not clause.is_off}
    for number, check in enumerate(registry.default_checks(without=off)):
        if NO_WORKERS not in asked or not check.checker.needs_workers:
            yield ClausePlanned(
                key=f"default[{number}]", bucket="default", text=check.text, checker=check.name
            )
    if not is_open and not asked & _SAY_HOW_IT_ENDS:
        yield _planned(
            "default[job]", "default", Clause(name="job", expected="succeeded"), registry
        )
    yield from _by_bucket(expect, registry)


def _by_bucket(expect: Expect, registry: Registry) -> Iterator[ClausePlanned]:
    for index, clause in enumerate(expect.always):
        if not clause.is_off:
            yield _planned(f"always[{index}]", "always", clause, registry)
    for bucket, witnesses in (("never", expect.never), ("sometimes", expect.sometimes)):
        for index, witness in enumerate(witnesses):
            key = f"{bucket}[{index}]"
            if isinstance(witness, Clause):
                yield _planned(key, bucket, witness, registry)
            else:
                yield _witnessed(key, bucket, str(witness), witness)
    for index, eventually in enumerate(expect.eventually):
        key, condition = f"eventually[{index}]", eventually.condition
        yield _witnessed(key, "eventually", str(eventually), condition)
    for index, clause in enumerate(expect.finally_):
        yield _planned(f"finally[{index}]", "finally", clause, registry)


def _witnessed(key: str, bucket: str, text: str, condition: Condition) -> ClausePlanned:
    """Return a clause that is met by what is seen while the job runs."""
    log = condition.log if isinstance(condition, LogCondition) else ""
    event = condition.event if isinstance(condition, EventCondition) else ""
    return ClausePlanned(key=key, bucket=bucket, text=text, log=log, event=event)


def planned_checks(id: str, entry: Entry, registry: Registry) -> Iterator[ClausePlanned]:
    """Yield the clauses of a `check` in the timeline: they are judged when its moment comes."""
    for index, clause in enumerate(read_check(entry.action.value)):
        text = text_of(clause, registry)
        yield ClausePlanned(
            key=f"{id}[{index}]", bucket="check", text=text, is_optional=entry.optional
        )


def text_of(clause: Clause, registry: Registry) -> str:
    """Return a clause as a person writes it."""
    return registry.bind(clause.name, clause.expected).text


def _planned(key: str, bucket: str, clause: Clause, registry: Registry) -> ClausePlanned:
    return ClausePlanned(
        key=key,
        bucket=bucket,
        text=text_of(clause, registry),
        checker=clause.name,
        expected=clause.expected,
        is_negated=bucket == "never",
    )
