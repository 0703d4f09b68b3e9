"""Connections of probes and launchers to the harness, where they are on this machine.

The kernel names the process at the other end (SO_PEERCRED, translated into our pid namespace), a
pidfd says when that process is dead.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final

from elastic_harness.cluster.process_table import ancestors, has_ended, row_of
from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop

__all__ = ["LocalConnection", "LocalReporters"]

_CREDENTIALS: Final = struct.Struct("3i")
_CHUNK: Final = 1 << 18
# A Unix socket's path has 108 bytes, the closing zero included.
_MAX_PATH_BYTES: Final = 107


class LocalConnection:
    """A connection over a Unix socket of this machine (`facets.Connection`)."""

    clock_offset_s = 0.0

    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        self._loop = loop
        self._sock = sock
        self._pidfd = -1
        self._on_data: Callable[[bytes], None] = lambda _: None
        self._on_closed: Callable[[], None] = lambda: None
        sock.setblocking(False)
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid: int = _CREDENTIALS.unpack(raw)[0]

    @property
    def start_time(self) -> int:
        process = row_of(self.pid)
        return process.start_ticks if process is not None else 0

    @property
    def is_closed(self) -> bool:
        return self._sock.fileno() < 0

    def ancestors(self) -> Sequence[int]:
        return ancestors(self.pid)

    def open(self, on_data: Callable[[bytes], None], on_closed: Callable[[], None]) -> None:
        self._on_data, self._on_closed = on_data, on_closed
        self._loop.watch(self._sock.fileno(), on_readable=self.read)

    def read(self) -> None:
        while not self.is_closed:
            try:
                data = self._sock.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                self._on_closed()
                return
            self._on_data(data)

    def send(self, data: bytes) -> None:
        # A worker reads at each step; one that has left some thousand orders unread is stopped.
        with contextlib.suppress(OSError):
            self._sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def close(self) -> None:
        if not self.is_closed:
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()

    def watch_end(self, on_ended: Callable[[], None]) -> None:
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError:
            # Gone between its hello and now: no other process can have its pid yet without being
            # seen.
            self._loop.call_soon(on_ended)
            return
        self._loop.watch(self._pidfd, on_readable=on_ended)

    def has_ended(self) -> bool:
        return self._pidfd < 0 or has_ended(self._pidfd)

    def unwatch_end(self) -> None:
        if self._pidfd >= 0:
            self._loop.unwatch(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


class LocalReporters:
    """`Reporters` of a cluster on this machine: a Unix socket for all nodes."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def listen(
        self, path: str, on_connection: Callable[[LocalConnection], None]
    ) -> Callable[[], None]:
        """Listen at a path; returns what ends that. Raises UsageError when the path is too long."""
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise UsageError(
                f"cannot listen at {path!r}: it has {len(os.fsencode(path))} bytes, "
                f"and a Unix socket's path at most {_MAX_PATH_BYTES}"
            )
        loop = self._loop
        listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        listener.bind(path)
        # Workers may run as another user (a user namespace's); what they can say does no harm.
        os.chmod(path, 0o777)  # noqa: S103
        listener.listen(1024)

        def accept() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                on_connection(LocalConnection(loop, sock))

        def close() -> None:
            if listener.fileno() >= 0:
                loop.unwatch(listener.fileno())
                listener.close()
                with contextlib.suppress(OSError):
                    os.unlink(path)

        loop.watch(listener.fileno(), on_readable=accept)
        return close
