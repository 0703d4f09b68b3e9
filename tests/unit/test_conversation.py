"""Requests, answers and events between two parts of the harness."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.conversation import Answer, Conversation, Reply
from elastic_harness.future import Future, wait_for

from pytest_elastic.channel import JsonObject
from pytest_elastic.loop import Loop

LIMIT_S = 60.0


@dataclass
class Pair:
    """Two ends in one loop; the second one keeps its requests for the test to answer."""

    loop: Loop
    asked: list[tuple[str, JsonObject, Reply]] = field(default_factory=list)
    events: list[tuple[str, JsonObject]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        left, right = socket.socketpair()
        self.caller = Conversation(self.loop, left, on_closed=self.closed.append)
        self.callee = Conversation(
            self.loop,
            right,
            on_request=lambda op, fields, _, reply: self.asked.append((op, fields, reply)),
            on_event=lambda event, fields, _: self.events.append((event, fields)),
            on_closed=self.closed.append,
        )

    def ask(self, op: str, *, timeout_s: float = LIMIT_S) -> Future[Answer]:
        """Ask something."""
        return self.caller.call(op, {"what": op}, timeout_s=timeout_s)

    def answer(self, asked: Future[Answer]) -> Answer:
        """Serve both ends until an answer is there."""
        return wait_for(self.loop, asked, within_s=LIMIT_S)

    def refusal(self, asked: Future[Answer]) -> str:
        """Serve both ends until it is refused, and return why."""
        with pytest.raises(ClusterError) as refused:
            self.answer(asked)
        return refused.value.message

    def serve_until(self, things: Sequence[object], count: int = 1) -> None:
        """Serve both ends until a list has as many entries as expected."""
        deadline = self.loop.now() + LIMIT_S
        while len(things) < count and self.loop.now() < deadline:
            self.loop.run_once(deadline - self.loop.now())
        assert len(things) == count


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Return both ends of a conversation."""
    made = Pair(Loop())
    yield made
    made.caller.close()
    made.callee.close()
    made.loop.close()


def test_answers_find_their_requests_in_any_order(pair: Pair) -> None:
    """The second question may be answered first."""
    first, second = pair.ask("first"), pair.ask("second")
    pair.serve_until(pair.asked, 2)
    for _, fields, reply in reversed(pair.asked):
        reply.done({"echo": fields["what"]})
    answers = [pair.answer(first), pair.answer(second)]
    assert [answer.fields["echo"] for answer in answers] == ["first", "second"]


def test_a_refusal_carries_its_reason(pair: Pair) -> None:
    """An answer is a result or a sentence."""
    asked = pair.ask("impossible")
    pair.serve_until(pair.asked)
    pair.asked[0][2].failed("it cannot be done")
    assert pair.refusal(asked) == "it cannot be done"


def test_a_request_without_an_answer_ends_at_its_deadline(pair: Pair) -> None:
    """The caller is told once; an answer that comes too late is nobody's."""
    asked = pair.ask("slow", timeout_s=0.05)
    assert pair.refusal(asked) == "no answer to 'slow' within 0.05 s"
    pair.asked[0][2].done()
    pair.caller.tell("after", {})
    pair.serve_until(pair.events)
    assert asked.error is not None


def test_open_requests_end_with_the_connection(pair: Pair) -> None:
    """Nobody waits for the answer of a side that has gone."""
    asked = pair.ask("question")
    pair.serve_until(pair.asked)
    pair.callee.close()
    assert pair.refusal(asked) == "the other side closed the connection"
    assert pair.closed == ["the other side closed the connection"]
    assert pair.refusal(pair.ask("another")) == "the connection has ended"


def test_descriptors_come_with_an_answer(pair: Pair) -> None:
    """The receiver owns what arrives; the sender keeps its own."""
    asked = pair.ask("descriptor")
    pair.serve_until(pair.asked)
    read, write = os.pipe()
    pair.asked[0][2].done({}, [write])
    os.close(write)
    answer = pair.answer(asked)
    os.write(answer.fds[0], b"through")
    answer.close_fds()
    assert os.read(read, 100) == b"through"
    assert os.read(read, 100) == b""
    os.close(read)
