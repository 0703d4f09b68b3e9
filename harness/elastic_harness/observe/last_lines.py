"""The last lines that a worker printed, taken when it ends.

Logs have no times: later, other workers and the launcher have written on, and nobody can tell what
stood last when this one ended. So the first sign of its end counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from elastic_harness.history.events import (
    LastLinesSeen,
    WorkerFinished,
    WorkerGone,
    WorkerHello,
)
from elastic_harness.history.history import History
from elastic_harness.report.cause import failed_first
from elastic_harness.report.last_words import lines_about
from elastic_harness.scenario.stage.log_source import WORKER_LOGS
from pytest_elastic.events.model import Record, WorkerExited

__all__ = ["LastLines"]

_MAX_BYTES = 16 * 1024
# A job of many ranks that is restarted again and again; what failed first is among the first.
_MAX_WORKERS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """How a log ended when a worker did."""

    file: str
    text: str


class LastLines:
    """Remembers how the logs of a run ended when each worker did.

    `own_lines` is how the launcher's own lines begin, empty where that is not known.
    """

    def __init__(self, log_dir: str, own_lines: str) -> None:
        self._log_dir = log_dir
        self._own_lines = re.compile(own_lines) if own_lines else None
        self._workers: dict[int, WorkerHello] = {}
        self._pids: dict[tuple[str, int], int] = {}
        self._ends: dict[int, _End] = {}

    def see(self, record: Record) -> None:
        """Take a record into account, as soon as it is there."""
        match record.event:
            case WorkerHello() as hello:
                self._workers[hello.pid] = hello
                self._pids[record.node, hello.rank] = hello.pid
                self._ends.pop(hello.pid, None)  # that pid had been another's
            case WorkerFinished(pid=pid) | WorkerGone(pid=pid):
                self._on_end(record.node, pid)
            case WorkerExited(rank=rank, cause="failed"):
                self._on_end(record.node, self._pids.get((record.node, rank), 0))
            case _:
                pass

    def _on_end(self, node: str, pid: int) -> None:
        worker = self._workers.get(pid)
        if worker is not None and pid not in self._ends and len(self._ends) < _MAX_WORKERS:
            self._ends[pid] = self._end_of(node, worker.local_rank)

    def of_first_failure(self, history: History) -> tuple[str, LastLinesSeen] | None:
        """Return what the worker that failed first printed last, and its node; None if unknown."""
        failed = failed_first(history)
        end = self._ends.get(failed.pid) if failed is not None else None
        if failed is None or end is None:
            return None
        raised = failed.raised
        lines = lines_about(
            end.text,
            failed.rank,
            own_lines=self._own_lines,
            error=raised.error if raised is not None else "",
            message=raised.message if raised is not None else "",
        )
        seen = LastLinesSeen(pid=failed.pid, rank=failed.rank, file=end.file, lines=lines)
        return (failed.node, seen) if lines else None

    def _end_of(self, node: str, local_rank: int) -> _End:
        folder = os.path.join(self._log_dir, node)
        own = max(self._own_files(folder, local_rank), default=(0.0, ""))[1]
        path = own or os.path.join(folder, "launcher.log")
        return _End(file=os.path.relpath(path, folder), text=_tail(path))

    def _own_files(self, folder: str, local_rank: int) -> Iterator[tuple[float, str]]:
        """Yield the files of a worker's errors, where workers have files of their own, with times.

        The newest is its: it has just ended.
        """
        for inside, _, names in os.walk(os.path.join(folder, WORKER_LOGS)):
            if os.path.basename(inside) == str(local_rank) and "stderr.log" in names:
                path = os.path.join(inside, "stderr.log")
                try:
                    yield os.stat(path).st_mtime, path
                except OSError:
                    continue


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _MAX_BYTES))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""
