"""What is to hold in a run: the invariants, how the job ends, and what the scenario asks for."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_harness.history.checkers import STANDARD
from elastic_harness.history.events import ClausePlanned
from elastic_harness.scenario.model import Scenario
from elastic_harness.scenario.planning.planned_clauses import (
    clauses_in,
    planned_checks,
    planned_clauses,
)

from tests.unit.scenario.bench import scenario

INVARIANTS = [check.name for check in STANDARD.default_checks()]
# In any case, and those that need no worker.
JUDGED_ANYWAY = ["no_survivors", "faults_effective", "ends_in_time", "switch_clean", "consistent"]


def planned(given: Scenario, **more: bool) -> list[ClausePlanned]:
    """Return what is planned for a scenario."""
    return list(planned_clauses(given, STANDARD, **more))


def defaults(expect: dict[str, Any], **more: bool) -> list[str]:
    """Return the checkers that are on by default."""
    found = planned(scenario(expect=expect), **more)
    return [each.checker for each in found if each.bucket == "default"]


@pytest.mark.parametrize(
    ("expect", "checkers"),
    [
        ({}, [*INVARIANTS, "job"]),
        ({"always": [{"budget": "off"}]}, [*(n for n in INVARIANTS if n != "budget"), "job"]),
        ({"finally": [{"job": "failed"}]}, INVARIANTS),
        ({"finally": [{"exit_codes": 0}]}, INVARIANTS),
        ({"finally": ["no_workers"]}, JUDGED_ANYWAY),
        ({"finally": [{"restarts": 1}]}, [*INVARIANTS, "job"]),
    ],
)
def test_invariants_hold_and_the_job_succeeds_unless_the_scenario_says_otherwise(
    expect: dict[str, Any], checkers: list[str]
) -> None:
    """How the job ends is asked for once; where no worker is to start, nothing of them is asked."""
    found = defaults(expect)
    assert found == checkers


def test_a_test_that_is_open_decides_itself_what_to_make_of_the_end() -> None:
    """Python tests look at the outcome."""
    assert defaults({}, is_open=True) == INVARIANTS
    assert defaults({"finally": [{"job": "failed"}]}, is_open=True) == INVARIANTS
    (job,) = [each for each in planned(scenario()) if each.key == "default[job]"]
    assert (job.checker, job.expected, job.text) == ("job", "succeeded", "job: succeeded")


def test_every_clause_of_a_scenario_is_planned_at_its_place() -> None:
    """With what its checker is given; what the engine judges has no checker."""
    expect = {
        "always": [{"budget": "off"}, {"restarts": {"at_most": 3}}],
        "never": ["split_brain", {"event": "worker_gone"}],
        "sometimes": [{"event": "worker_hello"}, "rank_reassigned"],
        "eventually": [{"round": 2, "within": "10s"}],
        "finally": [{"job": "succeeded"}],
    }
    given = scenario(expect=expect)
    found = [each for each in planned(given) if each.bucket != "default"]
    assert [(each.key, each.bucket, each.checker, each.is_negated) for each in found] == [
        ("always[1]", "always", "restarts", False),
        ("never[0]", "never", "split_brain", True),
        ("never[1]", "never", "", False),
        ("sometimes[0]", "sometimes", "", False),
        ("sometimes[1]", "sometimes", "rank_reassigned", False),
        ("eventually[0]", "eventually", "", False),
        ("finally[0]", "finally", "job", False),
    ]
    assert found[0].expected == {"at_most": 3}
    names = [clause.name for _, clause, _ in clauses_in(given)]
    assert names == ["budget", "restarts", "split_brain", "rank_reassigned", "job"]
    assert not any(each.is_optional for each in planned(given))


def test_a_check_of_the_timeline_is_one_of_the_clauses_that_a_checker_judges() -> None:
    """What it needs observed is observed from the start; faults judge nothing."""
    check: dict[str, Any] = {"at": "1s", "check": [{"restarts": 0}, "no_survivors"]}
    given = scenario({"at": "1s", "crash": "n2"}, check)
    assert [clause.name for _, clause, _ in clauses_in(given)] == ["restarts", "no_survivors"]


@pytest.mark.parametrize("is_optional", [False, True])
def test_a_check_is_planned_with_each_of_its_clauses(*, is_optional: bool) -> None:
    """It is judged when its moment comes, if it does."""
    check: dict[str, Any] = {"at": "1s", "check": [{"restarts": 0}, "no_survivors"]}
    given = scenario({**check, "optional": is_optional})
    (entry,) = given.timeline
    found = list(planned_checks("look", entry, STANDARD))
    assert [(each.key, each.text, each.bucket) for each in found] == [
        ("look[0]", "restarts: 0", "check"),
        ("look[1]", "no_survivors", "check"),
    ]
    assert {each.is_optional for each in found} == {is_optional}
