"""What the clocks of a run have noted: when lines of logs were there, and what links did when.

A clock writes how large each log was at which moment, and what each link had delivered and dropped
(`scenario.stage.clocks`).
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_elastic.rendezvous.model import natural_key

__all__ = [
    "LinkUse",
    "LogLine",
    "Mark",
    "link_lines",
    "reach",
    "read_link_uses",
    "read_marks",
    "timed_lines",
]

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


# --- links -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """What a link delivered and dropped between two looks at it."""

    source: str
    target: str
    since: float
    at: float
    delivered: int
    dropped: int


def read_link_uses(lines: Iterable[str]) -> list[LinkUse]:
    """Return what was counted; lines that say nothing of it are passed over."""
    known: dict[str, tuple[int, int]] = {}
    found: list[LinkUse] = []
    since: float | None = None
    for line in lines:
        try:
            values = json.loads(line)
            at = float(values["at"])
            counted: Mapping[str, tuple[int, int]] = {
                str(name): (int(delivered), int(dropped))
                for name, (delivered, dropped) in values["links"].items()
            }
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        for name, (delivered, dropped) in counted.items():
            source, _, target = name.partition(">")
            before = known.get(name, (0, 0))
            use = LinkUse(
                source=source,
                target=target,
                since=at if since is None else since,
                at=at,
                delivered=delivered - before[0],
                dropped=dropped - before[1],
            )
            found.append(use)
        known.update(counted)
        since = at
    return found


def link_lines(uses: Sequence[LinkUse]) -> list[LogLine]:
    """Return a line for each look, which stands among those of logs."""
    by_time: dict[float, list[LinkUse]] = {}
    for use in uses:
        by_time.setdefault(use.at, []).append(use)
    return [
        LogLine(at=at, who="links", text=", ".join(_told(use) for use in found))
        for at, found in by_time.items()
    ]


def reach(uses: Sequence[LinkUse], start: float) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return a table: the nodes, and for each the packets that arrived from it at every other.

    Behind them stands when packets were sent and none arrived, in seconds after `start`.
    """
    names = sorted({name for use in uses for name in (use.source, use.target)}, key=natural_key)
    of_link: dict[tuple[str, str], list[LinkUse]] = {}
    for use in uses:
        of_link.setdefault((use.source, use.target), []).append(use)
    rows = [
        (source, [_cell(of_link.get((source, target), []), start) for target in names])
        for source in names
    ]
    return names, rows


def _cell(uses: Sequence[LinkUse], start: float) -> str:
    if not uses:
        return ""
    said = [f"{sum(use.delivered for use in uses)}"]
    if dropped := sum(use.dropped for use in uses):
        said.append(f"{dropped} dropped")
    for since, until in _cuts(uses):
        end = "to the end" if until is None else f"to {until - start:.1f} s"
        said.append(f"none from {since - start:.1f} s {end}")
    return ", ".join(said)


def _cuts(uses: Sequence[LinkUse]) -> list[tuple[float, float | None]]:
    """Return from when to when packets were sent and none arrived."""
    found: list[tuple[float, float | None]] = []
    cut_since: float | None = None
    for use in uses:
        if use.delivered and cut_since is not None:
            found.append((cut_since, use.since))
            cut_since = None
        elif not use.delivered and cut_since is None:
            cut_since = use.since
    return found if cut_since is None else [*found, (cut_since, None)]


def _told(use: LinkUse) -> str:
    dropped = f" ({use.dropped} dropped)" if use.dropped else ""
    return f"{use.source} to {use.target}: {use.delivered}{dropped}"
