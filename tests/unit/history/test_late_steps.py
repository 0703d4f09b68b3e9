"""Whom a pause excuses for a late step of an older round: exactly those that it stopped."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_harness.history.checkers import bind
from elastic_harness.history.events import ClockCompared
from elastic_harness.history.verdict import Outcome

from tests.unit.history.story import Story

ROUND = ["n1", "n10"]
PID = Story().round(1, ROUND).pids[1, 0]


def late_step(
    fault: str,
    target: str,
    after_s: float = 0.2,
    **facts: Any,  # noqa: ANN401 (fields of an event)
) -> Outcome:
    """Return the verdict on a step of rank 0, on n1, that begins so long after a fault's heal."""
    story = Story().round(1, ROUND).steps(1, 1, 3).fault("it", fault, target, **facts).wait(5.0)
    story.round(2, ["n10"]).steps(2, 4, 5).heal("it")
    began = story.records[-1].at + after_s
    story.wait(2.0).step(1, 0, 4, began_at=began).gone(1).end()
    return bind("one_world").run(story.history).outcome


@pytest.mark.parametrize("hit", [{"workers": (("n1", 0, PID),)}, {"nodes": ("n1",)}])
def test_a_fault_that_pauses_excuses_what_it_stopped(hit: dict[str, Any]) -> None:
    """By node, rank and process, or by node; whatever the fault is called."""
    assert late_step("users_own", "", pauses=True, **hit) is Outcome.VALID


@pytest.mark.parametrize(
    ("target", "hit"),
    [
        ("n10", {"nodes": ("n10",)}),  # n1 is a part of its name
        ("rank 01 (n10, pid 7)", {"workers": (("n10", 1, 7),)}),
        ("rank 0 (n1, pid 7)", {"workers": (("n1", 0, PID + 1),)}),  # the one before it
    ],
)
def test_a_fault_that_pauses_excuses_nobody_else(target: str, hit: dict[str, Any]) -> None:
    """A part of a name is no name, and another process of the same rank is another."""
    assert late_step("pause", target, pauses=True, **hit) is Outcome.INVALID


def test_a_fault_that_does_not_pause_excuses_nobody() -> None:
    """Its class says so, and not its name."""
    assert late_step("pause", "n1", nodes=("n1",), pauses=False) is Outcome.INVALID


@pytest.mark.parametrize(
    ("after_s", "expected"),
    [
        (-0.001, Outcome.INVALID),  # while it was stopped it began nothing
        (0.0, Outcome.VALID),
        (1.0, Outcome.VALID),
        (1.001, Outcome.INVALID),
    ],
)
def test_a_fault_that_pauses_excuses_a_second_after_its_heal(
    after_s: float, expected: Outcome
) -> None:
    """A process that goes on finishes what it was about to do; later steps are the launcher's."""
    assert late_step("pause", "n1", after_s, pauses=True, nodes=("n1",)) is expected


def by_clocks(
    *late_s: float, nodes: tuple[str, ...] = ("n2",), errors: dict[str, float]
) -> tuple[Outcome, Outcome]:
    """Return what is said of steps of rank 0, on n1, so long after the first of a newer round.

    Its ranks make their first steps a quarter of a second after each other. The clocks of nodes are
    known to `errors`.
    """
    story = Story(nodes=3).round(1, ["n1"]).steps(1, 1, 2).round(2, nodes)
    for rank in range(len(nodes)):
        story.at = 200.0 + 0.25 * rank
        story.step(2, rank, 3)
    newer = story.records[-1].at
    for rank in range(len(nodes)):
        story.wait(2.0).step(2, rank, 4)
    for number, late in enumerate(late_s, 3):
        story.step(1, 0, number, began_at=newer + late)
    for node, error_s in errors.items():
        story.tell("cluster", node, ClockCompared(error_s=error_s))
    history = story.history
    return bind("one_world").run(history).outcome, bind("split_brain").run(history).outcome


WORLDS = Outcome.INVALID, Outcome.VALID
NOT_TOLD = Outcome.UNKNOWN, Outcome.UNKNOWN
BEFORE = Outcome.VALID, Outcome.INVALID


@pytest.mark.parametrize(
    ("late_s", "nodes", "errors", "said"),
    [
        ((0.5,), ("n2",), {}, WORLDS),
        ((0.5,), ("n2",), {"n1": 0.25, "n2": 0.125}, WORLDS),
        ((0.5,), ("n2",), {"n1": 0.25, "n2": 0.25}, NOT_TOLD),
        ((0.25, 1.0), ("n2",), {"n2": 0.5}, WORLDS),  # of two steps one is certain
        ((-0.5,), ("n2",), {"n1": 0.0, "n2": 1.0}, NOT_TOLD),
        ((-1.5,), ("n2",), {"n1": 1.0, "n2": 1.0}, NOT_TOLD),
        ((-2.5,), ("n2",), {"n1": 1.0, "n2": 1.0}, BEFORE),
        # A clock agrees with itself, whatever is known of it.
        ((0.5,), ("n1",), {"n1": 9.0}, WORLDS),
        ((-0.5,), ("n1",), {"n1": 9.0}, BEFORE),
        # The rank that it is least certain of decides, be it the last one or not.
        ((0.25,), ("n2", "n3"), {"n3": 0.5}, NOT_TOLD),
        ((0.25,), ("n2", "n3"), {"n2": 1.0}, NOT_TOLD),
    ],
)
def test_the_order_of_steps_is_known_as_far_as_clocks_are(
    late_s: tuple[float, ...],
    nodes: tuple[str, ...],
    errors: dict[str, float],
    said: tuple[Outcome, Outcome],
) -> None:
    """By `one_world`, and by `split_brain`."""
    assert by_clocks(*late_s, nodes=nodes, errors=errors) == said
