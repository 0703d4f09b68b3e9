"""What machines share: the deadlines of a step, and its commands.

A step of a machine looks at deadlines; the nearest that is not over is when it wants to be woken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous.messages import Answer, Order, Report
from pytest_elastic.rendezvous.ports import Notice
from pytest_elastic.rendezvous.settings import Settings
from pytest_elastic.rendezvous.vocabulary import (
    Disconnect,
    Emit,
    FollowerCommand,
    LeaderCommand,
    Notify,
    Send,
    SendTo,
)

__all__ = [
    "Deadlines",
    "Outbox",
    "Part",
    "Shared",
]


class Deadlines:
    """Shared by the parts of a machine: the machine is woken for the nearest one."""

    __slots__ = ("wake_at",)

    def __init__(self) -> None:
        self.wake_at: float | None = None
        """The nearest deadline that was looked at since `clear` and was not over; None: none."""

    def clear(self) -> None:
        """Forget what was looked at: a new look begins."""
        self.wake_at = None

    def are_ahead(self, now: float) -> bool:
        """Tell whether none of them is over yet."""
        return self.wake_at is None or now < self.wake_at

    def is_due(self, deadline: float, now: float) -> bool:
        """Tell whether a deadline has passed; if not, it is one to wake up for."""
        if now >= deadline:
            return True
        if self.wake_at is None or deadline < self.wake_at:
            self.wake_at = deadline
        return False


class Outbox:
    """Shared by the parts of a machine, so that their commands keep one order."""

    def __init__(self) -> None:
        self._commands: list[Any] = []  # of one machine: its step says which

    def add(self, *commands: FollowerCommand | LeaderCommand) -> None:
        """Queue any commands."""
        self._commands += commands

    def send(self, message: Report) -> None:
        """Queue a message for the leader."""
        self._commands.append(Send(message=message))

    def send_to(self, connection: int | None, message: Order | Answer) -> None:
        """Queue a message for a connection; a member without one is told when it comes back."""
        if connection is not None:
            self._commands.append(SendTo(connection=connection, message=message))

    def disconnect(self, connection: int) -> None:
        """Queue the end of a connection."""
        self._commands.append(Disconnect(connection=connection))

    def notify(self, notice: Notice) -> None:
        """Queue a word for the agent."""
        self._commands.append(Notify(notice=notice))

    def emit(self, event: Event) -> None:
        """Queue a fact."""
        self._commands.append(Emit(event=event))

    def take(self) -> tuple[Any, ...]:
        """Return what has been queued since the last call."""
        commands, self._commands = tuple(self._commands), []
        return commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all parts of a machine have in common."""

    settings: Settings
    out: Outbox = field(default_factory=Outbox)
    deadlines: Deadlines = field(default_factory=Deadlines)


class Part:
    """A part of a machine."""

    def __init__(self, shared: Shared) -> None:
        self._settings = shared.settings
        self._out = shared.out
        self._deadlines = shared.deadlines
