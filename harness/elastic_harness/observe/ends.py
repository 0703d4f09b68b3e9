"""How processes ended: by the kernel's word, or, where it gives none, by their launcher's.

Linux tells the holder of a pidfd how that very process ended, once its parent has taken note
(PIDFD_GET_INFO with PIDFD_INFO_EXIT, Linux 6.15). On older kernels what counts is `worker_exited`,
which our own launcher states; under others it is not known then.
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final

from elastic_harness.cluster.process_table import is_same_process
from elastic_harness.history.events import ProcessExited, WorkerHello
from elastic_harness.scenario.engine.situation import ProcessRef
from pytest_elastic.events.model import Record, WorkerExited

__all__ = ["ProcessEnds"]

# struct pidfd_info, as of its first version: the mask first, the wait status last.
_INFO: Final = struct.Struct("<QQ12i")
_GET_INFO: Final = (3 << 30) | (_INFO.size << 16) | (0xFF << 8) | 11
_EXIT: Final = 1 << 3

# A worker, as launchers name it: run, node, round and rank.
_Place = tuple[str, str, int | None, int]


class ProcessEnds:
    """Watches processes that are about to end, until `close`; learns what launchers say."""

    def __init__(self) -> None:
        self._pidfds: dict[ProcessRef, int] = {}
        self._codes: dict[ProcessRef, int] = {}
        self._workers: dict[_Place, ProcessRef] = {}

    def watch(self, process: ProcessRef) -> bool:
        """Take note of how a process ends; False when that very process has ended already."""
        if process in self._pidfds:
            return True
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            return False
        # The descriptor is of that very process only if it is there after it was opened.
        if process.start_time and not is_same_process(process.pid, process.start_time):
            os.close(pidfd)
            return False
        self._pidfds[process] = pidfd
        self._codes.pop(process, None)  # of one that had its pid before
        return True

    def learn(self, record: Record) -> None:
        """Take note of who a worker is, and of what its launcher says of its end."""
        match record.event:
            case WorkerHello(pid=pid, start_time=start_time, rank=rank, round=round_):
                place = (record.run_id, record.node, round_, rank)
                self._workers[place] = ProcessRef(pid=pid, start_time=start_time)
            case WorkerExited(round=round_, rank=rank, exit_code=code, signal=number):
                process = self._workers.pop((record.run_id, record.node, round_, rank), None)
                if process is not None:
                    self._codes.setdefault(process, -number if number else code)
            case ProcessExited(pid=pid, exit_code=code):
                self._codes.setdefault(ProcessRef(pid=pid), code)
            case _:
                pass

    def exit_code_of(self, process: ProcessRef) -> int | None:
        """Return how a watched process ended, negative: by that signal; None: nothing tells."""
        if (pidfd := self._pidfds.get(process)) is not None:
            status = _wait_status(pidfd)
            if status is not None:
                self._codes[process] = os.waitstatus_to_exitcode(status)
                os.close(self._pidfds.pop(process))
        return self._codes.get(process)

    def close(self) -> None:
        """Watch nothing any more."""
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._pidfds.clear()


def _wait_status(pidfd: int) -> int | None:
    """Return the wait status of a process that has been reaped; None if the kernel has none."""
    info = bytearray(_INFO.pack(_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(info)
    return status if mask & _EXIT else None
