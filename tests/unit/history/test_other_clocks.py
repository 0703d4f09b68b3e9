"""What clauses say of nodes whose clocks are known to an error only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from elastic_harness.history.checkers import bind
from elastic_harness.history.checkers.registry import Check, Checker, NoParameters
from elastic_harness.history.events import ClockCompared, StepCompleted
from elastic_harness.history.history import History
from elastic_harness.history.verdict import Outcome, Verdict, invalid, unknown, valid

from tests.unit.history.story import Story

VALID, INVALID, UNKNOWN = Outcome.VALID, Outcome.INVALID, Outcome.UNKNOWN


def recovers(within: str) -> tuple[str, Any, Callable[[], Story]]:
    """A crash, and half a second later a round of one that steps once: 0.51 s."""

    def tell() -> Story:
        story = Story().round(1, ["n1"]).steps(1, 1, 2).wait(2.0).fault("crash").gone(1)
        return story.wait(0.46).round(2, ["n2"]).steps(2, 3, 3).end()

    return "recovery_time", within, tell


def stepped(
    after_s: float, name: str, value: object = None
) -> tuple[str, Any, Callable[[], Story]]:
    """A step that begins so long after a fault has taken effect."""

    def tell() -> Story:
        story = Story().wait(2.0).round(1, ["n1"]).wait(2.0).fault("slow", target="n1")
        began = story.records[-1].at + after_s
        return story.wait(2.0).step(1, 0, 1, began_at=began)

    return name, value, tell


@pytest.mark.parametrize(
    ("asked", "error_s", "said"),
    [
        (recovers("600ms"), 0.0, VALID),
        (recovers("600ms"), 0.05, VALID),
        (recovers("600ms"), 0.1, UNKNOWN),
        (recovers("500ms"), 0.0, INVALID),
        (recovers("500ms"), 0.005, INVALID),
        (recovers("500ms"), 0.05, UNKNOWN),
        # The round may have begun before the fault, and be none of after it.
        (recovers("5s"), 0.4, VALID),
        (recovers("5s"), 0.6, UNKNOWN),
        (stepped(0.2, "recovered"), 0.1, VALID),
        (stepped(0.2, "recovered"), 0.3, UNKNOWN),
        (stepped(-0.2, "recovered"), 0.1, INVALID),
        (stepped(-0.2, "recovered"), 0.3, UNKNOWN),
        (stepped(0.2, "progress", {"steps": 1, "after": "slow"}), 0.1, VALID),
        (stepped(0.2, "progress", {"steps": 1, "after": "slow"}), 0.3, UNKNOWN),
        # No time stands in it.
        (stepped(0.2, "restarts", 0), 9.0, VALID),
    ],
)
def test_what_clocks_do_not_tell_is_unknown(
    asked: tuple[str, Any, Callable[[], Story]], error_s: float, said: Outcome
) -> None:
    """Both ways: what looks as if it held, and what looks as if it did not."""
    name, value, tell = asked
    story = tell()
    for node in ("n1", "n2"):
        story.tell("cluster", node, ClockCompared(error_s=error_s))
    verdict = bind(name, value).run(story.history)
    assert verdict.outcome is said, verdict.reason
    if said is UNKNOWN:
        assert "clocks are not known well enough" in verdict.reason


@pytest.mark.parametrize(("error_s", "said"), [(0.0, UNKNOWN), (0.2, VALID)])
def test_a_worker_may_seem_to_be_gone_before_its_last_step(error_s: float, said: Outcome) -> None:
    """The harness says by its own clock that it is gone; the worker has another."""
    story = Story().wait(2.0).round(1, ["n1"]).steps(1, 1, 2)
    story.at -= 0.15
    story.gone(1).wait(1.0).end().tell("cluster", "n1", ClockCompared(error_s=error_s))
    verdict = bind("consistent").run(story.history)
    assert verdict.outcome is said, verdict.reason


@pytest.mark.parametrize(
    ("more", "early", "said", "times"),
    [
        ({}, valid, UNKNOWN, 2),  # the first of two other clocks says otherwise
        ({}, unknown, UNKNOWN, 1),
        ({"knows_clock_errors": True}, valid, VALID, 1),
    ],
)
def test_a_checker_is_asked_again_unless_it_knows_of_the_errors_or_knows_nothing(
    more: dict[str, Any], early: Callable[[str], Verdict], said: Outcome, times: int
) -> None:
    """By what it says of a step that may have ended a second later."""
    story = Story().round(1, ["n1"]).step(1, 0, 1).tell("cluster", "n1", ClockCompared(error_s=1.0))
    late_at = story.history.of_kind(StepCompleted)[0].at + 0.5
    asked: list[History] = []

    def look(history: History, _: NoParameters) -> Verdict:
        asked.append(history)
        return (invalid if history.of_kind(StepCompleted)[0].at > late_at else early)("so it is")

    looks = Checker(name="early", summary="", parameters=NoParameters, check=look, **more)
    check = Check(name="early", text="early", checker=looks, parameters=NoParameters())
    assert check.run(story.history).outcome is said
    assert len(asked) == times
