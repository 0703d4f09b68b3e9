"""The helpers that remove shared memory: they outlive for a moment the workers whose it is.

multiprocessing's resource tracker and torch's shared memory manager (one of each worker that needs
one) unlink what their programs have put into /dev/shm, once the last of those has ended, and end
then. If they are killed together with the workers, those files stay until the machine restarts.
"""

from __future__ import annotations

import functools
import os
import re
import signal
from collections.abc import Callable

from pytest_elastic.loop import Loop, Timer
from pytest_elastic.workers import process_tree

__all__ = ["SharedMemoryHelpers", "is_helper"]

# torch's manager waits two seconds for another program before it tidies up.
_TIDY_S = 3.0
_TORCH_MANAGER = "torch_shm_manager"
# What CPython and loky (joblib) hand to `python -c`.
_TRACKER = re.compile(r" -c from [\w.]+\.resource_tracker import main;")


class SharedMemoryHelpers:
    """Those below this process whose programs have ended; `on_gone`: the last of them has, too."""

    def __init__(self, loop: Loop, *, on_gone: Callable[[], None]) -> None:
        self._loop = loop
        self._on_gone = on_gone
        self._limits: dict[int, Timer] = {}

    @property
    def are_tidying(self) -> bool:
        """Whether some are still there."""
        return bool(self._limits)

    def limit(self) -> None:
        """Note that the programs of all that run now have ended: kill who takes too long."""
        # The kernel may skip an entry while another one leaves: it is read twice.
        below = {pid for _ in range(2) for pid in process_tree.descendants(os.getpid())}
        for pid in filter(is_helper, below - self._limits.keys()):
            at = self._loop.now() + _TIDY_S
            self._limits[pid] = self._loop.call_at(at, functools.partial(self._kill, pid))

    def ended(self, pid: int) -> None:
        """Note that a child was reaped; other processes than helpers are ignored."""
        timer = self._limits.pop(pid, None)
        if timer is not None:
            timer.cancel()
            if not self._limits:
                self._on_gone()

    def _kill(self, pid: int) -> None:
        process_tree.send_signal([pid], signal.SIGKILL)
        self.ended(pid)


def is_helper(pid: int) -> bool:
    """Tell whether a process is one that removes shared memory; False if it has ended."""
    command = process_tree.command_of(pid)
    program = os.path.basename(command.partition(" ")[0])
    return program == _TORCH_MANAGER or _TRACKER.search(command) is not None
