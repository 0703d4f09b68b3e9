"""Where the time comes from.

Machines never read a clock: they are handed `now`. Drivers read one `Clock`, and it is
CLOCK_BOOTTIME, which goes on while the computer sleeps: a lease that a suspended machine believes
it still holds would be a lie. No reading is ever compared with that of another machine.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["BootClock", "Clock"]


class Clock(Protocol):
    """Tells how late it is, in seconds since an arbitrary moment."""

    def now(self) -> float:
        """Return the time in seconds; never goes back."""


class BootClock:
    """The machine's own monotonic clock, suspension included."""

    def now(self) -> float:
        """Return seconds since the machine booted."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
