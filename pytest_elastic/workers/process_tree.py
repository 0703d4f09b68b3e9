"""The processes below this one, as the kernel sees them, and how to leave none of them.

A process that is a child subreaper is an ancestor of everything its children start, `setsid` and
double forks included. So "none is left" is a fact that can be read: it has no children.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
from collections.abc import Callable, Container, Iterable

from pytest_elastic.loop import Loop, Timer

__all__ = [
    "Spare",
    "Sweeper",
    "become_subreaper",
    "children_of",
    "command_of",
    "descendants",
    "describe_process",
    "is_being_executed",
    "is_caught",
    "is_zombie",
    "process_group",
    "processor_ticks",
    "reap_orphans",
    "send_signal",
    "signal_all",
    "start_time",
]

# Tells of a process whether it is to be left alone, with all that is below it.
Spare = Callable[[int], bool]

_PR_SET_CHILD_SUBREAPER = 36
# Against a process that forks as fast as it can, each pass stops all it sees: three or four do. For
# so many looks a program is waited for whose arguments cannot be read yet: some never show any.
_MAX_PASSES = 20
# How soon to look again for what a kill has not finished yet; its SIGCHLD usually comes first. What
# cannot die now (it hangs in a disk or a driver) is looked at less and less often.
_RESCAN_S = 0.005
_SLOWEST_RESCAN_S = 0.2


def reap_orphans(*, own: Container[int]) -> None:
    """Reap the children of this process that have ended, except those that it started (`own`).

    Orphans become its children if it is a subreaper or the first process of a container.
    """
    for pid in children_of(os.getpid()):
        if pid not in own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def become_subreaper() -> None:
    """Have orphaned descendants become children of this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(error)}")


def children_of(pid: int) -> list[int]:
    """Return the children of every thread of `pid`, zombies included; nothing if it is gone."""
    if not _has_children_file():
        return _children_by_scan(pid)
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/task/{thread}/children", "rb") as children,
            ):
                found.extend(int(child) for child in children.read().split())
    return found


def descendants(pid: int, *, spare: Spare = lambda _: False) -> list[int]:
    """Return all processes below `pid`, parents before children; spared and what is below, not."""
    found: list[int] = []
    waiting = [pid]
    seen = {pid}
    while waiting:
        for child in children_of(waiting.pop()):
            if child not in seen and not spare(child):
                seen.add(child)
                found.append(child)
                waiting.append(child)
    return found


def start_time(pid: int) -> int | None:
    """Return when `pid` started, in clock ticks since boot: with it, a pid is unambiguous."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def describe_process(pid: int) -> str:
    """Return a process with its state and what it waits for in the kernel; "" if it has ended.

    What it waits for is told to its user and to root only.
    """
    fields = _stat(pid)
    if fields is None or is_zombie(pid):
        return ""
    waits_in = ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan", encoding="ascii") as file:
        waits_in = file.read().strip("0\n")
    where = f", waits in {waits_in}" if waits_in else ""
    return f"pid {pid} is in state {fields[0].decode()}{where}: {command_of(pid):.80}"


def is_zombie(pid: int) -> bool:
    """Tell whether the process has ended and only waits to be reaped."""
    fields = _stat(pid)
    return fields is not None and fields[0] in {b"Z", b"X"}


def is_being_executed(pid: int) -> bool:
    """Tell whether a program begins in the process, whose arguments cannot be read yet.

    A `vfork` returns to the parent that early. A process that has ended has no arguments, either.
    """
    if command_of(pid):
        return False
    fields = _stat(pid)
    return fields is not None and fields[46] == b"0" and not is_zombie(pid)  # arg_end of proc(5)


def is_caught(pid: int, number: int) -> bool:
    """Tell whether the process has a handler for a signal (1 to 31)."""
    fields = _stat(pid)
    return fields is not None and bool(int(fields[31]) >> (number - 1) & 1)  # sigcatch of proc(5)


def processor_ticks(pid: int) -> int:
    """Return the processor time of `pid`, of all below it and of its reaped children, in ticks."""
    ticks = 0
    for process in (pid, *descendants(pid)):
        fields = _stat(process)
        # utime, stime, cutime and cstime: fields 14 to 17 of proc(5), where the state is the third.
        ticks += 0 if fields is None else sum(map(int, fields[11:15]))
    return ticks


def process_group(pid: int) -> int | None:
    """Return the process group of `pid`, or None if it is gone."""
    fields = _stat(pid)
    return None if fields is None else int(fields[2])


def command_of(pid: int) -> str:
    """Return the command line of `pid`, for people; "" if it is gone or has none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            return command.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def send_signal(pids: Iterable[int], number: int) -> None:
    """Signal each process that still exists and may be signalled."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def signal_all(number: int, *, spare: Spare = lambda _: False) -> list[int]:
    """Signal every descendant of this process once, also those that appear meanwhile."""
    signalled: dict[int, None] = {}
    for _ in range(_MAX_PASSES):
        below = descendants(os.getpid(), spare=lambda pid: pid not in signalled and spare(pid))
        new = [pid for pid in below if pid not in signalled]
        if not new:
            break
        send_signal(new, number)
        signalled.update(dict.fromkeys(new))
    return list(signalled)


class Sweeper:
    """Kills every descendant of this process until none is left, and says when that is so.

    `reap` collects the children that have ended; only the owner knows what an exit means. It calls
    `look` whenever it has reaped by itself.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        reap: Callable[[], None],
        on_swept: Callable[[], None],
        spare: Spare = lambda _: False,
    ) -> None:
        self._loop = loop
        self._reap = reap
        self._spare = spare
        self._on_swept = on_swept
        self._timer: Timer | None = None
        self._rescan_s = _RESCAN_S
        self._looks = 0
        self.is_sweeping = False
        self.killed: list[int] = []

    def sweep(self) -> None:
        """Begin to kill; `on_swept` follows from the loop. Harmless when it has begun."""
        if not self.is_sweeping:
            self.is_sweeping = True
            self.killed = []
            self._rescan_s = _RESCAN_S
            self._looks = 0
            self._kill()
            self._look_again(0.0)

    def look(self) -> None:
        """Kill what is left, and find out whether that was all."""
        if not self.is_sweeping:
            return
        if self.are_any_left():
            self._kill()
            self._look_again(self._rescan_s)
            self._rescan_s = min(self._rescan_s * 1.5, _SLOWEST_RESCAN_S)
            return
        self.is_sweeping = False
        if self._timer is not None:
            self._timer.cancel()
        self._on_swept()

    def are_any_left(self) -> bool:
        """Tell whether this process has children (or zombies to reap) beside the spared ones."""
        # The kernel may skip an entry while another one leaves: an empty list is read twice.
        return any(not self._spare(child) for _ in range(2) for child in children_of(os.getpid()))

    def _kill(self) -> None:
        # Stopped first, so that none of them forks away between being seen and being killed. Which
        # programs are to be spared is told by their arguments: who has none yet is looked at later.
        waits = self._looks < _MAX_PASSES
        self._looks += 1
        found = signal_all(
            signal.SIGSTOP,
            spare=lambda pid: self._spare(pid) or (waits and is_being_executed(pid)),
        )
        self.killed.extend(p for p in found if p not in self.killed and not is_zombie(p))
        send_signal(found, signal.SIGKILL)

    def _look_again(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._loop.now() + delay_s, self._reap_and_look)

    def _reap_and_look(self) -> None:
        self._reap()
        self.look()


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat behind the command's name (state, ppid, pgrp, ...)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return None


@functools.cache
def _has_children_file() -> bool:
    """Tell whether the kernel was built with CONFIG_PROC_CHILDREN."""
    return os.path.exists("/proc/thread-self/children")


def _children_by_scan(pid: int) -> list[int]:
    """Find children by asking every process for its parent (a kernel without the children file)."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = _stat(int(name))
            if fields is not None and int(fields[1]) == pid:
                found.append(int(name))
    return found
