"""How processes of a run ended: by the kernel's word, or, where it gives none, by their launcher's.

What the kernel says, the cluster knows. Where that is nothing, what counts is `worker_exited`,
which our own launcher states; under others it is not known then.
"""

from __future__ import annotations

from typing import Final

from elastic_harness.cluster.cluster import Cluster
from elastic_harness.cluster.process import ProcessRef
from elastic_harness.future import Future, Scheduler
from elastic_harness.history.events import ProcessExited, WorkerHello
from pytest_elastic.events.model import Record, WorkerExited

__all__ = ["ProcessEnds"]

# How it ended is told once its parent has taken note of it; by some launchers, never.
_TOLD_S: Final = 1.0

# A worker, as launchers name it: run, node, round and rank.
_Place = tuple[str, str, int | None, int]


class ProcessEnds:
    """Watches processes that are about to end; learns what launchers say."""

    def __init__(self, cluster: Cluster, scheduler: Scheduler) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._ends: dict[ProcessRef, Future[int | None]] = {}
        self._gone: set[ProcessRef] = set()
        self._said: dict[ProcessRef, int] = {}
        self._workers: dict[_Place, ProcessRef] = {}

    def of(self, process: ProcessRef) -> Future[int | None]:
        """Watch a process from now on; done when it has ended, with how.

        Negative: by that signal. None: neither the kernel nor its launcher tells.
        """
        if process not in self._ends:
            end = self._ends[process] = Future()
            self._cluster.ended(process).add_done_callback(
                lambda done: self._on_ended(process, end, done)
            )
        return self._ends[process]

    def _on_ended(
        self, process: ProcessRef, end: Future[int | None], done: Future[int | None]
    ) -> None:
        told = done.result() if done.error is None else None
        self._gone.add(process)
        if told is not None or process in self._said:
            end.settle(self._said.get(process) if told is None else told)
        else:
            self._scheduler.call_at(self._scheduler.now() + _TOLD_S, lambda: end.settle(None))

    def learn(self, record: Record) -> None:
        """Note a worker's identity, or what its launcher says of its end."""
        match record.event:
            case WorkerHello(pid=pid, start_time=start_time, rank=rank, round=round_):
                place = (record.run_id, record.node, round_, rank)
                worker = ProcessRef(node=record.node, pid=pid, start_time=start_time)
                self._workers[place] = worker
            case WorkerExited(round=round_, rank=rank, exit_code=code, signal=number):
                process = self._workers.pop((record.run_id, record.node, round_, rank), None)
                if process is not None:
                    self._hear(process, -number if number else code)
            case ProcessExited(pid=pid, exit_code=code):
                for process in tuple(self._ends):
                    if (process.node, process.pid) == (record.node, pid):
                        self._hear(process, code)
            case _:
                pass

    def _hear(self, process: ProcessRef, code: int) -> None:
        self._said.setdefault(process, code)
        if process in self._gone:
            self._ends[process].settle(code)
