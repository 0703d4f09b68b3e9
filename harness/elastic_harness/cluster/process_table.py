"""Processes as /proc shows them: which belong to a node, and which descend from which.

Looking never asks a node for anything, so it works for paused and dying ones as well.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "ProcessRow",
    "ancestors",
    "children_of",
    "command_of",
    "descendants",
    "environ_of",
    "has_ended",
    "pid_of_pidfd",
    "processes",
    "processes_in",
    "row_of",
    "start_ticks",
]

# A chain of parents longer than this is a sign of pids being reused while it was read.
_MAX_ANCESTORS = 128
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One process; its pid with its start names it for good, a pid alone does not.

    `pids` are its numbers from the reader's pid namespace inwards to its own; `state` is the
    kernel's letter (Z: dead, but its parent has not looked yet). `session` is the number of the
    process that leads its session, or did.
    """

    pid: int
    ppid: int
    session: int
    state: str
    start_ticks: int
    pids: tuple[int, ...]

    @property
    def started_at(self) -> float:
        """When the process started, in CLOCK_BOOTTIME seconds."""
        return self.start_ticks / TICKS_PER_S

    @property
    def is_alive(self) -> bool:
        """Tell whether it still runs (a zombie does not)."""
        return self.state not in "ZX"


def processes() -> Iterator[int]:
    """Yield the number of every process in sight."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            yield int(name)


def row_of(pid: int) -> ProcessRow | None:
    """Return what is known of a process, None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The command's name is in parentheses and may hold anything, parentheses included.
            fields = stat.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/status", "rb") as status:
            line = next((line for line in status if line.startswith(b"NSpid:")), b"")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return ProcessRow(
        pid=pid,
        ppid=int(fields[1]),
        session=int(fields[3]),
        state=fields[0].decode(),
        start_ticks=int(fields[19]),
        pids=tuple(int(number) for number in line.split()[1:]) or (pid,),
    )


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; raises ProcessLookupError."""
    row = row_of(pid)
    if row is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return row.start_ticks


def has_ended(pidfd: int) -> bool:
    """Tell whether the process of a pidfd is dead."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def ancestors(pid: int) -> list[int]:
    """Return the pids above a process, its parent first."""
    found: list[int] = []
    while len(found) < _MAX_ANCESTORS and (row := row_of(pid)) is not None and row.ppid > 0:
        pid = row.ppid
        found.append(pid)
    return found


def processes_in(pid_namespace: int) -> list[ProcessRow]:
    """List the processes of a pid namespace, given by the number of its inode."""
    wanted = f"pid:[{pid_namespace}]"
    rows = []
    for pid in processes():
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") != wanted:
                continue
        except OSError:  # gone, or another user's
            continue
        row = row_of(pid)
        if row is not None:
            rows.append(row)
    return rows


def descendants(root: int) -> list[ProcessRow]:
    """List the children of a process, their children and so on, parents first."""
    rows = [row for pid in processes() if (row := row_of(pid)) is not None]
    children: dict[int, list[ProcessRow]] = {}
    for row in rows:
        children.setdefault(row.ppid, []).append(row)
    found: list[ProcessRow] = []
    waiting = [root]
    while waiting:
        new = children.get(waiting.pop(0), [])
        found.extend(new)
        waiting.extend(row.pid for row in new)
    return found


def children_of(pid: int) -> list[int]:
    """Return the children of a process; empty when it has none, or is gone.

    Much cheaper than a look at every process; raises NotImplementedError where the kernel does not
    say it (CONFIG_PROC_CHILDREN).
    """
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as children:
                found += map(int, children.read().split())
    except (FileNotFoundError, ProcessLookupError) as error:
        if pid == os.getpid():
            raise NotImplementedError("/proc does not tell the children of a process") from error
    return found


def command_of(pid: int) -> tuple[str, ...]:
    """Return a process's command line, empty when it is gone or has none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as cmdline:
            text = cmdline.read()
    except (FileNotFoundError, ProcessLookupError):
        return ()
    return tuple(part.decode(errors="replace") for part in text.rstrip(b"\0").split(b"\0"))


def environ_of(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty when it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            entries = environ.read().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def pid_of_pidfd(pidfd: int) -> int:
    """Return a process's number in the reader's pid namespace; -1 when it has ended."""
    with open(f"/proc/self/fdinfo/{pidfd}") as info:
        for line in info:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    return -1
