"""Names: tables of hosts, who changed them, and the messages of a name service."""

from __future__ import annotations

import struct

import pytest
from elastic_harness.network.names import (
    NameChange,
    answer_to,
    hosts_text,
    question_in,
    read_hosts,
)

from pytest_elastic.errors import UsageError

MISSING = NameChange(is_missing=True)


def query(name: str, kind: int = 1) -> bytes:
    """Return a query as a resolver sends it (RFC 1035, section 4)."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return (
        struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
    )


def test_a_table_of_hosts_is_read_as_it_was_written() -> None:
    """IPv4 first; names that stand twice have their first address."""
    text = hosts_text({"n1": "10.77.0.1", "n2": "10.77.0.2"})
    assert read_hosts(text) == {
        "localhost": "127.0.0.1",
        "n1": "10.77.0.1",
        "n2": "10.77.0.2",
        "ip6-localhost": "::1",
        "ip6-loopback": "::1",
    }
    assert text.index("10.77.0.2 n2") < text.index("::1")
    assert read_hosts("# nothing\n10.0.0.1 a b # c\n\n") == {"a": "10.0.0.1", "b": "10.0.0.1"}


def test_a_query_is_answered_with_the_address() -> None:
    """The question is repeated, and the record points to its name."""
    question = question_in(query("N1"))
    assert question is not None
    assert (question.id, question.name, question.asks_for_address) == (7, "n1", True)
    answer = answer_to(question, "10.77.0.1")
    assert struct.unpack_from(">HHHHHH", answer) == (7, 0x8180, 1, 1, 0, 0)
    assert answer[-4:] == bytes((10, 77, 0, 1))


def test_what_is_not_known_is_said_so() -> None:
    """No such name; and a known name has no IPv6 address."""
    question = question_in(query("n9"))
    assert question is not None
    assert struct.unpack_from(">HHHH", answer_to(question, None)) == (7, 0x8183, 1, 0)
    other = question_in(query("n1", kind=28))
    assert other is not None
    assert struct.unpack_from(">HHHH", answer_to(other, "10.77.0.1")) == (7, 0x8180, 1, 0)


@pytest.mark.parametrize(
    "message", [b"", b"short", query("n1")[:-3], struct.pack(">HHHHHH", 7, 0x8180, 1, 0, 0, 0)]
)
def test_what_is_no_query_is_not_answered(message: bytes) -> None:
    """Broken or an answer itself."""
    assert question_in(message) is None


def test_impossible_changes_are_refused() -> None:
    """No resolver waits for longer than half a minute."""
    with pytest.raises(UsageError, match="0 to 25 s"):
        NameChange(slow_s=31.0)
    with pytest.raises(UsageError, match="missing has no address"):
        NameChange(is_missing=True, slow_s=1.0)
