"""An alarm that is as exact as the kernel's timers; epoll by itself counts in milliseconds."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable

from pytest_elastic.loop import Loop

__all__ = ["Alarm"]

_CLOCK_BOOTTIME = 7  # the clock of `Loop.now`
_ABSOLUTE = 1
# struct itimerspec: the interval and the first time, each in seconds and nanoseconds.
_TIMES = struct.Struct("=qqqq")
_libc = ctypes.CDLL(None, use_errno=True)


class Alarm:
    """Calls back in the loop, once for each `set`; a timerfd."""

    def __init__(self, loop: Loop, on_due: Callable[[], None]) -> None:
        self._on_due = on_due
        self._when = 0.0
        self._fd: int = _libc.timerfd_create(_CLOCK_BOOTTIME, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "cannot create a timer")
        self._loop = loop
        loop.watch(self._fd, on_readable=self._ring)

    def close(self) -> None:
        """Release the timer; it calls back no more."""
        self._loop.unwatch(self._fd)
        os.close(self._fd)

    def set(self, when: float) -> None:
        """Call back at `when`, unless an earlier time is set already."""
        if self._when and self._when <= when:
            return
        self._when = when
        # Nanosecond 0 of second 0 would switch it off; the clock has been past that for long.
        seconds = int(when)
        nanoseconds = int((when - seconds) * 1e9)
        times = _TIMES.pack(0, 0, seconds, nanoseconds)
        if _libc.timerfd_settime(self._fd, _ABSOLUTE, times, None) < 0:
            raise OSError(ctypes.get_errno(), "cannot set a timer")

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._when = 0.0
        self._on_due()
