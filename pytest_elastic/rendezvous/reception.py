"""The agent's listening port: who comes says with the first message what it wants.

A member greets the coordinator, if one runs here, and stays; everybody else asks one question, and
hangs up when it is answered.
"""

from __future__ import annotations

import errno
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
# More than any honest crowd that has connected and not spoken yet: the oldest is let go.
_MAX_STRANGERS = 4096
# Without descriptors, and nobody to let go: how long those who come wait in the kernel.
_NO_ROOM_S = 0.1
# A scanner comes a thousand times: each host is told of once in so long, and so many hosts at most.
_SAY_AGAIN_S = 60.0
_MAX_SAID = 64


@dataclass(slots=True)
class _Visitor:
    """A connection that somebody made to our port."""

    channel: AgentChannel
    patience: Timer
    host: str
    has_spoken: bool = False
    has_greeted: bool = False


class Reception:
    """All connections that others have made; ids come from `new_connection`, and are never reused.

    One that says nothing for `patience_s` is ended. `is_coordinated` tells whether greetings are
    welcome. `on_stranger(host, reason)` hears of visitors that do not speak as agents of this job.
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
        on_stranger: Callable[[str, str], None],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._credentials = credentials
        self._patience_s = patience_s
        self._new_connection = new_connection
        self._is_coordinated = is_coordinated
        self._tell_coordinator = tell_coordinator
        self._on_question = on_question
        self._on_stranger = on_stranger
        self._silent_until: dict[str, float] = {}
        self._visitors: dict[int, _Visitor] = {}
        self._strangers: dict[int, None] = {}
        self._is_closed = False

    def open(self) -> None:
        """Begin to accept."""
        if self._is_closed:
            return
        self._loop.watch(self._listener.fileno(), on_readable=self._accept)

    def send(self, connection: int, message: Message) -> None:
        """Say something to a visitor who may have gone."""
        if visitor := self._visitors.get(connection):
            visitor.channel.send(encode(message))

    def disconnect(self, connection: int) -> None:
        """End a connection after what was said has left."""
        self._strangers.pop(connection, None)
        if visitor := self._visitors.pop(connection, None):
            visitor.patience.cancel()
            visitor.channel.close_when_flushed()

    def dismiss_members(self) -> None:
        """End the connections of all who have greeted: nobody here decides any more."""
        for connection in [c for c, visitor in self._visitors.items() if visitor.has_greeted]:
            self.disconnect(connection)

    def close(self) -> None:
        """End everything."""
        self._is_closed = True
        self._loop.unwatch(self._listener.fileno())
        for connection in list(self._visitors):
            self.disconnect(connection)

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self._let_a_stranger_go():
                self._loop.unwatch(self._listener.fileno())
                self._loop.call_at(self._loop.now() + _NO_ROOM_S, self.open)
            return
        if len(self._strangers) >= _MAX_STRANGERS:
            self._let_a_stranger_go()
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
            self._loop.now() + self._patience_s, lambda: self._lose_patience(connection)
        )
        self._visitors[connection] = _Visitor(channel, patience, str(address[0]))
        self._strangers[connection] = None

    def _lose_patience(self, connection: int) -> None:
        visitor = self._visitors.get(connection)
        if visitor is not None and not visitor.has_spoken:
            self._tell_of(visitor, f"it said nothing for {self._patience_s:g} s")
        self.disconnect(connection)

    def _let_a_stranger_go(self) -> bool:
        """End the oldest connection that has not greeted; tell whether there was one."""
        for connection in self._strangers:
            self._visitors[connection].channel.close()
            self.disconnect(connection)
            return True
        return False

    def _tell_of(self, visitor: _Visitor, reason: str) -> None:
        now = self._loop.now()
        if now < self._silent_until.get(visitor.host, 0.0):
            return
        if len(self._silent_until) >= _MAX_SAID:
            self._silent_until = {h: t for h, t in self._silent_until.items() if t > now}
        if len(self._silent_until) < _MAX_SAID:
            self._silent_until[visitor.host] = now + _SAY_AGAIN_S
            self._on_stranger(visitor.host, reason)

    def _on_frame(self, connection: int, fields: JsonObject) -> None:
        visitor = self._visitors.get(connection)
        if visitor is None:
            return
        try:
            message = decode(fields)
        except BadMessage as error:
            self._tell_of(visitor, str(error))
            visitor.channel.close()
            self._on_closed(connection, str(error))
            return
        visitor.has_spoken = True
        if isinstance(message, ProbeRequest | PlaceRequest | VoteRequest | Announcement):
            self._on_question(connection, message)
            return
        if not visitor.has_greeted:
            if not isinstance(message, Hello) or not self._is_coordinated():
                self.disconnect(connection)
                return
            visitor.has_greeted = True
            del self._strangers[connection]
            visitor.channel.allow_frames_of(MAX_FRAME_BYTES)
            visitor.patience.cancel()
        self._tell_coordinator(v.PeerMessage(connection=connection, message=message))

    def _on_closed(self, connection: int, reason: str) -> None:
        self._strangers.pop(connection, None)
        visitor = self._visitors.pop(connection, None)
        if visitor is None:
            return
        visitor.patience.cancel()
        if visitor.channel.is_foreign:
            self._tell_of(visitor, reason)
        if visitor.has_greeted:
            self._tell_coordinator(v.PeerLost(connection=connection, reason=reason))
