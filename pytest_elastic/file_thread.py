"""Work on files that may never end, because a file system hangs: done in order, on a thread.

A call on a network file system whose server is gone may never return. If an agent's event loop made
it, the node would lose its lease and react to no signal.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["FileThread"]


class FileThread:
    """A thread that lives while there is something to do; the end of the process ends it, too.

    So a process that forks has no other thread, unless a file system hangs.
    """

    def __init__(self) -> None:
        self._works: deque[Callable[[], None]] = deque()  # the first one is being done
        self._changed = threading.Condition()

    @property
    def waiting(self) -> int:
        """How much of what it was given has not been done."""
        return len(self._works)

    def do(self, work: Callable[[], None]) -> None:
        """Have `work`, which raises nothing, done when all before it has been done."""
        with self._changed:
            self._works.append(work)
            if len(self._works) > 1:
                return
        try:
            threading.Thread(target=self._run, daemon=True, name="file work").start()
        except RuntimeError:
            # No more threads are to be had. Most files are on a disk that works.
            self._run()

    def wait(self, limit_s: float) -> bool:
        """Wait at most `limit_s` until all has been done, and tell whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._works, limit_s)

    def _run(self) -> None:
        is_more = True
        while is_more:
            self._works[0]()
            with self._changed:
                self._works.popleft()
                is_more = bool(self._works)
                self._changed.notify_all()
