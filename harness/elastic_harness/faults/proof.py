"""Waiting until a fault is seen to act."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, TypeVar

from elastic_harness.faults.context import FaultContext, HealOrdered, InForce, Sleep, Wait

__all__ = ["PROOF_S", "wait_for_proof"]

T = TypeVar("T")

# A job that has not met a fault within this time is not bothered by it: agents of any launcher in
# use beat every 5 s or more often, and checkpoints are written every so many steps.
PROOF_S: Final = 30.0
_LOOK_S: Final = 0.1


def wait_for_proof(
    context: FaultContext,
    look: Callable[[], Generator[Wait, None, T]],
    *,
    within_s: float = PROOF_S,
    slowest_look_s: float = _LOOK_S,
) -> Generator[Wait, None, T | None]:
    """Look every 0.1 s until there is something to see; returns it, None after `within_s`.

    Where looking costs much, looks come further and further apart, up to `slowest_look_s`.

    `look` is called with the fault in force, which only the running job can show, and returns
    something true once it has been seen to act. When the fault is to be healed before that, it is
    called once more. `within_s` is in seconds, and the run's patience multiplies it.
    """
    yield InForce.NEEDS_JOB
    deadline = context.now() + within_s * context.patience
    pause_s, is_last = _LOOK_S, False
    while not is_last and context.now() < deadline:
        try:
            yield Sleep(seconds=pause_s)
        except HealOrdered:
            is_last = True
        pause_s = min(1.5 * pause_s, slowest_look_s)
        if seen := (yield from look()):
            return seen
    return None
