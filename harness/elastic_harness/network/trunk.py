"""A trunk: what passes between the switches of two machines, over one TCP connection or by UDP.

TCP hides what the network between the machines loses, and delays it instead; UDP loses it. So each
side measures how long the other takes to answer, for as long as frames are sent, and by UDP also
how many of them have come: an answer that took longer than `STALL_S` is a stall, and frames that
waited for it may have arrived too late. Frames that cannot be queued or sent are refused. All of
this is counted as the harness's own doing.
"""

from __future__ import annotations

import errno
import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Final

from elastic_harness.future import Future, settled
from pytest_elastic.loop import Loop, Timer

__all__ = ["DATAGRAM_MTU", "DatagramTrunk", "StreamTrunk", "Trunk", "trunk_over"]

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
# The number of a question; and how many frames had come before that.
_ASKED: Final = struct.Struct("!I")
_ANSWERED: Final = struct.Struct("!IQ")
_MAX_FRAME_BYTES: Final = 1 << 17
_BUFFER_BYTES: Final = 1 << 19
# What nodes may send at a time, so that a datagram is one packet on an Ethernet, by IPv6 too.
DATAGRAM_MTU: Final = 1400
_DATAGRAMS_A_CALL: Final = 64
# A burst of a window of TCP.
_DATAGRAM_BUFFER_BYTES: Final = 8 << 20
_BUFFER_OPTIONS: Final = ((33, socket.SO_RCVBUF), (32, socket.SO_SNDBUF))  # SO_..BUFFORCE
_NO_ROOM: Final = frozenset({errno.ENOBUFS, errno.EAGAIN})


class Trunk(ABC):
    """One end of a trunk. `on_frame` gets each frame, valid during the call.

    Where it `_may_lose` what is sent, questions are asked again.
    """

    _may_lose: ClassVar[bool]

    def __init__(
        self, loop: Loop, sock: socket.socket, *, on_frame: Callable[[memoryview], None]
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._on_frame = on_frame
        self._queue: deque[memoryview] = deque()
        self._stalls = 0
        self._sent = self._received = 0
        # Of the frames before the last question that was answered; and at the last reset.
        self._missing = self._missing_before = 0
        self._question = 0
        self._asked_at: float | None = None
        self._sent_before = 0  # when it was asked
        self._is_used = False  # since the other side was asked
        self._flushes: list[Future[None]] = []
        self._flushes_of_next: list[Future[None]] = []
        self._is_stalled = False
        self._timer: Timer | None = None
        sock.setblocking(False)
        loop.watch(sock.fileno(), on_readable=self._read)

    @property
    def is_alive(self) -> bool:
        """Tell whether the connection is there."""
        return self._sock.fileno() >= 0

    @property
    def failures(self) -> int:
        """How often it has stalled, and how many frames did not come, since the last reset."""
        return self._stalls + max(0, self._missing - self._missing_before)

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
        self._stalls, self._missing_before = 0, self._missing
        if self._is_stalled:
            self.close()

    def put(self, frame: bytes | memoryview) -> None:
        """Send a frame; raises OSError (ENOTCONN, ENOBUFS) where that is not possible."""
        if not self.is_alive:
            raise OSError(errno.ENOTCONN, "the trunk is lost")
        if len(self._queue) >= _MAX_QUEUED:
            raise OSError(errno.ENOBUFS, "the trunk's queue is full")
        self._sent += 1
        self._send(_FRAME, frame)
        self._is_used = True
        if self._timer is None:
            self._look()

    @abstractmethod
    def _send(self, kind: int, body: bytes | memoryview) -> None:
        """Send something, or queue it where there is no room, in order."""

    @abstractmethod
    def _send_queued(self) -> None:
        """Send what is queued, as far as there is room."""

    @abstractmethod
    def _read(self) -> None:
        """Take what has come."""

    def _send_when_writable(self) -> None:
        self._loop.watch(self._sock.fileno(), on_readable=self._read, on_writable=self._send_queued)

    def _take(self, kind: int, body: memoryview) -> None:
        if kind == _FRAME:
            self._received += 1
            self._on_frame(body)
        elif kind == _PING and len(body) == _ASKED.size:
            (question,) = _ASKED.unpack(body)
            self._send(_PONG, _ANSWERED.pack(question, self._received))
        elif kind == _PONG and len(body) == _ANSWERED.size:
            question, received = _ANSWERED.unpack(body)
            if question == self._question and self._asked_at is not None:
                self._on_answer(received)
        else:
            self._lose()

    def _look(self) -> None:
        """Ask the other side to answer, once at a time, while frames are sent."""
        self._timer = None
        now = self._loop.now()
        if self._asked_at is not None:
            self._check(now)
            if self._may_lose:
                self._send(_PING, _ASKED.pack(self._question))
        elif self._is_used:
            self._ask()
        if self.is_alive and (self._asked_at is not None or self._is_used):
            self._look_later()

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self._loop.now() + _LOOK_S, self._look)

    def _ask(self) -> None:
        self._is_used, self._asked_at = False, self._loop.now()
        self._question, self._sent_before = (self._question + 1) % (1 << 32), self._sent
        self._look_later()
        self._send(_PING, _ASKED.pack(self._question))

    def _on_answer(self, received: int) -> None:
        self._check(self._loop.now())
        self._missing = self._sent_before - received
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
            self._stalls += 1
            self._end_flushes()

    def _lose(self) -> None:
        """End it: frames that were on their way are lost, an unknown number."""
        self.close()
        self._stalls += 1


class StreamTrunk(Trunk):
    """A trunk over a TCP connection: frames of any length, in order."""

    _may_lose = False

    def __init__(
        self, loop: Loop, sock: socket.socket, *, on_frame: Callable[[memoryview], None]
    ) -> None:
        super().__init__(loop, sock, on_frame=on_frame)
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self._filled = 0
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

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
            self._send_when_writable()

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
            self._take(kind, view[at + _HEAD.size : after])
            if not self.is_alive:
                return
            at = after
        self._filled = end - at
        if at and self._filled:
            view[: self._filled] = bytes(view[at:end])


class DatagramTrunk(Trunk):
    """A trunk over a UDP socket that is connected: a frame is a datagram, and may be lost.

    Frames are from nodes that send no more than `DATAGRAM_MTU` bytes at a time. Each datagram
    begins with the `cookie` that both ends have; others are forged, or of an earlier trunk.
    """

    _may_lose = True

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        cookie: bytes,
        *,
        on_frame: Callable[[memoryview], None],
    ) -> None:
        super().__init__(loop, sock, on_frame=on_frame)
        self._cookie = cookie
        self._view = memoryview(bytearray(1 << 16))
        for forced, asked in _BUFFER_OPTIONS:
            try:
                sock.setsockopt(socket.SOL_SOCKET, forced, _DATAGRAM_BUFFER_BYTES)
            except PermissionError:  # then it is what the system allows (net.core.rmem_max)
                sock.setsockopt(socket.SOL_SOCKET, asked, _DATAGRAM_BUFFER_BYTES)

    def _send(self, kind: int, body: bytes | memoryview) -> None:
        datagram = memoryview(self._cookie + bytes((kind,)) + body)
        if self._queue or not self._is_sent(datagram):
            self._queue.append(datagram)
            self._send_when_writable()

    def _send_queued(self) -> None:
        while self._queue and self._is_sent(self._queue[0]):
            self._queue.popleft()
        if not self._queue and self.is_alive:
            self._loop.watch(self._sock.fileno(), on_readable=self._read)

    def _is_sent(self, datagram: memoryview) -> bool:
        """Send a datagram; False where there is no room for it now."""
        try:
            self._sock.send(datagram)
        except ConnectionRefusedError:
            self._lose()  # the other end is gone
        except OSError as error:
            # A network that is unreachable for a moment has lost it, as one that is full may.
            return error.errno not in _NO_ROOM
        return True

    def _read(self) -> None:
        for _ in range(_DATAGRAMS_A_CALL):
            try:
                size = self._sock.recv_into(self._view)
            except BlockingIOError:
                return
            except OSError:
                self._lose()
                return
            at = len(self._cookie)
            if size > at and self._view[:at] == self._cookie:
                self._take(self._view[at], self._view[at + 1 : size])
            if not self.is_alive:
                return


def trunk_over(
    loop: Loop,
    sock: socket.socket,
    cookie: bytes = b"",
    *,
    on_frame: Callable[[memoryview], None],
) -> Trunk:
    """Return the trunk that a connected socket is for; `cookie`: see `DatagramTrunk`."""
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM:
        return StreamTrunk(loop, sock, on_frame=on_frame)
    return DatagramTrunk(loop, sock, cookie, on_frame=on_frame)
