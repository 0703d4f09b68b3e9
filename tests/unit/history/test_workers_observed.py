"""Rounds in which somebody made steps and a rank was silent: had a launcher started it or not."""

from __future__ import annotations

import pytest
from elastic_harness.history.checkers import STANDARD, bind
from elastic_harness.history.events import ProcessStarted
from elastic_harness.history.judge import judge_checks
from elastic_harness.history.verdict import Outcome

from pytest_elastic.events.model import (
    AgentStarted,
    RoundCommitted,
    StopOrdered,
    WorkerExited,
    WorkersStarted,
)
from tests.unit.history.story import Story

NODES = ("n1", "n2")


def commit(story: Story, number: int, node: str) -> Story:
    """Let a launcher be told to start its worker of a round."""
    return story.tell(
        "agent",
        node,
        RoundCommitted(
            round=number,
            term=1,
            roster=NODES,
            group_rank=NODES.index(node),
            world_size=2,
            restart_count=number - 1,
            master_addr="10.77.0.1",
            master_port=30000 + number,
        ),
    )


def start(story: Story, number: int, node: str) -> Story:
    """Let a launcher say that its worker of a round runs."""
    rank = NODES.index(node)
    return story.tell(
        "agent",
        node,
        WorkersStarted(round=number, pids=(5,), ranks=(rank,), start="warm", start_reason=""),
    )


def ends(story: Story) -> Story:
    """Let the worker of n2 end, without a word of its own."""
    return story.tell(
        "agent",
        "n2",
        WorkerExited(round=1, local_rank=0, rank=1, pid=5, exit_code=-9, signal=9, cause="failed"),
    )


def begun_on_n1() -> Story:
    """Return a round in which n1's rank made a step and failed, and n2 had not begun."""
    story = Story()
    for node in NODES:
        story.tell("cluster", node, ProcessStarted(pid=3, role="launcher", argv=()))
        story.tell("agent", node, AgentStarted(pid=3, address="10.77.0.1", port=1, slots=1))
    start(commit(story, 1, "n1"), 1, "n1").hello(1, "n1", 0, 2).step(1, 0, 1)
    return story.gone(1)


def next_round(story: Story) -> Story:
    """Let both launchers go on with a round that both begin."""
    for node in NODES:
        start(commit(story, 2, node), 2, node)
    return story.round(2, NODES).group(2, "second").steps(2, 1, 4).finish(2)


def ended(story: Story) -> Story:
    """Let the job succeed."""
    return story.launcher_exits({"n1": 0, "n2": 0}).end()


def test_a_round_that_ended_before_one_of_its_nodes_had_begun_was_observed() -> None:
    """Nobody can hear of a worker that was never started; and it is said who was not."""
    story = ended(next_round(begun_on_n1()))
    verdict = bind("workers_observed").run(story.history)
    assert verdict.is_valid, verdict.reason
    assert verdict.reason.endswith("; rank 1 of round 1 was never started")
    unmet = [
        each
        for each in judge_checks(story.history, STANDARD.default_checks())
        if not each.verdict.is_valid
    ]
    assert unmet == []


def test_a_node_that_was_told_to_start_and_then_to_stop_may_have_started_nobody() -> None:
    """The order to start is no worker."""
    story = commit(begun_on_n1(), 1, "n2")
    story.tell("agent", "n2", StopOrdered(round=1, reason="rank 0 failed"))
    assert bind("workers_observed").run(ended(next_round(story)).history).is_valid


@pytest.mark.parametrize(
    ("story", "why"),
    [
        (ended(begun_on_n1()), "n2's launcher was not heard of again: it may have started one"),
        (
            ended(next_round(ends(start(commit(begun_on_n1(), 1, "n2"), 1, "n2")))),
            "n2 had started its rank, which ended",
        ),
        (
            ended(Story().hello(1, "n1", 0, 2).step(1, 0, 1).gone(1).round(2, NODES)),
            "a launcher that does not say whom it starts may have started all of them",
        ),
        (
            ended(next_round(begun_on_n1()).hello(3, "n1", 0, 2).step(3, 0, 1)),
            "of another round nothing is known",
        ),
    ],
)
def test_a_silent_rank_that_may_have_run_leaves_the_round_unknown(story: Story, why: str) -> None:
    """What a worker did that was not heard of cannot be judged."""
    verdict = bind("workers_observed").run(story.history)
    assert verdict.outcome is Outcome.UNKNOWN, why
    assert "never said hello" in verdict.reason
