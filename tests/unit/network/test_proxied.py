"""What a job reaches through a proxy, and which server that proxy may be of."""

from __future__ import annotations

import pytest
from elastic_harness.scenario.job_spec import Upstream, environ_name, parse_upstream
from elastic_harness.toxiproxy.remote import check_choice

from pytest_elastic.errors import UsageError


@pytest.mark.parametrize(
    ("text", "upstream"),
    [
        ("rendezvous", Upstream()),
        ("n2:9000", Upstream(node="n2", port=9000)),
        ("127.0.0.1:5432", Upstream(address="127.0.0.1:5432", port=5432)),
        ("db.example:5432", Upstream(address="db.example:5432", port=5432)),
        ("[::1]:80", Upstream(address="[::1]:80", port=80)),
    ],
)
def test_an_upstream_is_the_endpoint_a_port_of_a_node_or_a_service(
    text: str, upstream: Upstream
) -> None:
    """A host is a node where there is one of that name."""
    assert parse_upstream(text, ["n1", "n2"]) == upstream


@pytest.mark.parametrize("text", ["", "db", "db:", "db:0", "db:70000", "http://db:80", "a b:1"])
def test_what_leads_nowhere_is_refused(text: str) -> None:
    """With what would be understood."""
    with pytest.raises(UsageError, match="HOST:PORT or NODE:PORT"):
        parse_upstream(text, [])


def test_names_are_those_of_variables() -> None:
    """A job finds its proxies in its environment."""
    assert environ_name("object-store") == "ELASTIC_PROXY_OBJECT_STORE"


@pytest.mark.parametrize(
    "text", ["http://10.0.0.1:8474", "https://127.0.0.1:8474", "ftp://x", "no-such-program-here"]
)
def test_a_server_that_cannot_be_used_is_refused(text: str) -> None:
    """It has to be a program that is there, or a server of this machine."""
    with pytest.raises(UsageError, match="Toxiproxy server"):
        check_choice(text)
    assert check_choice("embedded") == "embedded"
    assert check_choice("http://localhost:8474") == "http://localhost:8474"
