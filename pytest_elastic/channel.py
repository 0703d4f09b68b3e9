"""Messages over a stream socket: framed JSON, never blocking, file descriptors on request.

A frame is four bytes of length (big endian) and that many bytes of UTF-8 JSON holding one object;
on a Unix socket the first of the four counts the descriptors that come with it. The same channel
carries member to coordinator (TCP), agent to keeper, harness to node (Unix sockets). What is inside
a message is the business of whoever sends it; a frame that is not what it should be ends the
channel with a reason and harms nothing else.
"""

from __future__ import annotations

import array
import errno
import json
import os
import re
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_elastic.loop import Loop

__all__ = [
    "MAX_FRAME_BYTES",
    "Channel",
    "JsonObject",
    "connect",
    "host_to_look_up",
    "listen",
    "read_object",
    "write_object",
]

# JSON values have no useful static type; whoever receives a message checks it at its border.
JsonObject = Mapping[str, Any]

_SURROGATE = re.compile("[\ud800-\udfff]")
_LENGTH = struct.Struct(">I")
_CHUNK = 256 * 1024
# A frame above this is hostile or a bug: the largest honest one is a roster of 10 000 nodes (2 MB).
MAX_FRAME_BYTES = 16 * 1024 * 1024 - 1
# A peer that reads nothing while this much waits for it has stopped taking part.
MAX_QUEUED_BYTES = 64 * 1024 * 1024
_MAX_FDS = 16
# The kernel glues a message without descriptors to a next one with some, in a single read: so each
# frame says how many are its own, in the byte of the length that no honest frame needs.
_FD_COUNT_SHIFT = 24
_LENGTH_MASK = (1 << _FD_COUNT_SHIFT) - 1


class Channel:
    """One end of a connection. Callbacks run in the loop, never inside `send`.

    `on_message(message, fds)` receives each object with the descriptors that came with it (the
    receiver owns them); `on_closed(reason)` is called exactly once, unless this side called
    `close` first.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        *,
        on_message: Callable[[JsonObject, list[int]], None],
        on_closed: Callable[[str], None],
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self.is_foreign = False
        """Whether the other side sent what is no message of anybody's who speaks this protocol."""
        self._loop = loop
        self._sock = sock
        self._on_message = on_message
        self._on_closed = on_closed
        self._max_frame_bytes = max_frame_bytes
        self._inbox = bytearray()
        self._fds: list[int] = []
        self._outbox: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._queued_bytes = 0
        self._close_when_flushed = False
        self._is_unix = sock.family == socket.AF_UNIX
        sock.setblocking(False)
        if not self._is_unix:
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

    def allow_frames_of(self, max_bytes: int) -> None:
        """Take larger frames from here on: the other side has said who it is."""
        self._max_frame_bytes = max_bytes

    def send(self, message: JsonObject, fds: Sequence[int] = ()) -> None:
        """Queue one message; `fds` (Unix sockets only) are duplicated by the kernel when it leaves.

        The caller keeps its own descriptors open until `flush` or the answer. Sending on a closed
        channel does nothing: the loss is reported by `on_closed`.
        """
        if self.is_closed or self._close_when_flushed:
            return
        # To our own processes bytes of an environment that are no text go as they are.
        body = (
            json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode(
                errors="surrogatepass"
            )
            if self._is_unix
            else write_object(message).encode()
        )
        assert not fds or self._is_unix, "descriptors travel over Unix sockets only"
        assert len(body) <= _LENGTH_MASK, f"a message of {len(body)} bytes is no message"
        owned = [os.dup(fd) for fd in fds]
        head = _LENGTH.pack(len(fds) << _FD_COUNT_SHIFT | len(body))
        self._outbox.append((memoryview(head + body), owned))
        self._queued_bytes += len(body)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self._end(f"the other side let {self._queued_bytes} bytes wait", in_callback=False)
            return
        self._write()

    def close(self) -> None:
        """End the channel at once; queued messages are lost. Harmless when it has ended."""
        if self.is_closed:
            return
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
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
        self._loop.watch(
            self._sock.fileno(),
            on_readable=self._read,
            on_writable=self._write if self._outbox else None,
        )

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
        while not self.is_closed and (frame := self._next_frame()) is not None:
            body, fds = frame
            message = read_object(body, of_stranger=not self._is_unix)
            if message is None:
                for fd in fds:
                    os.close(fd)
                self.is_foreign = True
                self._end("received bytes that are not one of our messages")
                return
            self._on_message(message, fds)

    def _receive(self) -> bytes:
        if not self._is_unix:
            return self._sock.recv(_CHUNK)
        data, ancillary, _, _ = self._sock.recvmsg(
            _CHUNK, socket.CMSG_SPACE(_MAX_FDS * 4), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._fds.extend(fds)
        return data

    def _next_frame(self) -> tuple[bytes, list[int]] | None:
        if len(self._inbox) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._inbox)
        fd_count = 0
        if self._is_unix:
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
        body = bytes(self._inbox[_LENGTH.size : end])
        del self._inbox[:end]
        fds = self._fds[:fd_count]
        del self._fds[:fd_count]
        return body, fds


def write_object(message: JsonObject) -> str:
    """Return what `read_object` of another node takes: bytes that were no text stand as escapes."""
    text = json.dumps(message, separators=(",", ":"), ensure_ascii=False)
    if text.isascii():
        return text
    # They are in texts only, where a backslash is written as two.
    return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text)


def read_object(text: bytes | str, *, of_stranger: bool = True) -> JsonObject | None:
    """Return the JSON object that a text stands for; None for anything else, however deep.

    A stranger's must be text throughout: half of a surrogate pair can be read, and not written.
    """
    try:
        value = json.loads(text)
        if of_stranger and _may_hide_surrogates(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _may_hide_surrogates(text: bytes | str) -> bool:
    """Tell whether a text has an escape, or what a surrogate begins with in UTF-8 (U+D000 too)."""
    if isinstance(text, str):
        return "\\u" in text or not text.isascii()
    return b"\\u" in text or b"\xed" in text


def host_to_look_up(host: str) -> str | bytes:
    """Return a host for `socket.getaddrinfo`: as bytes, if it has no letter that is not ASCII.

    For a text CPython imports the codec of international names, whatever is in it: 1.2 MB, and a
    tenth of an agent's processor time until it has joined.
    """
    return host.encode("ascii") if host.isascii() else host


def listen(host: str, port: int, *, backlog: int = 512) -> socket.socket:
    """Open a listening TCP socket on `host` (an address or a name known here) and `port` (0: any).

    Raises OSError when the address is not ours or the port is taken.
    """
    family, kind, proto, _, address = socket.getaddrinfo(
        host_to_look_up(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind | socket.SOCK_CLOEXEC, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def connect(
    loop: Loop,
    host: str,
    port: int,
    *,
    timeout_s: float,
    on_connected: Callable[[socket.socket], None],
    on_failed: Callable[[OSError], None],
) -> Callable[[], None]:
    """Dial a numeric address without blocking; one of the callbacks runs, within `timeout_s`.

    What is no such address fails, and is not looked up: that would block, and others have said it.
    Returns a function that gives up (no callback runs after it).
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    def finish(error: OSError | None) -> None:
        timer.cancel()
        loop.unwatch(sock.fileno())
        if error is None:
            on_connected(sock)
        else:
            sock.close()
            on_failed(error)

    def on_writable() -> None:
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        finish(OSError(code, os.strerror(code)) if code else None)

    def give_up() -> None:
        timer.cancel()
        if sock.fileno() >= 0:
            loop.unwatch(sock.fileno())
            sock.close()

    timer = loop.call_at(
        loop.now() + timeout_s,
        lambda: finish(TimeoutError(errno.ETIMEDOUT, f"no answer within {timeout_s:g} s")),
    )
    code = _begin_connecting(sock, host, port)
    if code in (0, errno.EINPROGRESS):
        loop.watch(sock.fileno(), on_writable=on_writable)
    else:
        failure = OSError(code, os.strerror(code))
        loop.call_soon(lambda: None if sock.fileno() < 0 else finish(failure))
    return give_up


def _begin_connecting(sock: socket.socket, host: str, port: int) -> int:
    """Return 0 or an error number."""
    try:
        socket.inet_pton(sock.family, host.partition("%")[0])
        return sock.connect_ex((host, port))
    except (OSError, ValueError, OverflowError):
        return errno.EINVAL
