"""What Shopify's server does otherwise than ours: the table of docs/toxiproxy.md, tried on it.

Only with a real server. A row that is true no longer fails here; then the table, and what our
client does about it, have to follow. The `test_ours_…` of test_toxiproxy_effects.py are the other
column. Not tried: what ends the server, or blocks its API until a dial has failed; chance.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from elastic_harness.toxiproxy.client import ToxiproxyStuck

from pytest_elastic.plugin.options import options_of
from tests.conformance.toxiproxy_bench import (
    WAIT_S,
    Bench,
    ends_with,
    fill,
    is_silent,
    receive,
    server_of,
)


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Lend the real server."""
    with server_of("real", options_of(request.config).toxiproxy) as url:
        yield url


@pytest.fixture
def bench(url: str) -> Iterator[Bench]:
    """Lend it to one test."""
    made = Bench(url)
    yield made
    made.close()


def test_a_stalled_reader_blocks_a_change(bench: Bench) -> None:
    """Removing the proxy with its connections is what frees the server."""
    proxy, ends = bench.connected()
    fill(ends.server)
    bench.client.timeout_s = 2.0
    with pytest.raises(ToxiproxyStuck):
        proxy.add_toxic(type="latency", attributes={"latency": 1})
    bench.client.timeout_s = WAIT_S
    proxy.destroy()
    assert proxy.name not in bench.client.proxies()


def test_a_half_closed_connection_is_closed(bench: Bench) -> None:
    """The late answer is lost."""
    _, ends = bench.connected()
    ends.client.sendall(b"request")
    ends.client.shutdown(socket.SHUT_WR)
    assert receive(ends.server, 99) == b"request"
    assert ends_with(ends.client) in ("eof", "reset")


def test_a_connection_older_than_reset_peer_sees_an_end(bench: Bench) -> None:
    """And no reset."""
    proxy, ends = bench.connected()
    proxy.add_toxic(type="reset_peer", attributes={"timeout": 0})
    ends.server.sendall(b"x")
    assert ends_with(ends.client) == "eof"
    assert ends_with(ends.server) == "eof"


def test_a_reset_peer_that_waits_cannot_be_removed(bench: Bench) -> None:
    """The request is answered when the reset has come."""
    upstream = bench.upstream()
    proxy = bench.proxy(upstream)
    proxy.add_toxic(type="reset_peer", attributes={"timeout": 1500})
    ends = bench.connect(proxy, upstream)
    bench.client.timeout_s = WAIT_S
    ends.server.sendall(b"x")
    assert is_silent(ends.client, 0.2)
    proxy.destroy_toxic("reset_peer_downstream")
    assert ends_with(ends.client) == "reset"


def test_the_removal_of_a_timeout_closes_what_it_never_harmed(bench: Bench) -> None:
    """No byte was lost here."""
    proxy, ends = bench.connected()
    proxy.add_toxic(type="timeout")
    proxy.destroy_toxic("timeout_downstream")
    assert ends_with(ends.client) == "eof"


def test_populate_shows_a_kept_proxy_as_it_is_not(bench: Bench) -> None:
    """Disabled and without toxics, while it is on and has one."""
    proxy, _ = bench.connected()
    proxy.add_toxic(type="noop")
    listed = [{"name": proxy.name, "listen": proxy.listen, "upstream": proxy.upstream}]
    answer = json.loads(bench.request("POST", "/populate", listed).text)["proxies"][0]
    assert (answer["enabled"], answer["toxics"]) == (False, [])
    proxy.refresh()
    assert proxy.enabled
    assert list(proxy.toxics()) == ["noop_downstream"]


def test_a_close_with_unread_bytes_is_seen_as_a_reset(bench: Bench) -> None:
    """Where the server had not read all that came."""
    proxy, ends = bench.connected()
    proxy.add_toxic(type="bandwidth", stream="upstream", attributes={"rate": 0})
    fill(ends.client)
    proxy.disable()
    assert ends_with(ends.client) == "reset"
