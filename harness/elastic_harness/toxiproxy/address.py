"""Addresses of proxies (`host:port`): listening at one, and connecting to one without waiting.

A loop must not wait for a name server. Numbers are known at once; a thread looks up the name of an
upstream. Only a `listen` address with a name that needs a name server holds its loop up.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from pytest_elastic.loop import Loop, Timer

__all__ = [
    "AddressError",
    "Dial",
    "Listener",
    "OpenSocket",
    "host_and_port",
    "resolved",
]

_BACKLOG = 4096
_ACCEPTS_AT_ONCE = 64
# When the process has no descriptor left, waiting clients keep the listener readable.
_PAUSE_S = 0.1
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# The kernel itself gives up after about 130 s. A test has long ended by then, and a client that is
# told after a minute still learns that nothing is there.
_DIAL_TIMEOUT_S = 60.0
# Lookups under way at once. More of them would be a proxy with a wrong upstream under load.
_MAX_LOOKUPS = 16

_lookups_under_way = threading.BoundedSemaphore(_MAX_LOOKUPS)

SocketAddress = tuple[socket.AddressFamily, tuple[str, int]]


class AddressError(Exception):
    """An address cannot be understood or had."""


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port`, `[host]:port` or `:port`."""
    try:
        parts = urlsplit(f"//{address}")
        port = parts.port
    except ValueError as error:
        raise AddressError(f"address {address}: {error}") from None
    if port is None:
        raise AddressError(f"address {address}: missing port in address")
    return parts.hostname or "", port


def resolved(address: str) -> str:
    """Return what `address` comes to, with a number for its host."""
    host, port = host_and_port(address)
    return _text(_look_up(host, port)[0][1]) if host else f":{port}"


def _look_up(host: str, port: int, flags: int = 0) -> list[SocketAddress]:
    """Return the addresses of a host; waits for a name server if it is a name that needs one."""
    if host.lower() == "localhost":  # /etc/hosts often has one of the two only
        return [(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET6, ("::1", port))]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError, ValueError):  # ValueError: there is a NUL in it
        raise AddressError(f"lookup {host}: no such host") from None
    addresses = [(family, (str(where[0]), port)) for family, _, _, _, where in found]
    return sorted(addresses, key=lambda each: each[0] != socket.AF_INET)


def _bind(address: str) -> socket.socket:
    try:
        host, port = host_and_port(address or ":0")
        family, where = _look_up(host, port)[0] if host else (socket.AF_INET, ("0.0.0.0", port))
    except AddressError as error:
        raise AddressError(f"listen tcp: {error}") from None
    is_dual = where[0] in ("0.0.0.0", "::") and socket.has_dualstack_ipv6()
    if is_dual:
        family, where = socket.AF_INET6, ("::", port)
    try:
        listener = socket.create_server(
            where, family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual
        )
    except OSError as error:
        text = os.strerror(error.errno).lower() if error.errno else str(error)
        raise AddressError(f"listen tcp {_text(where)}: bind: {text}") from error
    listener.setblocking(False)
    return listener


class Listener:
    """Listens from its making until `close`, and hands over what it accepts, not blocking.

    Raises AddressError where the address cannot be had; `address` is the one it is bound to. A
    `bound` socket that listens already is taken over instead.
    """

    def __init__(
        self,
        loop: Loop,
        address: str,
        *,
        on_accepted: Callable[[socket.socket], None],
        bound: socket.socket | None = None,
    ) -> None:
        self._socket = _bind(address) if bound is None else bound
        self.address = _text(self._socket.getsockname()) if bound is None else address
        self._loop = loop
        self._on_accepted = on_accepted
        self._pause: Timer | None = None
        self._is_closed = False
        self._watch()

    def close(self) -> None:
        """Listen no more; harmless twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()

    def _watch(self) -> None:
        self._loop.watch(self._socket.fileno(), on_readable=self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            if self._is_closed:
                return
            try:
                accepted, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF:
                    self._loop.unwatch(self._socket.fileno())
                    self._pause = self._loop.call_at(self._loop.now() + _PAUSE_S, self._watch)
                    return
                continue  # that one has gone already
            accepted.setblocking(False)
            self._on_accepted(accepted)


# Calls back with a new TCP socket, or None where there can be none.
OpenSocket = Callable[[Callable[[socket.socket | None], None]], None]


class Dial:
    """One attempt to connect; calls back once, unless cancelled.

    With `open_socket` the socket is opened by the caller, in another network than ours;
    None instead of a socket is a refusal. A name is looked up by a thread, so that the loop must be
    one that threads may wake (`enable_thread_wakeup`).
    """

    def __init__(
        self,
        loop: Loop,
        address: str,
        *,
        on_connected: Callable[[socket.socket], None],
        on_failed: Callable[[], None],
        open_socket: OpenSocket | None = None,
    ) -> None:
        self._loop = loop
        self._on_connected = on_connected
        self._on_failed = on_failed
        self._address = address
        self._candidates: list[SocketAddress] = []
        self._socket: socket.socket | None = None  # being connected
        self._deadline: Timer | None = None
        self._open_socket = open_socket
        self._is_over = False

    def start(self) -> None:
        """Begin; may call back before it returns."""
        self._deadline = self._loop.call_at(self._loop.now() + _DIAL_TIMEOUT_S, self._fail)
        try:
            host, port = host_and_port(self._address)
        except AddressError:
            self._fail()
            return
        try:
            self._candidates = _look_up(host or "127.0.0.1", port, socket.AI_NUMERICHOST)
        except AddressError:
            self._look_up_in_a_thread(host, port)
        else:
            self._try_next()

    def cancel(self) -> None:
        """Give up, without a call back; harmless at any moment."""
        self._is_over = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._let_go()

    def _let_go(self) -> None:
        if self._socket is not None:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _fail(self) -> None:
        self.cancel()
        self._on_failed()

    def _try_next(self) -> None:
        self._let_go()
        if self._is_over:
            return
        if not self._candidates:
            self._fail()
            return
        family, where = self._candidates.pop(0)
        if self._open_socket is not None:
            self._open_socket(lambda opened: self._connect(opened, where))
            return
        try:
            opened = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # no descriptor is left, or no such family
            self._try_next()
            return
        self._connect(opened, where)

    def _connect(self, opened: socket.socket | None, where: tuple[str, int]) -> None:
        if opened is None:
            self._try_next()
            return
        if self._is_over:
            opened.close()
            return
        self._socket = opened
        opened.setblocking(False)
        if opened.connect_ex(where) in (0, errno.EINPROGRESS):
            self._loop.watch(opened.fileno(), on_writable=self._connected)
        else:
            self._try_next()

    def _connected(self) -> None:
        assert self._socket is not None, "only a socket that is being connected is watched"
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._try_next()
            return
        try:
            is_own = self._socket.getpeername() == self._socket.getsockname()
        except OSError:
            return  # not yet: what was ready is an older descriptor with this number
        if is_own:
            # Without a listener, TCP can happen to connect a socket with itself.
            self._try_next()
            return
        connected, self._socket = self._socket, None
        self._loop.unwatch(connected.fileno())
        self.cancel()
        self._on_connected(connected)

    def _look_up_in_a_thread(self, host: str, port: int) -> None:
        if not _lookups_under_way.acquire(blocking=False):
            self._fail()
            return

        def look_up() -> None:
            with suppress(AddressError):
                self._candidates = _look_up(host, port)
            _lookups_under_way.release()
            self._loop.call_from_thread(self._try_next)

        threading.Thread(target=look_up, name="toxiproxy-lookup", daemon=True).start()


def _text(where: tuple[str, int] | tuple[str, int, int, int]) -> str:
    host, port = where[0], where[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
