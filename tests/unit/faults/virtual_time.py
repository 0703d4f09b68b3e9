"""Time that passes when a test says so."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from pytest_elastic.loop import Timer

__all__ = ["VirtualTime"]


class VirtualTime:
    """A scheduler whose time passes when it is told to."""

    def __init__(self) -> None:
        self._now = 0.0
        self._due: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(when, callback)
        heapq.heappush(self._due, (when, next(self._order), timer))
        return timer

    def pass_time(self, seconds: float) -> None:
        """Run everything that becomes due within these seconds."""
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            when, _, timer = heapq.heappop(self._due)
            self._now = max(self._now, when)
            timer.fire()
        self._now = end
