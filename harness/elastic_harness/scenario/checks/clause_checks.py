"""What `expect` and `check` ask for and no run can have.

What is wrong with a clause by itself is said by its checker's parameters, and what is wrong with it
in this scenario by their `findings`; here it is held against where it stands.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from elastic_harness.finding import AstPath, Finding
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.scenario.actions import CHECK, CheckedScenario
from elastic_harness.scenario.model import Scenario
from elastic_harness.scenario.planning.planned_clauses import AT_THE_END, NO_WORKERS, clauses_in
from pytest_elastic.errors import UsageError

__all__ = ["check_clauses"]

_WITNESSED = frozenset({"never", "sometimes"})


def check_clauses(checked: CheckedScenario, checkers: Registry) -> Iterator[Finding]:
    """Yield clauses that stand in the wrong place, and what their checkers find in them."""
    clauses = list(clauses_in(checked.spec))
    is_without_workers = any(
        clause.name == NO_WORKERS and bucket in ("always", AT_THE_END)
        for bucket, clause, _ in clauses
    )
    said: dict[str, str] = {}
    for bucket, clause, here in clauses:
        if clause.within is not None:
            yield from _check_time(checked, bucket, clause.within, (*here, "within"))
        if clause.name not in checkers.names or (bucket == "always" and clause.is_off):
            continue
        checker = checkers.find(clause.name)
        if is_without_workers and checker.needs_workers and not clause.is_off and bucket != CHECK:
            yield Finding(
                f"`{clause.name}` is about workers, and `{NO_WORKERS}` says: none is started", here
            )
            continue
        if bucket in _WITNESSED and not (checker.is_occurrence or checker.may_be_seen):
            known = " and ".join(each.name for each in checkers if each.is_occurrence)
            yield Finding(
                f"`{clause.name}` is nothing that is seen or not: in `{bucket}` stand events, log "
                f"lines, {known}; what must hold stands in `finally`",
                here,
            )
            continue
        if bucket not in _WITNESSED and checker.is_occurrence:
            yield Finding(
                f"`{clause.name}` is seen or not seen, and nothing that holds: it stands in "
                f"`never` or `sometimes`, and not in `{bucket}`",
                here,
            )
            continue
        if bucket == CHECK and checker.needs_end:
            yield Finding(
                f"`{clause.name}` is known when the job has ended: it stands in `{AT_THE_END}` of "
                f"`expect`, and not in `{CHECK}`",
                here,
            )
            continue
        try:
            parameters = checker.read(clause.expected)
        except (UsageError, ValidationError):
            continue  # the clause by itself is wrong, and its own check has said so
        for each in parameters.findings(checked):
            yield each.below(*here, clause.name)
        if bucket in ("always", AT_THE_END) and checker.is_said_once:
            if clause.name in said:
                yield Finding(f"`{clause.name}` stands here and in `{said[clause.name]}`", here)
            said.setdefault(clause.name, bucket)
    yield from _seen_and_not_seen(checked.spec)


def _check_time(
    checked: CheckedScenario, bucket: str, within: float, path: AstPath
) -> Iterator[Finding]:
    if bucket == AT_THE_END:
        yield from checked.too_late(within, *path, is_in=True)
    else:
        yield Finding(f"a clause of `{bucket}` has no time of its own", path, is_key=True)


def _seen_and_not_seen(scenario: Scenario) -> Iterator[Finding]:
    expect = scenario.expect
    both = {str(each) for each in expect.never} & {str(each) for each in expect.sometimes}
    for index, witness in enumerate(expect.never):
        if str(witness) in both:
            yield Finding(
                f"`{witness}` stands in `sometimes` too: it cannot be seen and not be seen",
                ("expect", "never", index),
            )
