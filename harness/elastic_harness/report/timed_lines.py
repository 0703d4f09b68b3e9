"""The lines of logs with the time at which each was there, by how the logs grew."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["LogLine", "Mark", "read_marks", "timed_lines"]

_LONGEST_LINE = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """When a log was seen to have so many bytes, on the history's clock."""

    at: float
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a log; `at` is when it was first seen to be there."""

    at: float
    who: str
    text: str


def read_marks(lines: Iterable[str]) -> dict[str, list[Mark]]:
    """Return the marks of each log, by its name; lines that are none are passed over."""
    found: dict[str, list[Mark]] = {}
    for line in lines:
        try:
            values = json.loads(line)
            mark = Mark(at=float(values["at"]), size=int(values["size"]))
            found.setdefault(str(values["file"]), []).append(mark)
        except (ValueError, TypeError, KeyError):
            continue
    return found


def timed_lines(
    content: bytes, marks: Sequence[Mark], *, who: str, offset: int = 0
) -> list[LogLine]:
    """Return the lines of a log, or of its part from `offset` on, with their times.

    What lies behind the last mark was never seen to grow, and is left out.
    """
    # A file that was cut, and has grown again, has smaller sizes later: its old times are void.
    sizes: list[Mark] = []
    for mark in marks:
        while sizes and sizes[-1].size >= mark.size:
            sizes.pop()
        sizes.append(mark)
    found = []
    end = offset
    for line in content.splitlines(keepends=True):
        end += len(line)
        index = bisect.bisect_left(sizes, end, key=lambda mark: mark.size)
        text = _shown(line)
        if index < len(sizes) and text:
            found.append(LogLine(at=sizes[index].at, who=who, text=text))
    return found


def _shown(line: bytes) -> str:
    """Return a line as it is shown: without what moves a cursor, and cut if it is very long."""
    text = line.decode("utf-8", "replace").rstrip().expandtabs(4)
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE - 1]}…"
