"""Waits for lines in the output of launchers and workers, without reading more than is asked for.

Files are looked at on a timer, and only while somebody waits for a pattern. A file that grows
faster is read in pieces, one after the other with the loop's other work in between, so that neither
memory nor answers suffer from a job that prints a gigabyte.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator

from pytest_elastic.loop import Loop, Timer

__all__ = ["LogWatch"]

_LOOK_S = 0.05
# What one look reads of one file: it takes a millisecond or two.
_CHUNK = 256 * 1024
# A few hundred megabytes, on a machine that is busy with something else.
_CATCH_UP_S = 10.0
# A pattern that every line matches shall not make a history of every line.
_MOST_PER_LOOK = 20


class LogWatch:
    """Follows every `*.log` below `folder/<node>/` and reports lines that match.

    `on_line(node, file, pattern, line)`, the file relative to the node's folder.
    """

    def __init__(
        self, loop: Loop, folder: str, on_line: Callable[[str, str, str, str], None]
    ) -> None:
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

    @property
    def unread(self) -> list[str]:
        """The files that are waited on and were not read to their end yet, by node and name."""
        if not self._patterns:
            return []
        return [
            f"{node}/{os.path.basename(path)}"
            for path, node in self._files()
            if _size(path) > self._offsets.get(path, 0)
        ]

    def catch_up(self) -> None:
        """Read what is there to its end, now; for when nothing is left to write any more.

        Gives up after a while: what is unread then is said to be.
        """
        deadline = self._loop.now() + _CATCH_UP_S
        while self.unread and self._loop.now() < deadline:
            for path, node in self._files():
                self._read(path, node)

    def close(self) -> None:
        """Stop looking."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._is_closed:
            return
        is_behind = False
        for path, node in self._files():
            is_behind |= self._read(path, node)
        wait_s = 0.0 if is_behind else _LOOK_S
        self._timer = self._loop.call_at(self._loop.now() + wait_s, self._look)

    def _files(self) -> Iterator[tuple[str, str]]:
        """Yield every log with its node."""
        for folder, _, names in os.walk(self._folder):
            node = os.path.relpath(folder, self._folder).split(os.sep)[0]
            for name in sorted(names):
                if name.endswith(".log"):
                    yield os.path.join(folder, name), node

    def _read(self, path: str, node: str) -> bool:
        """Read a piece of a file; tell whether there may be more."""
        offset = self._offsets.get(path, 0)
        try:
            with open(path, "rb") as log:
                log.seek(offset)
                data = log.read(_CHUNK)
        except OSError:
            return False
        if not data:
            return False
        self._offsets[path] = offset + len(data)
        *lines, rest = (self._rests.get(path, b"") + data).split(b"\n")
        self._rests[path] = rest[-_CHUNK:]
        # A line is reported once, however many wait for the same pattern.
        wanted = {each.pattern: each for each, only in self._patterns if only in (None, node)}
        for pattern in wanted.values():
            self._report(pattern, node, path, lines)
        return len(data) == _CHUNK

    def _report(self, pattern: re.Pattern[str], node: str, path: str, lines: list[bytes]) -> None:
        file = os.path.relpath(path, os.path.join(self._folder, node))
        texts = (line.decode("utf-8", "replace") for line in lines)
        matching = (text for text in texts if pattern.search(text))
        for text in itertools.islice(matching, _MOST_PER_LOOK):
            self._on_line(node, file, pattern.pattern, text[:1000])


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
