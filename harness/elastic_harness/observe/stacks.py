"""Where living workers stand, asked at the end of a run that hangs.

Each probe has offered its stacks: on a signal, C code writes them into a file in memory, also while
Python itself cannot run. The harness sends the signal and reads the file by `/proc/PID/fd`. A
worker that is stopped, has closed that file or has become another program is not asked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_harness.cluster.cluster import Cluster
from elastic_harness.cluster.process import PIDS_OF_A_MACHINE, ProcessRef, is_running
from elastic_harness.cluster.process_table import row_of
from elastic_harness.future import Scheduler, Sleep, Steps
from elastic_harness.history.events import StackSeen, WorkerHello
from elastic_harness.history.stacks import parse_stacks, place_in_script

__all__ = ["StackOffer", "StackSource", "ask_for_stacks"]

# It takes a millisecond. Who has not answered by then is stopped, or waits for a device.
_LIMIT_S = 1.0
_LOOK_S = 0.02
# What is written in pieces has come to its end when it was the same for so many looks.
_LOOKS_UNCHANGED = 2
_MAX_BYTES = 256 * 1024
_MAX_SOURCE = 200
_STOPPED = {"T": "stopped", "t": "stopped by a debugger"}
_STATES = {"D": "waiting for a device", "R": "running", "S": "sleeping", **_STOPPED}


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOffer:
    """What a probe has offered: a signal, the descriptor that is written to, its main thread."""

    fd: int
    signal: int
    main: int

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> StackOffer:
        """Return what a probe's line says; raises KeyError, TypeError or ValueError."""
        offer = cls(fd=int(said["fd"]), signal=int(said["signal"]), main=int(said["main"]))
        if offer.signal not in range(1, 65):
            raise ValueError(f"there is no signal {offer.signal}")
        return offer


@dataclass(frozen=True, slots=True)
class StackSource:
    """A worker that may be asked; one whose probe has offered nothing has no `offer`."""

    node: str
    worker: WorkerHello
    offer: StackOffer | None


def ask_for_stacks(
    cluster: Cluster, scheduler: Scheduler, sources: Sequence[StackSource]
) -> Steps[list[tuple[str, StackSeen]]]:
    """Ask every worker; returns what each has said, with its node, in order of ranks.

    Takes a second at most, and no time without workers.
    """
    answers = [_Answer(each) for each in sorted(sources, key=lambda each: each.worker.rank)]
    for answer in answers:
        yield from answer.ask(cluster)
    waiting = [answer for answer in answers if not answer.is_complete()]
    deadline = scheduler.now() + _LIMIT_S
    while waiting and scheduler.now() < deadline:
        yield Sleep(seconds=_LOOK_S)
        waiting = [answer for answer in waiting if not answer.is_complete()]
    return [(answer.source.node, answer.result()) for answer in answers]


class _Answer:
    """What one worker writes."""

    def __init__(self, source: StackSource) -> None:
        self.source = source
        self._reason = ""
        self._text = ""
        self._unchanged = 0

    def ask(self, cluster: Cluster) -> Steps[None]:
        """Send the signal, unless nobody would answer it."""
        node, worker, offer = self.source.node, self.source.worker, self.source.offer
        process = ProcessRef(node=node, pid=worker.pid, start_time=worker.start_time)
        state = yield from cluster.state(process)
        if not is_running(state):
            self._reason = "it has just ended"
        elif state in _STOPPED:
            self._reason = f"{_STOPPED[state]} (state {state})"
        elif worker.pid >= PIDS_OF_A_MACHINE:
            self._reason = "it is on another machine, where it cannot be asked yet"
        elif offer is None or not _is_offered(worker.pid, offer):
            self._reason = "its probe offers no stacks"
        elif not (yield from cluster.signal(process, offer.signal)):
            self._reason = "it has just ended"

    def is_complete(self) -> bool:
        """Look at what is written; tell whether nothing more is to be expected."""
        if self._reason:
            return True
        text = self._read()
        self._unchanged = self._unchanged + 1 if text and text == self._text else 0
        self._text = text
        return self._unchanged >= _LOOKS_UNCHANGED

    def result(self) -> StackSeen:
        """Return what was seen, as it is now."""
        worker, offer = self.source.worker, self.source.offer
        main, others = parse_stacks(self._text, offer.main if offer is not None else 0)
        if not main and not self._reason:
            process = row_of(worker.pid)
            state = process.state if process is not None else "X"
            words = _STATES.get(state, "gone")
            self._reason = f"no answer within {_LIMIT_S:g} s, {words} (state {state})"
        place = place_in_script(main)
        return StackSeen(
            pid=worker.pid,
            rank=worker.rank,
            frames=main,
            others=others,
            source=_source_of(worker.pid, place) if place else "",
            reason=self._reason,
        )

    def _read(self) -> str:
        offer = self.source.offer
        assert offer is not None, "who has offered nothing is not asked"
        try:
            with open(f"/proc/{self.source.worker.pid}/fd/{offer.fd}", "rb") as file:
                return file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return self._text


def _is_offered(pid: int, offer: StackOffer) -> bool:
    """Tell whether the file is still there, and the signal caught.

    A program that the worker has become would be ended by the signal.
    """
    try:
        target = os.readlink(f"/proc/{pid}/fd/{offer.fd}")
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            caught = next(line for line in status if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    is_caught = int(caught.split()[1], 16) >> (offer.signal - 1) & 1
    return target.startswith("/memfd:elastic-stacks") and bool(is_caught)


def _source_of(pid: int, place: str) -> str:
    """Return the line of source at a place, as the worker's own root directory has it."""
    path, _, number = place.rpartition(" in ")[0].rpartition(":")
    for root in (f"/proc/{pid}/root", ""):
        try:
            with open(f"{root}{path}", encoding="utf-8", errors="replace") as file:
                for count, line in enumerate(file, start=1):
                    if count == int(number):
                        return line.strip()[:_MAX_SOURCE]
        except (OSError, ValueError):
            continue
    return ""
