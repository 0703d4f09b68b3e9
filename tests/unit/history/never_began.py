"""A job that never begins, as far as its launchers say so."""

from __future__ import annotations

from collections.abc import Callable

from elastic_harness.history.events import ProcessStarted

from pytest_elastic.events.model import AgentStarted, JobEnded, WorkersStarted
from tests.unit.history.story import Story

__all__ = ["NOT_TOLD", "lost", "never_began"]


def up() -> AgentStarted:
    """Return what a launcher says first."""
    return AgentStarted(pid=3, address="10.77.0.1", port=1, slots=1)


def lost() -> JobEnded:
    """Return what a launcher says last whose job never began."""
    return JobEnded(result="lost", reason="1 of at least 2 nodes were ready")


def never_began(
    *heard: str,
    by: Callable[[], AgentStarted | JobEnded] = up,
    outcome: str = "failed",
    starts_anyway: bool = False,
    more_starts: int = 0,
) -> Story:
    """Two launchers that wait for a third; `heard` are those that state events."""
    story = Story(min_nodes=3, nodes=3)
    for node in ("n1", "n2", *["n2"] * more_starts):
        story.tell("cluster", node, ProcessStarted(pid=3, role="launcher", argv=()))
    for node in heard:
        story.tell("agent", node, by())
    if starts_anyway:  # and the script says nothing
        started = WorkersStarted(round=1, pids=(5,), ranks=(0,), start="warm", start_reason="")
        story.tell("agent", "n1", started)
    return story.launcher_exits({"n1": 3, "n2": 3}).end(outcome)


# Nobody can say of these that no worker was started.
NOT_TOLD = (
    lambda: Story().end("failed"),
    lambda: never_began("n1", "n2", outcome="unmet"),
    lambda: never_began("n1"),  # n2 may have started what nobody heard of
    lambda: never_began("n1", "n2", more_starts=1),
)
