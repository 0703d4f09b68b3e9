"""What a round costs (R3), as a pure function with its sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_elastic.rendezvous.leader.state import Budget, Cause, Round, Verdict, judge
from tests.unit.rendezvous.samples import record_of

ENDED = Round(
    record=record_of(4, "a", "b"),
    roster=(),
    at=0.0,
    stop_reason="rank 1 on n1 failed (exit code 1)",
)
FAILED = replace(ENDED, stop_cause=Cause.FAILURE)
SLOW = replace(FAILED, evicted={"b"})
LOST = replace(ENDED, lost_or_gained="n2 was lost")


@pytest.mark.parametrize(
    ("budget", "ended", "following", "verdict", "words"),
    [
        (Budget(max_restarts=3), None, ("a",), Verdict.FREE, "no round has ended"),
        (
            Budget(max_restarts=3, used=1),
            ENDED,
            ("a", "b"),
            Verdict.CHARGED,
            "round 4 costs restart 2 of 3: rank 1 on n1 failed",
        ),
        (Budget(max_restarts=3), ENDED, ("b", "a"), Verdict.CHARGED, "costs restart 1 of 3"),
        (Budget(max_restarts=0), ENDED, ("a",), Verdict.FREE, "other members"),
        (Budget(max_restarts=0), ENDED, ("a", "b", "c"), Verdict.FREE, "other members"),
        (Budget(max_restarts=0), ENDED, ("a", "b2"), Verdict.FREE, "other members"),
        (Budget(max_restarts=0), LOST, ("a", "b"), Verdict.FREE, "n2 was lost"),
        (Budget(max_restarts=0), FAILED, ("a",), Verdict.FREE, "other members"),
        (Budget(max_restarts=0), FAILED, ("a", "b", "c"), Verdict.JOB_FAILS, "rank 1 on n1"),
        (Budget(max_restarts=1), SLOW, ("a", "b2"), Verdict.CHARGED, "costs restart 1 of 1"),
        (Budget(max_restarts=1), SLOW, ("b2",), Verdict.FREE, "other members"),
        (Budget(max_restarts=2, used=2), ENDED, ("a", "b"), Verdict.JOB_FAILS, "all 2 restarts"),
        (Budget(max_restarts=0), ENDED, ("a", "b"), Verdict.JOB_FAILS, "no restart is allowed"),
        (Budget(max_restarts=2, idle_rounds=4), LOST, ("a",), Verdict.FREE, "n2 was lost"),
        (
            Budget(max_restarts=2, idle_rounds=5),
            LOST,
            ("a",),
            Verdict.JOB_FAILS,
            "5 rounds in a row ended without progress, and 5 end the job (max_restarts + 3)",
        ),
        (
            Budget(max_restarts=0, idle_rounds=3),
            None,
            ("a",),
            Verdict.JOB_FAILS,
            "not be started",
        ),
    ],
)
def test_the_verdict_and_its_reason(
    budget: Budget,
    ended: Round | None,
    following: tuple[str, ...],
    verdict: Verdict,
    words: str,
) -> None:
    """A change of members is free, whichever failed; else one restart, if any is left."""
    found, why = judge(budget, ended, following)
    assert found is verdict
    assert words in why
