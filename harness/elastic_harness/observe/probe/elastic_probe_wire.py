# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
"""The probe's connection: lines out without ever waiting, lines in without ever asking twice."""

from __future__ import annotations

import _socket
import os
import select
import time
from _thread import allocate_lock

TYPE_CHECKING = False  # `import typing` alone would cost more than all of this file
if TYPE_CHECKING:
    from collections import deque
else:
    from _collections import deque

__all__ = ["HELLO_LIMIT_S", "Wire", "high_descriptor", "now", "quoted"]

# The harness answers within a few milliseconds; when it does not, the job matters more.
HELLO_LIMIT_S = 5.0
# Some ten thousand steps: a harness that is stopped for a while loses nothing.
_MAX_BUFFERED_BYTES = 1 << 20
# Scripts see the lowest free numbers they are used to, and close ranges of them.
_LOWEST_FD = 512


def now() -> float:
    """Return the time on the clock of the harness, which is the machine's."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def quoted(text: str) -> str:
    """Return text as JSON; the C helper is in every CPython, and `import json` costs 3 ms."""
    try:
        from _json import encode_basestring_ascii
    except ImportError:
        from json import dumps

        return dumps(text)
    # Bytes that are no UTF-8 arrive as lone surrogates, which are legal in JSON's ASCII form.
    return encode_basestring_ascii(text)


def high_descriptor(fd: int) -> int:
    """Move a descriptor out of the script's way, if so many descriptors are allowed here."""
    import fcntl

    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    except OSError:
        return fd
    os.close(fd)
    return high


class Wire:
    """A Unix socket to the harness; silent where there is none, or none any more."""

    def __init__(self) -> None:
        self.dropped = 0
        self._sock: _socket.socket | None = None
        self._lock = allocate_lock()
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._rest = b""
        self._in = b""

    @property
    def is_open(self) -> bool:
        """Tell whether the harness may be listening."""
        return self._sock is not None

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 where there is none."""
        return -1 if self._sock is None else self._sock.fileno()

    def connect(self, path: str) -> bool:
        """Connect to the harness; False where there is none."""
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(HELLO_LIMIT_S)
            sock.connect(path)
        except OSError:
            sock.close()
            return False
        fd = high_descriptor(sock.detach())
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        sock.setblocking(False)
        self._sock = sock
        return True

    def say(self, what: str, fields: str, at: float) -> None:
        """Send one line: `fields` is the inside of a JSON object, or empty."""
        if self._sock is None:
            return
        comma = "," if fields else ""
        line = f'{{"say":"{what}","at":{at:.6f}{comma}{fields}}}\n'.encode()
        if self._out_bytes + len(line) > _MAX_BUFFERED_BYTES:
            self.dropped += 1
            return
        self._out_bytes += len(line)
        self._out.append(line)
        self._flush()

    def _flush(self) -> None:
        # Signal handlers and threads come in between: the holder of the lock sends for all.
        if not self._lock.acquire(False):
            return
        try:
            while self._sock is not None and (self._rest or self._out):
                if not self._rest:
                    self._rest = self._out.popleft()
                sent = self._sock.send(self._rest, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
                self._rest = self._rest[sent:]
                self._out_bytes -= sent
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()
        finally:
            self._lock.release()

    def read(self) -> list[list[str]]:
        """Return the lines that have arrived, as words; never waits."""
        if self._sock is None:
            return []
        try:
            data = self._sock.recv(4096, _socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        *lines, self._in = (self._in + data).split(b"\n")
        return [words for line in lines if (words := line.decode("ascii", "replace").split())]

    def wait(self, deadline: float) -> bool:
        """Wait until something has arrived; False after the deadline. Signal handlers run."""
        left_s = deadline - now()
        if self._sock is None or left_s <= 0:
            return False
        self._poll(select.POLLIN, left_s)
        return True

    def _poll(self, events: int, left_s: float) -> None:
        if self._sock is not None:
            poll = select.poll()
            poll.register(self._sock.fileno(), events)
            poll.poll(left_s * 1000 + 1)  # rounded down: 0 would be a busy wait

    def flush(self, limit_s: float) -> None:
        """Wait at most so long until everything is with the kernel."""
        deadline = now() + limit_s
        while self._out_bytes and (left_s := deadline - now()) > 0:
            self._poll(select.POLLOUT, left_s)
            self._flush()

    def close(self) -> None:
        """Fall silent for good."""
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        self._out_bytes = 0

    def forget(self) -> None:
        """Have nothing to do with the harness any more: this is a forked child."""
        self._lock = allocate_lock()
        self.close()
