"""Proxied connections on a loop that the test turns itself: nothing spins, nothing is left."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.toxiproxy.api import Api
from elastic_harness.toxiproxy.proxy import Proxy

from pytest_elastic.loop import Loop
from tests.conformance.toxiproxy_bench import reset

WAIT_S = 60.0
REST_S = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Both ends of a connection through a proxy."""

    client: socket.socket
    server: socket.socket


class Table:
    """The API of a server on a loop of its own, one proxy, and an upstream to lead to."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.loop.enable_thread_wakeup()
        self.api = Api(self._make_proxy)
        self.upstream = socket.create_server(("127.0.0.1", 0))
        host, port = self.upstream.getsockname()
        body = {"name": "p", "upstream": f"{host}:{port}", "listen": "127.0.0.1:0"}
        listen = str(self.ask("POST", "/proxies", body)["listen"])
        self.address = ("127.0.0.1", int(listen.rpartition(":")[2]))
        self._opened: list[socket.socket] = []

    def close(self) -> None:
        """Close everything."""
        for opened in self._opened:
            opened.close()
        self.upstream.close()
        self.api.close()
        self.loop.close()

    def ask(self, method: str, path: str, body: object = None) -> dict[str, object]:
        """Ask the API, without its sockets."""
        answer = self.api.answer(method, path, json.dumps(body).encode())
        assert answer.status < 300, answer.body
        return dict(json.loads(answer.body)) if answer.body else {}

    def add(self, kind: str, name: str, **attributes: int) -> None:
        """Add a toxic."""
        body = {"type": kind, "name": name, "attributes": attributes}
        self.ask("POST", "/proxies/p/toxics", body)

    def connect(self) -> Ends:
        """Connect both ends."""
        client = socket.create_connection(self.address, WAIT_S)
        self.upstream.setblocking(False)
        deadline = time.monotonic() + WAIT_S
        while True:
            assert time.monotonic() < deadline, "nobody connects to the upstream"
            self.loop.run_once(0.01)
            with contextlib.suppress(BlockingIOError):
                server, _ = self.upstream.accept()
                break
        self._opened += [client, server]
        self.rest()
        return Ends(client=client, server=server)

    def rest(self) -> None:
        """Turn the loop until it sleeps for a while by itself; fail if it never does."""
        deadline = time.monotonic() + WAIT_S
        while True:
            assert time.monotonic() < deadline, "the loop does not come to rest"
            was_ready = self._is_ready()
            began = time.monotonic()
            self.loop.run_once(REST_S)
            # What takes that long on a busy machine is not always sleep.
            slept = not was_ready and time.monotonic() - began >= REST_S * 0.9
            if slept and not self._is_ready():
                return

    def _is_ready(self) -> bool:
        """Tell whether the loop has something to do."""
        return bool(select.select(self.loop.own_fds, [], [], 0)[0])

    def _make_proxy(self, name: str, listen: str, upstream: str) -> Proxy:
        return Proxy(self.loop, Seed(value=0), name=name, listen=listen, upstream=upstream)


@pytest.fixture
def table() -> Iterator[Table]:
    """Lend a table, and see to it that no descriptor is left."""
    gc.collect()  # the descriptors of other tests
    before = len(os.listdir("/proc/self/fd"))
    made = Table()
    yield made
    made.close()
    assert len(os.listdir("/proc/self/fd")) == before


TOXICS = [
    ("noop", {}),
    ("latency", {"latency": 600_000}),
    ("latency", {"latency": 1}),
    ("bandwidth", {"rate": 0}),
    ("bandwidth", {"rate": 1_000_000}),
    ("slow_close", {"delay": 600_000}),
    ("timeout", {}),
    ("timeout", {"timeout": 600_000}),
    ("slicer", {"average_size": 1000}),
    ("limit_data", {"bytes": 3}),
    ("reset_peer", {"timeout": 600_000}),
]


@pytest.mark.parametrize("trouble", ["quiet", "ended", "both ended", "stalled", "reset"])
@pytest.mark.parametrize(("kind", "attributes"), TOXICS)
def test_the_loop_sleeps_when_nothing_happens(
    table: Table, kind: str, attributes: dict[str, int], trouble: str
) -> None:
    """Whatever toxic, twice in a chain, and whatever became of a peer."""
    ends = table.connect()
    table.add(kind, "first", **attributes)
    table.add(kind, "second", **attributes)
    ends.server.sendall(b"x")
    if trouble == "stalled":
        ends.server.setblocking(False)
        for _ in range(100):
            with contextlib.suppress(OSError):  # full, or closed by limit_data
                ends.server.send(bytes(65536))
            table.loop.run_once(0)
    if trouble in ("ended", "both ended"):
        ends.server.shutdown(socket.SHUT_WR)
    if trouble == "both ended":
        ends.client.shutdown(socket.SHUT_WR)
    if trouble == "reset":
        reset(ends.server)
    table.rest()
    table.ask("DELETE", "/proxies/p/toxics/first")
    table.rest()
    table.ask("POST", "/reset")
    table.rest()


def test_connections_that_are_over_leave_nothing(table: Table) -> None:
    """Descriptors are given back as soon as both sides have ended."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        ends = table.connect()
        assert len(os.listdir("/proc/self/fd")) == before + 4
        ends.client.close()
        table.rest()
        ends.server.close()
        table.rest()
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_dial_that_is_given_up_leaves_nothing(table: Table) -> None:
    """A listener whose queue is full answers nobody."""
    with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        host, port = deaf.getsockname()
        table.ask("POST", "/proxies/p", {"upstream": f"{host}:{port}"})
        before = len(os.listdir("/proc/self/fd"))
        with socket.create_connection(table.address, WAIT_S):
            table.rest()
            assert len(os.listdir("/proc/self/fd")) == before + 3
            table.ask("POST", "/proxies/p", {"enabled": False})
            table.rest()
            # The client's end is there still, and the proxy's listener is not.
            assert len(os.listdir("/proc/self/fd")) == before


def test_localhost_is_tried_at_both_its_addresses(table: Table) -> None:
    """A server that listens at ::1 only is found behind the refusal of 127.0.0.1."""
    table.upstream.close()
    try:
        table.upstream = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"there is no IPv6 here: {error}")
    port = table.upstream.getsockname()[1]
    table.ask("POST", "/proxies/p", {"upstream": f"localhost:{port}"})
    ends = table.connect()
    ends.client.sendall(b"x")
    table.rest()
    assert ends.server.recv(1) == b"x"
