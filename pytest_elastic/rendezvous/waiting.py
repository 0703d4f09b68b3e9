"""What a node waits for, and when a person is to hear of it: seldom, and never in a usual start.

A wait is told of when it has taken two seconds, and at growing distances from then on; and sooner
when another reason for it is found: what stands at the endpoint says more than that nothing did.
"""

from __future__ import annotations

import enum

__all__ = ["Awaited", "Waiting"]

# Who starts its nodes together waits for less; a person who sees nothing for longer wonders.
_FIRST_S = 2.0
# When it is said again: four lines in the ten minutes that a join may take by default.
_AGAIN_S = (30.0, 120.0, 300.0)
_THEN_EVERY_S = 600.0
# So many reasons of one wait are told as they come. One that keeps changing would fill a console.
_MAX_REASONS = 4


class Awaited(enum.Enum):
    """What a node may wait for."""

    JOB = "job"
    """Somebody who takes it in."""
    NODES = "nodes"
    """More nodes, as it decides and has too few."""
    LAST_CALL = "last call"
    """More nodes for the first round, as it decides and has enough, and more may come."""
    ROUND = "round"
    """A first round, as somebody has taken it in."""


class Waiting:
    """One node's wait, as its driver tells it; `now` is in seconds on the driver's clock."""

    def __init__(self) -> None:
        self.awaited: Awaited | None = None
        self._since = 0.0
        self._again_at = 0.0
        self._said_at = 0.0
        self._is_news = False
        self._reasons: list[str] = []
        self.reason = ""
        """Why the last try came to nothing."""

    def wait_for(self, awaited: Awaited | None, now: float) -> None:
        """Take note of what is waited for from now on; None: nothing."""
        if awaited is self.awaited:
            return
        self.awaited = awaited
        self._since = self._said_at = now
        self._again_at = now + _FIRST_S
        self._is_news = False
        self._reasons = []
        self.reason = ""

    def hear(self, reason: str) -> None:
        """Take note of why a try to join came to nothing; the first reasons of a wait are news."""
        if self.awaited is not Awaited.JOB:
            return
        self.reason = reason
        if reason not in self._reasons and len(self._reasons) < _MAX_REASONS:
            self._reasons.append(reason)
            self._is_news = True

    def wake_at(self) -> float | None:
        """Return when to ask `is_to_be_told` next, or None."""
        if self.awaited is None:
            return None
        return self._said_at + _FIRST_S if self._is_news else self._again_at

    def is_to_be_told(self, now: float) -> bool:
        """Tell whether a person is to hear of the wait now; it counts as told then."""
        wake_at = self.wake_at()
        if wake_at is None or now < wake_at:
            return False
        waited_s = now - self._since
        later = (self._since + each_s for each_s in _AGAIN_S if each_s > waited_s)
        if now >= self._again_at:
            self._again_at = next(later, now + _THEN_EVERY_S)
        self._said_at = now
        self._is_news = False
        return True

    def waited_s(self, now: float) -> float:
        """Return for how long it has waited."""
        return now - self._since
