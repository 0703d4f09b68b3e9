"""What a person at the console reads of a wait."""

from __future__ import annotations

import pytest

from pytest_elastic.agent.console import describe_event
from pytest_elastic.events.model import AgentStalled, StillWaiting

FOUND = "the store at a:1 is that of run 'x': give all nodes of a job the same --rdzv-id"


LINES = {
    ("job", "", ()): (
        "looking for the job at a:1 for at most 600 s in all: no answer yet; is the node that "
        "hosts it started, with the same --rdzv-endpoint and --rdzv-id, and can it be reached "
        "from here?"
    ),
    ("job", FOUND, ()): f"looking for the job at a:1 for at most 600 s in all: {FOUND}",
    ("nodes", "", ("n1",)): (
        "waiting for at least 2 nodes for at most 600 s in all, and ready are 1 (n1); start "
        "the others with the same --rdzv-endpoint (a:1), --rdzv-id and --nnodes"
    ),
    ("last call", "", ("n1", "n2")): (
        "waiting for up to 4 nodes, and ready are 2 (n1, n2); the first round begins 600 s "
        "after enough were there (--rdzv-conf last_call_timeout), or when all are"
    ),
    ("round", "", ()): (
        "taken in by the job at a:1; waiting for at most 600 s in all for its next round, of 2 "
        "to 4 nodes"
    ),
}


@pytest.mark.parametrize(("said", "line"), LINES.items())
def test_a_wait_is_told_with_where_how_long_and_what_to_try(
    said: tuple[str, str, tuple[str, ...]], line: str
) -> None:
    """What to try is said once: by the reason, or after it."""
    awaited, reason, ready = said
    event = StillWaiting(
        awaited=awaited,
        where="a:1",
        waited_s=2.0,
        limit_s=600.0,
        min_nodes=2,
        max_nodes=4,
        reason=reason,
        ready=ready,
    )
    assert describe_event(event) == line


def test_an_agent_that_stood_still_says_for_how_long_and_why_that_may_be() -> None:
    """What hits a machine looks like a lost network to all the others."""
    assert describe_event(AgentStalled(stalled_s=4.03)) == (
        "this agent stood still for 4.0 s: it was stopped, or its machine was asleep or short of "
        "processor time"
    )
