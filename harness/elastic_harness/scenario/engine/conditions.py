"""Watching for a condition, one record at a time: the same watcher serves triggers and clauses.

A watcher is made when its condition begins to count. `see` is asked after every record; it returns
what proves the condition, or None. `last_seen` says how far things have come, for the report of a
condition that was not met.
"""

from __future__ import annotations

import math
from typing import Protocol

from typing_extensions import assert_never

from elastic_harness.history.events import FileWritten, LogMatched, WriterHeld
from elastic_harness.history.worlds import WorkerView, World
from elastic_harness.scenario.engine.observed import ObservedRun
from elastic_harness.scenario.stage.log_source import is_by
from elastic_harness.scenario.triggers import (
    EventCondition,
    LogCondition,
    ProgressCondition,
    RoundCondition,
    StableCondition,
    When,
    WorldSizeCondition,
    WritingCondition,
)
from pytest_elastic.events.model import Event, Record

__all__ = ["Watcher", "watch", "why_missed"]


class Watcher(Protocol):
    """Waits for one condition."""

    def see(self, record: Record | None, run: ObservedRun) -> str | None:
        """Return what proves the condition, or None; `record` is None when only time has passed."""

    def restart(self, since: float) -> None:
        """From now on only count what begins after `since`."""

    def last_seen(self, run: ObservedRun) -> str:
        """Say how far things have come."""


def watch(condition: When, since: float, *, rounds_since: float = -math.inf) -> Watcher:
    """Begin to watch for a condition; what happened before `since` does not count.

    A round counts also if it had formed before, unless that was before `rounds_since`.
    """
    match condition:
        case WritingCondition():
            return _WritingWatcher(condition)
        case EventCondition():
            return _EventWatcher(condition)
        case LogCondition():
            return _LogWatcher(condition)
        case RoundCondition():
            return _RoundWatcher(condition, rounds_since)
        case WorldSizeCondition(world_size=size):
            return _StepsWatcher(size, 1, since, counts_forming=True)
        case StableCondition(stable=stable):
            return _StepsWatcher(stable.world_size, stable.steps, since)
        case ProgressCondition(progress=progress):
            return _StepsWatcher(None, progress.steps, since)
        case _:
            assert_never(condition)


def why_missed(condition: When | None, run: ObservedRun) -> str:
    """Say why a condition may have held and nothing have been seen of it, or return ""."""
    is_of_files = isinstance(condition, EventCondition) and condition.event == FileWritten.kind
    if not (is_of_files and run.files_unseen):
        return ""
    return f"files may have been written unseen: {run.files_unseen}"


class _EventWatcher:
    def __init__(self, condition: EventCondition) -> None:
        self._condition = condition
        self._seen = 0

    def see(self, record: Record | None, run: ObservedRun) -> str | None:
        if record is None or not self._matches(record):
            return None
        self._seen += 1
        if self._seen < self._condition.count:
            return None
        return f"{record.event.kind}{f' on {record.node}' if record.node else ''}"

    def restart(self, since: float) -> None:
        """Keep what was seen: an event right at the fault's moment is what one waits for."""

    def last_seen(self, run: ObservedRun) -> str:
        found = f"{self._seen} of {self._condition.count} such events"
        missed = why_missed(self._condition, run)
        return f"{found}; {missed}" if missed else found

    def _matches(self, record: Record) -> bool:
        asked = self._condition
        if record.event.kind != asked.event or (asked.node and record.node != asked.node):
            return False
        return all(_is_equal(record.event, key, value) for key, value in asked.fields.items())


class _LogWatcher:
    def __init__(self, condition: LogCondition) -> None:
        self._condition = condition

    def see(self, record: Record | None, run: ObservedRun) -> str | None:
        if record is None or not isinstance(record.event, LogMatched):
            return None
        asked = self._condition
        if record.event.pattern != asked.log or (asked.node and record.node != asked.node):
            return None
        if not is_by(record.event.by, asked.by):
            return None
        return f"log line on {record.node}: {record.event.line.strip()[:120]}"

    def restart(self, since: float) -> None:
        """Keep watching: a line is a line."""

    def last_seen(self, run: ObservedRun) -> str:
        return "no such line"


class _WritingWatcher:
    def __init__(self, condition: WritingCondition) -> None:
        self._condition = condition

    def see(self, record: Record | None, run: ObservedRun) -> str | None:
        if record is None or not isinstance(record.event, WriterHeld):
            return None
        asked, held = self._condition, record.event
        if (asked.writing, asked.path) != (held.pattern, held.path):
            return None
        if asked.node is not None and asked.node != record.node:
            return None
        return f"a process on {record.node} is held in the middle of writing {held.file}"

    def restart(self, since: float) -> None:
        """Keep watching: a process that is stopped meanwhile stays so."""

    def last_seen(self, run: ObservedRun) -> str:
        return "no such file was written in more than one byte"


class _RoundWatcher:
    def __init__(self, condition: RoundCondition, since: float) -> None:
        self._round = condition.round
        self._since = since
        self._too_early = ""

    def see(self, record: Record | None, run: ObservedRun) -> str | None:
        for world in reversed(run.worlds.rounds):
            if world.ordinal < self._round:
                return None
            if world.formed_at is None:
                continue
            if world.formed_at >= self._since:
                return f"round {world.ordinal} formed with {world.world_size} ranks"
            self._too_early = f", and round {world.ordinal} had formed before that"
        return None

    def restart(self, since: float) -> None:
        """Keep watching: rounds are numbered."""

    def last_seen(self, run: ObservedRun) -> str:
        return _describe(run.world) + self._too_early


class _StepsWatcher:
    """Waits until all ranks of one world have done so many steps that began after `since`.

    The world has a given size, if one is asked for. With `counts_forming` a world that forms after
    `since` is enough.
    """

    def __init__(
        self, world_size: int | None, steps: int, since: float, *, counts_forming: bool = False
    ) -> None:
        self._world_size = world_size
        self._steps = steps
        self._since = since
        self._counts_forming = counts_forming

    def see(self, record: Record | None, run: ObservedRun) -> str | None:
        world = run.world
        if world is None or world.formed_at is None:
            return None
        if self._world_size is not None and world.world_size != self._world_size:
            return None
        if self._counts_forming and world.formed_at >= self._since:
            return f"round {world.ordinal} formed with {world.world_size} ranks"
        if self._done(world) < self._steps:
            return None
        return f"{self._steps} steps in round {world.ordinal} of {world.world_size} ranks"

    def restart(self, since: float) -> None:
        self._since = since

    def last_seen(self, run: ObservedRun) -> str:
        world = run.world
        if world is None or world.formed_at is None:
            return _describe(world)
        return f"{_describe(world)}, {self._done(world)} of {self._steps} steps by every rank"

    def _done(self, world: World) -> int:
        return min(self._done_by(worker) for worker in world.workers.values())

    def _done_by(self, worker: WorkerView) -> int:
        """Count steps that began after `since`; looks back no further than is asked for."""
        newest = worker.steps[-self._steps :]
        return sum(step.began_at >= self._since for step in newest)


def _describe(world: World | None) -> str:
    if world is None:
        return "no worker has said hello"
    if world.formed_at is None:
        return f"round {world.ordinal}, {len(world.workers)} of {world.world_size} ranks said hello"
    return f"round {world.ordinal} with {world.world_size} ranks"


def _is_equal(event: Event, key: str, value: object) -> bool:
    """Compare a field with what a scenario says; its lists stand for tuples."""
    return bool(getattr(event, key, None) == _with_tuples(value))


def _with_tuples(value: object) -> object:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
