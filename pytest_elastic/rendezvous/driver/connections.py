"""A node's connections: those that others make to its port, and its follower's one to the leader.

At the port, the first message says what a visitor wants: a follower asks the leader to join, if one
runs here, and stays; any other asks one question. Until it has joined, a visitor is a stranger:
followers are served before it, and what all strangers make this process hold is bounded.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_elastic.agent_channel import AgentChannel
from pytest_elastic.channel import JsonObject, connect, write_object
from pytest_elastic.credentials import Credentials
from pytest_elastic.frames import Probation
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import NO_TERM
from pytest_elastic.wire import Message

__all__ = ["Reception", "Uplink"]

# How many strangers there may be, which have not asked to join: more than connect honestly while
# one is served. One too many, or too many bytes held for all of them, and the oldest is let go.
_MAX_STRANGERS = 1024
_MAX_HELD_BYTES = 8 * 1024 * 1024
# Connections that are accepted in one turn of the loop, beside what other strangers have said.
_ACCEPTED_A_TURN = 8
# Without free descriptors or strangers to drop: how long new connections wait in the kernel.
_NO_ROOM_S = 0.1
# A scanner comes a thousand times: each host is told of once in so long, and so many hosts at most.
_SAY_AGAIN_S = 60.0
_MAX_SAID = 64


@dataclass(slots=True)
class _Visitor:
    """A connection to our port."""

    channel: AgentChannel
    patience: Timer
    host: str
    held_bytes: int = 0
    has_asked: bool = False
    has_joined: bool = False


class Reception:
    """All connections that others have made; ids come from `new_connection`, and are never reused.

    One that says nothing for `patience_s` is ended. `is_leading` tells whether join requests are
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
        is_leading: Callable[[], bool],
        tell_leader: Callable[[v.PeerMessage | v.PeerLost], None],
        on_question: Callable[[int, m.Question], None],
        on_stranger: Callable[[str, str], None],
        decode: Callable[[Mapping[str, Any]], Any],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._credentials = credentials
        self._patience_s = patience_s
        self._new_connection = new_connection
        self._is_leading = is_leading
        self._tell_leader = tell_leader
        self._on_question = on_question
        self._on_stranger = on_stranger
        self._decode = decode
        self._silent_until: dict[str, float] = {}
        self._visitors: dict[int, _Visitor] = {}
        self._strangers: dict[int, None] = {}
        self._held_bytes = 0
        self._written: tuple[m.AppendRecord | None, bytes] = None, b""  # the newest, as it is sent
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
        """Send a message to a visitor that may have gone."""
        visitor = self._visitors.get(connection)
        if visitor is None:
            return
        if not isinstance(message, m.AppendRecord):
            visitor.channel.send(m.encode(message))
            return
        # As long as the job has nodes, and the same for all of them: it is written once.
        if message is not self._written[0]:
            self._written = message, write_object(m.encode(message)).encode()
        visitor.channel.send_written(self._written[1])

    def disconnect(self, connection: int) -> None:
        """End a connection after what was said has left, or when it was not read for too long."""
        self._strangers.pop(connection, None)
        if visitor := self._visitors.pop(connection, None):
            visitor.patience.cancel()
            visitor.channel.close_when_flushed()
            if not visitor.channel.is_closed:
                self._loop.call_at(self._loop.now() + self._patience_s, visitor.channel.close)

    def dismiss_members(self) -> None:
        """End the connections of all followers: this node leads no more."""
        for connection in [c for c, visitor in self._visitors.items() if visitor.has_joined]:
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
        """End the oldest connection of a stranger; tell whether there was one."""
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
            message = self._decode(fields)
        except m.BadMessage as error:
            self._tell_of(visitor, str(error))
            visitor.channel.close()
            self._on_closed(connection, str(error))
            return
        if isinstance(message, m.Question):
            if visitor.has_asked:
                self._tell_of(visitor, "it asked more than one question")
                visitor.channel.close()
                self.disconnect(connection)
                return
            visitor.has_asked = True
            self._on_question(connection, message)
            return
        if not visitor.has_joined:
            is_join_request = isinstance(message, m.JoinRequest)
            if not is_join_request or not self._is_leading():
                self.disconnect(connection)
                return
            visitor.has_joined = True
            del self._strangers[connection]
            visitor.channel.trust()
            visitor.patience.cancel()
        self._tell_leader(v.PeerMessage(connection=connection, message=message))

    def _on_closed(self, connection: int, reason: str) -> None:
        self._strangers.pop(connection, None)
        visitor = self._visitors.pop(connection, None)
        if visitor is None:
            return
        visitor.patience.cancel()
        if visitor.channel.is_foreign:
            self._tell_of(visitor, reason)
        if visitor.has_joined:
            self._tell_leader(v.PeerLost(connection=connection, reason=reason))


_News = v.Connected | v.DialFailed | v.ConnectionLost | v.MessageReceived


class Uplink:
    """The follower's one connection to the leader: over TCP, or in memory when it is here.

    A dial is given up after `patience_s`.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        credentials: Credentials | None,
        patience_s: float,
        tell_follower: Callable[[_News], None],
        tell_leader: Callable[[v.PeerMessage | v.PeerLost], None],
        new_connection: Callable[[], int],
        decode: Callable[[Mapping[str, Any]], Any],
    ) -> None:
        self._loop = loop
        self._credentials = credentials
        self._patience_s = patience_s
        self._was_welcome = False
        self._tell_follower = tell_follower
        self._tell_leader = tell_leader
        self._new_connection = new_connection
        self._decode = decode
        self._channel: AgentChannel | None = None
        self._give_up: Callable[[], None] | None = None
        self._local: int | None = None
        self._generation = 0

    def is_local(self, connection: int) -> bool:
        """Tell whether a connection is the one in memory."""
        return connection == self._local

    def dial(self, command: v.Dial, *, is_here: bool) -> None:
        """Connect, giving up any earlier connection; the follower hears how it went."""
        self.hang_up()
        if is_here:
            self._local = self._new_connection()
            self._tell_follower(v.Connected())
            return
        generation = self._generation
        self._give_up = connect(
            self._loop,
            command.address,
            command.port,
            timeout_s=self._patience_s,
            on_connected=lambda sock: self._on_connected(generation, sock),
            on_failed=lambda error: self._on_dial_failed(generation, error),
        )

    def send(self, message: m.Report) -> None:
        """Send on the connection there is, if there is one."""
        if self._local is not None:
            self._tell_leader(v.PeerMessage(connection=self._local, message=message))
        elif self._channel is not None:
            self._channel.send(m.encode(message))

    def hang_up(self) -> None:
        """End the connection, or the dialling of it; nothing more is said about it."""
        self._generation += 1
        if self._give_up is not None:
            self._give_up()
            self._give_up = None
        if self._channel is not None:
            self._channel.close_when_flushed()
            self._channel = None
        if self._local is not None:
            connection, self._local = self._local, None
            self._tell_leader(v.PeerLost(connection=connection, reason="the follower hung up"))

    def end_local(self, reason: str) -> None:
        """Let the follower know that the leader of this process has hung up, if it was there."""
        if self._local is None:
            return
        self._local = None
        self._tell_follower(v.ConnectionLost(reason=reason))

    def _on_connected(self, generation: int, sock: socket.socket) -> None:
        if generation != self._generation:
            sock.close()
            return
        self._give_up = None
        self._channel = AgentChannel(
            self._loop,
            sock,
            credentials=self._credentials,
            is_caller=True,
            on_message=lambda fields: self._on_frame(generation, fields),
            on_closed=lambda reason: self._on_closed(generation, reason),
        )
        self._tell_follower(v.Connected())

    def _on_dial_failed(self, generation: int, error: OSError) -> None:
        if generation != self._generation:
            return
        self._give_up = None
        outcome = (
            v.Outcome.REFUSED if isinstance(error, ConnectionRefusedError) else v.Outcome.SILENT
        )
        self._tell_follower(v.DialFailed(reason=error.strerror or str(error), outcome=outcome))

    def _on_frame(self, generation: int, fields: JsonObject) -> None:
        if generation != self._generation:
            return
        try:
            message = self._decode(fields)
        except m.BadMessage as error:
            self._on_closed(generation, str(error))
            return
        self._was_welcome |= isinstance(message, m.JoinAccepted)
        self._tell_follower(v.MessageReceived(message=message))

    def _on_closed(self, generation: int, reason: str) -> None:
        if generation != self._generation:
            return
        unwelcome = None
        if self._channel is not None:
            unwelcome = self._channel.unwelcome
            self._channel.close()
            self._channel = None
        if unwelcome is not None and not self._was_welcome:
            # This is unsigned, and must not drive out a follower; but a newcomer whose
            # token is missing or another is told at once.
            refusal = m.Dismissed(term=NO_TERM, reason=unwelcome, is_final=True)
            self._tell_follower(v.MessageReceived(message=refusal))
            return
        self._tell_follower(v.ConnectionLost(reason=reason))
