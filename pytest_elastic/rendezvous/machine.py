"""What machines share: phases and how they change, the deadlines of a step, and its commands.

A step of a machine looks at deadlines; the nearest that is not over is when it wants to be woken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous.messages import Answer, Order, Report
from pytest_elastic.rendezvous.model import Settings
from pytest_elastic.rendezvous.ports import Notice
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
    "CONNECTION_ALLOWED",
    "GROUP_ALLOWED",
    "LEADER_ALLOWED",
    "WITH_WORKERS",
    "ConnectionPhase",
    "Deadlines",
    "GroupPhase",
    "LeaderPhase",
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


class ConnectionPhase(Enum):
    """What stands between a node and its leader."""

    __hash__ = object.__hash__  # Enum hashes by name, in Python, at every look into a set

    UNSTARTED = "unstarted"
    SEEKING = "seeking"  # the registry, and other nodes, were asked for the leader
    DIALING = "dialing"
    JOINING = "joining"  # connected; the join request was sent
    JOINED = "joined"  # heartbeats run, orders hold
    RESTING = "resting"  # the next try comes after a pause, or when workers are gone
    OVER = "over"  # the agent was told that the job is over here


class GroupPhase(Enum):
    """What a node's worker group is in the middle of."""

    __hash__ = object.__hash__

    NONE = "none"  # in no round
    ACCEPTED = "accepted"  # has accepted a round, waits for its start; no worker
    RUNNING = "running"
    SUCCEEDED = "succeeded"  # its workers ended with status 0
    STOPPING = "stopping"  # its workers are being stopped as ordered
    GONE = "gone"  # its workers are gone, as ordered
    FENCING = "fencing"  # its workers are being killed: the round goes on without us, or may


class LeaderPhase(Enum):
    """What a leader is doing with its job."""

    __hash__ = object.__hash__

    GATHERING = "gathering"  # no round; waits until enough members are ready
    STARTING = "starting"  # a round is proposed; waits until it may be started
    RUNNING = "running"  # workers run
    STOPPING = "stopping"  # waits until every worker is gone, or its node lost
    ENDING = "ending"  # the end is proposed; waits until all reachable nodes have it
    OVER = "over"  # the end is decided and told; answers late comers
    DEPOSED = "deposed"  # leads no more


CONNECTION_ALLOWED: dict[ConnectionPhase, frozenset[ConnectionPhase]] = {
    ConnectionPhase.UNSTARTED: frozenset({ConnectionPhase.SEEKING, ConnectionPhase.OVER}),
    ConnectionPhase.SEEKING: frozenset(
        {ConnectionPhase.DIALING, ConnectionPhase.RESTING, ConnectionPhase.OVER}
    ),
    ConnectionPhase.DIALING: frozenset(
        {ConnectionPhase.JOINING, ConnectionPhase.RESTING, ConnectionPhase.OVER}
    ),
    ConnectionPhase.JOINING: frozenset(
        {ConnectionPhase.JOINED, ConnectionPhase.RESTING, ConnectionPhase.OVER}
    ),
    ConnectionPhase.JOINED: frozenset(
        {ConnectionPhase.DIALING, ConnectionPhase.RESTING, ConnectionPhase.OVER}
    ),
    ConnectionPhase.RESTING: frozenset(
        {ConnectionPhase.SEEKING, ConnectionPhase.DIALING, ConnectionPhase.OVER}
    ),
    ConnectionPhase.OVER: frozenset(),
}

GROUP_ALLOWED: dict[GroupPhase, frozenset[GroupPhase]] = {
    GroupPhase.NONE: frozenset({GroupPhase.ACCEPTED}),
    GroupPhase.ACCEPTED: frozenset({GroupPhase.RUNNING, GroupPhase.GONE, GroupPhase.NONE}),
    GroupPhase.RUNNING: frozenset(
        {GroupPhase.SUCCEEDED, GroupPhase.STOPPING, GroupPhase.GONE, GroupPhase.FENCING}
    ),
    GroupPhase.SUCCEEDED: frozenset({GroupPhase.STOPPING, GroupPhase.GONE, GroupPhase.FENCING}),
    GroupPhase.STOPPING: frozenset({GroupPhase.GONE, GroupPhase.FENCING}),
    GroupPhase.GONE: frozenset({GroupPhase.ACCEPTED, GroupPhase.NONE}),
    GroupPhase.FENCING: frozenset({GroupPhase.NONE}),
}

WITH_WORKERS = frozenset({GroupPhase.RUNNING, GroupPhase.STOPPING})

LEADER_ALLOWED: dict[LeaderPhase, frozenset[LeaderPhase]] = {
    LeaderPhase.GATHERING: frozenset(
        {LeaderPhase.STARTING, LeaderPhase.ENDING, LeaderPhase.DEPOSED}
    ),
    LeaderPhase.STARTING: frozenset(
        {LeaderPhase.RUNNING, LeaderPhase.GATHERING, LeaderPhase.DEPOSED}
    ),
    LeaderPhase.RUNNING: frozenset({LeaderPhase.STOPPING, LeaderPhase.ENDING, LeaderPhase.DEPOSED}),
    LeaderPhase.STOPPING: frozenset({LeaderPhase.GATHERING, LeaderPhase.DEPOSED}),
    LeaderPhase.ENDING: frozenset({LeaderPhase.OVER, LeaderPhase.DEPOSED}),
    LeaderPhase.OVER: frozenset(),
    LeaderPhase.DEPOSED: frozenset(),
}
