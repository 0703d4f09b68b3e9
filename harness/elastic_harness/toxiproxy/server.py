"""A Toxiproxy server of our own: TCP proxies with faults, driven over Shopify's HTTP API.

No package ships the real server. This one is a part of whatever process has a `Loop`
(`Toxiproxy`), a thread of a test (`serving`) or a command (`pytest-elastic toxiproxy`), and speaks
the same API, so that any client will do. `docs/toxiproxy.md` says where it does better.

The proxies live on the loop. Each client of the API has a thread with the standard library's HTTP
server, which asks the loop.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, cast

from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.toxiproxy.address import AddressError, Listener
from elastic_harness.toxiproxy.api import Answer, Api
from elastic_harness.toxiproxy.proxy import Proxy
from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop

if TYPE_CHECKING:
    from socketserver import BaseServer

__all__ = ["Toxiproxy", "serving"]

_MAX_CLIENTS = 256
# A list of ten thousand proxies has 2 MB.
_MAX_BODY_BYTES = 16 << 20
# A client that is silent for so long, in the middle of a request or between two, is dropped.
_IDLE_S = 120.0
# Nothing that the API does waits; this is for a loop that has ended.
_ANSWER_LIMIT_S = 30.0


class Toxiproxy:
    """A server on a loop: `start`, then it serves until `close`. Belongs to the loop's thread."""

    def __init__(
        self, loop: Loop, *, host: str = "127.0.0.1", port: int = 0, seed: int = 0
    ) -> None:
        loop.enable_thread_wakeup()
        self._loop = loop
        self._wanted = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._seed = Seed(value=seed)
        self._listener: Listener | None = None
        self._clients: set[socket.socket] = set()
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
                hint="Take another --port (0 picks one that is free), or another --host: an address"
                " of this machine, such as 127.0.0.1 (0.0.0.0 for all).",
            ) from error
        self.address = self._listener.address

    def close(self) -> None:
        """Drop every client and every proxy with its connections; harmless twice."""
        if self._listener is not None:
            self._listener.close()
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        self.api.close()

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        """Have the loop answer a request, and wait for it; for the clients' threads."""
        answer: Future[Answer] = Future()
        self._loop.call_from_thread(lambda: answer.set_result(self.api.answer(method, path, body)))
        return answer.result(_ANSWER_LIMIT_S)

    def _make_proxy(self, name: str, listen: str, upstream: str) -> Proxy:
        return Proxy(self._loop, self._seed, name=name, listen=listen, upstream=upstream)

    def _accept(self, client: socket.socket) -> None:
        if len(self._clients) >= _MAX_CLIENTS:
            client.close()
            return
        self._clients.add(client)
        client.settimeout(_IDLE_S)
        name = "toxiproxy-client"
        threading.Thread(target=self._serve, args=(client,), name=name, daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, TimeoutError):
            _Handler(client, None, cast("BaseServer", self))
        self._loop.call_from_thread(lambda: self._clients.discard(client))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        size = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (size.isascii() and size.isdigit()):
            self.send_error(411)
        elif len(size) > 9 or int(size) > _MAX_BODY_BYTES:
            self.send_error(413)
        elif self.headers.get("User-Agent", "").startswith("Mozilla/"):
            self.send_error(403, "User agent not allowed")  # no page may drive a proxy
        else:
            server = cast("Toxiproxy", self.server)
            answer = server.answer(self.command, self.path, self.rfile.read(int(size)))
            self.send_response(answer.status)
            if answer.body:
                self.send_header("Content-Type", "application/json")
            if answer.status != 204:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 (http.server's names)

    def log_message(self, *_: object) -> None:
        pass


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
