"""When a job has restarted often enough (R3).

A round that has ended is judged once: when the next round is committed, or when the end is decided.
Only then is it known whether its membership changed, and a worker that fails because the node
beside it died arrives before the news of that death.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["Budget", "EndedRound", "Verdict", "judge"]

# Rounds without progress that a job may have beyond its restarts: a node that comes and goes costs
# nothing each time, and would otherwise restart the job for ever (torch #147064).
_SPARE_IDLE_ROUNDS = 3


class Verdict(Enum):
    """What the end of a round means for the budget."""

    FREE = "free"
    CHARGED = "charged"
    JOB_FAILS = "job fails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What is left: `used` of `max_restarts`, and `idle_rounds` without progress in a row."""

    max_restarts: int
    used: int = 0
    idle_rounds: int = 0

    @property
    def max_idle_rounds(self) -> int:
        """How many rounds in a row may end without progress before the job does."""
        return self.max_restarts + _SPARE_IDLE_ROUNDS


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRound:
    """A committed round that is over.

    `roster` holds incarnations in rank order. `cause` is a sentence; `is_failure`: it is a worker
    that failed. `lost_or_gained` is None, or a sentence on the member that went or came since it
    was committed, even if the next round has the same members. `evicted`: members that were alive
    but too slow.
    """

    round: int
    roster: Sequence[str]
    cause: str
    lost_or_gained: str | None = None
    is_failure: bool = False
    evicted: frozenset[str] = frozenset()


def judge(
    budget: Budget, ended: EndedRound | None, next_roster: Sequence[str]
) -> tuple[Verdict, str]:
    """Decide what `ended` costs if `next_roster` (incarnations) follows it, and say why.

    `ended` is None before the first committed round. `budget.idle_rounds` already counts `ended`.
    """
    if budget.idle_rounds >= budget.max_idle_rounds:
        return Verdict.JOB_FAILS, (
            f"{budget.idle_rounds} rounds in a row ended without progress, and "
            f"{budget.max_idle_rounds} end the job (max_restarts + {_SPARE_IDLE_ROUNDS}); "
            f"the last one because {ended.cause if ended else 'it could not be committed'}"
        )
    if ended is None:
        return Verdict.FREE, "no round has ended yet"
    if ended.lost_or_gained is not None:
        return Verdict.FREE, f"round {ended.round} is free: {ended.lost_or_gained}"
    if _has_changed(ended, set(next_roster)):
        return Verdict.FREE, f"round {ended.round} is free: the next one has other members"
    if budget.used >= budget.max_restarts:
        return Verdict.JOB_FAILS, (
            f"{ended.cause}, and all {budget.max_restarts} restarts are used up"
            if budget.max_restarts
            else f"{ended.cause}, and no restart is allowed (max_restarts is 0)"
        )
    return Verdict.CHARGED, (
        f"round {ended.round} costs restart {budget.used + 1} of {budget.max_restarts}: "
        f"{ended.cause}"
    )


def _has_changed(ended: EndedRound, following: set[str]) -> bool:
    """Tell whether other members make the round free.

    A failed one is free only without one of its members: a node that waits, or is slow to stop,
    has not made the worker fail.
    """
    if ended.is_failure:
        return bool(set(ended.roster) - following - ended.evicted)
    return set(ended.roster) != following
