"""The client: what `toxiproxy-python` does wrong, done right."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest
import toxiproxy
from elastic_harness.toxiproxy.client import (
    ProxyHandle,
    ToxiproxyClient,
    ToxiproxyConflict,
    ToxiproxyError,
    ToxiproxyInvalid,
    ToxiproxyMissing,
    ToxiproxyStuck,
)
from elastic_harness.toxiproxy.server import serving

from pytest_elastic.errors import UsageError


@pytest.fixture
def client() -> Iterator[ToxiproxyClient]:
    """Lend a client of a server of its own."""
    with serving() as server:
        yield ToxiproxyClient(server.url)


@pytest.fixture
def proxy(client: ToxiproxyClient) -> ProxyHandle:
    """Lend a proxy to nowhere."""
    return client.create("127.0.0.1:1", "p")


def test_it_is_the_packages_own_client(client: ToxiproxyClient, proxy: ProxyHandle) -> None:
    """Code that expects the package's classes and exceptions gets them."""
    assert isinstance(client, toxiproxy.Toxiproxy)
    assert isinstance(proxy, toxiproxy.Proxy)
    with pytest.raises(toxiproxy.server.ProxyExists):
        client.create("x", "p")
    assert client.version() == "git"
    assert client.get_proxy("none") is None


def test_each_client_has_its_own_server(client: ToxiproxyClient) -> None:
    """Turning one elsewhere moves no other, nor the proxies of another."""
    with serving() as second:
        other = ToxiproxyClient(second.url)
        other.create("x", "only here")
        mine = client.create("x", "only there")
        host, _, port = second.url.removeprefix("http://").partition(":")
        third = ToxiproxyClient("http://127.0.0.1:1")
        third.update_api_consumer(host, int(port))
        assert list(client.proxies()) == ["only there"]
        assert list(other.proxies()) == list(third.proxies()) == ["only here"]
        mine.disable()
        assert not mine.enabled


def test_a_silent_server_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time that was given, with the name of the request."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ToxiproxyClient(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
        with pytest.raises(ToxiproxyStuck) as raised:
            client.proxies()
        assert re.match(r"GET http://.*/proxies: no answer within 0.2 s\. ", raised.value.message)
        assert raised.value.message.endswith("give ToxiproxyClient a longer timeout_s")
    assert not client.running()


def test_requests_go_to_the_server_whatever_the_environment_says(
    client: ToxiproxyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP_PROXY is for the rest of the world."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert client.proxies() == {}


def test_everything_but_success_raises(client: ToxiproxyClient, proxy: ProxyHandle) -> None:
    """With the status and the server's words."""
    with pytest.raises(ToxiproxyError) as busy:
        client.create("x", "q", listen=proxy.listen)
    assert busy.value.status == 500
    assert busy.value.reason == f"listen tcp {proxy.listen}: bind: address already in use"
    with pytest.raises(ToxiproxyInvalid) as invalid:
        client.create("", "q")
    assert invalid.value.reason == "missing required field: upstream"
    proxy.add_toxic(type="noop")
    with pytest.raises(ToxiproxyConflict):
        proxy.add_toxic(type="noop")
    with pytest.raises(ToxiproxyMissing):
        proxy.destroy_toxic("none")
    with pytest.raises(ToxiproxyMissing):
        proxy.update_toxic("none", toxicity=0.5)


@pytest.mark.parametrize("name", ["a?b", "a#b", "a b", "a%2Fb", "ä", "a&b=c"])
def test_names_are_quoted(client: ToxiproxyClient, name: str) -> None:
    """Destroying `a?b` does not destroy `a`."""
    client.create("x", "a")
    made = client.create("x", name)
    made.add_toxic(type="noop", name=name)
    assert list(made.toxics()) == [name]
    made.destroy_toxic(name)
    made.destroy()
    assert list(client.proxies()) == ["a"]


@pytest.mark.parametrize("name", ["", "a/b", ".", ".."])
def test_names_that_no_request_could_address_are_refused(
    client: ToxiproxyClient, proxy: ProxyHandle, name: str
) -> None:
    """Before the server makes something that it can never remove."""
    with pytest.raises(UsageError, match="cannot be named"):
        client.create("x", name)
    if name:
        with pytest.raises(UsageError, match="cannot be named"):
            proxy.add_toxic(type="noop", name=name)


@pytest.mark.parametrize(
    ("kind", "attributes", "toxicity", "text"),
    [
        ("latency", {"latency": 1.5}, 1.0, "latency of toxic 'latency' is a whole number"),
        ("latency", {"latency": -1}, 1.0, "at least 0, not -1"),
        ("latency", {"delay": 1}, 1.0, "has no attribute 'delay'; it has latency, jitter"),
        ("latency", {}, 1.5, "between 0 and 1, not 1.5"),
        ("slicer", {}, 1.0, "needs average_size"),
        ("slicer", {"average_size": 0}, 1.0, "at least 1, not 0"),
        ("down", {}, 1.0, "there is no toxic 'down'; known are latency"),
    ],
)
def test_values_are_looked_at_before_they_are_sent(
    proxy: ProxyHandle, kind: str, attributes: dict[str, float], toxicity: float, text: str
) -> None:
    """What a server would refuse, or die of, is the caller's to mend."""
    with pytest.raises(UsageError, match=text):
        proxy.add_toxic(type=kind, attributes=attributes, toxicity=toxicity)
    assert proxy.toxics() == {}


def test_whole_floats_are_sent_as_integers_and_toxics_can_be_changed(proxy: ProxyHandle) -> None:
    """Attributes merge, as they do in the server."""
    added = proxy.add_toxic(type="latency", attributes={"latency": 5.0, "jitter": 1})
    assert added.name == "latency_downstream"
    changed = proxy.update_toxic("latency_downstream", attributes={"jitter": 2}, toxicity=0.5)
    assert changed.attributes == {"latency": 5, "jitter": 2}
    shown = proxy.toxics()["latency_downstream"]
    assert (shown.attributes, shown.toxicity) == ({"latency": 5, "jitter": 2}, 0.5)


def test_a_proxy_can_be_moved(proxy: ProxyHandle) -> None:
    """To another port, and to lead elsewhere."""
    before = proxy.address
    proxy.update(listen="127.0.0.1:0", upstream="127.0.0.1:2")
    assert proxy.address != before
    assert proxy.upstream == "127.0.0.1:2"


def test_down_leaves_a_proxy_as_it_was(client: ToxiproxyClient, proxy: ProxyHandle) -> None:
    """Nested, off before, and destroyed inside."""

    def is_enabled() -> bool:
        now = client.get_proxy("p")
        assert now is not None
        return bool(now.enabled)

    with proxy.down():
        with proxy.down():
            assert not is_enabled()
        assert not is_enabled()
    assert is_enabled()
    proxy.disable()
    with proxy.down():
        pass
    assert not is_enabled()
    proxy.enable()
    with proxy.down():
        proxy.destroy()
    assert client.get_proxy("p") is None


def test_down_says_so_when_the_proxy_cannot_come_back(proxy: ProxyHandle) -> None:
    """Somebody else has taken its port."""
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def lose_the_port() -> None:
            with proxy.down():
                thief.bind(proxy.address)
                thief.listen()

        with pytest.raises(ToxiproxyError, match="address already in use"):
            lose_the_port()
        proxy.refresh()
        assert not proxy.enabled


def test_populate_is_the_servers_own(client: ToxiproxyClient, proxy: ProxyHandle) -> None:
    """All that were listed come back, not only the new ones."""
    same = {"name": "p", "upstream": proxy.upstream, "listen": proxy.listen}
    listed = client.populate([same, {"name": "q", "upstream": "x", "listen": "127.0.0.1:0"}])
    assert [one.name for one in listed] == ["p", "q"]
    assert client.populate([]) == []
    client.destroy_all()
    assert client.proxies() == {}


def test_a_reset_mends_all_that_can_be_mended(client: ToxiproxyClient) -> None:
    """A proxy whose port is taken is told of; those after it are reset all the same."""
    with socket.create_server(("127.0.0.1", 0)) as thief:
        host, port = thief.getsockname()
        for name, listen in (("a", f"{host}:{port}"), ("b", "127.0.0.1:0")):
            made = client.create("x", name, listen=listen, enabled=False)
            made.add_toxic(type="noop")
        with pytest.raises(ToxiproxyError, match="address already in use"):
            client.reset()
    after = client.proxies()
    assert {name: proxy.enabled for name, proxy in after.items()} == {"a": False, "b": True}
    assert after["a"].toxics() == after["b"].toxics() == {}
