"""What agent and keeper say to each other, over one Unix socket pair, as JSON objects.

Orders go from the agent to the keeper, reports come back. `encode` and `decode` are each other's
inverse, and `decode` refuses what is not expected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pytest_elastic.errors import InternalError
from pytest_elastic.wire import Message
from pytest_elastic.workers.spec import WorkerSpec

__all__ = [
    "CallStore",
    "Dismiss",
    "ExtendLease",
    "GroupGone",
    "InheritFolder",
    "KeepListener",
    "KeeperReady",
    "KillGroup",
    "LeaseRanOut",
    "Order",
    "Report",
    "SignalGroup",
    "StartGroup",
    "StoreAnswered",
    "StoreServiceLost",
    "VariableChanged",
    "WorkerEnded",
    "WorkersRunning",
    "decode",
    "encode",
]


class StartGroup(Message):
    """Start the workers of a round; refused (InternalError) while another group has processes.

    `start` is "auto" (warm where it cannot be told from a fresh interpreter) or "exec".
    """

    round: int
    workers: Sequence[WorkerSpec]
    start: str = "auto"


class SignalGroup(Message):
    """Send `signal` to the processes of a round.

    `to` is "leaders" (each worker's first process only), "groups" (each worker's process group),
    or "all" (every descendant, setsid'd ones included).
    """

    round: int
    signal: int
    to: str


class KillGroup(Message):
    """SIGKILL every process of the group, descendants included, until none is left."""

    round: int


class ExtendLease(Message):
    """Have the group dead at `until` (CLOCK_BOOTTIME seconds) unless extended; None: no deadline.

    The keeper begins to kill its own margin (`KeeperSettings.kill_margin_s`) before that. A group
    that is to be started after its lease has run out is not started.
    """

    until: float | None


class CallStore(Message):
    """Ask the node's store service for something; answered by `StoreAnswered` with the same id.

    `call` is one of: "wake" {} (be ready to answer at once), "host_endpoint" {host, port,
    is_forced} (the endpoint store; the value is its port, or why nothing is known of the name yet,
    or {in_use}: why its port is not free),
    "own_address" {endpoints} (pairs of host and port; the value is an `OwnAddress`), "open" {host,
    ports, after} (a worker store on a free port, which is the value; see
    `channel.listen_on_free_port`), "close" {port}, "publish" {host, port, key, value}, "fetch"
    {host, port, key}, "swap" {host, port, key, expected, value}, and, of other registries,
    "etcd_..." and "file_..." with what `etcd_client` and `registry_file` take. What may wait has a
    `timeout_s` in seconds. Blocking torch calls happen in that process only.
    """

    id: int
    call: str
    arguments: Mapping[str, Any]


class KeepListener(Message):
    """Keep the agent's listening socket, which comes with this message as its only descriptor.

    While the agent lives the keeper accepts nothing. When it is dead, and its workers too, each
    connection gets `answer` (a JSON object, opaque here), for a while; signed with `key` (in
    hexadecimal digits) if there is one.
    """

    answer: Mapping[str, Any]
    key: str = ""


class InheritFolder(Message):
    """Remove the folder `path`, which the agent has made for itself, if the agent dies.

    Last of all, when its workers are gone and no question is answered any more: a disk that does
    not answer must not keep a tombstone from being shown. An agent that dismisses removes it
    itself.
    """

    path: str


class Dismiss(Message):
    """The agent ends on purpose: kill what is left, end the store service, and exit at once.

    No tombstone is shown. The agent learns of the end by its channel's.
    """


Order = (
    StartGroup
    | SignalGroup
    | KillGroup
    | ExtendLease
    | CallStore
    | KeepListener
    | InheritFolder
    | Dismiss
)


class KeeperReady(Message):
    """The keeper serves. `cold_reason` says why it cannot start warm workers; "" if it can."""

    pid: int
    cold_reason: str


class WorkersRunning(Message):
    """All workers of a round run; `pids` by local rank; `start` is warm or exec, and why.

    Not reported when one of them could not be started: its `WorkerEnded` says so. Of workers that
    are told to end before all run, it may come after the end of some.
    """

    round: int
    pids: tuple[int, ...]
    start: str
    start_reason: str


class VariableChanged(Message):
    """A warm worker changed `variable`, which its interpreter had read already.

    It began again, as the same process in a fresh interpreter; or goes on, because of `obstacle`.
    """

    round: int
    local_rank: int
    pid: int
    variable: str
    obstacle: str = ""


class WorkerEnded(Message):
    """A worker's leader process ended with `exit_code` (negative: killed by that signal).

    `was_out_of_memory`: SIGKILL by the kernel's out-of-memory killer, as far as that can be known.
    A worker that could not be started at all is reported with `start_error`.
    """

    round: int
    local_rank: int
    pid: int
    exit_code: int
    was_out_of_memory: bool = False
    start_error: str = ""


class GroupGone(Message):
    """No process of the round is left: not a leader, not a child, not a setsid'd grandchild.

    Reported once by itself, and again in answer to a `KillGroup` for a round that is gone.
    `killed` are the processes that the keeper had to SIGKILL; `strays` the commands of those that
    every worker of the group had left behind when it ended well, and that the keeper had to end.
    """

    round: int
    killed: tuple[int, ...] = ()
    strays: tuple[str, ...] = ()


class LeaseRanOut(Message):
    """The keeper killed the group because the lease was not extended in time."""

    round: int


class StoreAnswered(Message):
    """The outcome of a `CallStore`: `value` on success, else `error` says what went wrong."""

    id: int
    value: Any = None  # a JSON value
    error: str = ""


class StoreServiceLost(Message):
    """The store service died, and every store it hosted with it; the next call starts another."""

    reason: str


Report = (
    KeeperReady
    | WorkersRunning
    | VariableChanged
    | WorkerEnded
    | GroupGone
    | LeaseRanOut
    | StoreAnswered
    | StoreServiceLost
)


def encode(message: Order | Report) -> dict[str, Any]:
    """Return the message as a JSON object."""
    fields: dict[str, Any] = msgspec.to_builtins(message)
    return fields


def decode(fields: Mapping[str, Any], kind: Any) -> Any:  # noqa: ANN401 (a type, or several)
    """Return the message of a kind, such as `Order`, that a JSON object stands for.

    Raises InternalError for anything else.
    """
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise InternalError(f"agent and keeper disagree about a message: {error}") from error
