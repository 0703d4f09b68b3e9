"""What the agent's machine is told, and what it orders.

Inputs are facts from its surroundings (a notice of the rendezvous, a report about a worker, a
signal, the time); commands are for the driver in `agent.agent` to perform.
"""

from __future__ import annotations

from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous.model import NOT_AVAILABLE, Assignment
from pytest_elastic.rendezvous.ports import Notice, Request
from pytest_elastic.wire import Value

__all__ = [
    "AgentCommand",
    "AgentInput",
    "Ask",
    "Close",
    "Emit",
    "Exit",
    "GroupVanished",
    "KeeperGone",
    "Kill",
    "LeaseExpired",
    "Noticed",
    "OpenWorkerStore",
    "SetLease",
    "Signal",
    "SignalArrived",
    "Start",
    "Started",
    "StoreBroken",
    "StoreReady",
    "TimePassed",
    "VariableChange",
    "WorkerExit",
]


class Noticed(Value):
    """The rendezvous said something."""

    notice: Notice


class Started(Value):
    """The workers of a round are running; `pids` by local rank, `start` warm or exec."""

    round: int
    pids: tuple[int, ...]
    start: str
    start_reason: str


class VariableChange(Value):
    """A warm worker changed a variable too late: it begins again, or goes on for an obstacle."""

    round: int
    local_rank: int
    pid: int
    variable: str
    obstacle: str


class WorkerExit(Value):
    """A worker's leader process ended; `exit_code` negative: by that signal.

    The other fields are what could be found out about a failure, as in `rendezvous.model.Failure`.
    """

    round: int
    local_rank: int
    pid: int
    exit_code: int
    message: str = ""
    traceback: str = ""
    error_file: str = NOT_AVAILABLE
    timestamp: int = 0


class GroupVanished(Value):
    """No process of the round's workers is left on this node."""

    round: int
    killed: tuple[int, ...] = ()
    strays: tuple[str, ...] = ()


class LeaseExpired(Value):
    """The keeper killed the workers because the lease was not extended in time."""

    round: int


class KeeperGone(Value):
    """The keeper died; the driver has killed what was left below it.

    Not `has_begun`: it could not even import what the user wanted preloaded.
    """

    reason: str
    has_begun: bool = True


class StoreReady(Value):
    """The worker store of a round listens."""

    round: int
    address: str
    port: int


class StoreBroken(Value):
    """The worker store of a round could not be opened."""

    round: int
    reason: str


class SignalArrived(Value):
    """The agent was told to end (SIGTERM and its like)."""

    signal: int
    name: str


class TimePassed(Value):
    """A moment that `wake_at` named has come."""


AgentInput = (
    Noticed
    | Started
    | VariableChange
    | WorkerExit
    | GroupVanished
    | LeaseExpired
    | KeeperGone
    | StoreReady
    | StoreBroken
    | SignalArrived
    | TimePassed
)


class Ask(Value):
    """Pass a request to the rendezvous."""

    request: Request


class Start(Value):
    """Start the workers of a round."""

    assignment: Assignment


class Signal(Value):
    """Signal the workers of the round: `to` is leaders, groups or all."""

    round: int
    signal: int
    to: str


class Kill(Value):
    """SIGKILL whatever is left of the round's workers."""

    round: int


class SetLease(Value):
    """Tell the keeper until when the workers may run (None: without end)."""

    until: float | None


class OpenWorkerStore(Value):
    """Open a fresh worker store for the round; answered by StoreReady or StoreBroken."""

    round: int


class Close(Value):
    """Close the worker stores of rounds before `before_round`."""

    before_round: int


class Emit(Value):
    """State a fact."""

    event: Event


class Exit(Value):
    """End the agent. `result` is one of JobOver's; `stuck` are workers that have not ended."""

    code: int
    result: str
    reason: str
    stuck: tuple[int, ...] = ()


AgentCommand = Ask | Start | Signal | Kill | SetLease | OpenWorkerStore | Close | Emit | Exit
