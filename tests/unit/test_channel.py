"""Messages and descriptors that travel together arrive together."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_elastic.channel import Channel, JsonObject, connect, read_object, write_object
from pytest_elastic.loop import Loop
from pytest_elastic.printed import without_surrogates


def test_descriptors_arrive_with_the_message_they_were_sent_with() -> None:
    """Messages that the kernel hands over in one read do not take each other's descriptors."""
    loop = Loop()
    left, right = socket.socketpair()
    received: list[tuple[object, int]] = []

    def on_message(message: JsonObject, fds: list[int]) -> None:
        received.append((message["n"], len(fds)))
        for fd in fds:
            os.close(fd)

    sender = Channel(loop, left, on_message=on_message, on_closed=lambda _: None)
    receiver = Channel(loop, right, on_message=on_message, on_closed=lambda _: None)
    for number, fds in enumerate(((), (0,), (), (0, 1), ())):
        sender.send({"n": number}, fds)
    deadline = loop.now() + 60
    while len(received) < 5 and loop.now() < deadline:
        loop.run_once(deadline - loop.now())
    sender.close()
    receiver.close()
    loop.close()
    assert received == [(0, 0), (1, 1), (2, 0), (3, 2), (4, 0)]


def test_a_host_of_ascii_is_looked_up_without_the_codec_of_international_names() -> None:
    """In an interpreter that has looked up nothing yet; a name with other letters needs it."""
    code = (
        "import sys\n"
        "from pytest_elastic.channel import host_to_look_up, listen\n"
        "listen('127.0.0.1', 0).close()\n"
        "print('encodings.idna' in sys.modules, host_to_look_up('m\\u00fcnchen'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "False m\u00fcnchen\n"


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("localhost", 29400),  # a name would be looked up, which may take for ever
        ("no-such-host.invalid", 29400),
        ("", 29400),
        ("a\0b", 29400),
        ("\ud800", 29400),
        ("1:2:3", 29400),
        ("fe80::1%no-such-interface", 29400),
        ("127.0.0.1", 65536),
        ("127.0.0.1", -1),
    ],
)
def test_what_is_no_address_cannot_be_dialled(host: str, port: int) -> None:
    """Others have said it: it fails as a dial does, and nothing is raised."""
    loop = Loop()
    failed: list[OSError] = []
    connected: list[socket.socket] = []
    connect(loop, host, port, timeout_s=60, on_connected=connected.append, on_failed=failed.append)
    loop.run_once(60)
    loop.close()
    assert not connected
    assert [error.errno for error in failed] == [errno.EINVAL]


@pytest.mark.parametrize("text", ["\ud800", "x\udfff", "\udce9\ud83d"])
def test_half_of_a_surrogate_pair_is_no_text_of_a_stranger(text: str) -> None:
    """Raw or as an escape, as a key or deep inside: it could not be written down, nor printed."""
    for fields in ({"a": text}, {text: 1}, {"a": [{"b": [text]}]}):
        escaped = json.dumps(fields)
        raw = json.dumps(fields, ensure_ascii=False)
        assert read_object(escaped) is None
        assert read_object(escaped.encode()) is None
        assert read_object(raw) is None
        assert read_object(raw.encode(errors="surrogatepass")) is None
        own = read_object(raw.encode(errors="surrogatepass"), of_stranger=False)
        assert own == fields, "an environment may hold bytes that are no text"


@pytest.mark.parametrize("text", ["caf\u00e9", "\ud55c\uae00", "\U0001f600", "a\\udce9", "\x1b"])
def test_all_that_is_text_may_be_said(text: str) -> None:
    """Letters of any alphabet, pairs that are whole, a backslash, control characters."""
    fields = {"a": text}
    for said in (json.dumps(fields), json.dumps(fields, ensure_ascii=False)):
        assert read_object(said) == read_object(said.encode()) == fields


@given(st.text(st.characters(categories=None)))
def test_what_a_node_writes_another_one_reads(text: str) -> None:
    """Whatever it was: what is no text arrives as escapes."""
    plain = without_surrogates(text)
    assert read_object(write_object({"a": text, text: 1})) == {"a": plain, plain: 1}
