"""What toxics do to connections: with our server, and with the real one where there is one.

Times are compared with bounds far from those of a machine that merely is busy.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from elastic_harness.toxiproxy.remote import EMBEDDED

from pytest_elastic.plugin.options import options_of
from tests.conformance.toxiproxy_bench import (
    WAIT_S,
    Bench,
    ends_with,
    fill,
    is_silent,
    receive,
    reset,
    round_trip_s,
    server_of,
    text_of,
)
from tests.free_ports import free_port


@pytest.fixture(scope="module", params=["ours", "real"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Lend one server to all tests."""
    with server_of(request.param, options_of(request.config).toxiproxy) as url:
        yield url


@pytest.fixture
def bench(url: str) -> Iterator[Bench]:
    """Lend the server, and clean up."""
    made = Bench(url)
    yield made
    made.close()


@pytest.fixture
def own_bench() -> Iterator[Bench]:
    """Lend a server of ours, for what the real one does not do."""
    with server_of("ours", EMBEDDED) as url:
        made = Bench(url)
        yield made
        made.close()


def test_bytes_pass_unharmed_and_in_bulk(bench: Bench) -> None:
    """Without toxics a proxy is a connection."""
    proxy, ends = bench.connected()
    data = bytes(range(256)) * 16384
    sender = threading.Thread(target=ends.client.sendall, args=(data,))
    sender.start()
    received = receive(ends.server, len(data))
    sender.join(WAIT_S)
    assert received == data
    assert proxy.enabled


def test_latency_takes_hold_at_once_and_leaves_at_once(bench: Bench) -> None:
    """Existing connections are slowed from the next chunk on; removal lets go what is held."""
    proxy, ends = bench.connected()
    proxy.add_toxic(type="latency", attributes={"latency": 200})
    assert 0.2 <= round_trip_s(ends) < 10.0
    proxy.update_toxic("latency_downstream", attributes={"latency": 60_000})
    ends.server.sendall(b"held")
    assert is_silent(ends.client, 0.1)
    proxy.destroy_toxic("latency_downstream")
    assert receive(ends.client, 4) == b"held"


def test_bandwidth_limits_and_then_frees(bench: Bench) -> None:
    """100 kB at 200 kB/s take half a second; at 0 nothing passes until it is removed."""
    proxy, ends = bench.connected()
    proxy.add_toxic(type="bandwidth", attributes={"rate": 200})
    ends.server.sendall(bytes(100_000))
    began = time.monotonic()
    assert len(receive(ends.client, 100_000)) == 100_000
    assert 0.4 <= time.monotonic() - began < 10.0
    proxy.update_toxic("bandwidth_downstream", attributes={"rate": 0})
    ends.server.sendall(b"kept")
    assert is_silent(ends.client, 0.1)
    proxy.destroy_toxic("bandwidth_downstream")
    assert receive(ends.client, 4) == b"kept"


def test_slow_close_delays_the_close_of_its_direction(bench: Bench) -> None:
    """Data is not late, the other direction is not late."""
    proxy, ends = bench.connected()
    proxy.add_toxic(type="slow_close", attributes={"delay": 300})
    # Of many one is not held up by what else the machine does.
    assert any(round_trip_s(ends) < 0.3 for _ in range(100))
    ends.server.close()
    began = time.monotonic()
    assert ends_with(ends.client) == "eof"
    assert 0.25 <= time.monotonic() - began < 10.0


def test_timeout_loses_bytes_and_its_removal_closes(bench: Bench) -> None:
    """The other direction is unharmed; what was lost never comes."""
    proxy, ends = bench.connected()
    proxy.add_toxic(type="timeout")
    ends.server.sendall(b"lost")
    ends.client.sendall(b"fine")
    assert receive(ends.server, 4) == b"fine"
    assert is_silent(ends.client, 0.1)
    proxy.destroy_toxic("timeout_downstream")
    assert ends_with(ends.client) == "eof"
    assert ends_with(ends.server) == "eof"


def test_timeout_closes_after_silence(bench: Bench) -> None:
    """Also where it was 0 before."""
    proxy, ends = bench.connected()
    proxy.add_toxic(type="timeout")
    began = time.monotonic()
    proxy.update_toxic("timeout_downstream", attributes={"timeout": 200})
    assert ends_with(ends.client) == "eof"
    assert 0.2 <= time.monotonic() - began < 10.0


def test_slicer_delivers_slices(bench: Bench) -> None:
    """Each is read by itself when there is a pause between them."""
    proxy, ends = bench.connected()
    attributes = {"average_size": 64, "size_variation": 16, "delay": 20_000}
    proxy.add_toxic(type="slicer", attributes=attributes)
    ends.server.sendall(bytes(512))
    sizes: list[int] = []
    while sum(sizes) < 512:
        sizes.append(len(ends.client.recv(512)))
    assert len(sizes) >= 4  # two may be read as one where this process was late
    assert min(sizes) >= 20


def test_limit_data_closes_after_so_many_bytes(bench: Bench) -> None:
    """Exactly those are delivered."""
    proxy, ends = bench.connected()
    proxy.add_toxic(type="limit_data", attributes={"bytes": 10})
    ends.server.sendall(b"0123456789abc")
    assert receive(ends.client, 99) == b"0123456789"
    assert ends_with(ends.server) == "eof"


def test_reset_peer_resets_both_sides_after_the_first_bytes(bench: Bench) -> None:
    """A connection that is opened under it."""
    upstream = bench.upstream()
    proxy = bench.proxy(upstream)
    proxy.add_toxic(type="reset_peer", attributes={"timeout": 100})
    ends = bench.connect(proxy, upstream)
    assert is_silent(ends.client, 0.2)
    ends.server.sendall(b"x")
    assert ends_with(ends.client) == "reset"
    assert ends_with(ends.server) == "reset"


def test_a_toxicity_of_half_harms_some_connections(bench: Bench) -> None:
    """Each is harmed or is not."""
    upstream = bench.upstream()
    proxy = bench.proxy(upstream)
    proxy.add_toxic(type="limit_data", toxicity=0.5)
    harmed = 0
    for _ in range(40):
        ends = bench.connect(proxy, upstream)
        ends.server.sendall(b"x")
        harmed += receive(ends.client, 1) == b""
        ends.close()
    assert 8 <= harmed <= 32


def test_a_disabled_proxy_closes_and_refuses(bench: Bench) -> None:
    """Then it is back at the same port, with its toxics."""
    proxy, ends = bench.connected()
    proxy.add_toxic(type="noop")
    proxy.disable()
    assert ends_with(ends.client) == "eof"
    assert ends_with(ends.server) == "eof"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(proxy.address, 5.0)
    address = proxy.address
    proxy.enable()
    assert proxy.address == address
    assert list(proxy.toxics()) == ["noop_downstream"]


def test_a_client_of_an_upstream_that_refuses_sees_an_end(bench: Bench) -> None:
    """The connection to the proxy itself succeeds."""
    proxy = bench.client.create(f"127.0.0.1:{free_port()}", bench.name())
    with socket.create_connection(proxy.address, 5.0) as client:
        assert ends_with(client) == "eof"
    proxy.destroy()


def test_ours_passes_half_closed_connections(own_bench: Bench) -> None:
    """A client that has said all it has to say is still answered."""
    _, ends = own_bench.connected()
    ends.client.sendall(b"request")
    ends.client.shutdown(socket.SHUT_WR)
    assert receive(ends.server, 99) == b"request"
    ends.server.sendall(b"answer")
    ends.server.close()
    assert receive(ends.client, 99) == b"answer"


def test_ours_answers_while_a_reader_stalls(own_bench: Bench) -> None:
    """Toxics come, change and go, and reset works, with a connection that is blocked."""
    own_bench.client.timeout_s = WAIT_S  # it has much to slice, and a busy machine takes its time
    proxy, ends = own_bench.connected()
    sent = fill(ends.server)
    for kind in ("latency", "bandwidth", "slicer", "slow_close", "noop"):
        attributes = {"average_size": 10} if kind == "slicer" else {}
        proxy.add_toxic(type=kind, attributes=attributes)
        proxy.update_toxic(f"{kind}_downstream", toxicity=0.9)
    proxy.destroy_toxic("bandwidth_downstream")
    own_bench.client.reset()
    assert len(receive(ends.client, sent)) == sent


def test_ours_resets_a_connection_whose_reader_stalls(own_bench: Bench) -> None:
    """Nobody has to read the earlier bytes first."""
    proxy, ends = own_bench.connected()
    proxy.add_toxic(type="noop")
    fill(ends.server)
    proxy.add_toxic(type="reset_peer", stream="downstream")
    proxy.destroy_toxic("noop_downstream")
    with pytest.raises(ConnectionResetError):
        ends.server.recv(1)


def test_ours_resets_connections_that_were_there_before(own_bench: Bench) -> None:
    """And a removal of the toxic in time costs nothing, not even the bytes."""
    proxy, ends = own_bench.connected()
    proxy.add_toxic(type="reset_peer", attributes={"timeout": 60_000})
    ends.server.sendall(b"x")
    assert is_silent(ends.client, 0.1)
    proxy.destroy_toxic("reset_peer_downstream")
    assert receive(ends.client, 1) == b"x"
    proxy.add_toxic(type="reset_peer", stream="upstream")
    ends.client.sendall(b"x")
    assert ends_with(ends.client) == "reset"
    assert ends_with(ends.server) == "reset"


def test_ours_ends_in_silence_with_those_who_have_bytes_under_way(own_bench: Bench) -> None:
    """Unread bytes do not turn an end into a reset."""
    proxy, ends = own_bench.connected()
    proxy.add_toxic(type="bandwidth", stream="upstream", attributes={"rate": 0})
    ends.client.sendall(bytes(200_000))
    proxy.disable()
    assert ends_with(ends.client) == "eof"


def test_ours_survives_a_slicer_without_a_size(own_bench: Bench) -> None:
    """It cuts nothing; the real server dies."""
    proxy, ends = own_bench.connected()
    path = f"/proxies/{proxy.name}/toxics"
    assert own_bench.request("POST", path, {"type": "slicer"}).status == 200
    assert round_trip_s(ends) < 5.0


def test_ours_does_not_wait_for_an_upstream_that_does_not_answer(own_bench: Bench) -> None:
    """Its proxy can be changed and disabled meanwhile, and its clients see the end."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:  # the queue of a listener is full soon, and then nobody answers
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        proxy = own_bench.client.create(f"127.0.0.1:{deaf.getsockname()[1]}", own_bench.name())
        with socket.create_connection(proxy.address, 5.0) as client:
            client.sendall(b"hello")
            assert is_silent(client, 0.1)
            proxy.disable()
            client.settimeout(5.0)
            assert ends_with(client) in ("eof", "reset")
        for filler in fillers:
            filler.close()


def test_ours_does_not_wait_for_a_name_server(own_bench: Bench) -> None:
    """A name that nobody knows ends the connection; the API answers meanwhile."""
    proxy = own_bench.client.create("no-such-host.invalid:80", own_bench.name())
    with socket.create_connection(proxy.address, 5.0) as client:
        assert own_bench.client.running()
        client.settimeout(30.0)
        assert ends_with(client) == "eof"


def test_the_same_seed_harms_the_same_connections() -> None:
    """And another harms others: chance is the seed's."""

    def harmed(seed: int) -> list[bool]:
        from elastic_harness.toxiproxy.server import serving

        with serving(seed=seed) as server:
            bench = Bench(server.url)
            upstream = bench.upstream()
            proxy = bench.client.create(text_of(upstream), "the-same-name")
            proxy.add_toxic(type="limit_data", toxicity=0.5)
            found = []
            for _ in range(20):
                ends = bench.connect(proxy, upstream)
                ends.server.sendall(b"x")
                found.append(receive(ends.client, 1) == b"")
                ends.close()
            bench.close()
        return found

    assert harmed(1) == harmed(1)
    assert harmed(1) != harmed(2)


def test_a_reset_by_one_side_ends_the_other(bench: Bench) -> None:
    """Whatever way a peer goes, the other side learns that it is gone."""
    _, ends = bench.connected()
    reset(ends.server)
    assert ends_with(ends.client) in ("eof", "reset")
