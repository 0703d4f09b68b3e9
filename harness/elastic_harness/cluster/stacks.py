"""What a process of a node writes about its stacks when a signal asks for them.

On a signal, C code of the probe writes them into a file in memory, also while Python itself cannot
run. The signal is sent and the file is read, by `/proc/PID/fd`, where the process is. One that is
stopped, has closed that file or has become another program is not asked.
"""

from __future__ import annotations

import os
from typing import Final

from elastic_harness.cluster.local_processes import LocalProcesses
from elastic_harness.cluster.process import ProcessRef, is_running
from elastic_harness.future import Scheduler, Sleep, Steps

__all__ = ["dump_stacks"]

# It takes a millisecond. A process that has not answered by then is stopped, or waits for a device.
_LIMIT_S: Final = 1.0
_LOOK_S: Final = 0.02
# What is written in pieces has come to its end when it was the same for so many looks.
_LOOKS_UNCHANGED: Final = 2
_MAX_BYTES: Final = 256 * 1024
_STOPPED: Final = {"T": "stopped", "t": "stopped by a debugger"}
_STATES: Final = {"D": "waiting for a device", "R": "running", "S": "sleeping", **_STOPPED}


def dump_stacks(
    processes: LocalProcesses, scheduler: Scheduler, process: ProcessRef, *, fd: int, signum: int
) -> Steps[tuple[str, str]]:
    """Return what a process of this machine wrote, and else why it wrote nothing.

    Takes a second at most.
    """
    state = processes.state(process)
    if not is_running(state):
        return "", "it has just ended"
    if state in _STOPPED:
        return "", f"{_STOPPED[state]} (state {state})"
    if not _is_offered(process.pid, fd, signum):
        return "", "its probe offers no stacks"
    if not processes.signal(process, signum):
        return "", "it has just ended"
    text, unchanged, deadline = "", 0, scheduler.now() + _LIMIT_S
    while unchanged < _LOOKS_UNCHANGED and scheduler.now() < deadline:
        yield Sleep(seconds=_LOOK_S)
        found = _read(process.pid, fd)
        unchanged = unchanged + 1 if found and found == text else 0
        text = found or text
    if text:
        return text, ""
    state = processes.state(process) or "X"
    return "", f"no answer within {_LIMIT_S:g} s, {_STATES.get(state, 'gone')} (state {state})"


def _read(pid: int, fd: int) -> str:
    try:
        with open(f"/proc/{pid}/fd/{fd}", "rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _is_offered(pid: int, fd: int, signum: int) -> bool:
    """Tell whether the file is still there, and the signal caught.

    A program that the worker has become would be ended by the signal.
    """
    try:
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            caught = next(line for line in status if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    is_caught = int(caught.split()[1], 16) >> (signum - 1) & 1
    return target.startswith("/memfd:elastic-stacks") and bool(is_caught)
