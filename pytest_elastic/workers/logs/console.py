"""The console of an agent: written without ever waiting for its reader.

A terminal that was stopped (Ctrl-S), a log shipper that is stuck: their pipes are full, and a write
would stop the agent with its workers and its lease. What finds no room waits here, up to a bound.
A file always has room, and may be on a file system that hangs: a thread writes it.
"""

from __future__ import annotations

import os
import select
import stat
from collections import deque
from collections.abc import Sequence

from pytest_elastic.file_thread import FileThread
from pytest_elastic.loop import Loop, Timer

__all__ = ["Console", "drain_consoles"]

# Waiting for the console beyond this: files are not read on until it has taken some.
_MAX_QUEUED = 1024 * 1024
# A pipe that poll calls writable takes this much without blocking (PIPE_BUF).
_WRITE = 4096
_RETRY_S = 0.02
# So soon where the other side took something: it reads on, and a pipe holds 64 KiB only.
_GO_ON_S = 0.001
# A line is in its file when `write` returns, unless that takes longer: an agent may be killed.
_AT_ONCE_S = 0.1


class Console:
    """A descriptor of the console, which stays the caller's."""

    def __init__(self, loop: Loop, fd: int) -> None:
        self._loop = loop
        self._fd = fd
        self._own_fd: int | None = None
        self._file: FileThread | None = None  # if it is a file
        self._in_file = 0  # bytes that the thread was given last
        self._was_written = False
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._left_out = 0
        self._timer: Timer | None = None

    @property
    def is_full(self) -> bool:
        """Tell whether nothing more should be written for now."""
        return self._queued > _MAX_QUEUED

    @property
    def has_more(self) -> bool:
        """Tell whether something still waits for the other side."""
        return self._queued > 0

    def wait(self, limit_s: float) -> bool:
        """Wait at most so long until the other side takes more, and tell whether it does."""
        if self._file is not None:
            return self._file.wait(limit_s)
        poll = select.poll()
        poll.register(self.fileno(), select.POLLOUT)
        return bool(poll.poll(max(limit_s, 0.0) * 1000))

    def write(self, data: bytes) -> None:
        """Queue `data` and write what the other side takes now."""
        if data:
            if not self._was_written:
                self._was_written = True
                self._own_fd = _open_without_waiting(self._fd)
                if self._own_fd is None and _is_file(self._fd):
                    self._file = FileThread()
            self._queue.append(memoryview(data))
            self._queued += len(data)
            self.flush()

    def write_lines(self, text: str) -> None:
        """Write a few lines; a slow reader loses them, and is told later how many."""
        if self.is_full:
            self._left_out += text.count("\n")
            return
        if self._left_out:
            text = f"[pytest-elastic: {self._left_out} lines were left out here]\n{text}"
            self._left_out = 0
        self.write(text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Write what the other side takes now."""
        before = self._queued
        if self._file is not None:
            self._write_file(self._file)
        else:
            self._write_pipe()
        if self.has_more and (self._timer is None or self._timer.is_cancelled):
            again_s = _GO_ON_S if self._queued < before else _RETRY_S
            self._timer = self._loop.call_at(self._loop.now() + again_s, self.flush)

    def _write_file(self, file: FileThread) -> None:
        if file.waiting:
            return
        self._queued -= self._in_file
        data = b"".join(self._queue)
        self._queue.clear()
        self._in_file = len(data)
        if data:
            file.do(lambda: _write_all(self._fd, data))
            if file.wait(_AT_ONCE_S):
                self._queued -= self._in_file
                self._in_file = 0

    def _write_pipe(self) -> None:
        while self._queue and self.wait(0.0):
            data = self._queue.popleft()
            try:
                written = os.write(self.fileno(), data[:_WRITE])
            except BlockingIOError:
                written = 0
            except OSError:
                # The reader is gone; the files still have everything.
                written = len(data)
            self._queued -= written
            if written < len(data):
                self._queue.appendleft(data[written:])
            if not written:
                break

    def close(self) -> None:
        """Give up what still waits; harmless when it is closed."""
        self._queue.clear()
        self._queued = 0
        if self._timer is not None:
            self._timer.cancel()
        if self._own_fd is not None:
            os.close(self._own_fd)
            self._own_fd = None

    def fileno(self) -> int:
        """Return the descriptor that is written."""
        return self._fd if self._own_fd is None else self._own_fd


def drain_consoles(loop: Loop, consoles: Sequence[Console], timeout_s: float) -> None:
    """Write what still waits, until all is written or `timeout_s` is over: nothing else goes on."""
    deadline = loop.now() + timeout_s
    while waiting := [console for console in consoles if console.has_more]:
        left_s = deadline - loop.now()
        if left_s <= 0:
            return
        # They wait for others: none of them is to keep the next one from what it could write.
        waiting[0].wait(min(left_s, _RETRY_S))
        for console in waiting:
            console.flush()


def _write_all(fd: int, data: bytes) -> None:
    """Write to a file; what finds no room on its disk is lost, and the logs still have it."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        return


def _is_file(fd: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False


def _open_without_waiting(fd: int) -> int | None:
    """Return a descriptor of ours for the same pipe or terminal, on which no write waits.

    The flag belongs to what is open, which others share: workers, or a shell. Others may fill a
    pipe between a look at it and a write, so that the look alone is not enough. Where no such
    descriptor can be had (a socket, a terminal of another user), the look has to do.
    """
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{fd}", flags)
    except OSError:
        pass
    return None
