"""What the kernel says of processes: /proc, read without surprises.

A process may end between any two reads: every function answers None, or leaves it out, instead of
raising. A pid with its start time names one process for good; a pid alone does not.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "ProcessInfo",
    "ancestors",
    "command_of",
    "descendants",
    "environ_of",
    "has_ended",
    "is_same_process",
    "processes",
    "read_process",
]

# A chain of parents longer than this is a sign of pids being reused while it was read.
_MAX_ANCESTORS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One process at one moment.

    `start_time` is in clock ticks since boot; `state` is the kernel's letter (Z: dead, but its
    parent has not looked yet).
    """

    pid: int
    ppid: int
    name: str
    state: str
    process_group: int
    session: int
    start_time: int

    @property
    def is_alive(self) -> bool:
        """Tell whether it still runs (a zombie does not)."""
        return self.state not in "ZX"


def read_process(pid: int, *, proc: str = "/proc") -> ProcessInfo | None:
    """Return what /proc says of a process, or None when there is none."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as stat:
            text = stat.read().decode("utf-8", "replace")
    except OSError:
        return None
    # The name stands in parentheses and may hold any character, parentheses included.
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    return ProcessInfo(
        pid=pid,
        ppid=int(fields[1]),
        name=name,
        state=fields[0],
        process_group=int(fields[2]),
        session=int(fields[3]),
        start_time=int(fields[19]),
    )


def is_same_process(pid: int, start_time: int) -> bool:
    """Tell whether the process named by pid and start time still runs."""
    found = read_process(pid)
    return found is not None and found.start_time == start_time and found.is_alive


def has_ended(pidfd: int) -> bool:
    """Tell whether the process of a pidfd is dead."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def processes(*, proc: str = "/proc") -> Iterator[ProcessInfo]:
    """Return all processes there are, in order of pid."""
    try:
        names = os.listdir(proc)
    except OSError:
        return
    for pid in sorted(int(name) for name in names if name.isdigit()):
        if (found := read_process(pid, proc=proc)) is not None:
            yield found


def descendants(pid: int, *, proc: str = "/proc") -> list[ProcessInfo]:
    """Return the living processes below one, parents before children."""
    children: dict[int, list[ProcessInfo]] = {}
    for each in processes(proc=proc):
        children.setdefault(each.ppid, []).append(each)
    found: list[ProcessInfo] = []
    waiting = [pid]
    while waiting:
        below = children.pop(waiting.pop(0), [])
        found += below
        waiting += [each.pid for each in below]
    return [each for each in found if each.is_alive]


def ancestors(pid: int, *, proc: str = "/proc") -> list[int]:
    """Return the pids above a process, its parent first."""
    found: list[int] = []
    while len(found) < _MAX_ANCESTORS:
        process = read_process(pid, proc=proc)
        if process is None or process.ppid <= 0:
            break
        pid = process.ppid
        found.append(pid)
    return found


def command_of(pid: int, *, proc: str = "/proc") -> tuple[str, ...]:
    """Return a process's command line; empty for what has none or is gone."""
    return _read_words(f"{proc}/{pid}/cmdline")


def environ_of(pid: int, *, proc: str = "/proc") -> dict[str, str]:
    """Return the environment a process was started with; empty where it may not be read.

    A warm worker was not started with its environment: there the probe's hello is what counts.
    """
    pairs = (word.partition("=") for word in _read_words(f"{proc}/{pid}/environ"))
    return {name: value for name, separator, value in pairs if separator}


def _read_words(path: str) -> tuple[str, ...]:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return ()
    return tuple(word.decode("utf-8", "surrogateescape") for word in data.split(b"\0") if word)
