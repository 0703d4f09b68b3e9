"""Requests out of bytes, however they are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from elastic_harness.toxiproxy.http_wire import BadRequest, Request, RequestReader, Response
from hypothesis import given
from hypothesis import strategies as st

POST = b'POST /proxies?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n{"a":1}'
CHUNKED = (
    b"POST /reset HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'3;x=y\r\n{"a\r\n4\r\n":1}\r\n0\r\nTrailer: x\r\n\r\n'
)
GET = b"GET /version HTTP/1.0\r\n\r\n"


def read(*pieces: bytes) -> list[Request]:
    """Return all requests in what came."""
    reader = RequestReader()
    found: list[Request] = []
    for piece in pieces:
        reader.feed(piece)
        while (request := reader.next_request()) is not None:
            found.append(request)
    return found


@given(st.lists(st.integers(0, len(POST + CHUNKED + GET)), max_size=6))
def test_requests_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    """Three requests in one go, or byte by byte, are three requests."""
    data = POST + CHUNKED + GET
    edges = [0, *sorted(cuts), len(data)]
    found = read(*(data[a:b] for a, b in pairwise(edges)))
    assert [(one.method, one.target, one.body, one.keeps_alive) for one in found] == [
        ("POST", "/proxies?x=1", b'{"a":1}', True),
        ("POST", "/reset", b'{"a":1}', True),
        ("GET", "/version", b"", False),
    ]
    assert found[0].headers == {"host": "a", "content-length": "7"}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /version HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00 \x01 \x00\r\n\r\n", 400),
        (b"GET /version\r\n\r\n", 400),
        (b"GET /version HTTP/3.0\r\nHost: a\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, 431),
    ],
)
def test_what_is_no_request_is_refused(data: bytes, status: int) -> None:
    """Everything has a limit, and rubbish an answer."""
    with pytest.raises(BadRequest) as caught:
        read(data)
    assert caught.value.status == status


def test_a_client_that_asks_first_is_noticed() -> None:
    """Some clients send a body only after 100 Continue."""
    reader = RequestReader()
    reader.feed(b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
    assert reader.next_request() is None
    assert reader.wants_continue


def test_an_answer_names_its_length_and_whether_it_is_the_last() -> None:
    """No content has no length."""
    answer = Response(status=200, body=b"{}", headers={"A": "b"}).encode(
        date="D", keeps_alive=False
    )
    assert answer == (
        b"HTTP/1.1 200 OK\r\nDate: D\r\nA: b\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    )
    assert Response(status=204).encode(date="D", keeps_alive=True) == (
        b"HTTP/1.1 204 No Content\r\nDate: D\r\n\r\n"
    )
