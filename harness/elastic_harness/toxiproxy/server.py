"""A Toxiproxy server of our own: TCP proxies with faults, driven over Shopify's HTTP API.

No package ships the real server. This one is a part of whatever process has a `Loop`
(`Toxiproxy`), a thread of a test (`serving`) or a command (`pytest-elastic toxiproxy`), and speaks
the same API, so that any client will do. `docs/toxiproxy.md` says where it does better.

The files beside this one: `toxiproxy_toxics` and `toxiproxy_stream` decide what becomes of bytes,
`toxiproxy_json`, `toxiproxy_http` and `toxiproxy_api` what becomes of requests;
`toxiproxy_connection`, `toxiproxy_proxy` and `toxiproxy_address` have the sockets.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate

from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.toxiproxy.address import AddressError
from elastic_harness.toxiproxy.api import Api
from elastic_harness.toxiproxy.http_wire import BadRequest, RequestReader, Response
from elastic_harness.toxiproxy.listener import Listener
from elastic_harness.toxiproxy.proxy import Proxy
from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop, Timer

__all__ = ["Toxiproxy", "serving"]

_READ_BYTES = 64 << 10
_MAX_CLIENTS = 256
# A client that is silent for so long, in the middle of a request or between two, is dropped.
_IDLE_S = 120.0
_HINT_ON_PORT = "Take another --port; 0 picks one that is free."
_HINT_ON_HOST = (
    "Take another --host: an address of this machine, such as 127.0.0.1 (0.0.0.0 for all), or a "
    "name that /etc/hosts lists with one; no name server is asked."
)


class Toxiproxy:
    """A server on a loop: `start`, then it serves until `close`. Belongs to the loop's thread."""

    def __init__(
        self, loop: Loop, *, host: str = "127.0.0.1", port: int = 0, seed: int = 0
    ) -> None:
        self._loop = loop
        self._wanted = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._port = port
        self._seed = Seed(value=seed)
        self._listener: Listener | None = None
        self._clients: list[_Client] = []
        self.api = Api(self._make_proxy)
        self.address = ""

    @property
    def url(self) -> str:
        """Return where clients find the API, once it is started."""
        assert self.address, "the server has been started"
        return f"http://{self.address.replace('[::]', '127.0.0.1')}"

    def start(self) -> None:
        """Listen for requests; raises UsageError where the address cannot be had."""
        try:
            self._listener = Listener(self._loop, self._wanted, on_accepted=self._accept)
        except AddressError as error:
            raise UsageError(
                f"cannot serve the Toxiproxy API at {self._wanted}: {error}",
                hint=_HINT_ON_PORT if _is_about_port(error, self._port) else _HINT_ON_HOST,
            ) from error
        self.address = self._listener.address

    def close(self) -> None:
        """Drop every client and every proxy with its connections; harmless twice."""
        if self._listener is not None:
            self._listener.close()
        for client in list(self._clients):
            client.close()
        self.api.close()

    def _make_proxy(self, name: str, listen: str, upstream: str) -> Proxy:
        return Proxy(self._loop, self._seed, name=name, listen=listen, upstream=upstream)

    def _accept(self, accepted: socket.socket) -> None:
        if len(self._clients) >= _MAX_CLIENTS:
            self._clients[0].close()  # the one that came first has had its turn
        self._clients.append(_Client(self, self._loop, accepted))

    def forget(self, client: _Client) -> None:
        """Hear that a client is gone."""
        self._clients.remove(client)


class _Client:
    """A client of the API: one request after the other over one connection."""

    def __init__(self, server: Toxiproxy, loop: Loop, connection: socket.socket) -> None:
        self._server = server
        self._loop = loop
        self._connection = connection
        self._reader = RequestReader()
        self._unsent = b""
        self._is_last = False
        self._is_closed = False
        self._has_said_continue = False
        self._deadline: Timer | None = None
        self._be_patient()
        self._watch()

    def close(self) -> None:
        """Drop the client."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._loop.unwatch(self._connection.fileno())
        self._connection.close()
        self._server.forget(self)

    def _be_patient(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_at(self._loop.now() + _IDLE_S, self.close)

    def _watch(self) -> None:
        # Nothing more is read from a client that does not read its answers.
        self._loop.watch(
            self._connection.fileno(),
            on_readable=None if self._unsent else self._read,
            on_writable=self._go_on if self._unsent else None,
        )

    def _read(self) -> None:
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._be_patient()
        self._reader.feed(data)
        self._answer()

    def _answer(self) -> None:
        """Answer what has been asked so far, as long as the client takes the answers."""
        while not (self._is_closed or self._unsent or self._is_last):
            try:
                request = self._reader.next_request()
            except BadRequest as problem:
                self._is_last = True
                body = problem.text.encode()
                headers = {"Content-Type": "text/plain; charset=utf-8"}
                self._send(Response(status=problem.status, body=body, headers=headers))
                return
            if request is None:
                if self._reader.wants_continue and not self._has_said_continue:
                    self._has_said_continue = True
                    self._unsent = b"HTTP/1.1 100 Continue\r\n\r\n"
                    self._write()
                return
            self._has_said_continue = False
            self._is_last = not request.keeps_alive
            self._send(self._server.api.answer(request))

    def _send(self, response: Response) -> None:
        self._unsent = response.encode(date=formatdate(usegmt=True), keeps_alive=not self._is_last)
        self._write()

    def _write(self) -> None:
        try:
            sent = self._connection.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._watch()
        elif self._is_last:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
            self.close()
        else:
            self._watch()

    def _go_on(self) -> None:
        """Send the rest of an answer, and look whether the next request is there already."""
        self._write()
        self._answer()


def _is_about_port(error: AddressError, port: int) -> bool:
    """Tell whether another port would help, and not another host."""
    cause = error.__cause__
    is_had = isinstance(cause, OSError) and cause.errno in (errno.EADDRINUSE, errno.EACCES)
    return is_had or not 0 <= port <= 65535


@contextmanager
def serving(*, host: str = "127.0.0.1", port: int = 0, seed: int = 0) -> Iterator[Toxiproxy]:
    """Run a server in a thread of its own, for a `with` block; give its client `server.url`."""
    from elastic_harness.loop_thread import LoopThread

    thread = LoopThread()
    server = Toxiproxy(thread.loop, host=host, port=port, seed=seed)
    thread.start()
    try:
        thread.call(server.start)
        try:
            yield server
        finally:
            thread.call(server.close)
    finally:
        thread.stop()
