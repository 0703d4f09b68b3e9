"""The agent's port with more visitors than it admits, on real sockets and a real loop (R15)."""

from __future__ import annotations

import contextlib
import itertools
import resource
import socket
from collections.abc import Callable, Iterator

import pytest

from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import NO_TERM
from pytest_elastic.rendezvous.driver import connections
from pytest_elastic.rendezvous.driver.connections import Reception
from pytest_elastic.rendezvous.messages import decode, encode
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.wire import Message
from tests.integration.test_launcher_hostile import frame
from tests.unit.rendezvous.samples import record_of

LIMIT_S = 30.0
QUESTION = frame(encode(m.Question(run_id="busy")))
JOIN_REQUEST = frame(
    encode(
        m.JoinRequest(
            run_id="busy",
            node=Node(name="member", incarnation="m", address="127.0.0.1", port=1, slots=1),
            settings={},
            resumes_round=0,
            term=NO_TERM,
            number=0,
            restarts_used=0,
            meant_for="",
        )
    )
)


class Port:
    """A port that is served, what was asked there, and whom its owner was told of."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.listener.setblocking(False)
        self.questions: list[int] = []
        self.strangers: list[str] = []
        self.members: list[v.LeaderInput] = []
        self.reception = Reception(
            self.loop,
            self.listener,
            credentials=None,
            patience_s=LIMIT_S,
            new_connection=itertools.count(1).__next__,
            is_leading=lambda: True,
            tell_leader=self.members.append,
            on_question=lambda connection, _: self.questions.append(connection),
            on_stranger=lambda _, reason: self.strangers.append(reason),
            decode=decode,
        )
        self.reception.open()
        self.visitors: list[socket.socket] = []

    def visit(self, words: bytes = b"") -> socket.socket:
        """Connect, and say something."""
        visitor = socket.create_connection(self.listener.getsockname())
        visitor.settimeout(LIMIT_S)
        visitor.sendall(words)
        self.visitors.append(visitor)
        return visitor

    def serve_until(self, is_done: Callable[[], bool]) -> None:
        """Serve until something has happened, and all that waits in the kernel after it."""
        end = self.loop.now() + LIMIT_S
        while not is_done():
            assert self.loop.now() < end, "it never came to that"
            self.loop.run_once(0.01)
        for _ in range(20):
            self.loop.run_once(0)

    @property
    def accepted(self) -> int:
        """How many connections are held."""
        return len(self.reception._visitors)


def has_ended(visitor: socket.socket) -> bool:
    """Tell whether the other side has hung up."""
    visitor.setblocking(False)
    try:
        return visitor.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    finally:
        visitor.settimeout(LIMIT_S)


@pytest.fixture
def port() -> Iterator[Port]:
    """A port with room for three thousand descriptors in this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 4096:
        pytest.skip(f"this test needs 4096 descriptors, and may have {before[1]}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, before[1]))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        made = Port()
        stack.callback(made.loop.close)
        stack.callback(made.listener.close)
        stack.callback(made.reception.close)
        yield made
        for visitor in made.visitors:
            visitor.close()


def test_a_round_is_written_once_for_all_its_members(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a job of a thousand nodes that takes milliseconds; the next round is another one."""
    members = [port.visit(JOIN_REQUEST) for _ in range(3)]
    port.serve_until(lambda: len(port.members) == 3)
    first = record_of(1, "n1", "n2")
    stop = m.StopRound(term=first.term, round=1, grace_s=1.0, reason="n2 came")
    orders = [
        m.AppendRecord(term=first.term, record=record, base=first)
        for record in (first, record_of(2, "n3"))
    ]
    written: list[Message] = []

    def spied(message: Message) -> object:
        written.append(message)
        return encode(message)

    monkeypatch.setattr(m, "encode", spied)
    for order in orders:
        for connection in (1, 2, 3):
            port.reception.send(connection, order)
            port.reception.send(connection, stop)
    assert [each for each in written if each is not stop] == orders
    port.serve_until(lambda: True)
    said = b"".join(frame(encode(each)) for order in orders for each in (order, stop))
    assert [member.recv(len(said), socket.MSG_WAITALL) for member in members] == [said] * 3


def test_a_stranger_asks_one_question(port: Port) -> None:
    """A second one on the same connection ends it, and its host is told of."""
    polite, rude = port.visit(QUESTION), port.visit(QUESTION + QUESTION)
    port.serve_until(lambda: len(port.questions) == 2 and port.accepted == 1)
    assert port.strangers == ["it asked more than one question"]
    assert has_ended(rude)
    assert not has_ended(polite)


def test_of_too_many_strangers_the_oldest_go_and_members_stay(port: Port) -> None:
    """Each newcomer is admitted; a member that came before all of them is not counted."""
    member = port.visit(JOIN_REQUEST)
    port.serve_until(lambda: len(port.members) == 1)
    limit = connections._MAX_STRANGERS
    first = [port.visit() for _ in range(3)]
    others = [port.visit() for _ in range(limit - 3)]
    port.serve_until(lambda: port.accepted == limit + 1)
    assert not any(map(has_ended, first))
    last = [port.visit(QUESTION) for _ in range(3)]
    port.serve_until(lambda: len(port.questions) == 3)
    assert [has_ended(one) for one in first] == [True] * 3
    assert not any(map(has_ended, [member, *others, *last]))
    assert port.accepted == limit + 1
