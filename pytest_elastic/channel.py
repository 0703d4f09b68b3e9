"""Messages over a stream socket: frames of UTF-8 JSON, each of which holds one object.

The same channel carries agent to keeper and harness to node (Unix sockets); between agents
`agent_channel` is used. A frame that is not a JSON object ends the channel with a reason, and harms
nothing else.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_elastic.frames import FrameStream
from pytest_elastic.loop import Loop
from pytest_elastic.port_range import PortRange

__all__ = [
    "Channel",
    "JsonObject",
    "connect",
    "host_to_look_up",
    "listen",
    "listen_on_free_port",
    "numeric_address",
    "read_object",
    "socket_address",
    "write_object",
]

# JSON values have no useful static type; the receiver of a message checks it.
JsonObject = Mapping[str, Any]

_SURROGATE = re.compile("[\ud800-\udfff]")


class Channel(FrameStream):
    """A stream whose frames are JSON objects. Callbacks run in the loop, never inside `send`.

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
    ) -> None:
        self._on_message = on_message
        super().__init__(loop, sock, on_frame=self._on_body, on_closed=on_closed)

    def send(self, message: JsonObject, fds: Sequence[int] = ()) -> None:
        """Queue one message; see `FrameStream.send_frame`."""
        # To our own processes bytes of an environment that are no text go as they are.
        body = (
            json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode(
                errors="surrogatepass"
            )
            if self.is_unix
            else write_object(message).encode()
        )
        self.send_frame(body, fds)

    def _on_body(self, body: bytes, fds: list[int]) -> None:
        message = read_object(body, of_stranger=not self.is_unix)
        if message is None:
            for fd in fds:
                os.close(fd)
            self.reject()
        else:
            self._on_message(message, fds)


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


def numeric_address(address: tuple[Any, ...]) -> str:
    """Return the IP address in what `socket.getaddrinfo` or `getsockname` gave.

    A link-local one gets its interface, which Python gives as a number apart: "fe80::1%eth0".
    """
    interface = address[3] if len(address) == 4 else 0
    return f"{address[0]}%{socket.if_indextoname(interface)}" if interface else str(address[0])


def socket_address(address: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    """Return a socket's address for a numeric one and a port; nothing is looked up.

    The interface of a link-local address is a name or a number. Raises OSError for none of ours.
    """
    host, _, scope = address.partition("%")
    if ":" not in host:
        return host, port
    number = int(scope) if scope.isdecimal() else socket.if_nametoindex(scope) if scope else 0
    return host, port, 0, number


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


def listen_on_free_port(host: str, ports: PortRange | None, *, after: int | None) -> socket.socket:
    """Open a listening TCP socket on any free port, or on one of `ports`.

    Of those, the one behind `after` is tried first (None: behind any), so that a port is not used
    again at once: a peer may still dial it for what listened there before. Raises OSError.
    """
    if ports is None:
        return listen(host, 0)
    if after is None:
        after = int.from_bytes(
            os.urandom(4), "big"
        )  # `secrets` would import as much as all of this
    for port in ports.after(after):
        try:
            return listen(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"all ports of --rdzv-conf port_range={ports} are in use")


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
        return sock.connect_ex(socket_address(host, port))
    except (OSError, ValueError, OverflowError):
        return errno.EINVAL
