"""Waits for lines in the output of launchers and workers, without reading more than is asked for.

Files are looked at on a timer, and only while somebody waits for a pattern.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from pytest_elastic.loop import Loop, Timer

__all__ = ["LogWatch"]

_LOOK_S = 0.05
# What one look reads of one file; a job that prints a gigabyte is read a little at a time.
_CHUNK = 256 * 1024


class LogWatch:
    """Follows every `*.log` below `folder/<node>/` and reports lines that match."""

    def __init__(self, loop: Loop, folder: str, on_line: Callable[[str, str, str], None]) -> None:
        self._loop = loop
        self._folder = folder
        self._on_line = on_line
        self._patterns: list[tuple[re.Pattern[str], str | None]] = []
        self._offsets: dict[str, int] = {}
        self._rests: dict[str, bytes] = {}
        self._timer: Timer | None = None
        self._is_closed = False

    def watch(self, pattern: re.Pattern[str], node: str | None) -> None:
        """Report lines that match from now on (lines that are there already included)."""
        self._patterns.append((pattern, node))
        if self._timer is None:
            self._look()

    def close(self) -> None:
        """Stop looking."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._is_closed:
            return
        for folder, _, names in os.walk(self._folder):
            node = os.path.relpath(folder, self._folder).split(os.sep)[0]
            for name in sorted(names):
                if name.endswith(".log"):
                    self._read(os.path.join(folder, name), node)
        self._timer = self._loop.call_at(self._loop.now() + _LOOK_S, self._look)

    def _read(self, path: str, node: str) -> None:
        offset = self._offsets.get(path, 0)
        try:
            with open(path, "rb") as log:
                log.seek(offset)
                data = log.read(_CHUNK)
        except OSError:
            return
        if not data:
            return
        self._offsets[path] = offset + len(data)
        *lines, rest = (self._rests.get(path, b"") + data).split(b"\n")
        self._rests[path] = rest[-_CHUNK:]
        for line in lines:
            text = line.decode("utf-8", "replace")
            for pattern, only in self._patterns:
                if only in (None, node) and pattern.search(text):
                    self._on_line(node, pattern.pattern, text[:1000])
