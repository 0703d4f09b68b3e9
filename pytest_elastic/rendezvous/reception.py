"""The agent's listening port: who comes says with the first message what it wants.

A member greets the coordinator, if one runs here, and stays; everybody else asks one question, and
hangs up when it is answered.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from pytest_elastic.agent_channel import AgentChannel
from pytest_elastic.channel import MAX_FRAME_BYTES, JsonObject
from pytest_elastic.credentials import Credentials
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.messages import (
    Announcement,
    Hello,
    Message,
    PlaceRequest,
    ProbeRequest,
    Question,
    VoteRequest,
)
from pytest_elastic.rendezvous.wire import BadMessage, decode, encode

__all__ = ["Reception"]

# Questions and greetings are far below this; a roster never comes this way.
_MAX_STRANGERS_FRAME_BYTES = 256 * 1024


@dataclass(slots=True)
class _Visitor:
    """A connection that somebody made to our port."""

    channel: AgentChannel
    patience: Timer
    has_greeted: bool = False


class Reception:
    """All connections that others have made; ids come from `new_connection`, and are never reused.

    One that says nothing for `patience_s` is ended. `is_coordinated` tells whether greetings are
    welcome.
    """

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        *,
        credentials: Credentials | None,
        patience_s: float,
        new_connection: Callable[[], int],
        is_coordinated: Callable[[], bool],
        tell_coordinator: Callable[[v.CoordinatorInput], None],
        on_question: Callable[[int, Question], None],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._credentials = credentials
        self._patience_s = patience_s
        self._new_connection = new_connection
        self._is_coordinated = is_coordinated
        self._tell_coordinator = tell_coordinator
        self._on_question = on_question
        self._visitors: dict[int, _Visitor] = {}

    def open(self) -> None:
        """Begin to accept."""
        self._loop.watch(self._listener.fileno(), on_readable=self._accept)

    def send(self, connection: int, message: Message) -> None:
        """Say something to a visitor who may have gone."""
        if visitor := self._visitors.get(connection):
            visitor.channel.send(encode(message))

    def disconnect(self, connection: int) -> None:
        """End a connection after what was said has left."""
        if visitor := self._visitors.pop(connection, None):
            visitor.patience.cancel()
            visitor.channel.close_when_flushed()

    def dismiss_members(self) -> None:
        """End the connections of all who have greeted: nobody here decides any more."""
        for connection in [c for c, visitor in self._visitors.items() if visitor.has_greeted]:
            self.disconnect(connection)

    def close(self) -> None:
        """End everything."""
        self._loop.unwatch(self._listener.fileno())
        for connection in list(self._visitors):
            self.disconnect(connection)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        connection = self._new_connection()
        channel = AgentChannel(
            self._loop,
            sock,
            credentials=self._credentials,
            is_caller=False,
            on_message=lambda fields: self._on_frame(connection, fields),
            on_closed=lambda reason: self._on_closed(connection, reason),
            max_frame_bytes=_MAX_STRANGERS_FRAME_BYTES,
        )
        patience = self._loop.call_at(
            self._loop.now() + self._patience_s, lambda: self.disconnect(connection)
        )
        self._visitors[connection] = _Visitor(channel, patience)

    def _on_frame(self, connection: int, fields: JsonObject) -> None:
        visitor = self._visitors.get(connection)
        if visitor is None:
            return
        try:
            message = decode(fields)
        except BadMessage as error:
            visitor.channel.close()
            self._on_closed(connection, str(error))
            return
        if isinstance(message, ProbeRequest | PlaceRequest | VoteRequest | Announcement):
            self._on_question(connection, message)
            return
        if not visitor.has_greeted:
            if not isinstance(message, Hello) or not self._is_coordinated():
                self.disconnect(connection)
                return
            visitor.has_greeted = True
            visitor.channel.allow_frames_of(MAX_FRAME_BYTES)
            visitor.patience.cancel()
        self._tell_coordinator(v.PeerMessage(connection=connection, message=message))

    def _on_closed(self, connection: int, reason: str) -> None:
        visitor = self._visitors.pop(connection, None)
        if visitor is None:
            return
        visitor.patience.cancel()
        if visitor.has_greeted:
            self._tell_coordinator(v.PeerLost(connection=connection, reason=reason))
