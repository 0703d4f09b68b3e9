"""The wall between the agent and its rendezvous: what each may say to the other.

Requests go from the agent to the rendezvous, notices come back; both are values. The agent's
machine knows nothing of coordinators, leases' reasons or sockets, and a rendezvous knows nothing of
processes. Any backend (c10d, etcd, torch's own handlers through a bridge) is something that
implements `Rendezvous`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pytest_elastic.config import Endpoint
from pytest_elastic.rendezvous.model import Assignment, Failure
from pytest_elastic.wire import Float, Integer, Message

__all__ = [
    "STORE_S",
    "DrainRequested",
    "EndpointStore",
    "Fence",
    "GroupFailed",
    "GroupSucceeded",
    "HoldWorkers",
    "JobOver",
    "LeaseExtended",
    "Notice",
    "OpenStore",
    "PeerDraining",
    "ReleaseWorkers",
    "Rendezvous",
    "Request",
    "Spared",
    "StartWorkers",
    "StopWorkers",
    "StoreFailed",
    "StoreOpened",
    "WorkersGone",
]


class StoreOpened(Message):
    """The worker store asked for by `OpenStore` listens at `address:port`."""

    round: Integer
    address: str
    port: Integer


class StoreFailed(Message):
    """The worker store asked for by `OpenStore` could not be opened."""

    round: Integer
    reason: str


class GroupSucceeded(Message):
    """All workers of this node ended with status 0."""

    round: Integer


class GroupFailed(Message):
    """At least one worker of this node failed on its own account; its siblings may still run.

    `is_lease_over`: not on its own account, but killed by the keeper, whose deadline passed. The
    node gives its round up, as if it had been the first to notice.
    """

    round: Integer
    failures: tuple[Failure, ...]
    is_lease_over: bool = False


class WorkersGone(Message):
    """No process of this round is left here: the node can be in the next round.

    Sent after a `StopWorkers`, a `Fence`, or as the last word of a drain.
    """

    round: Integer


class DrainRequested(Message):
    """This node wants to leave; its workers get at most `grace_s` seconds (R4).

    The agent follows with `WorkersGone` when they are gone; without a running round it may leave at
    once. The rendezvous answers with `JobOver(result="drained")` when the node may go.
    """

    reason: str
    grace_s: Float


Request = StoreOpened | StoreFailed | GroupSucceeded | GroupFailed | WorkersGone | DrainRequested


class OpenStore(Message):
    """This node has group rank 0 of the round that is proposed: open a fresh worker store (R8)."""

    round: int
    world_size: int


class StartWorkers(Message):
    """The round is decided: start its workers now."""

    assignment: Assignment


class StopWorkers(Message):
    """The round is over: stop the workers within `grace_s` (leader, then group, then kill)."""

    round: int
    grace_s: float
    reason: str


class HoldWorkers(Message):
    """Contact is lost: SIGSTOP the workers at once, until released or told to kill (R5)."""

    round: int
    reason: str


class ReleaseWorkers(Message):
    """Contact is back and the round stands: SIGCONT."""

    round: int


class LeaseExtended(Message):
    """The node's lease holds until `until` (this machine's CLOCK_BOOTTIME); None: no lease needed.

    To be handed to the keeper, which kills the workers by itself when it passes (R6).
    """

    until: float | None


class Fence(Message):
    """The round may go on without us: kill all workers now, no grace."""

    round: int
    reason: str


class Spared(Message):
    """The node is a spare of this round: it waits for a place (R7)."""

    round: int


class PeerDraining(Message):
    """Another member is leaving (R4); told to everyone so that logs and workers can know."""

    node: str
    grace_s: Float


class JobOver(Message):
    """The last notice: nothing follows it.

    `result`: "succeeded", "failed" (budget used up; `first_failure` says why), "drained" (this node
    left), "lost" (the job cannot go on: leader or quorum lost, or never found, below
    min_nodes), "refused" (this node may not take part: settings differ, name taken).
    Workers of this node that may still run are to be stopped with grace for succeeded, failed and
    drained, and killed for lost and refused.
    """

    result: str
    reason: str
    first_failure: Failure | None = None


Notice = (
    OpenStore
    | StartWorkers
    | StopWorkers
    | HoldWorkers
    | ReleaseWorkers
    | LeaseExtended
    | Fence
    | Spared
    | PeerDraining
    | JobOver
)


class Rendezvous(Protocol):
    """A way for nodes to agree. Lives in the agent's loop; never blocks it.

    Notices are delivered through the callback given to the constructor, from inside the loop.
    """

    def open(self) -> None:
        """Begin to look for the job and to join it."""

    def request(self, request: Request) -> None:
        """Tell the rendezvous something; it acts within the loop's current turn."""

    def close(self, on_closed: Callable[[], None]) -> None:
        """Take no further part; calls back once no other node needs this one any more.

        That is at once, save for the node that leads: it stays until the others
        know how the job ends (bounded by the leader's own linger).
        """


# A store that is served answers in milliseconds; a frozen one costs a thread for so long.
STORE_S = 1.0


class EndpointStore(Protocol):
    """The store at the rendezvous endpoint, where what must be found is published.

    Blocking calls happen elsewhere; each answer comes through its callback, in the loop, within the
    time given. `error` is empty on success. A class that derives from
    this says in `_call` how calls are made.
    """

    on_lost: Callable[[], None] | None = None
    """To be called when the process that served what was hosted here has ended."""

    def host(
        self, endpoint: Endpoint, on_done: Callable[[str, str], None], *, is_forced: bool
    ) -> None:
        """Host the store if the endpoint is an address of this machine and its port is free.

        Calls back with why it is not hosted here, and why that may change: its host is a name that
        is not known (then the first is empty), or its port is in use (then both are the same). Both
        are empty where it is hosted. `is_forced`: whatever its host resolves to.
        """
        arguments = {"host": endpoint.host, "port": endpoint.port, "is_forced": is_forced}

        def take(port_or_why: object, error: str) -> None:
            if isinstance(port_or_why, Mapping):
                on_done(port_or_why["in_use"], port_or_why["in_use"])
            else:
                on_done(error, port_or_why if isinstance(port_or_why, str) else "")

        self._call("host_endpoint", arguments, take)

    def own_address(
        self,
        endpoints: Sequence[Endpoint],
        *,
        timeout_s: float,
        on_done: Callable[[str, str], None],
    ) -> None:
        """Find out which address of this machine leads to the endpoints.

        Calls back with the address and what is doubtful about it ("": nothing), or two empty texts
        where that could not be found out.
        """
        arguments = {"endpoints": [[each.host, each.port] for each in endpoints]}

        def take(found: object, error: str) -> None:
            values = {} if error or not isinstance(found, Mapping) else found
            on_done(str(values.get("address", "")), str(values.get("doubt", "")))

        self._call("own_address", arguments, take, timeout_s=timeout_s)

    def publish(
        self,
        endpoint: Endpoint,
        key: str,
        value: str,
        on_done: Callable[[str], None],
        *,
        timeout_s: float = STORE_S,
    ) -> None:
        """Set a key of the store at an endpoint; calls back with an error or an empty text."""
        arguments = {"host": endpoint.host, "port": endpoint.port, "key": key, "value": value}
        self._call("publish", arguments, lambda _, error: on_done(error), timeout_s=timeout_s)

    def fetch(
        self, endpoint: Endpoint, key: str, on_done: Callable[[str, str], None], *, timeout_s: float
    ) -> None:
        """Wait for a key of the store at the endpoint; calls back with (value, error)."""
        arguments = {"host": endpoint.host, "port": endpoint.port, "key": key}
        self._call("fetch", arguments, _with_text(on_done), timeout_s=timeout_s)

    def swap(
        self,
        endpoint: Endpoint,
        key: str,
        expected: str,
        value: str | None,
        on_done: Callable[[str, str], None],
        *,
        timeout_s: float = STORE_S,
    ) -> None:
        """Set a key if it still holds what is expected; calls back with (what it holds, error).

        Empty stands for a key that is not set. A value of None only looks.
        """
        arguments: dict[str, object] = {"host": endpoint.host, "port": endpoint.port, "key": key}
        arguments |= {"expected": expected, "value": value}
        self._call("swap", arguments, _with_text(on_done), timeout_s=timeout_s)

    def _call(
        self,
        call: str,
        arguments: Mapping[str, object],
        on_done: Callable[[object, str], None],
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Make a call of `workers.messages.CallStore`; calls back with (value, error).

        Without `timeout_s`, the call is local and takes milliseconds.
        """


def _with_text(on_done: Callable[[str, str], None]) -> Callable[[object, str], None]:
    return lambda value, error: on_done("" if value is None else str(value), error)
