"""Time that passes when a test says so."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

__all__ = ["VirtualTime"]


class VirtualTime:
    """A scheduler whose time passes when it is told to."""

    def __init__(self) -> None:
        self._now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), callback))

    def pass_time(self, seconds: float) -> None:
        """Run everything that becomes due within these seconds."""
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            when, _, callback = heapq.heappop(self._due)
            self._now = max(self._now, when)
            callback()
        self._now = end
