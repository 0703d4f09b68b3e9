"""torch's watchdog in a file: a worker that overstays a deadline of its own is killed.

The protocol is that of `torch.distributed.elastic.timer.FileTimerServer`. Workers find a named pipe
at `TORCHELASTIC_TIMER_FILE`, with `TORCHELASTIC_ENABLE_FILE_TIMER=1`, and write a line of JSON for
each timer that they set or give up. torchrun reads it from a thread ten times a second and kills
itself with the worker; here no thread polls, and only the worker is killed: the job restarts within
its budget.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.workers import process_tree

__all__ = ["FileTimer", "make_file_timer"]

_ENABLE, _PATH = "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"
# Clients write at most PIPE_BUF at once; a line that is longer is none of theirs.
_MAX_LINE = 4096


def make_file_timer(
    loop: Loop, environ: Mapping[str, str], *, say: Callable[[str], None]
) -> FileTimer | None:
    """Return a watchdog, if the environment asks for one; its pipe is still to be made."""
    if environ.get(_ENABLE) != "1":
        return None
    return FileTimer(loop, environ.get(_PATH, ""), say=say)


class FileTimer:
    """The reading end of one pipe; timers belong to descendants of this process.

    `path` is where the pipe is to be; without one, it is among the temporary files. Reading and
    writing a pipe is no work of the file system that its name is in; `open` and `remove` may hang.
    """

    def __init__(self, loop: Loop, path: str, *, say: Callable[[str], None]) -> None:
        self._loop = loop
        self._say = say
        self._rest = b""
        self._timers: dict[tuple[int, str], Timer] = {}
        self._fd = -1
        self.path = path
        loop.enable_thread_wakeup()

    def open(self) -> None:
        """Make the pipe, and have the loop read it; called on a thread. Raises UsageError."""
        try:
            if not self.path:
                name = f"watchdog_timer_{uuid.uuid4()}"
                self.path = os.path.join(tempfile.gettempdir(), name)
            with suppress(FileNotFoundError):
                os.remove(self.path)
            os.mkfifo(self.path, 0o600)
            # Open for writing as well: the end of the last writer is then no end of file.
            fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self.refuse(error.strerror or str(error), error)
        self._loop.call_from_thread(lambda: self._watch(fd))

    def refuse(self, why: str, error: OSError | None = None) -> NoReturn:
        """Raise UsageError, because the pipe cannot be made."""
        raise UsageError(f"{_PATH}={self.path}: cannot make a pipe: {why}") from error

    def _watch(self, fd: int) -> None:
        self._fd = fd
        self._loop.watch(fd, on_readable=self._read)

    @property
    def environ(self) -> Mapping[str, str]:
        """What tells a worker of it."""
        return {_PATH: self.path}

    def forget(self) -> None:
        """Forget all timers: their processes are gone, and others will have their numbers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def stop(self) -> None:
        """Forget all timers, and read nothing any more."""
        self.forget()
        if self._fd != -1:
            self._loop.unwatch(self._fd)
            os.close(self._fd)

    def remove(self) -> None:
        """Take the pipe away, if it was made; called on a thread."""
        if self._fd != -1:
            with suppress(OSError):
                os.remove(self.path)

    def _read(self) -> None:
        try:
            self._rest += os.read(self._fd, 65536)
        except BlockingIOError:
            return
        *lines, self._rest = self._rest.split(b"\n")
        self._rest = self._rest[-_MAX_LINE:]
        for line in lines:
            try:
                self._obey(json.loads(line))
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                self._say(f"{self.path} received {line[:80]!r}, which sets no timer")

    def _obey(self, request: Mapping[str, Any]) -> None:
        pid, scope = int(request["pid"]), str(request["scope_id"])
        expires_at, signum = float(request["expiration_time"]), int(request["signal"])
        earlier = self._timers.pop((pid, scope), None)
        if earlier is not None:
            earlier.cancel()
        if expires_at < 0:
            return
        # Workers say when by the clock of the day; how long that is from here is all that counts.
        when = self._loop.now() + max(expires_at - time.time(), 0.0)
        self._timers[pid, scope] = self._loop.call_at(
            when, lambda: self._expire(pid, scope, signum)
        )

    def _expire(self, pid: int, scope: str, signum: int) -> None:
        self._timers.pop((pid, scope), None)
        if signum <= 0 or pid not in process_tree.descendants(os.getpid()):
            return
        self._say(f"process {pid} overstayed its timer {scope!r}: it gets signal {signum}")
        process_tree.send_signal([pid], signum)
