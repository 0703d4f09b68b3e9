"""What a warm worker does about a variable that it sets after its interpreter has read it.

It begins again from the top, in a fresh interpreter and the same process, as a worker that is
exec'ed would: before torch is imported there is no process group, and an elastic program must stand
that. Where something would not survive it, the worker goes on, and one line on stderr says so. The
keeper hears of both through a pipe of its own, and starts the command by exec from then on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from pytest_elastic.boot.descriptors import open_descriptors

__all__ = ["LateVariables"]

_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/dxg", "/dev/infiniband", "/dev/accel")
_MAX_NAME = 1000  # a pipe takes so much at once


@dataclass(slots=True, kw_only=True)
class LateVariables:
    """Implements `boot.hidden.Late` for one worker.

    `libraries` is what modules have read but by Python. `execute` makes this process the worker's
    command in a fresh interpreter. `notes` is the path of the keeper's pipe.
    """

    libraries: Mapping[str, Container[str]]
    execute: Callable[[], None]
    notes: str
    _pid: int = field(default=0, init=False)
    _threads: int = field(default=0, init=False)
    _umask: int = field(default=0, init=False)
    _processors: frozenset[int] = field(default=frozenset(), init=False)
    _nice: int = field(default=0, init=False)

    def begin(self) -> None:
        """Note what an exec would hand on."""
        self._pid = os.getpid()
        self._threads = len(os.listdir("/proc/self/task"))
        self._umask = os.umask(0o22)
        os.umask(self._umask)
        self._processors = frozenset(os.sched_getaffinity(0))
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)

    def started(self, threads: int) -> None:
        """Note threads that are none of the program's."""
        self._threads += threads

    def missed(self, variable: str) -> None:
        """Begin again, or return and have said why not."""
        try:
            obstacle = self._obstacle() or self._restore_priority()
        except OSError as error:  # the program has another root, without a /proc
            obstacle = f"{error.filename} cannot be read ({error.strerror})"
        self._tell({"pid": self._pid, "variable": variable[:_MAX_NAME], "obstacle": obstacle})
        if obstacle:
            line = (
                f"pytest-elastic: {variable} was changed after the warm interpreter had read it,"
                f" and {obstacle}: this worker goes on with the old value;"
                " use --worker-start=exec for this program\n"
            )
            os.write(2, line.encode(errors="replace"))
            return
        os.umask(self._umask)
        os.sched_setaffinity(0, self._processors)
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.execute()

    def _obstacle(self) -> str:
        """Say what of this process would not survive to begin again, or nothing."""
        if os.getpid() != self._pid:
            return "this is a child of the worker"
        if threading.current_thread() is not threading.main_thread():
            return "that was not its main thread"
        if any(map(_has_children, os.listdir("/proc/self/task"))):
            return "the worker has children"
        if "torch" not in sys.modules:
            return ""
        if len(os.listdir("/proc/self/task")) > self._threads:
            return "the worker has threads"
        for fd, file in open_descriptors().items():
            if fd > 2 and file.startswith(("socket:", *_DEVICES)):
                return f"the worker has opened {file}"
        return ""

    def _restore_priority(self) -> str:
        """Take back what the program has done to its priority, or say that it cannot be."""
        if os.getpriority(os.PRIO_PROCESS, 0) != self._nice:
            try:
                os.setpriority(os.PRIO_PROCESS, 0, self._nice)
            except PermissionError:
                return "the worker may not raise its priority again"
        return ""

    def _tell(self, note: Mapping[str, object]) -> None:
        try:
            pipe = os.open(self.notes, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(pipe, json.dumps(note).encode() + b"\n")
            os.close(pipe)
        except OSError:
            pass  # the keeper is gone, and so will this process be


def _has_children(thread: str) -> bool:
    try:
        with open(f"/proc/self/task/{thread}/children", encoding="ascii") as children:
            return bool(children.read().strip())
    except OSError:
        return False  # the thread has ended, or this kernel does not tell
