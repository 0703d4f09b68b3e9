"""The workers of one round on this node, as their keeper sees them: which run, which ended and how.

The keeper starts and reaps; a `Group` keeps the books and makes the reports. Every process below
the keeper (save the store service) belongs to the one group there is.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Sequence
from functools import partial

from pytest_elastic.loop import Loop
from pytest_elastic.workers import process_tree
from pytest_elastic.workers.memory import count_memory_kills
from pytest_elastic.workers.messages import Report, WorkerEnded, WorkersRunning
from pytest_elastic.workers.start import Worker

__all__ = ["Group"]


class Group:
    """Books of one round's workers; reports go to `report` as they come true."""

    def __init__(self, loop: Loop, round: int, *, report: Callable[[Report], None]) -> None:
        self._loop = loop
        self.round = round
        self._report = report
        self._workers: Sequence[Worker] = ()
        self._memory_kills = count_memory_kills()
        self._start = ("", "")
        self._is_reported_running = False
        # What is to go, as all leaders have gone: its command, and whether it catches SIGTERM.
        self._left: dict[int, tuple[str, bool]] = {}
        self.strays: list[str] = []

    def begin(self, workers: Sequence[Worker], *, start: str, reason: str) -> None:
        """Take in the workers of the round, and how they were started."""
        self._workers = workers
        self._start = (start, reason)
        for worker in workers:
            if worker.begun_fd is None:  # it could not even be forked
                self._report_end(worker, was_out_of_memory=False)
            else:
                self._loop.watch(worker.begun_fd, on_readable=partial(self._begun, worker))
        self._report_running()

    @property
    def leaders(self) -> Sequence[int]:
        """The workers' own processes that have not been reaped."""
        return [worker.pid for worker in self._workers if worker.exit_code is None]

    @property
    def has_ended(self) -> bool:
        """Tell whether every worker's own process has ended."""
        return not self.leaders

    def ended(self, pid: int, exit_code: int, *, killed: Collection[int]) -> None:
        """Note that a child of the keeper was reaped; other processes than leaders are ignored."""
        for worker in self._workers:
            if worker.pid == pid and worker.exit_code is None:
                self._begun(worker)
                worker.exit_code = exit_code
                was_killed_by_others = exit_code == -signal.SIGKILL and pid not in killed
                self._report_end(
                    worker, was_out_of_memory=was_killed_by_others and self._did_memory_run_out()
                )
        command, catches = self._left.pop(pid, ("", False))
        # A handler of SIGTERM ends with any code; without one, 0 is the end that was near anyway.
        if command and (catches or exit_code in (-signal.SIGTERM, -signal.SIGKILL)):
            self.strays.append(command)

    def note_leftovers(self, *, spare: process_tree.Spare) -> None:
        """Remember what is still there although every worker has ended well: it is ended now.

        What workers leave that have failed, or were told to end, is not their programs' doing.
        """
        if self.has_ended and all(worker.exit_code == 0 for worker in self._workers):
            for pid in process_tree.descendants(os.getpid(), spare=spare):
                if pid not in self._left and not process_tree.is_zombie(pid):
                    catches = process_tree.is_caught(pid, signal.SIGTERM)
                    self._left[pid] = (process_tree.command_of(pid), catches)

    def send(self, number: int, to: str, *, spare: process_tree.Spare) -> None:
        """Signal the leaders, their process groups, or all processes below the keeper."""
        self.note_leftovers(spare=spare)
        if to == "leaders":
            process_tree.send_signal(self.leaders, number)
        elif to == "all":
            process_tree.signal_all(number, spare=spare)
        else:
            below = process_tree.descendants(os.getpid(), spare=spare)
            groups = {pid: process_tree.process_group(pid) for pid in below}
            # A group outlives its leader, and is only ours while one of our processes is in it.
            ours = {worker.pid for worker in self._workers}.intersection(groups.values())
            # A child that has not come to its setsid yet is in the keeper's own group.
            early = [pid for pid in self.leaders if pid not in ours]
            process_tree.send_signal([*(-group for group in sorted(ours)), *early], number)

    def forget(self) -> None:
        """Release what is still watched, because the group is gone."""
        for worker in self._workers:
            self._close(worker)

    def _begun(self, worker: Worker) -> None:
        """Read whether the worker's program has begun, or why it could not."""
        if worker.begun_fd is None:
            return
        try:
            sentence = os.read(worker.begun_fd, 4096)
        except BlockingIOError:
            return
        worker.start_error = sentence.decode(errors="replace")
        self._close(worker)
        self._report_running()

    def _close(self, worker: Worker) -> None:
        if worker.begun_fd is not None:
            self._loop.unwatch(worker.begun_fd)
            os.close(worker.begun_fd)
            worker.begun_fd = None

    def _report_running(self) -> None:
        ready = all(w.begun_fd is None and not w.start_error for w in self._workers)
        if ready and not self._is_reported_running:
            self._is_reported_running = True
            ordered = sorted(self._workers, key=lambda worker: worker.local_rank)
            start, reason = self._start
            self._report(
                WorkersRunning(
                    round=self.round,
                    pids=tuple(worker.pid for worker in ordered),
                    start=start,
                    start_reason=reason,
                )
            )

    def _report_end(self, worker: Worker, *, was_out_of_memory: bool) -> None:
        assert worker.exit_code is not None, "a worker's end is reported when it has ended"
        self._report(
            WorkerEnded(
                round=self.round,
                local_rank=worker.local_rank,
                pid=worker.pid,
                exit_code=worker.exit_code,
                was_out_of_memory=was_out_of_memory,
                start_error=worker.start_error,
            )
        )

    def _did_memory_run_out(self) -> bool:
        before, self._memory_kills = self._memory_kills, count_memory_kills()
        after = self._memory_kills
        return before is not None and after is not None and before.has_grown_to(after)
