"""The commands that a step of a machine collects, in order.

Those that carry a message are `rendezvous.vocabulary`'s, whose types name the present core's
messages only: here is where they take this core's.
"""

from __future__ import annotations

from typing import Any

from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous.core.messages import Answer, Order, Report
from pytest_elastic.rendezvous.core.vocabulary import FollowerCommand, LeaderCommand
from pytest_elastic.rendezvous.peer import Peer
from pytest_elastic.rendezvous.ports import Notice
from pytest_elastic.rendezvous.vocabulary import AnswerTo, Disconnect, Emit, Notify, Send, SendTo

__all__ = ["FollowerOutbox", "LeaderOutbox"]


class LeaderOutbox:
    """Shared by the parts of a leader, so that their commands keep one order."""

    def __init__(self) -> None:
        self._commands: list[LeaderCommand] = []

    def add(self, command: LeaderCommand) -> None:
        """Queue any command."""
        self._commands.append(command)

    def send(self, peer: Peer, order: Order) -> None:
        """Queue an order for a member; one without a connection is told when it comes back."""
        if peer.connection is not None:
            self.send_to(peer.connection, order)

    def send_to(self, connection: int, order: Order) -> None:
        """Queue an order for a connection that may be nobody's."""
        carried: Any = order
        self._commands.append(SendTo(connection=connection, message=carried))

    def disconnect(self, connection: int) -> None:
        """Queue the end of a connection."""
        self._commands.append(Disconnect(connection=connection))

    def emit(self, event: Event) -> None:
        """Queue a fact."""
        self._commands.append(Emit(event=event))

    def take(self) -> tuple[LeaderCommand, ...]:
        """Return what has been queued since the last call."""
        commands, self._commands = tuple(self._commands), []
        return commands


class FollowerOutbox:
    """Shared by the parts of a follower, so that their commands keep one order."""

    def __init__(self) -> None:
        self._commands: list[FollowerCommand] = []

    def add(self, *commands: FollowerCommand) -> None:
        """Queue any commands."""
        self._commands += commands

    def send(self, message: Report) -> None:
        """Queue a message for the leader."""
        carried: Any = message
        self._commands.append(Send(message=carried))

    def answer(self, connection: int, message: Answer) -> None:
        """Queue an answer to who asks at the listening port."""
        carried: Any = message
        self._commands.append(AnswerTo(connection=connection, message=carried))

    def notify(self, notice: Notice) -> None:
        """Queue a word for the agent."""
        self._commands.append(Notify(notice=notice))

    def emit(self, event: Event) -> None:
        """Queue a fact."""
        self._commands.append(Emit(event=event))

    def take(self) -> tuple[FollowerCommand, ...]:
        """Return what has been queued since the last call."""
        commands, self._commands = tuple(self._commands), []
        return commands
