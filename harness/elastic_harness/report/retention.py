"""Removes the oldest runs of earlier sessions, so that artifacts do not grow for ever."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["remove_old_runs"]

# What every run leaves, and nothing else that may lie in the folder.
_MARKS = ("plan.json", "history.jsonl")
# Another session may still write into a run, or show it.
_SAFE_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Run:
    path: str
    written_at: float
    bytes: int


def remove_old_runs(
    artifacts: str, *, now: float, newest: int, max_bytes: int, spared: Collection[str] = ()
) -> int:
    """Remove all but the newest runs below `artifacts`; return how many were removed.

    `newest` runs stay at most, and so many of them as have `max_bytes` together; 0 means no limit.
    `spared` (absolute paths), what was written in the last hour before `now` (seconds since 1970),
    links, and folders that are no runs are counted or ignored, and never removed.
    """
    runs = sorted(_runs_in(artifacts), key=lambda run: run.written_at, reverse=True)
    removed, total = 0, 0
    for number, run in enumerate(runs, 1):
        total += run.bytes
        is_too_much = bool(newest and number > newest) or bool(max_bytes and total > max_bytes)
        if is_too_much and run.path not in spared and now - run.written_at > _SAFE_S:
            shutil.rmtree(run.path, ignore_errors=True)
            removed += not os.path.lexists(run.path)
    return removed


def _runs_in(artifacts: str) -> list[_Run]:
    found = []
    with contextlib.suppress(OSError), os.scandir(artifacts) as entries:
        for entry in entries:
            marks = [os.path.join(entry.path, name) for name in _MARKS]
            if entry.is_dir(follow_symlinks=False) and all(map(os.path.isfile, marks)):
                with contextlib.suppress(OSError):  # another session has just removed it
                    written_at = max(os.stat(mark).st_mtime for mark in marks)
                    found.append(_Run(os.path.abspath(entry.path), written_at, _size(entry.path)))
    return found


def _size(path: str) -> int:
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(folder, name)).st_size
    return size
