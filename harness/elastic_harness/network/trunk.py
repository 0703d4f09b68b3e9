"""A trunk: what passes between the switches of two machines, over one TCP connection.

TCP hides what the network between the machines loses, and delays it instead. So each side measures
how long the other takes to answer, for as long as frames are sent: an answer that took longer than
`STALL_S` is a stall, and frames that waited for it may have arrived too late. Frames that cannot be
queued or sent are refused. Both are counted as the harness's own doing.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from elastic_harness.future import Future, settled
from pytest_elastic.loop import Loop, Timer

__all__ = ["Trunk"]

# Jobs of the harness have leases from 1.25 s: a beat that is late by less than half of that loses
# none. Well above what a busy machine takes to run the other switch (tens of milliseconds).
STALL_S: Final = 0.5
_LOOK_S: Final = 0.1
# As many as a switch holds for its own links; a TCP connection never has more than its window under
# way, a few megabytes.
_MAX_QUEUED: Final = 8192
_PIECES_A_CALL: Final = 64
_HEAD: Final = struct.Struct("!BI")
_FRAME, _PING, _PONG = 0, 1, 2
_MAX_FRAME_BYTES: Final = 1 << 17
_BUFFER_BYTES: Final = 1 << 19


class Trunk:
    """One end of a trunk. `on_frame` gets each frame, valid during the call."""

    def __init__(
        self, loop: Loop, sock: socket.socket, *, on_frame: Callable[[memoryview], None]
    ) -> None:
        self.stalls = 0
        self._loop = loop
        self._sock = sock
        self._on_frame = on_frame
        self._queue: deque[memoryview] = deque()
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self._filled = 0
        self._asked_at: float | None = None
        self._is_used = False  # since the other side was asked
        self._flushes: list[Future[None]] = []
        self._flushes_of_next: list[Future[None]] = []
        self._is_stalled = False
        self._timer: Timer | None = None
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.watch(sock.fileno(), on_readable=self._read)

    @property
    def is_alive(self) -> bool:
        """Tell whether the connection is there."""
        return self._sock.fileno() >= 0

    def close(self) -> None:
        """End the connection; harmless when it has ended."""
        if self._timer is not None:
            self._timer.cancel()
        if self.is_alive:
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()
        self._queue.clear()
        self._end_flushes()

    def flush(self, *, asks_idle: bool = False) -> Future[None]:
        """Wait until all that was put has arrived, or the trunk has stalled, or is lost.

        With `asks_idle` also a trunk that has carried nothing has to answer.
        """
        if (self._is_used or asks_idle) and self._asked_at is None and self.is_alive:
            self._ask()
        if not self.is_alive or self._is_stalled or self._asked_at is None:
            return settled(None)
        done: Future[None] = Future()
        (self._flushes_of_next if self._is_used else self._flushes).append(done)
        return done

    def reset(self) -> None:
        """Count anew; a trunk that is stalled now is closed: it is of no use to the next run."""
        self.stalls = 0
        if self._is_stalled:
            self.close()

    def put(self, frame: bytes | memoryview) -> None:
        """Send a frame; raises OSError (ENOTCONN, ENOBUFS) where that is not possible."""
        if not self.is_alive:
            raise OSError(errno.ENOTCONN, "the trunk is lost")
        if len(self._queue) >= _MAX_QUEUED:
            raise OSError(errno.ENOBUFS, "the trunk's queue is full")
        self._send(_FRAME, frame)
        self._is_used = True
        if self._timer is None:
            self._look()

    def _send(self, kind: int, body: bytes | memoryview) -> None:
        head = _HEAD.pack(kind, len(body))
        if self._queue:
            self._queue.append(memoryview(head + body))
            return
        try:
            sent = self._sock.sendmsg((head, body))
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lose()
            return
        if sent < len(head) + len(body):
            self._queue.append(memoryview(head + body)[sent:])
            self._loop.watch(
                self._sock.fileno(), on_readable=self._read, on_writable=self._send_queued
            )

    def _send_queued(self) -> None:
        pieces = [self._queue[at] for at in range(min(len(self._queue), _PIECES_A_CALL))]
        try:
            sent = self._sock.sendmsg(pieces)
        except BlockingIOError:
            return
        except OSError:
            self._lose()
            return
        for piece in pieces:
            if sent < len(piece):
                self._queue[0] = piece[sent:]
                return
            sent -= len(piece)
            self._queue.popleft()
        if not self._queue:
            self._loop.watch(self._sock.fileno(), on_readable=self._read)

    def _read(self) -> None:
        try:
            size = self._sock.recv_into(self._view[self._filled :])
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self._lose()
            return
        view, at, end = self._view, 0, self._filled + size
        while end - at >= _HEAD.size:
            kind, length = _HEAD.unpack_from(view, at)
            if length > _MAX_FRAME_BYTES:
                self._lose()
                return
            after = at + _HEAD.size + length
            if after > end:
                break
            if kind == _FRAME:
                self._on_frame(view[at + _HEAD.size : after])
            elif kind == _PING:
                self._send(_PONG, b"")
            else:
                self._on_answer()
            if not self.is_alive:
                return
            at = after
        self._filled = end - at
        if at and self._filled:
            view[: self._filled] = bytes(view[at:end])

    def _look(self) -> None:
        """Ask the other side to answer, once at a time, while frames are sent."""
        self._timer = None
        now = self._loop.now()
        if self._asked_at is not None:
            self._check(now)
        elif self._is_used:
            self._ask()
        if self.is_alive and (self._asked_at is not None or self._is_used):
            self._look_later()

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self._loop.now() + _LOOK_S, self._look)

    def _ask(self) -> None:
        self._is_used, self._asked_at = False, self._loop.now()
        self._look_later()
        self._send(_PING, b"")

    def _on_answer(self) -> None:
        self._check(self._loop.now())
        self._asked_at, self._is_stalled = None, False
        flushed, self._flushes, self._flushes_of_next = self._flushes, self._flushes_of_next, []
        if self._flushes:
            self._ask()
        for flush in flushed:
            flush.settle(None)

    def _end_flushes(self) -> None:
        flushes = (*self._flushes, *self._flushes_of_next)
        self._flushes, self._flushes_of_next = [], []
        for flush in flushes:
            flush.settle(None)

    def _check(self, now: float) -> None:
        is_late = self._asked_at is not None and now - self._asked_at > STALL_S
        if is_late and not self._is_stalled:
            self._is_stalled = True
            self.stalls += 1
            self._end_flushes()

    def _lose(self) -> None:
        """End it: frames that were on their way are lost, nobody knows how many."""
        self.close()
        self.stalls += 1
