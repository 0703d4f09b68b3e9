"""The last lines that a worker printed, taken when it ends.

Logs have no times: later, other workers and the launcher have written on, and it is not known what
stood last when this one ended. So the first sign of its end counts.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from elastic_harness.cluster.facets import LogFile, Logs
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

    def __init__(self, logs: Logs, log_dir: str, own_lines: str) -> None:
        self._logs = logs
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
        """Look into the worker's own file of errors, else into what its launcher prints.

        The newest of its own is its: it has just ended.
        """
        folder = os.path.join(self._log_dir, node)
        own = f"{WORKER_LOGS}{os.sep}", f"{os.sep}{local_rank}{os.sep}stderr.log"
        there = {os.path.relpath(file.path, folder): file for file in self._logs.list(folder)}
        errors = [name for name in there if name.startswith(own[0]) and name.endswith(own[1])]
        name = max(errors, key=lambda name: there[name].modified_at, default="launcher.log")
        return _End(file=name, text=self._tail(there.get(name)))

    def _tail(self, file: LogFile | None) -> str:
        if file is None:
            return ""
        begin = max(0, file.size - _MAX_BYTES)
        try:
            return self._logs.read(file.path, begin, _MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""
