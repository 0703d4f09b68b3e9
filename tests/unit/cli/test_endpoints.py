"""Several endpoints are several: one under two spellings is refused, without asking anybody."""

from __future__ import annotations

import pytest

from pytest_elastic.config import parse_endpoints
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
