"""Between agents, what is signed arrives; what is not, or was said before, does not (R15)."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from pytest_elastic.agent_channel import AgentChannel
from pytest_elastic.channel import JsonObject
from pytest_elastic.credentials import Credentials
from pytest_elastic.loop import Loop

OURS = Credentials.of_job(b"a token that nobody can guess", "job")
OTHER = Credentials.of_job(b"another token, just as secret", "job")


class End:
    """One end of a connection, and what came out of it."""

    def __init__(
        self, loop: Loop, sock: socket.socket, credentials: Credentials | None, *, is_caller: bool
    ) -> None:
        self.heard: list[JsonObject] = []
        self.ends: list[str] = []
        self.channel = AgentChannel(
            loop,
            sock,
            credentials=credentials,
            is_caller=is_caller,
            on_message=self.heard.append,
            on_closed=self.ends.append,
        )


class Wire:
    """Connections over TCP, and the loop that both ends of each are in."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.socks: list[socket.socket] = []

    def connection(self) -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            caller = socket.create_connection(server.getsockname())
            callee, _ = server.accept()
        self.socks += [caller, callee]
        return caller, callee

    def pair(self, caller: Credentials | None, callee: Credentials | None) -> tuple[End, End]:
        one, other = self.connection()
        return (
            End(self.loop, one, caller, is_caller=True),
            End(self.loop, other, callee, is_caller=False),
        )

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = self.loop.now() + 60
        while not is_so():
            assert self.loop.now() < deadline, "it did not come about"
            self.loop.run_once(deadline - self.loop.now())


@pytest.fixture
def wire() -> Iterator[Wire]:
    """A loop, and what was opened in it until the test is over."""
    wire = Wire()
    yield wire
    for sock in wire.socks:
        sock.close()
    wire.loop.close()


@pytest.mark.parametrize("credentials", [None, OURS], ids=["plain", "signed"])
def test_what_is_said_arrives_in_order(wire: Wire, credentials: Credentials | None) -> None:
    """Both ways, though each began to speak before it knew the other's random part.

    Bytes that are no text stand as escapes: nobody could write them down, nor print them.
    """
    caller, callee = wire.pair(credentials, credentials)
    said: list[JsonObject] = [{"n": n, "text": "ä\udcff\0"} for n in range(50)]
    for message in said:
        caller.channel.send(message)
        callee.channel.send(message)
    wire.until(lambda: len(caller.heard) == len(callee.heard) == 50)
    heard = [{"n": n, "text": "ä\\udcff\0"} for n in range(50)]
    assert caller.heard == callee.heard == heard
    assert not caller.ends + callee.ends


@pytest.mark.parametrize(
    ("caller", "callee", "why"),
    [
        (None, OURS, "this node was given no token"),
        (OURS, None, "no token was given to the node there"),
        (OTHER, OURS, "not signed with the token of this job"),
        (
            OURS,
            Credentials.of_job(b"a token that nobody can guess", "other job"),
            "not signed with",
        ),
    ],
    ids=["caller has none", "callee has none", "another token", "another job"],
)
def test_both_hear_why_they_do_not_understand_each_other(
    wire: Wire, caller: Credentials | None, callee: Credentials | None, why: str
) -> None:
    """And nothing that was said is heard."""
    one, other = wire.pair(caller, callee)
    one.channel.send({"hello": 1})
    wire.until(lambda: bool(one.ends and other.ends))
    assert not one.heard + other.heard
    assert len(one.ends) == len(other.ends) == 1
    assert why in one.ends[0]
    assert "--rdzv-token-file" in one.ends[0]
    assert one.channel.unwelcome == one.ends[0]


def frame(said: object) -> bytes:
    """Return one frame as it travels: bytes as they are, everything else as JSON."""
    body = said if isinstance(said, bytes) else json.dumps(said, separators=(",", ":")).encode()
    return struct.pack(">I", len(body)) + body


def read_frame(sock: socket.socket) -> bytes:
    """Read one frame from a stranger's socket."""
    sock.settimeout(10)
    (length,) = struct.unpack(">I", sock.recv(4, socket.MSG_WAITALL))
    return sock.recv(length, socket.MSG_WAITALL)


def recorded(wire: Wire) -> list[bytes]:
    """Return what a caller who has our token said on a connection of before."""
    caller_sock, stranger = wire.connection()
    caller = End(wire.loop, caller_sock, OURS, is_caller=True)
    caller.channel.send({"order": "stop"})
    stranger.sendall(frame({"challenge": "0" * 32}))
    frames = [read_frame(stranger)]
    wire.loop.run_once(1)
    while len(frames) < 2:
        wire.loop.run_once(0.01)
        frames.append(read_frame(stranger))
    assert frames[1].endswith(b'{"order":"stop"}')
    caller.channel.close()
    return frames


def test_what_was_recorded_cannot_be_played_again(wire: Wire) -> None:
    """On another connection the challenge is another; on the same one the count is."""
    played = b"".join(map(frame, recorded(wire)))
    stranger, callee_sock = wire.connection()
    callee = End(wire.loop, callee_sock, OURS, is_caller=False)
    stranger.sendall(played)
    wire.until(lambda: bool(callee.ends))
    assert not callee.heard
    assert "not signed with the token" in callee.ends[0]


def test_a_message_that_is_sent_twice_is_heard_once(wire: Wire) -> None:
    """Somebody in between repeats a frame."""
    caller_sock, between_caller = wire.connection()
    between_callee, callee_sock = wire.connection()
    caller = End(wire.loop, caller_sock, OURS, is_caller=True)
    callee = End(wire.loop, callee_sock, OURS, is_caller=False)
    caller.channel.send({"n": 1})
    nonce = read_frame(between_caller)
    between_caller.sendall(frame(read_frame(between_callee)))
    wire.loop.run_once(5)
    signed = read_frame(between_caller)
    between_callee.sendall(frame(nonce) + frame(signed) + frame(signed))
    wire.until(lambda: bool(callee.ends))
    assert callee.heard == [{"n": 1}]


def test_a_message_is_not_turned_round(wire: Wire) -> None:
    """What a caller signed is not taken for what its callee says."""
    caller_sock, stranger = wire.connection()
    caller = End(wire.loop, caller_sock, OURS, is_caller=True)
    caller.channel.send({"n": 1})
    stranger.sendall(frame({"challenge": "0" * 32}))
    read_frame(stranger)
    wire.loop.run_once(5)
    stranger.sendall(frame(read_frame(stranger)))
    wire.until(lambda: bool(caller.ends))
    assert not caller.heard


@pytest.mark.parametrize(
    "bytes_",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        frame({"format": 1, "kind": "hello"}),
        frame({"nonce": "short"}),
        frame({"nonce": ["0" * 32]}),
        frame({"nonce": "0" * 32}) + frame(b"{}"),
        frame({"nonce": "0" * 32}) + frame(b"0" * 64 + b"{}"),
        frame({"nonce": "0" * 32}) + frame("\u00e4".encode() * 32 + b"{}"),
        frame({"nonce": "0" * 32}) + frame({"unwelcome": 3, "kind": "hello"}),
        frame({"nonce": "0" * 32}) + frame({"unwelcome": "x" * 5_000}),
        frame({"nonce": "0" * 32}) * 2,
        frame(b"0" * 64 + b"{}"),
        struct.pack(">I", 200_000) + b"[" * 200_000,
    ],
    ids=range(12),
)
@pytest.mark.parametrize("credentials", [None, OURS], ids=["plain", "signed"])
def test_strangers_end_their_own_connection_only(
    wire: Wire, credentials: Credentials | None, bytes_: bytes
) -> None:
    """Whatever they say, nothing is raised; and where things are signed, nothing is heard."""
    stranger, callee_sock = wire.connection()
    callee = End(wire.loop, callee_sock, credentials, is_caller=False)
    stranger.sendall(bytes_)
    wire.until(lambda: bool(callee.ends or callee.heard))
    assert bool(callee.heard) == (credentials is None and bytes_[4:13] == b'{"format"')


def test_last_words_are_said_although_the_handshake_is_not_over(wire: Wire) -> None:
    """Who sends and hangs up at once is heard."""
    caller, callee = wire.pair(OURS, OURS)
    caller.channel.send({"n": 1})
    caller.channel.close_when_flushed()
    wire.until(lambda: bool(callee.ends))
    assert callee.heard == [{"n": 1}]
    assert not caller.ends


def test_one_turn_takes_a_few_of_the_messages_of_one_connection(wire: Wire) -> None:
    """The rest follows in later turns, in order, although nothing more arrives."""
    stranger, callee_sock = wire.connection()
    callee = End(wire.loop, callee_sock, None, is_caller=False)
    stranger.sendall(b"".join(frame({"n": n}) for n in range(1_000)))
    wire.loop.run_once(5)
    assert 0 < len(callee.heard) <= 40
    wire.until(lambda: len(callee.heard) == 1_000)
    assert [said["n"] for said in callee.heard] == list(range(1_000))
