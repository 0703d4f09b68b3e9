"""Several endpoints are several: one under two spellings is refused, without asking anybody."""

from __future__ import annotations

import pytest
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from pytest_elastic.config import Endpoint, parse_endpoint, parse_endpoints
from pytest_elastic.errors import UsageError


@pytest.mark.parametrize(
    ("text", "one", "other"),
    [
        ("Node0,node0", "Node0:29400", "node0:29400"),
        ("node0.,x,node0", "node0.:29400", "node0:29400"),
        ("[::1]:7,[0:0:0:0:0:0:0:1]:7", "[::1]:7", "[0:0:0:0:0:0:0:1]:7"),
        ("[FE80::A]:7,[fe80::a]:7", "[FE80::A]:7", "[fe80::a]:7"),
        ("127.0.0.1:7,localhost:7", "127.0.0.1:7", "localhost:7"),
        ("LocalHost.:7,[::1]:7", "LocalHost.:7", "[::1]:7"),
        ("10.0.0.1:7,[::ffff:10.0.0.1]:7", "10.0.0.1:7", "[::ffff:10.0.0.1]:7"),
    ],
)
def test_one_endpoint_under_two_spellings_is_refused(text: str, one: str, other: str) -> None:
    """A majority of two that are one would be nothing; both spellings are named."""
    with pytest.raises(UsageError) as refused:
        parse_endpoints(text)
    assert f"names one endpoint twice, as {one} and as {other}: " in str(refused.value)


@pytest.mark.parametrize("text", ["a,a", "a:29400,b,a"])
def test_the_same_spelling_is_named_once(text: str) -> None:
    """There is nothing to compare."""
    with pytest.raises(UsageError, match="names a:29400 twice: a majority of endpoints"):
        parse_endpoints(text)


@pytest.mark.parametrize(
    "text",
    [
        "localhost:1,localhost:2",
        "127.0.0.1,127.0.0.2",
        "127.0.0.1,[::1]",
        "node0,node0.cluster",
        "node0,node1,node2",
    ],
)
def test_what_may_be_two_endpoints_is_taken_as_written(text: str) -> None:
    """Whether two names are one machine is known to a name server alone."""
    assert len(parse_endpoints(text)) == text.count(",") + 1


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("node0", None),
        ("node0:1", None),
        ("10.0.0.1:7", None),
        ("[::1]", None),
        (" [fd00::1]:7 ", None),
        ("fd00::1:29400", "[fd00::1]:29400"),
        ("::1:7", "[::1]:7"),
        ("2001:db8:1:2:3:4:5:6:80", "[2001:db8:1:2:3:4:5:6]:80"),
        ("::ffff:10.0.0.1:7", "[::ffff:10.0.0.1]:7"),
    ],
)
def test_host_and_port_are_those_that_torch_reads(text: str, spelling: str | None) -> None:
    """An IPv6 address without brackets ends at the last colon, and a warning tells how to write it.

    An address without a port would otherwise have its last group taken for one, unnoticed.
    """
    warnings: list[str] = []
    endpoint = parse_endpoint(text, default_port=29400, on_warning=warnings.append)
    assert (endpoint.host, endpoint.port) == parse_rendezvous_endpoint(text, 29400)
    assert [warning.partition("; write ")[2] for warning in warnings] == [spelling] * bool(spelling)
    assert all(warning.startswith(f"--rdzv-endpoint={text!r} ") for warning in warnings)


@pytest.mark.parametrize("text", ["http://node0:29400", "a:b:c", "node0:", "::1:70000", "fd00::1:"])
def test_what_torch_refuses_is_refused(text: str) -> None:
    """A URL has a slash, which no host has."""
    with pytest.raises(ValueError, match="rendezvous endpoint"):
        parse_rendezvous_endpoint(text, 29400)
    with pytest.raises(UsageError, match=r"^--rdzv-endpoint="):
        parse_endpoint(text)


@pytest.mark.parametrize("text", ["fd00::1", "2001:db8:0:0:0:0:0:1", "a:b:7"])
def test_what_is_no_address_before_its_last_colon_is_refused(text: str) -> None:
    """Torch accepts some of these, and then asks a name server for a host such as "fd00:"."""
    with pytest.raises(UsageError, match=r"is not an endpoint: expected .* or \[::1\]:29400"):
        parse_endpoint(text)


def test_addresses_without_brackets_may_be_several() -> None:
    """Each is warned of."""
    warnings: list[str] = []
    endpoints = parse_endpoints("fd00::1:7,node0,fd00::2:7", on_warning=warnings.append)
    assert endpoints[2] == Endpoint(host="fd00::2", port=7)
    assert len(warnings) == 2
