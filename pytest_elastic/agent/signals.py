"""Turns signals to this process into callbacks of its loop, from the first moment to the last."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Sequence

from pytest_elastic.loop import Loop

__all__ = ["SignalWatch"]


class SignalWatch:
    """Signals in `numbers` are told to `on_signal(number)` by the loop, until `end`.

    They have no other effect meanwhile, also while the loop does not run: they are told later, or
    never. After `end` they are ignored. To be made and ended in the main thread.
    """

    def __init__(
        self, loop: Loop, numbers: Sequence[int], on_signal: Callable[[int], None]
    ) -> None:
        self._loop = loop
        self._on_signal = on_signal
        self._numbers = frozenset(numbers)
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        # The number of each signal is written to this descriptor by the interpreter itself, so that
        # the handlers have nothing to do but to exist.
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            signal.signal(number, lambda *_: None)
        loop.watch(self._reading.fileno(), on_readable=self._readable)

    def end(self) -> None:
        """Ignore the signals while this process ends."""
        self._loop.unwatch(self._reading.fileno())
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        self._reading.close()
        self._writing.close()

    def _readable(self) -> None:
        for number in self._reading.recv(4096):
            if number in self._numbers:
                self._on_signal(number)
