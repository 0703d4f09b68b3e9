"""Addresses as Go writes them, what they stand for, and connecting to one without waiting.

Errors are texts in Go's words, because clients of a Toxiproxy server get to see them. A loop must
not wait for a name server: numbers, `localhost` and what `/etc/hosts` lists are known at once, and
only an upstream may have another name, which a thread of its own looks up.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from pytest_elastic.loop import Loop, Timer

__all__ = [
    "AddressError",
    "Dial",
    "Dialling",
    "MakeDial",
    "OpenSocket",
    "bind",
    "go_error_text",
    "host_and_port",
    "resolved",
]

_HOSTS = "/etc/hosts"
_BACKLOG = 4096
# The kernel itself gives up after about 130 s. A test has long ended by then, and a client that is
# told after a minute still learns that nobody is there.
_DIAL_TIMEOUT_S = 60.0
# Lookups under way at once. More of them would be a proxy with a wrong upstream under load.
_MAX_LOOKUPS = 16

_lookups_under_way = threading.BoundedSemaphore(_MAX_LOOKUPS)

SocketAddress = tuple[socket.AddressFamily, tuple[str, int]]


class AddressError(Exception):
    """An address cannot be understood or had; the text is Go's."""


def go_error_text(error: OSError) -> str:
    """Return what Go says for a system error: the C library's words in lower case."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port`, `[host]:port` or `:port`."""
    host, colon, port = address.rpartition(":")
    if not colon or (address.startswith("[") and address.endswith("]")):
        raise AddressError(f"address {address}: missing port in address")
    if host.startswith("["):
        if not host.endswith("]"):
            raise AddressError(f"address {address}: missing ']' in address")
        host = host[1:-1]
    elif ":" in host:
        raise AddressError(f"address {address}: too many colons in address")
    return host, _port_number(port)


def resolved(address: str) -> str:
    """Return what `address` comes to, with a number for its host."""
    host, port = host_and_port(address)
    if not host:
        return f":{port}"
    return _text(_known(host, port)[0][1])


def bind(address: str) -> tuple[socket.socket, str]:
    """Return a listening socket for `address`, and the address it is bound to."""
    try:
        host, port = host_and_port(address) if address else ("", 0)
        family, where = _known(host, port)[0] if host else (socket.AF_INET, ("0.0.0.0", port))
    except AddressError as error:
        raise AddressError(f"listen tcp: {error}") from None
    if where[0] in ("0.0.0.0", "::") and socket.has_dualstack_ipv6():
        family, where = socket.AF_INET6, ("::", port)
    listener: socket.socket | None = None
    try:
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, where[0] != "::")
        listener.bind(where)
        listener.listen(_BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        text = f"listen tcp {_text(where)}: bind: {go_error_text(error)}"
        raise AddressError(text) from error
    return listener, _text(listener.getsockname())


# Calls back with a new TCP socket, or None where there can be none.
OpenSocket = Callable[[Callable[[socket.socket | None], None]], None]


class Dialling(Protocol):
    """An attempt to connect that is under way."""

    def start(self) -> None:
        """Begin; may call back before it returns."""

    def cancel(self) -> None:
        """Give up, without a call back; harmless at any moment."""


class MakeDial(Protocol):
    """Makes attempts to connect; `Dial` does."""

    def __call__(
        self,
        loop: Loop,
        address: str,
        *,
        on_connected: Callable[[socket.socket], None],
        on_failed: Callable[[str], None],
    ) -> Dialling:
        """Return an attempt that calls back once, unless cancelled."""


class Dial:
    """One attempt to connect; calls back once, unless cancelled.

    With `open_socket` the socket is one that somebody else opens, in another network than ours;
    None instead of a socket is a refusal.
    """

    def __init__(
        self,
        loop: Loop,
        address: str,
        *,
        on_connected: Callable[[socket.socket], None],
        on_failed: Callable[[str], None],
        open_socket: OpenSocket | None = None,
    ) -> None:
        self._loop = loop
        self._on_connected = on_connected
        self._on_failed = on_failed
        self._address = address
        self._candidates: list[SocketAddress] = []
        self._socket: socket.socket | None = None  # being connected, or told the result of a lookup
        self._deadline: Timer | None = None
        self._error = "no address"
        self._open_socket = open_socket
        self._is_over = False

    def start(self) -> None:
        """Begin; may call back before it returns."""
        self._deadline = self._loop.call_at(
            self._loop.now() + _DIAL_TIMEOUT_S, lambda: self._fail("i/o timeout")
        )
        try:
            host, port = host_and_port(self._address)
        except AddressError as error:
            self._fail(str(error))
            return
        try:
            self._candidates = _known(host or "127.0.0.1", port)
        except AddressError:
            self._look_up(host, port)
        else:
            self._try_next()

    def cancel(self) -> None:
        """Give up, without a call back; harmless at any moment."""
        self._is_over = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _fail(self, reason: str) -> None:
        self.cancel()
        self._on_failed(f"dial tcp {self._address}: {reason}")

    def _try_next(self) -> None:
        if not self._candidates:
            self._fail(self._error)
            return
        family, where = self._candidates.pop(0)
        if self._open_socket is not None:
            self._open_socket(lambda opened: self._connect_elsewhere(opened, where))
            return
        try:
            opened = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:  # no descriptor is left, or no such family
            self._refused(error.errno or errno.EMFILE)
            return
        self._connect(opened, where)

    def _connect_elsewhere(self, opened: socket.socket | None, where: tuple[str, int]) -> None:
        if self._is_over:
            if opened is not None:
                opened.close()
        elif opened is None:
            self._refused(errno.ENETUNREACH)
        else:
            opened.setblocking(False)
            self._connect(opened, where)

    def _connect(self, opened: socket.socket, where: tuple[str, int]) -> None:
        self._socket = opened
        result = opened.connect_ex(where)
        if result in (0, errno.EINPROGRESS):
            self._loop.watch(self._socket.fileno(), on_writable=self._connected)
        else:
            self._refused(result)

    def _connected(self) -> None:
        assert self._socket is not None, "only a socket that is being connected is watched"
        if result := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._refused(result)
            return
        try:
            is_own = self._socket.getpeername() == self._socket.getsockname()
        except OSError:
            return  # not yet: what was ready is an older descriptor with this number
        if is_own:
            # Where nobody listens, TCP can happen to connect a socket with itself.
            self._refused(errno.ECONNREFUSED)
            return
        connected, self._socket = self._socket, None
        self._loop.unwatch(connected.fileno())
        self.cancel()
        self._on_connected(connected)

    def _refused(self, code: int) -> None:
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._error = f"connect: {os.strerror(code).lower()}"
        self._try_next()

    def _look_up(self, host: str, port: int) -> None:
        """Ask a thread. It owns the other end of a socket pair, and closes it when it knows."""
        if not _lookups_under_way.acquire(blocking=False):
            self._fail(f"lookup {host}: too many lookups under way")
            return
        try:
            self._socket, answer = socket.socketpair()
        except OSError as error:
            _lookups_under_way.release()
            self._fail(f"lookup {host}: {go_error_text(error)}")
            return
        found: list[SocketAddress] = []

        def look_up() -> None:
            # ValueError: a name that no name server could be asked for.
            with answer, suppress(OSError, ValueError):
                for family, _, _, _, where in socket.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM
                ):
                    found.append((family, (str(where[0]), port)))
            _lookups_under_way.release()

        def looked_up() -> None:
            assert self._socket is not None, "a cancelled lookup is not watched"
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None
            self._error = f"lookup {host}: no such host"
            self._candidates = found
            self._try_next()

        self._loop.watch(self._socket.fileno(), on_readable=looked_up)
        threading.Thread(target=look_up, name="toxiproxy-lookup", daemon=True).start()


def _port_number(port: str) -> int:
    if port.isascii() and port.isdigit():
        if int(port[:6]) > 65535:
            raise AddressError(f"address {port}: invalid port")
        return int(port)
    try:
        return socket.getservbyname(port, "tcp") if port else 0
    except (OSError, UnicodeError, ValueError):
        raise AddressError(f"lookup tcp/{port}: unknown port") from None


def _known(host: str, port: int) -> list[SocketAddress]:
    """Return the addresses of a host without asking anybody."""
    with suppress(OSError, UnicodeError, ValueError):
        numeric = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
        return [(family, (str(where[0]), port)) for family, _, _, _, where in numeric]
    if host.lower() == "localhost":
        return [(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET6, ("::1", port))]
    found = [address for number in _listed_in_hosts(host) for address in _known(number, port)]
    if not found:
        raise AddressError(f"lookup {host}: no such host")
    return sorted(found, key=lambda address: address[0] != socket.AF_INET)


def _listed_in_hosts(host: str) -> list[str]:
    try:
        with open(_HOSTS, encoding="utf-8", errors="replace") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except OSError:
        return []
    return [
        words[0]
        for words in lines
        if host.lower() in (word.lower() for word in words[1:])
        and words[0].replace(".", "").replace(":", "").isalnum()
    ]


def _text(where: tuple[str, int] | tuple[str, int, int, int]) -> str:
    host, port = where[0], where[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
