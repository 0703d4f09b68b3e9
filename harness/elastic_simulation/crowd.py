"""Many nodes, one round: what the coordinator's arithmetic and its messages cost."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass

from elastic_simulation.world import settings
from elastic_simulation.worlds import world_class

__all__ = ["Crowd", "form_crowd"]

_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """How a round of many nodes was formed.

    `messages` were sent in all, beats left out, and `most_to_one` of them to one member;
    `virtual_s` passed from the first arrival to the last start.
    """

    messages: int
    most_to_one: int
    virtual_s: float


def form_crowd(nodes: int) -> Crowd:
    """Let so many nodes arrive at once; return when the workers of a round run on all of them."""
    config = settings(f"{nodes}:{nodes}")
    world = world_class(config)(config, checks_wire=False)
    names = [f"n{number + 1}" for number in range(nodes)]
    was_collecting = gc.isenabled()
    gc.disable()  # nothing becomes garbage so soon, and looking for it takes a third of the time
    try:
        world.start(*names)
        virtual_s = world.run_until(lambda: len(world.starts) == nodes, within_s=_WITHIN_S)
    finally:
        if was_collecting:
            gc.enable()
    targets = [
        target
        for _, _, target, what in world.sent
        if type(what).__name__ not in {"Beat", "Heartbeat"}
    ]
    to_members = Counter(target for target in targets if target != names[0])
    return Crowd(
        messages=len(targets),
        most_to_one=max(to_members.values(), default=0),
        virtual_s=virtual_s,
    )
