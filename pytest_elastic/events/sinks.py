"""Where an agent's records go: a file, or the harness that listens on a Unix socket.

Sending is for an agent in the middle of a recovery: it hands one line to the kernel and returns. A
harness that reads nothing, or is gone, costs the agent a bounded queue and nothing else.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import time
from collections import deque
from contextlib import suppress
from typing import Protocol

from pytest_elastic.boot.descriptors import wait_for
from pytest_elastic.errors import UsageError
from pytest_elastic.events.codec import encode_record
from pytest_elastic.events.model import Record
from pytest_elastic.file_thread import FileThread
from pytest_elastic.loop import Loop

__all__ = ["EVENTS_VARIABLE", "FileSink", "NullSink", "Sink", "SocketSink", "make_sink"]

EVENTS_VARIABLE = "PYTEST_ELASTIC_EVENTS"

# An agent states some twenty events a round, so this is hundreds of rounds without a listener.
_MAX_QUEUED_LINES = 10_000
# An agent states some ten kilobytes a round: thousands of rounds in each of two files.
_MAX_FILE_BYTES = 64 * 1024 * 1024
# A file is opened and written in less than a millisecond where its disk is not slow. A write is
# waited for, because an agent may be killed, once until the disk has caught up: a beat can be that
# late.
_OPEN_S = 1.0
_AT_ONCE_S = 0.1
# Without a listener, at most one attempt to connect in this time: each costs some microseconds.
_RECONNECT_S = 0.1


class Sink(Protocol):
    """Takes records; never raises and never waits."""

    def send(self, record: Record) -> None:
        """Hand one record over."""

    def flush(self, timeout_s: float) -> str:
        """Wait at most `timeout_s` for queued records to be handed over, before a process ends.

        Returns a sentence about the records that are lost, for the user, or an empty text.
        """

    def close(self) -> None:
        """Release the descriptor; records that still wait are lost."""


class NullSink:
    """Discards records: none were asked for."""

    def send(self, record: Record) -> None:
        """Do nothing."""

    def flush(self, timeout_s: float) -> str:
        """Do nothing."""
        return ""

    def close(self) -> None:
        """Do nothing."""


class FileSink:
    """Appends to a file, one `write` for each line, so that several processes can share it.

    A file of `max_bytes` is renamed to `<path>.1`, in the place of the one before, and a new one
    begins: a job of a month takes twice that at most. A thread writes, as a file system may hang; a
    line is with the kernel when `send` returns, unless that takes longer than a moment. Raises
    OSError when the file cannot be opened.
    """

    def __init__(self, path: str, *, max_bytes: int = _MAX_FILE_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._fd = -1
        self._thread = FileThread()
        self._sent = 0
        self._written = 0  # counted on the thread
        self._error: OSError | None = None
        self._thread.do(self._begin)
        if self._thread.wait(_OPEN_S) and self._error is not None:
            raise self._error

    def send(self, record: Record) -> None:
        """Append the record."""
        self._sent += 1
        waiting = self._thread.waiting
        if waiting >= _MAX_QUEUED_LINES:
            return
        line = _line(record)
        self._thread.do(lambda: self._write(line))
        if not waiting:
            self._thread.wait(_AT_ONCE_S)

    def flush(self, timeout_s: float) -> str:
        """Wait at most `timeout_s` until all is with the kernel; tell how many records are not."""
        self._thread.wait(timeout_s)
        lost = self._sent - self._written
        if not lost:
            return ""
        why = "its file system gave no answer in time"
        if self._error is not None:
            why = self._error.strerror or str(self._error)
        are_not = "1 event is not" if lost == 1 else f"{lost} events are not"
        return f"{are_not} in {self._path}: {why}"

    def close(self) -> None:
        """Close the file; harmless when it is closed."""
        self._thread.do(self._end)
        self._thread.wait(_AT_ONCE_S)

    def _begin(self) -> None:
        try:
            self._fd = self._open()
        except OSError as error:
            self._error = error

    def _write(self, line: bytes) -> None:
        try:
            if os.fstat(self._fd).st_size >= self._max_bytes:
                with suppress(OSError):
                    self._begin_another()
            self._written += os.write(self._fd, line) == len(line)
        except OSError as error:
            self._error = self._error or error

    def _end(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        # Command lines and environments are in it.
        return os.open(self._path, flags, 0o600)

    def _begin_another(self) -> None:
        """Rename the file, unless another process that writes to it has done so, and begin anew."""
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else the next record tries again
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._fd), os.stat(self._path)):
                os.replace(self._path, f"{self._path}.1")
        another = self._open()
        os.close(self._fd)  # which gives the lock back
        self._fd = another


class SocketSink:
    """Sends lines to a Unix stream socket without ever blocking.

    What the kernel does not take at once waits in a queue (the oldest goes first when it is full),
    which drains by itself as soon as the other side reads. Where nobody listens, the next record
    tries again.
    """

    def __init__(self, path: str, loop: Loop, *, max_queued_lines: int = _MAX_QUEUED_LINES) -> None:
        self._path = path
        self._loop = loop
        self._queue: deque[bytes] = deque(maxlen=max_queued_lines)
        self._rest = memoryview(b"")
        self._sock: socket.socket | None = None
        self._not_before = 0.0
        self._is_closed = False

    def send(self, record: Record) -> None:
        """Queue the record and hand over as much as the kernel takes now."""
        if not self._is_closed:
            self._queue.append(_line(record))
            self._drain()

    def flush(self, timeout_s: float) -> str:
        """Wait at most `timeout_s` until everything queued is with the kernel.

        Without a listener there is nothing to wait for: it returns at once.
        """
        deadline = time.monotonic() + timeout_s
        self._not_before = 0.0
        while self._rest or self._queue:
            self._drain()
            left_s = deadline - time.monotonic()
            if self._sock is None or left_s <= 0 or not (self._rest or self._queue):
                break
            wait_for(self._sock.fileno(), select.POLLOUT, left_s)
        return ""  # whether its socket was read is the harness's own business

    def close(self) -> None:
        """Give up the connection; harmless when it is closed."""
        self._is_closed = True
        self._disconnect()
        self._queue.clear()

    def _drain(self) -> None:
        had_to_wait = bool(self._rest)
        if not self._connect():
            return
        assert self._sock is not None, "connect said that there is a connection"
        while self._rest or self._queue:
            if not self._rest:
                self._rest = memoryview(self._queue.popleft())
            try:
                self._rest = self._rest[self._sock.send(self._rest) :]
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._disconnect()
                return
        if had_to_wait or self._rest:
            waiting = self._drain if self._rest else None
            self._loop.watch(self._sock.fileno(), on_writable=waiting)

    def _connect(self) -> bool:
        if self._sock is not None:
            return True
        if time.monotonic() < self._not_before:
            return False
        sock = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        try:
            sock.connect(self._path)
        except OSError:
            sock.close()
            self._not_before = time.monotonic() + _RECONNECT_S
            return False
        self._sock = sock
        return True

    def _disconnect(self) -> None:
        # A line of which the other side may have seen the beginning is not sent twice.
        self._rest = memoryview(b"")
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.unwatch(sock.fileno())
            sock.close()
            self._not_before = time.monotonic() + _RECONNECT_S


def _line(record: Record) -> bytes:
    return (encode_record(record) + "\n").encode()


def make_sink(url: str, loop: Loop) -> Sink:
    """Return the sink that PYTEST_ELASTIC_EVENTS asks for.

    "unix:/path" is a socket, "file:/path" a file, "" none at all.

    Raises UsageError for any other address, and for a file that cannot be opened.
    """
    scheme, colon, path = url.partition(":")
    if not url:
        return NullSink()
    if scheme == "unix" and colon and path:
        return SocketSink(path, loop)
    if scheme == "file" and colon and path:
        try:
            return FileSink(path)
        except OSError as error:
            raise UsageError(
                f"cannot write events to {path!r}: {error.strerror} ({EVENTS_VARIABLE}={url})"
            ) from error
    raise UsageError(
        f"cannot send events to {url!r}: expected 'unix:/path' or 'file:/path'",
        hint=f"It is the value of the environment variable {EVENTS_VARIABLE}.",
    )
