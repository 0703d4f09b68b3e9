"""What the agent's machine is told, and what it orders.

Inputs are facts from its surroundings (a notice of the rendezvous, a report about a worker, a
signal, the time); commands are for the driver in `agent.agent` to perform: a request of the
rendezvous, an order to the keeper, a fact to be stated. Of a worker's end more is found out than
the keeper reports.
"""

from __future__ import annotations

from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous.model import NOT_AVAILABLE, Assignment
from pytest_elastic.rendezvous.ports import Notice, Request, StoreFailed, StoreOpened
from pytest_elastic.wire import Value
from pytest_elastic.workers import messages as w

__all__ = [
    "AgentCommand",
    "AgentInput",
    "Close",
    "Exit",
    "KeeperGone",
    "OpenWorkerStore",
    "SignalArrived",
    "Start",
    "TimePassed",
    "WorkerExit",
]


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


class KeeperGone(Value):
    """The keeper died; the driver has killed what was left below it.

    Not `has_begun`: it could not even import what the user wanted preloaded.
    """

    reason: str
    has_begun: bool = True


class SignalArrived(Value):
    """The agent was told to end (SIGTERM and its like)."""

    signal: int
    name: str


class TimePassed(Value):
    """A moment that `wake_at` named has come."""


AgentInput = (
    Notice
    | w.WorkersRunning
    | w.VariableChanged
    | WorkerExit
    | w.GroupGone
    | w.LeaseRanOut
    | KeeperGone
    | StoreOpened
    | StoreFailed
    | SignalArrived
    | TimePassed
)


class Start(Value):
    """Start the workers of a round."""

    assignment: Assignment


class OpenWorkerStore(Value):
    """Open a fresh worker store for the round; answered by StoreOpened or StoreFailed."""

    round: int


class Close(Value):
    """Close the worker stores of rounds before `before_round`."""

    before_round: int


class Exit(Value):
    """End the agent. `result` is one of JobOver's; `stuck` are workers that have not ended."""

    code: int
    result: str
    reason: str
    stuck: tuple[int, ...] = ()


AgentCommand = (
    Request
    | Start
    | w.SignalGroup
    | w.KillGroup
    | w.ExtendLease
    | OpenWorkerStore
    | Close
    | Event
    | Exit
)
