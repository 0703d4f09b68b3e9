"""What tests of a Toxiproxy server stand on: a server, one connection through it, both its ends."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import requests
from elastic_harness.toxiproxy.client import ProxyHandle, ToxiproxyClient
from elastic_harness.toxiproxy.remote import EMBEDDED
from elastic_harness.toxiproxy.server import serving

from tests.free_ports import free_port

WAIT_S = 60.0  # for what should happen at once
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The two ends of a connection through a proxy; both sockets wait for at most `WAIT_S`."""

    client: socket.socket
    server: socket.socket

    def close(self) -> None:
        """Close both."""
        self.client.close()
        self.server.close()


class Bench:
    """A server at `url`, with proxies that are removed again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = ToxiproxyClient(url)
        self._made: list[ProxyHandle] = []
        self._cleanup = contextlib.ExitStack()

    def close(self) -> None:
        """Close what was opened, and remove the proxies."""
        self._cleanup.close()
        for proxy in self._made:
            with contextlib.suppress(Exception):
                proxy.destroy()

    def upstream(self) -> socket.socket:
        """Listen, for a proxy to connect to."""
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(WAIT_S)
        return self._cleanup.enter_context(listener)

    def name(self) -> str:
        """Return a name for a proxy that no other test uses."""
        return f"p{os.getpid()}-{next(_numbers)}"

    def proxy(self, upstream: socket.socket) -> ProxyHandle:
        """Make a proxy for a listener."""
        made = self.client.create(text_of(upstream), self.name())
        self._made.append(made)
        return made

    def connect(self, proxy: ProxyHandle, upstream: socket.socket) -> Ends:
        """Connect through a proxy, and see to it that bytes pass both ways (unless harmed)."""
        client = self._cleanup.enter_context(socket.create_connection(proxy.address, WAIT_S))
        server, _ = upstream.accept()
        self._cleanup.enter_context(server)
        server.settimeout(WAIT_S)
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Ends(client=client, server=server)

    def connected(self) -> tuple[ProxyHandle, Ends]:
        """Return a proxy with one connection that is known to work."""
        upstream = self.upstream()
        proxy = self.proxy(upstream)
        ends = self.connect(proxy, upstream)
        assert round_trip_s(ends) < WAIT_S
        return proxy, ends

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Send one request as it is and return the answer."""
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
        with requests.Session() as session:
            session.trust_env = False
            answer = session.request(
                method,
                self.url + path,
                data=data,
                headers={"User-Agent": "tests", **headers},
                allow_redirects=False,
                timeout=WAIT_S,
            )
        return Answer(answer)


class Answer:
    """An HTTP answer, with what the tests look at."""

    def __init__(self, answer: requests.Response) -> None:
        self.status = answer.status_code
        self.text = answer.text
        self.headers = answer.headers

    @property
    def json(self) -> object:
        """Return the body."""
        result: object = json.loads(self.text)
        return result


def text_of(listener: socket.socket) -> str:
    """Return a listener's address as Toxiproxy wants it."""
    host, port = listener.getsockname()
    return f"{host}:{port}"


def receive(side: socket.socket, size: int) -> bytes:
    """Read so many bytes, or fewer where the connection ends."""
    data = b""
    while len(data) < size and (more := side.recv(size - len(data))):
        data += more
    return data


def round_trip_s(ends: Ends) -> float:
    """Return how long four bytes take there and back."""
    began = time.monotonic()
    ends.client.sendall(b"ping")
    assert receive(ends.server, 4) == b"ping"
    ends.server.sendall(b"pong")
    assert receive(ends.client, 4) == b"pong"
    return time.monotonic() - began


def ends_with(side: socket.socket) -> str:
    """Read to the end, and say what the end is: 'eof' or 'reset'."""
    try:
        while side.recv(65536):
            pass
    except ConnectionResetError:
        return "reset"
    return "eof"


def is_silent(side: socket.socket, seconds: float) -> bool:
    """Tell whether nothing at all comes within a time."""
    side.settimeout(seconds)
    try:
        side.recv(1)
    except TimeoutError:
        return True
    finally:
        side.settimeout(WAIT_S)
    return False


def fill(side: socket.socket) -> int:
    """Send until nobody takes any more, for a moment, and return how much that was."""
    side.settimeout(0.2)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while True:
            sent += side.send(bytes(65536))
    side.settimeout(WAIT_S)
    return sent


def reset(side: socket.socket) -> None:
    """Close with a reset."""
    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    side.close()


@contextlib.contextmanager
def real_server(configured: str) -> Iterator[str]:
    """Lend the URL of Shopify's server: the one named, else the one on PATH, else skip."""
    if "://" in configured:
        yield configured
        return
    program = shutil.which("toxiproxy-server" if configured == EMBEDDED else configured)
    if program is None:
        pytest.skip("no --elastic-toxiproxy=URL was given and no toxiproxy-server is on PATH")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([program, "-host", "127.0.0.1", "-port", str(port)]) as process:
        try:
            deadline = time.monotonic() + WAIT_S
            while not ToxiproxyClient(url).running():
                assert time.monotonic() < deadline, "toxiproxy-server does not answer"
            yield url
        finally:
            process.kill()


@contextlib.contextmanager
def server_of(kind: str, configured: str) -> Iterator[str]:
    """Lend the URL of a server: ours or the real one."""
    if kind == "real":
        with real_server(configured) as url:
            yield url
    else:
        with serving(seed=7) as server:
            yield server.url
