"""Which checks a scenario asks for: the invariants that are on by default, and its own clauses."""

from __future__ import annotations

from typing import Final

from elastic_harness.history.checkers import Check, bind, default_checks
from elastic_harness.scenario.model import Clause, Scenario

__all__ = ["NEED_NO_WORKERS", "NO_WORKERS", "checks_of", "clauses_of"]

# Asked for, there is nothing that a clause about workers could be judged by, and nothing to miss.
NO_WORKERS: Final = "no_workers"
# What is judged in any case.
NEED_NO_WORKERS: Final = frozenset({
    NO_WORKERS, "no_survivors", "faults_effective", "ends_in_time", "switch_clean", "job",
    "exit_codes", "log_contains",
})  # fmt: skip


def clauses_of(scenario: Scenario) -> list[Clause]:
    """Return every clause that a checker judges."""
    expect = scenario.expect
    witnesses = [each for each in (*expect.never, *expect.sometimes) if isinstance(each, Clause)]
    return [*expect.always, *expect.finally_, *witnesses]


def checks_of(scenario: Scenario) -> list[Check]:
    """Return the checks of a scenario: default invariants, and what it asks for."""
    expect = scenario.expect
    off = [clause.name for clause in expect.always if clause.is_off]
    checks = list(default_checks(without=off))
    asked = [clause for clause in (*expect.always, *expect.finally_) if not clause.is_off]
    if any(clause.name == NO_WORKERS for clause in asked):
        checks = [check for check in checks if check.name in NEED_NO_WORKERS]
    checks += [bind(clause.name, clause.expected) for clause in asked]
    for witness in expect.sometimes:
        if isinstance(witness, Clause):
            checks.append(bind(witness.name, witness.expected))
    for witness in expect.never:
        if isinstance(witness, Clause):
            checks.append(bind(witness.name, witness.expected, is_negated=True))
    return checks
