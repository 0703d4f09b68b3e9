"""Requests, answers and events between two parts of the harness."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from elastic_harness.conversation import Answer, Conversation, Reply

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

    def ask(self, op: str, *, timeout_s: float = LIMIT_S) -> list[Answer]:
        """Ask something; the answer will be in the list."""
        answers: list[Answer] = []
        self.caller.call(op, {"what": op}, answers.append, timeout_s=timeout_s)
        return answers

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
    """Whoever asked second may be answered first."""
    first, second = pair.ask("first"), pair.ask("second")
    pair.serve_until(pair.asked, 2)
    for _, fields, reply in reversed(pair.asked):
        reply.done({"echo": fields["what"]})
    pair.serve_until(first)
    pair.serve_until(second)
    assert (first[0].fields["echo"], second[0].fields["echo"]) == ("first", "second")


def test_a_refusal_carries_its_reason(pair: Pair) -> None:
    """An answer is a result or a sentence."""
    answers = pair.ask("impossible")
    pair.serve_until(pair.asked)
    pair.asked[0][2].failed("it cannot be done")
    pair.serve_until(answers)
    assert answers[0].error == "it cannot be done"


def test_a_request_without_an_answer_ends_at_its_deadline(pair: Pair) -> None:
    """The caller is told once; an answer that comes too late is nobody's."""
    answers = pair.ask("slow", timeout_s=0.05)
    pair.serve_until(answers)
    assert answers[0].error == "no answer to 'slow' within 0.05 s"
    pair.asked[0][2].done()
    pair.caller.tell("after", {})
    pair.serve_until(pair.events)
    assert len(answers) == 1


def test_open_requests_end_with_the_connection(pair: Pair) -> None:
    """Nobody waits for the answer of a side that has gone."""
    answers = pair.ask("question")
    pair.serve_until(pair.asked)
    pair.callee.close()
    pair.serve_until(answers)
    assert answers[0].error == "the other side closed the connection"
    assert pair.closed == ["the other side closed the connection"]
    late = pair.ask("another")
    pair.serve_until(late)
    assert late[0].error == "the connection has ended"


def test_descriptors_come_with_an_answer(pair: Pair) -> None:
    """The receiver owns what arrives; the sender keeps its own."""
    answers = pair.ask("descriptor")
    pair.serve_until(pair.asked)
    read, write = os.pipe()
    pair.asked[0][2].done({}, [write])
    os.close(write)
    pair.serve_until(answers)
    os.write(answers[0].fds[0], b"through")
    answers[0].close_fds()
    assert os.read(read, 100) == b"through"
    assert os.read(read, 100) == b""
    os.close(read)
