"""Frames over a stream socket: never blocking, with file descriptors on request, fair to others.

A frame is four bytes of length (big endian) and that many bytes; on a Unix socket the first of the
four counts the descriptors that come with it. `channel` reads each frame as JSON; `agent_channel`
checks its signature first.

A connection of a stranger is on probation: it may hold little of our memory, and is served after
all others, until `trust` is called.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_elastic.loop import Loop

__all__ = ["MAX_FRAME_BYTES", "STRANGERS_FRAME_BYTES", "FrameStream", "Probation"]

_LENGTH = struct.Struct(">I")
_CHUNK = 256 * 1024
# A frame above this is hostile or a bug: the largest honest one is a roster of 10 000 nodes (2 MB).
MAX_FRAME_BYTES = 16 * 1024 * 1024 - 1
# The largest honest first message tells how a job ended, with its members: 200 bytes for each node.
STRANGERS_FRAME_BYTES = 256 * 1024
# A peer that reads nothing while this much waits for it has stopped taking part.
MAX_QUEUED_BYTES = 64 * 1024 * 1024
# More in one turn of the loop would delay the beats of others; with fewer, the same frames would
# take more turns.
_FRAMES_A_TURN = 16
_MAX_FDS = 16
# The kernel glues a message without descriptors to a next one with some, in a single read: so each
# frame says how many are its own, in the byte of the length that no honest frame needs.
_FD_COUNT_SHIFT = 24
_LENGTH_MASK = (1 << _FD_COUNT_SHIFT) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Probation:
    """What holds for a stranger's connection; `on_held` hears by how much its memory changed."""

    on_held: Callable[[int], None] = lambda _: None


class FrameStream:
    """One end of a connection. Callbacks run in the loop, never inside `send`.

    `on_frame(body, fds)` receives each frame with the descriptors that came with it (the receiver
    owns them); `on_closed(reason)` is called exactly once, unless this side called `close` first.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        *,
        on_frame: Callable[[bytes, list[int]], None],
        on_closed: Callable[[str], None],
        probation: Probation | None = None,
    ) -> None:
        self.is_foreign = False
        """Whether the other side sent something that is no message of this protocol."""
        self._loop = loop
        self._sock = sock
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._probation = probation
        self._inbox = bytearray()
        self._fds: list[int] = []
        self._outbox: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._queued_bytes = 0
        self._close_when_flushed = False
        self._has_frames_left = False
        self.is_unix = sock.family == socket.AF_UNIX
        sock.setblocking(False)
        if not self.is_unix:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch()

    @property
    def is_closed(self) -> bool:
        """Tell whether the channel has ended, from either side."""
        return self._sock.fileno() < 0

    @property
    def socket(self) -> socket.socket:
        """The socket below, for options and addresses; never read or write it."""
        return self._sock

    def trust(self) -> None:
        """End the probation: the other side has identified itself."""
        self._hold(-len(self._inbox))
        self._probation = None
        self._watch()

    def send_frame(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Queue one frame; `fds` (Unix sockets only) are duplicated at once.

        So the caller may close its own descriptors. Sending on a closed stream does nothing: the
        loss is reported by `on_closed`.
        """
        if self.is_closed or self._close_when_flushed:
            return
        assert not fds or self.is_unix, "descriptors travel over Unix sockets only"
        assert len(body) <= _LENGTH_MASK, f"a message of {len(body)} bytes is no message"
        owned = [os.dup(fd) for fd in fds]
        head = _LENGTH.pack(len(fds) << _FD_COUNT_SHIFT | len(body))
        self._outbox.append((memoryview(head + body), owned))
        self._queued_bytes += len(body)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._end(f"the other side let {self._queued_bytes} bytes wait", in_callback=False)
            return
        self._write()

    def reject(self) -> None:
        """End the stream: the last frame was none of ours."""
        self.is_foreign = True
        self._end("received bytes that are not one of our messages")

    def close(self) -> None:
        """End the channel at once; queued messages are lost. Harmless when it has ended."""
        if self.is_closed:
            return
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        self._hold(-len(self._inbox))
        self._inbox.clear()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        for _, fds in self._outbox:
            for fd in fds:
                os.close(fd)
        self._outbox.clear()

    def close_when_flushed(self) -> None:
        """End the channel as soon as everything queued has been handed to the kernel."""
        self._close_when_flushed = True
        if not self._outbox:
            self.close()

    def _watch(self) -> None:
        if self.is_closed:
            return
        self._loop.watch(
            self._sock.fileno(),
            on_readable=None if self._has_frames_left else self._read,
            on_writable=self._write if self._outbox else None,
            low_priority=self._probation is not None,
        )

    def _hold(self, more_bytes: int) -> None:
        if self._probation is not None and more_bytes:
            self._probation.on_held(more_bytes)

    def _end(self, reason: str, *, in_callback: bool = True) -> None:
        if self.is_closed:
            return
        self.close()
        if in_callback:
            self._on_closed(reason)
        else:
            self._loop.call_soon(lambda: self._on_closed(reason))

    def _write(self) -> None:
        had_to_wait = bool(self._outbox)
        while self._outbox:
            data, fds = self._outbox[0]
            try:
                sent = self._send_some(data, fds)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                # What the other side said before it went is still to be read: let `_read` end it.
                if error.errno in (errno.EPIPE, errno.ECONNRESET):
                    self._drop_outbox()
                    break
                self._end(f"writing failed: {error.strerror}", in_callback=False)
                return
            for fd in fds:
                os.close(fd)
            if sent == len(data):
                self._queued_bytes -= len(data) - _LENGTH.size
                self._outbox.popleft()
            else:
                self._outbox[0] = (data[sent:], ())
        if self._close_when_flushed and not self._outbox:
            self.close()
        elif had_to_wait:
            self._watch()

    def _drop_outbox(self) -> None:
        for _, fds in self._outbox:
            for fd in fds:
                os.close(fd)
        self._outbox.clear()
        self._queued_bytes = 0

    def _send_some(self, data: memoryview, fds: Sequence[int]) -> int:
        if not fds:
            return self._sock.send(data)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())]
        return self._sock.sendmsg([data], ancillary)

    def _read(self) -> None:
        try:
            data = self._receive()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(f"reading failed: {error.strerror}")
            return
        if not data:
            self._end("the other side closed the connection")
            return
        self._inbox += data
        self._hold(len(data))  # which may end this stream
        self._take_frames()

    def _take_frames(self) -> None:
        """Hand over the frames that are complete, as many as one turn of the loop allows."""
        had_frames_left, self._has_frames_left = self._has_frames_left, False
        for _ in range(_FRAMES_A_TURN):
            if self.is_closed or (frame := self._next_frame()) is None:
                break
            self._on_frame(*frame)
        else:
            # Nothing more is read until these are dealt with: the other side has to wait.
            self._has_frames_left = not self.is_closed
            self._loop.call_soon(self._take_frames)
        if self._has_frames_left != had_frames_left:
            self._watch()

    def _receive(self) -> bytes:
        if not self.is_unix:
            return self._sock.recv(min(_CHUNK, self._max_frame_bytes + _LENGTH.size))
        data, ancillary, _, _ = self._sock.recvmsg(
            _CHUNK, socket.CMSG_SPACE(_MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._fds.extend(fds)
        return data

    @property
    def _max_frame_bytes(self) -> int:
        return MAX_FRAME_BYTES if self._probation is None else STRANGERS_FRAME_BYTES

    def _next_frame(self) -> tuple[bytes, list[int]] | None:
        if len(self._inbox) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._inbox)
        fd_count = 0
        if self.is_unix:
            fd_count, length = length >> _FD_COUNT_SHIFT, length & _LENGTH_MASK
        if length > self._max_frame_bytes:
            self.is_foreign = True
            self._end(f"received a frame of {length} bytes (at most {self._max_frame_bytes})")
            return None
        end = _LENGTH.size + length
        if len(self._inbox) < end:
            return None
        if fd_count > len(self._fds):
            self._end(f"received {len(self._fds)} descriptors where {fd_count} were announced")
            return None
        body = bytes(memoryview(self._inbox)[_LENGTH.size : end])
        del self._inbox[:end]
        self._hold(-end)
        fds = self._fds[:fd_count]
        del self._fds[:fd_count]
        return body, fds
