"""Requests with answers over one channel, in both directions, each bounded by a deadline.

The pytest process talks to the cluster server like this, the server to the switch and to the node
inits. A message is one of: a request {id, op, ...}, its answer {re, ...} or {re, error, hint}, and
an event {event, ...} that needs no answer.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.future import Future, settled
from pytest_elastic.channel import Channel, JsonObject
from pytest_elastic.loop import Loop, Timer

__all__ = ["Answer", "Conversation", "MessageStream", "Reply"]


class MessageStream(Protocol):
    """What a conversation needs of what carries it: a `Channel`, or a link to another machine."""

    @property
    def is_closed(self) -> bool:
        """Tell whether the stream has ended, from either side."""

    def send(self, message: JsonObject, fds: Sequence[int] = ()) -> None:
        """Queue one message; the descriptors are duplicated."""

    def close(self) -> None:
        """End the stream at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back: `fields`, and descriptors, which are the receiver's to close."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    fds: Sequence[int] = ()

    def close_fds(self) -> None:
        """Close unwanted descriptors."""
        for fd in self.fds:
            os.close(fd)


class Reply:
    """The way back of one request; one of its methods is called, once."""

    def __init__(self, channel: MessageStream, request: int) -> None:
        self._channel = channel
        self._request = request

    def done(self, fields: Mapping[str, Any] | None = None, fds: Sequence[int] = ()) -> None:
        """Answer; the descriptors are duplicated, the caller's own stay open."""
        self._channel.send({**(fields or {}), "re": self._request}, fds)

    def failed(self, error: str, hint: str | None = None) -> None:
        """Refuse, with a sentence that says what could not be done and why, and with a hint."""
        self._channel.send({"re": self._request, "error": error, "hint": hint})

    def when_done(self, answer: Future[Answer]) -> None:
        """Answer with what a future brings, and close its descriptors."""

        def on_done(done: Future[Answer]) -> None:
            if done.error is not None:
                self.failed(done.error.message, done.error.hint)
                return
            told = {key: value for key, value in done.result().fields.items() if key != "re"}
            self.done(told, done.result().fds)
            done.result().close_fds()

        answer.add_done_callback(on_done)


OnRequest = Callable[[str, JsonObject, list[int], Reply], None]
OnEvent = Callable[[str, JsonObject, list[int]], None]


# How a stream is opened: with what is to be called for each message, and when it has ended.
OpenStream = Callable[
    [Callable[[JsonObject, list[int]], None], Callable[[str], None]], MessageStream
]


class Conversation:
    """One end of a connection between two parts of the harness.

    `wire` is a Unix socket, or opens another kind of stream.
    """

    def __init__(
        self,
        loop: Loop,
        wire: socket.socket | OpenStream,
        *,
        on_request: OnRequest | None = None,
        on_event: OnEvent | None = None,
        on_closed: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._on_request = on_request
        self._on_event = on_event
        self._on_closed = on_closed
        self._waiting: dict[int, tuple[Future[Answer], Timer]] = {}
        self._last_id = 0
        self._channel: MessageStream
        if isinstance(wire, socket.socket):
            self._socket: socket.socket | None = wire
            self._channel = Channel(loop, wire, on_message=self._receive, on_closed=self._end)
        else:
            self._socket = None
            self._channel = wire(self._receive, self._end)

    @property
    def is_closed(self) -> bool:
        """Tell whether the connection has ended."""
        return self._channel.is_closed

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 when it has ended, or there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    def call(
        self, op: str, fields: Mapping[str, Any], *, timeout_s: float, fds: Sequence[int] = ()
    ) -> Future[Answer]:
        """Ask for something; a ClusterError comes where nothing else does within `timeout_s`."""
        if self.is_closed:
            return settled(ClusterError("the connection has ended"))
        self._last_id += 1
        request = self._last_id
        answer: Future[Answer] = Future(op.replace("_", " "))

        def give_up() -> None:
            self._waiting.pop(request)
            answer.settle(ClusterError(f"no answer to '{op}' within {timeout_s:g} s"))

        timer = self._loop.call_at(self._loop.now() + timeout_s, give_up)
        self._waiting[request] = (answer, timer)
        self._channel.send({**fields, "id": request, "op": op}, fds)
        return answer

    def tell(self, event: str, fields: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """State something that needs no answer."""
        self._channel.send({**fields, "event": event}, fds)

    def close(self) -> None:
        """End the connection; requests still open are answered with an error."""
        self._channel.close()
        self._fail_waiting("the connection was closed")

    def abandon(self) -> None:
        """Close the descriptor in a forked child, without touching the loop the parent shares."""
        assert self._socket is not None, "who forks talks over a socket"
        self._socket.close()

    def _end(self, reason: str) -> None:
        self._fail_waiting(reason)
        self._on_closed(reason)

    def _fail_waiting(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer, timer in waiting.values():
            timer.cancel()
            answer.settle(ClusterError(reason))

    def _receive(self, message: JsonObject, fds: list[int]) -> None:
        if "re" in message:
            waiter = self._waiting.pop(message["re"], None)
            if waiter is not None:
                answer, timer = waiter
                timer.cancel()
                if (problem := message.get("error")) is None:
                    answer.settle(Answer(fields=message, fds=fds))
                    return
                answer.settle(ClusterError(problem, hint=message.get("hint")))
        elif "op" in message and self._on_request is not None:
            reply = Reply(self._channel, message["id"])
            self._on_request(message["op"], message, fds, reply)
            return
        elif "event" in message and self._on_event is not None:
            self._on_event(message["event"], message, fds)
            return
        for fd in fds:  # an answer that came too late, or an event without a listener
            os.close(fd)
