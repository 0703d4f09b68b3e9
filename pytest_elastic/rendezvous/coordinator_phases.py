"""What a job can be in the middle of, as its coordinator sees it."""

from __future__ import annotations

from enum import Enum

__all__ = ["ALLOWED", "Phase"]


class Phase(Enum):
    """What the job is doing."""

    # There is one object of each; Enum hashes by name, in Python, at every look into a set.
    __hash__ = object.__hash__

    GATHERING = "gathering"
    SEALING = "sealing"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDING = "ending"
    OVER = "over"
    DEPOSED = "deposed"


ALLOWED: dict[Phase, frozenset[Phase]] = {
    Phase.GATHERING: frozenset({Phase.SEALING, Phase.ENDING, Phase.DEPOSED}),
    Phase.SEALING: frozenset({Phase.RUNNING, Phase.GATHERING, Phase.DEPOSED}),
    Phase.RUNNING: frozenset({Phase.STOPPING, Phase.ENDING, Phase.DEPOSED}),
    Phase.STOPPING: frozenset({Phase.GATHERING, Phase.DEPOSED}),
    Phase.ENDING: frozenset({Phase.OVER, Phase.DEPOSED}),
    Phase.OVER: frozenset(),
    Phase.DEPOSED: frozenset(),
}
