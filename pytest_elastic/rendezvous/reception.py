"""The agent's listening port: who comes says with the first message what it wants.

A member greets the coordinator, if one runs here, and stays; everybody else asks one question, and
hangs up when it is answered. Until it has greeted, a visitor is a stranger: members are served
before it, and what all strangers together make this process hold is bounded.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass

from pytest_elastic.agent_channel import AgentChannel
from pytest_elastic.channel import JsonObject
from pytest_elastic.credentials import Credentials
from pytest_elastic.frames import Probation
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

# Whoever has not greeted is a stranger. More of them than connect honestly while one is served: the
# oldest is let go, and so it is when all of them together made us hold too many bytes.
_MAX_STRANGERS = 1024
_MAX_HELD_BYTES = 8 * 1024 * 1024
# Connections that are accepted in one turn of the loop, beside what other strangers have said.
_ACCEPTED_A_TURN = 8
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
    held_bytes: int = 0
    has_asked: bool = False
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
        self._held_bytes = 0
        self._is_closed = False

    def open(self) -> None:
        """Begin to accept."""
        if self._is_closed:
            return
        self._loop.watch(self._listener.fileno(), on_readable=self._accept_some, low_priority=True)

    def move(self, listener: socket.socket) -> None:
        """Accept on another socket from here on; the one of before is the caller's to close."""
        self._loop.unwatch(self._listener.fileno())
        self._listener = listener
        self.open()

    def send(self, connection: int, message: Message) -> None:
        """Say something to a visitor who may have gone."""
        if visitor := self._visitors.get(connection):
            visitor.channel.send(encode(message))

    def disconnect(self, connection: int) -> None:
        """End a connection after what was said has left, or when it was not read for too long."""
        self._strangers.pop(connection, None)
        if visitor := self._visitors.pop(connection, None):
            visitor.patience.cancel()
            visitor.channel.close_when_flushed()
            if not visitor.channel.is_closed:
                self._loop.call_at(self._loop.now() + self._patience_s, visitor.channel.close)

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

    def _accept_some(self) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and not self._let_a_stranger_go():
                    self._loop.unwatch(self._listener.fileno())
                    self._loop.call_at(self._loop.now() + _NO_ROOM_S, self.open)
                return
            if len(self._strangers) >= _MAX_STRANGERS:
                self._let_a_stranger_go()
            self._admit(sock, str(address[0]))

    def _admit(self, sock: socket.socket, host: str) -> None:
        connection = self._new_connection()
        channel = AgentChannel(
            self._loop,
            sock,
            credentials=self._credentials,
            is_caller=False,
            on_message=lambda fields: self._on_frame(connection, fields),
            on_closed=lambda reason: self._on_closed(connection, reason),
            probation=Probation(on_held=lambda more: self._on_held(connection, more)),
        )
        patience = self._loop.call_at(
            self._loop.now() + self._patience_s, lambda: self._lose_patience(connection)
        )
        self._visitors[connection] = _Visitor(channel, patience, host)
        self._strangers[connection] = None

    def _on_held(self, connection: int, more_bytes: int) -> None:
        """Keep count of what strangers make us hold, and let those go that are one too many."""
        self._held_bytes += more_bytes
        if visitor := self._visitors.get(connection):
            visitor.held_bytes += more_bytes
        while self._held_bytes > _MAX_HELD_BYTES and self._let_a_stranger_go(who_holds=True):
            pass

    def _lose_patience(self, connection: int) -> None:
        visitor = self._visitors.get(connection)
        if visitor is not None:
            if not visitor.has_asked:
                self._tell_of(visitor, f"it said nothing for {self._patience_s:g} s")
            visitor.channel.close()
        self.disconnect(connection)

    def _let_a_stranger_go(self, *, who_holds: bool = False) -> bool:
        """End the oldest connection that has not greeted; tell whether there was one."""
        for connection in self._strangers:
            if not who_holds or self._visitors[connection].held_bytes:
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
        if isinstance(message, ProbeRequest | PlaceRequest | VoteRequest | Announcement):
            if visitor.has_asked:
                self._tell_of(visitor, "it asked more than one question")
                visitor.channel.close()
                self.disconnect(connection)
                return
            visitor.has_asked = True
            self._on_question(connection, message)
            return
        if not visitor.has_greeted:
            if not isinstance(message, Hello) or not self._is_coordinated():
                self.disconnect(connection)
                return
            visitor.has_greeted = True
            del self._strangers[connection]
            visitor.channel.trust()
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
