"""What the process that runs a handler tells the bridge machine, and what that tells its driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous import ports
from pytest_elastic.wire import Value, kind_of

__all__ = [
    "Ask",
    "BridgeCommand",
    "BridgeInput",
    "Emit",
    "Formed",
    "FromHost",
    "HandlerFailed",
    "HandlerReady",
    "HostLost",
    "News",
    "Notify",
    "StoreKnown",
]


class Said(Value, tag_field="said", tag=kind_of):
    """What the process that runs the handler says; what members say may be anything."""


class HandlerReady(Said):
    """The handler has been made."""


class HandlerFailed(Said):
    """A call to the handler failed.

    `kind`: "usage" (it cannot be made), "closed", "spare" (closed, and this node was one too many),
    "timeout", "peers" (the round formed, and a member of it did not identify itself), "lost" (also:
    what the handler stands on cannot be reached).
    `over` is what a member of the last round left about the end of the job, if any did.
    """

    kind: str
    reason: str
    over: Any = None
    is_all_done: bool = False


class Formed(Said):
    """A round formed; `entries` is what its members say of themselves, by rank."""

    group_rank: int
    entries: Sequence[Any]


class StoreKnown(Said):
    """The worker store of the round listens at `address:port`."""

    address: str
    port: int


class News(Said):
    """What a look at the handler and at the round's store showed.

    `broken`: why a member ended the round. `over`: how a member says that the job ended.
    `is_some_done`, `is_all_done`: on how many nodes all workers have succeeded.
    """

    round: int
    waiting: int = 0
    is_closed: bool = False
    broken: str | None = None
    over: Any = None
    is_some_done: bool = False
    is_all_done: bool = False


class HostLost(Said):
    """The process that runs the handler is gone, or what it stands on does not answer."""

    reason: str


FromHost = HandlerReady | HandlerFailed | Formed | StoreKnown | News | HostLost
BridgeInput = FromHost | ports.Request


class Ask(Value):
    """Call this of the process that runs the handler."""

    call: str
    arguments: Mapping[str, Any]


class Notify(Value):
    """Hand this notice to the agent."""

    notice: ports.Notice


class Emit(Value):
    """Write this fact down."""

    event: Event


BridgeCommand = Ask | Notify | Emit
