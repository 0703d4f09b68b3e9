"""What an agent can be in the middle of, and which phase may follow which."""

from __future__ import annotations

from enum import Enum

__all__ = ["ALLOWED", "Phase"]


class Phase(Enum):
    """What the agent is doing."""

    JOINING = "joining"  # no worker runs; waiting for a place in a round
    SPARE = "spare"  # no worker runs; the round is full
    RUNNING = "running"  # the workers of a round run, or have all succeeded
    STOPPING = "stopping"  # the round is over; its workers are being ended
    DRAINING = "draining"  # the node leaves on purpose
    DONE = "done"  # the job ended well, or the node left
    FAILED = "failed"  # the job, or this node's part in it, failed


ALLOWED: dict[Phase, frozenset[Phase]] = {
    Phase.JOINING: frozenset(
        {Phase.SPARE, Phase.RUNNING, Phase.DRAINING, Phase.DONE, Phase.FAILED}
    ),
    Phase.SPARE: frozenset(
        {Phase.JOINING, Phase.RUNNING, Phase.DRAINING, Phase.DONE, Phase.FAILED}
    ),
    Phase.RUNNING: frozenset({Phase.STOPPING, Phase.DRAINING, Phase.DONE, Phase.FAILED}),
    Phase.STOPPING: frozenset({Phase.JOINING, Phase.DRAINING, Phase.DONE, Phase.FAILED}),
    Phase.DRAINING: frozenset({Phase.DONE, Phase.FAILED}),
    Phase.DONE: frozenset(),
    Phase.FAILED: frozenset(),
}
