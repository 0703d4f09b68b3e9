"""The member's one connection to the coordinator: over TCP, or in memory when it is here."""

from __future__ import annotations

import socket
from collections.abc import Callable

from pytest_elastic.agent_channel import AgentChannel
from pytest_elastic.channel import JsonObject, connect
from pytest_elastic.credentials import Credentials
from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.messages import Message, Refusal, Welcome
from pytest_elastic.rendezvous.wire import BadMessage, decode, encode

__all__ = ["Uplink"]


class Uplink:
    """The member's one connection to the coordinator: over TCP, or in memory when it is here."""

    def __init__(
        self,
        loop: Loop,
        *,
        credentials: Credentials | None,
        tell_member: Callable[[v.MemberInput], None],
        tell_coordinator: Callable[[v.CoordinatorInput], None],
        new_connection: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._credentials = credentials
        self._was_welcome = False
        self._tell_member = tell_member
        self._tell_coordinator = tell_coordinator
        self._new_connection = new_connection
        self._channel: AgentChannel | None = None
        self._give_up: Callable[[], None] | None = None
        self._local: int | None = None
        self._generation = 0

    def is_local(self, connection: int) -> bool:
        """Tell whether a connection is the one in memory."""
        return connection == self._local

    def dial(self, command: v.Dial, *, is_here: bool) -> None:
        """Connect, giving up any earlier connection; the member hears how it went."""
        self.hang_up()
        self._generation += 1
        if is_here:
            self._local = self._new_connection()
            self._tell_member(v.Connected())
            return
        generation = self._generation
        self._give_up = connect(
            self._loop,
            command.address,
            command.port,
            timeout_s=command.answer_within_s,
            on_connected=lambda sock: self._on_connected(generation, sock),
            on_failed=lambda error: self._on_dial_failed(generation, error),
        )

    def send(self, message: Message) -> None:
        """Send on the connection there is, if there is one."""
        if self._local is not None:
            self._tell_coordinator(v.PeerMessage(connection=self._local, message=message))
        elif self._channel is not None:
            self._channel.send(encode(message))

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
            self._tell_coordinator(v.PeerLost(connection=connection, reason="the member hung up"))

    def end_local(self, reason: str) -> None:
        """Let the member know that the coordinator of this process has hung up, if it was there."""
        if self._local is None:
            return
        self._local = None
        self._tell_member(v.ConnectionLost(reason=reason))

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
        self._tell_member(v.Connected())

    def _on_dial_failed(self, generation: int, error: OSError) -> None:
        if generation != self._generation:
            return
        self._give_up = None
        outcome = (
            v.Outcome.REFUSED if isinstance(error, ConnectionRefusedError) else v.Outcome.SILENT
        )
        self._tell_member(v.DialFailed(reason=error.strerror or str(error), outcome=outcome))

    def _on_frame(self, generation: int, fields: JsonObject) -> None:
        if generation != self._generation:
            return
        try:
            message = decode(fields)
        except BadMessage as error:
            self._on_closed(generation, str(error))
            return
        self._was_welcome |= isinstance(message, Welcome)
        self._tell_member(v.MessageReceived(message=message))

    def _on_closed(self, generation: int, reason: str) -> None:
        if generation != self._generation:
            return
        unwelcome = None
        if self._channel is not None:
            unwelcome = self._channel.unwelcome
            self._channel.close()
            self._channel = None
        if unwelcome is not None and not self._was_welcome:
            # Nobody signed this, and a member would not be driven out by it; a newcomer whose token
            # is missing or another is told at once.
            refusal = Refusal(term=0, reason=unwelcome, is_final=True)
            self._tell_member(v.MessageReceived(message=refusal))
            return
        self._tell_member(v.ConnectionLost(reason=reason))
