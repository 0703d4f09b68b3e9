"""Notes when logs grew, so that their lines can be shown at their time.

Programs print lines without times, straight into files. What a file's size was at which moment says
when each line was there, at the latest.
"""

from __future__ import annotations

import json
import os

from pytest_elastic.loop import Loop, Timer

__all__ = ["LOG_TIMES", "LogClock"]

# Where a run keeps what was noted, in its own folder.
LOG_TIMES = "log-times.jsonl"

# Lines are shown two seconds around a cursor: a tenth of that is exact enough, and costs nothing.
_LOOK_S = 0.2
# Two hours of three logs that grow all the time; what comes later has no times.
_MOST_MARKS = 100_000


class LogClock:
    """Looks at the size of every `*.log` below a folder from time to time.

    `close` writes what was seen to a file, a line for each time that a log had grown.
    """

    def __init__(self, loop: Loop, folder: str, path: str) -> None:
        self._loop = loop
        self._folder = folder
        self._path = path
        self._sizes: dict[str, int] = {}
        self._marks: list[str] = []
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to look."""
        self._look()
        self._timer = self._loop.call_at(self._loop.now() + _LOOK_S, self.start)

    def close(self) -> None:
        """Look for the last time, and write the file. A disk that is full costs the times only."""
        if self._timer is not None:
            self._timer.cancel()
        self._look()
        try:
            with open(self._path, "w", encoding="utf-8") as file:
                file.writelines(self._marks)
        except OSError:
            return

    def _look(self) -> None:
        for folder, _, names in os.walk(self._folder):
            for name in names:
                if name.endswith(".log") and len(self._marks) < _MOST_MARKS:
                    self._note(os.path.join(folder, name))

    def _note(self, path: str) -> None:
        at = self._loop.now()
        try:
            size = os.lstat(path).st_size
        except OSError:
            return
        if size == self._sizes.get(path, 0):
            return
        self._sizes[path] = size
        name = os.path.relpath(path, self._folder)
        self._marks.append(json.dumps({"at": round(at, 3), "file": name, "size": size}) + "\n")
