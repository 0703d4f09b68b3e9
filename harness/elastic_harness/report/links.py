"""What links have delivered and dropped, and when: who could reach whom."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elastic_harness.report.timed_lines import LogLine
from elastic_harness.scenario.engine.situation import natural_key

__all__ = ["LinkUse", "link_lines", "reach", "read_link_uses"]


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
