"""The HTTP API of a Toxiproxy server: ours, and the real one where there is one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_elastic.plugin.options import options_of
from tests.conformance.toxiproxy_bench import Bench, server_of, text_of
from tests.free_ports import free_port

TOXIC_FIELDS = {
    "latency": {"latency": 0, "jitter": 0},
    "bandwidth": {"rate": 0},
    "slow_close": {"delay": 0},
    "timeout": {"timeout": 0},
    "slicer": {"average_size": 0, "size_variation": 0, "delay": 0},
    "limit_data": {"bytes": 0},
    "reset_peer": {"timeout": 0},
    "noop": {},
}


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
    made.client.destroy_all()


def made(bench: Bench, **fields: object) -> str:
    """Make a proxy to nowhere and return its name."""
    name = bench.name()
    body = {"name": name, "upstream": "127.0.0.1:1", "listen": "127.0.0.1:0", **fields}
    answer = bench.request("POST", "/proxies", body)
    assert answer.status == 201, answer.text
    return name


def proxy_fields(bench: Bench, name: str) -> dict[str, object]:
    """Return a proxy as the server shows it."""
    answer = bench.request("GET", f"/proxies/{name}")
    assert answer.status == 200, answer.text
    assert isinstance(answer.json, dict)
    return answer.json


def test_the_version_is_told(bench: Bench) -> None:
    """As JSON."""
    answer = bench.request("GET", "/version")
    assert answer.status == 200
    assert isinstance(answer.json, dict)
    assert list(answer.json) == ["version"]


def test_a_proxy_is_made_shown_listed_and_removed(bench: Bench) -> None:
    """201 with the bound address; 200; 204; 404."""
    name = bench.name()
    body = {"name": name, "upstream": "nowhere", "listen": "localhost:0", "unknown": []}
    answer = bench.request("POST", "/proxies", body)
    assert answer.status == 201
    fields = proxy_fields(bench, name)
    assert answer.json == fields
    assert set(fields) >= {"name", "listen", "upstream", "enabled", "toxics"}
    assert str(fields["listen"]).startswith("127.0.0.1:")
    assert not str(fields["listen"]).endswith(":0")
    assert (fields["enabled"], fields["toxics"]) == (True, [])
    assert bench.request("GET", "/proxies").json == {name: fields}
    removed = bench.request("DELETE", f"/proxies/{name}")
    assert (removed.status, removed.text) == (204, "")
    missing = bench.request("GET", f"/proxies/{name}")
    assert missing.status == 404
    assert missing.json == {"error": "proxy not found", "status": 404}


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_an_update_knows_three_fields(bench: Bench, method: str) -> None:
    """listen, upstream and enabled count; the name and an empty body change nothing."""
    name = made(bench)
    before = proxy_fields(bench, name)
    for body in (b"{}", b"null", b'{"name": "other"}'):
        assert bench.request(method, f"/proxies/{name}", body).json == before
    answer = bench.request(method, f"/proxies/{name}", {"upstream": "", "enabled": False})
    assert answer.json == {**before, "upstream": "", "enabled": False}
    again = bench.request(method, f"/proxies/{name}", {"enabled": True})
    assert again.json == {**before, "upstream": ""}  # the same port
    moved = bench.request(method, f"/proxies/{name}", {"listen": "127.0.0.1:0"})
    assert isinstance(moved.json, dict)
    assert moved.json["listen"] not in ("127.0.0.1:0", before["listen"])


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/proxies", b"", 400, "bad request body: "),
        ("/proxies", b"{", 400, "bad request body: "),
        ("/proxies", b"{}", 400, "missing required field: name"),
        ("/proxies", b"null", 400, "missing required field: name"),
        ("/proxies", b'{"name": "x"}', 400, "missing required field: upstream"),
        ("/proxies", b'{"name": 5, "upstream": "x"}', 400, "bad request body: "),
        ("/proxies", b'{"name": "x", "upstream": "y", "enabled": 1}', 400, "bad request body: "),
        ("/proxies", b'{"name": "NAME", "upstream": "x"}', 409, "proxy already exists"),
        ("/proxies/NAME/toxics", b"{}", 400, "invalid toxic type"),
        ("/proxies/NAME/toxics", b'{"type": "down"}', 400, "invalid toxic type"),
        ("/proxies/NAME/toxics", b'{"type": "Noop"}', 400, "invalid toxic type"),
        ("/proxies/NAME/toxics", b'{"type": "x", "stream": ""}', 400, "stream was invalid, can be"),
        (
            "/proxies/NAME/toxics",
            b'{"type": "latency", "attributes": {"latency": 5.0}}',
            400,
            "bad",
        ),
        ("/proxies/NAME/toxics", b'{"type": "latency", "attributes": 5}', 400, "bad request body"),
        ("/proxies/NAME/toxics", b'{"type": "noop", "name": "t"}', 409, "toxic already exists"),
        ("/proxies/none/toxics", b'{"type": "noop"}', 404, "proxy not found"),
        ("/proxies/NAME/toxics/none", b"{}", 404, "toxic not found"),
    ],
)
def test_errors_have_their_status_and_words(
    bench: Bench, path: str, body: bytes, status: int, text: str
) -> None:
    """What is wrong is told as the real server tells it."""
    name = made(bench)
    assert (
        bench.request("POST", f"/proxies/{name}/toxics", {"type": "noop", "name": "t"}).status
        == 200
    )
    answer = bench.request("POST", path.replace("NAME", name), body.replace(b"NAME", name.encode()))
    assert isinstance(answer.json, dict)
    assert (answer.status, answer.json["status"]) == (status, status)
    assert str(answer.json["error"]).startswith(text)


@pytest.mark.parametrize("kind", TOXIC_FIELDS)
def test_a_toxic_has_the_attributes_of_its_type(bench: Bench, kind: str) -> None:
    """Defaults: downstream, toxicity 1, attributes 0, a name of type and stream."""
    path = f"/proxies/{made(bench)}/toxics"
    answer = bench.request("POST", path, {"type": kind, "stream": None, "attributes": None})
    expected = {
        "attributes": TOXIC_FIELDS[kind],
        "name": f"{kind}_downstream",
        "type": kind,
        "stream": "downstream",
        "toxicity": 1,
    }
    assert (answer.status, answer.json) == (200, expected)
    assert bench.request("GET", f"{path}/{kind}_downstream").json == expected
    assert bench.request("GET", path).json == [expected]
    assert bench.request("DELETE", f"{path}/{kind}_downstream").status == 204
    assert bench.request("GET", f"{path}/{kind}_downstream").status == 404


def test_toxics_are_listed_by_stream_and_then_by_age(bench: Bench) -> None:
    """Upstream first; the stream is echoed as it was spelled; names are unique across both."""
    path = f"/proxies/{made(bench)}/toxics"
    for name, stream in (("a", "downstream"), ("b", "UpStream"), ("c", "downstream"), ("", "UP")):
        bench.request("POST", path, {"type": "noop", "name": name, "stream": stream})
    bench.request("POST", path, {"type": "noop", "stream": "UpStream"})
    listed = bench.request("GET", path).json
    assert isinstance(listed, list)
    assert [one["name"] for one in listed] == ["b", "noop_UpStream", "a", "c"]
    assert listed[0]["stream"] == "UpStream"
    assert (
        bench.request("POST", path, {"type": "noop", "name": "a", "stream": "upstream"}).status
        == 409
    )


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_an_update_of_a_toxic_merges_attributes(bench: Bench, method: str) -> None:
    """Only attributes and toxicity count."""
    path = f"/proxies/{made(bench)}/toxics"
    bench.request("POST", path, {"type": "latency", "name": "t", "attributes": {"latency": 5}})
    body = {"type": "noop", "name": "u", "toxicity": 0.5, "attributes": {"jitter": -2}}
    answer = bench.request(method, f"{path}/t", body)
    assert isinstance(answer.json, dict)
    assert answer.json["attributes"] == {"latency": 5, "jitter": -2}
    assert (answer.json["name"], answer.json["type"]) == ("t", "latency")
    assert answer.json["toxicity"] == 0.5
    assert bench.request(method, f"{path}/t", {"toxicity": None}).json == answer.json
    assert bench.request(method, f"{path}/t", {"toxicity": 2}).status == 200
    bad = {"attributes": {"latency": 77, "jitter": "x"}}
    assert bench.request(method, f"{path}/t", bad).status == 400


def test_reset_removes_toxics_and_enables_proxies(bench: Bench) -> None:
    """With any body."""
    name = made(bench, enabled=False)
    bench.request("POST", f"/proxies/{name}/toxics", {"type": "noop"})
    answer = bench.request("POST", "/reset", b"anything")
    assert (answer.status, answer.text) == (204, "")
    assert proxy_fields(bench, name)["enabled"] is True
    assert proxy_fields(bench, name)["toxics"] == []


def test_populate_keeps_what_is_the_same_and_replaces_the_rest(bench: Bench) -> None:
    """The same addresses keep their toxics; others are made anew."""
    empty = bench.request("POST", "/populate", b"[]")
    assert (empty.status, empty.json) == (201, {"proxies": None})
    name, other = made(bench), bench.name()
    bench.request("POST", f"/proxies/{name}/toxics", {"type": "noop"})
    same = {"name": name, "upstream": "127.0.0.1:1", "listen": proxy_fields(bench, name)["listen"]}
    new = {"name": other, "upstream": "127.0.0.1:1", "listen": "127.0.0.1:0", "enabled": False}
    answer = bench.request("POST", "/populate", [{**same, "enabled": False}, new])
    assert answer.status == 201
    kept = proxy_fields(bench, name)
    assert (kept["enabled"], kept["listen"]) == (True, same["listen"])
    assert kept["toxics"]
    assert proxy_fields(bench, other)["enabled"] is False
    bench.request("POST", "/populate", [{**same, "upstream": "127.0.0.1:2"}])
    assert proxy_fields(bench, name)["toxics"] == []


def test_populate_looks_at_everything_before_it_makes_anything(bench: Bench) -> None:
    """A missing field names its place; an address that cannot be had leaves those before it."""
    good = {"name": bench.name(), "upstream": "x", "listen": "127.0.0.1:0"}
    bad = bench.request("POST", "/populate", [good, {"name": "x"}])
    assert bad.status == 400
    assert bad.json == {
        "error": "missing required field: upstream at proxy 2",
        "status": 400,
        "proxies": None,
    }
    assert bench.request("GET", "/proxies").json == {}
    answer = bench.request("POST", "/populate", [good, {**good, "name": "y", "listen": "bad"}])
    assert answer.status == 500
    assert isinstance(answer.json, dict)
    assert [one["name"] for one in answer.json["proxies"]] == [good["name"]]


def test_an_address_that_cannot_be_had_is_told_in_gos_words(bench: Bench) -> None:
    """Busy, not local, without a port."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        body = {"name": bench.name(), "upstream": "x", "listen": text_of(busy)}
        answer = bench.request("POST", "/proxies", body)
        assert answer.status == 500
        assert answer.json == {
            "error": f"listen tcp {text_of(busy)}: bind: address already in use",
            "status": 500,
        }
        name = made(bench)
        before = proxy_fields(bench, name)
        unparsable = bench.request("POST", f"/proxies/{name}", {"listen": "nonsense"})
        assert unparsable.status == 500
        assert "missing port in address" in unparsable.text
        assert proxy_fields(bench, name) == before
        assert bench.request("POST", f"/proxies/{name}", {"listen": text_of(busy)}).status == 500
        after = proxy_fields(bench, name)
        assert (after["enabled"], after["listen"]) == (False, text_of(busy))
        assert bench.request("POST", "/reset").status == 500
    not_local = {"name": bench.name(), "upstream": "x", "listen": "192.0.2.1:0"}
    assert (
        "bind: cannot assign requested address" in bench.request("POST", "/proxies", not_local).text
    )


@pytest.mark.parametrize("path", ["/", "/metrics", "/nowhere"])
def test_what_has_no_route_is_not_found(bench: Bench, path: str) -> None:
    """Metrics are off in the real server unless it is told otherwise."""
    assert bench.request("GET", path).status == 404


def test_browsers_are_sent_away(bench: Bench) -> None:
    """A page in a browser must not drive a proxy."""
    headers = {"User-Agent": "Mozilla/5.0"}
    assert bench.request("GET", "/proxies", None, **headers).status == 403


def test_requests_from_many_sides_are_all_answered(bench: Bench) -> None:
    """One of several that make the same proxy wins."""
    body = {"name": bench.name(), "upstream": "x", "listen": f"127.0.0.1:{free_port()}"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: bench.request("POST", "/proxies", body).status, range(8)))
    assert sorted(answers) == [201, *[409] * 7]


def test_the_package_itself_drives_the_server(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that use toxiproxy-python without our client can go on doing so."""
    from toxiproxy import Toxiproxy
    from toxiproxy.api import APIConsumer

    host, _, port = bench.url.removeprefix("http://").partition(":")
    monkeypatch.setattr(APIConsumer, "host", host)
    monkeypatch.setattr(APIConsumer, "port", int(port))
    package, name = Toxiproxy(), bench.name()
    assert package.running()
    proxy = package.create("127.0.0.1:1", name)
    proxy.add_toxic(type="latency", attributes={"latency": 5})
    assert proxy.get_toxic("latency_downstream").attributes == {"latency": 5, "jitter": 0}
    with proxy.down():
        assert not package.get_proxy(name).enabled
    assert package.reset()
    assert package.get_proxy(name).toxics() == {}
    package.destroy_all()
    assert package.proxies() == {}
