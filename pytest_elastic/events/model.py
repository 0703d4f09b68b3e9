"""The facts a launcher states: past tense, typed fields, each emitted in one place.

Checkers, triggers and people read these; log lines are never parsed. An event says what happened,
its `Record` says where and when. `at` is seconds on the CLOCK_BOOTTIME of the machine that emitted
the record: comparable inside one machine only (a harness run is one machine).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from pytest_elastic.wire import Value, kind_of

__all__ = [
    "EVENT_KINDS",
    "EXEC_ASKED_FOR",
    "NOT_OUR_PYTHON",
    "AgentExited",
    "AgentMoved",
    "AgentStalled",
    "AgentStarted",
    "ConfigResolved",
    "CoordinatorStarted",
    "CoordinatorSteppedDown",
    "DrainStarted",
    "EndpointsReached",
    "Event",
    "FirstRoundDelayed",
    "JobEnded",
    "JobEnding",
    "LeaseLost",
    "MemberJoined",
    "MemberLeft",
    "MemberLost",
    "NodeSpared",
    "PeersUnreached",
    "QuorumChosen",
    "QuorumMissed",
    "Record",
    "RoundCommitted",
    "RoundEnded",
    "RoundSealed",
    "StillWaiting",
    "StopOrdered",
    "StrangerTurnedAway",
    "VariableChanged",
    "WorkerExited",
    "WorkersHeld",
    "WorkersReleased",
    "WorkersStarted",
    "WorkersStopped",
]

EVENT_KINDS: dict[str, type[Event]] = {}
# How a `start_reason` ends where the user's own choice has ruled a warm start out.
EXEC_ASKED_FOR, NOT_OUR_PYTHON = "exec was asked for", "is not the launcher's own Python"


class Event(Value, forbid_unknown_fields=False):
    """A fact. `kind` is its name on the wire: that of its class, in snake case."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Let codecs read the class, unless it says itself what its kind is."""
        if "kind" not in vars(cls):
            cls.kind = kind_of(cls)
            assert cls.kind not in EVENT_KINDS, f"two events are called {cls.kind}"
            EVENT_KINDS[cls.kind] = cls


class Record(Value):
    """An event with its place and time.

    `source` is "agent" for what launchers state; harness records use "worker", "fault", "cluster"
    and "engine".
    """

    at: float
    source: str
    node: str
    run_id: str
    event: Event
    incarnation: str = ""


class ConfigResolved(Event):
    """The first event of an agent: every setting in force and where it came from."""

    settings: Mapping[str, Any]
    origins: Mapping[str, str]


class AgentStarted(Event):
    """An agent is up and listens at `address:port`, a first guess where no name was known yet."""

    pid: int
    address: str
    port: int
    slots: int


class AgentMoved(Event):
    """An agent listens at another address, as it found its way to where nodes meet."""

    address: str
    port: int


class AgentStalled(Event):
    """An agent did nothing for half a lease or longer: it was stopped, or got no processor time."""

    stalled_s: float


class CoordinatorStarted(Event):
    """This agent hosts the endpoint's store and runs the coordinator of `term`."""

    term: int
    address: str
    port: int
    quorum: str
    reason: str


class QuorumChosen(Event):
    """What happens if the coordinator's node is lost: `quorum` as in the settings, and why."""

    quorum: str
    reason: str


class EndpointsReached(Event):
    """Which of several endpoints this node reaches, and which not, with the reason for each."""

    reached: tuple[str, ...]
    missing: Mapping[str, str]


class FirstRoundDelayed(Event):
    """Enough nodes are ready, and the job may be running already; `reason`: what is known of it."""

    wait_s: float
    reason: str = ""


class StillWaiting(Event):
    """This node has waited for `waited_s`, for `limit_s` at most, to take part; told seldom.

    `awaited`: "job" (a leader that accepts it), "nodes" (more of them, as it decides and has too
    few), "last call" (more, as it has enough and more may come), "round" (its first one). `where`:
    the endpoint, or what stands for it. `reason`: why the last try came to nothing, if there was
    one. `ready`: the names of nodes that are, where this one decides.
    """

    awaited: str
    where: str
    waited_s: float
    limit_s: float
    min_nodes: int
    max_nodes: int
    reason: str = ""
    ready: tuple[str, ...] = ()


class CoordinatorSteppedDown(Event):
    """The coordinator of `term` decides no more: it lost its majority, or left and handed over."""

    term: int
    reason: str


class QuorumMissed(Event):
    """This node lost the coordinator and could reach only so many of the members that have a say.

    It goes on looking for the others; its workers are stopped by their lease.
    """

    reached: int
    members: int
    reason: str


class MemberJoined(Event):
    """The coordinator admitted a node to the waiting ones (it is in no round yet)."""

    member: str
    member_incarnation: str
    slots: int


class NodeSpared(Event):
    """A round was sealed without this node, for that reason: it waits as a spare."""

    round: int
    reason: str = ""


class PeersUnreached(Event):
    """A node dialled other nodes and did not reach these: `unreached` says how for each name."""

    member: str
    unreached: Mapping[str, str]


class RoundSealed(Event):
    """The coordinator fixed a membership; `roster` is node names in rank order."""

    round: int
    term: int
    roster: tuple[str, ...]
    spares: tuple[str, ...]
    restart_count: int
    reason: str


class RoundCommitted(Event):
    """A member was told to start the workers of a round."""

    round: int
    term: int
    roster: tuple[str, ...]
    group_rank: int
    world_size: int
    restart_count: int
    master_addr: str
    master_port: int


class WorkersStarted(Event):
    """All workers of a node started; `pids` and `ranks` by local rank, `start` is warm or exec."""

    round: int
    pids: tuple[int, ...]
    ranks: tuple[int, ...]
    start: str
    start_reason: str


class VariableChanged(Event):
    """A warm worker changed a variable that its interpreter had read already.

    It began again from its top in a fresh interpreter, as the same process; or it went on with the
    old value, because of `obstacle`. Later workers of its command are exec'ed.
    """

    round: int
    local_rank: int
    rank: int
    pid: int
    variable: str
    obstacle: str = ""


class WorkerExited(Event):
    """A worker's leader process ended.

    `cause` is "exited", "failed" (on its own account, with status not 0), "stopped" (after a stop
    order, a drain or a fence). `signal` is 0 when it exited by itself. `message` and `traceback`
    come from its error file, if it wrote one.
    """

    round: int
    local_rank: int
    rank: int
    pid: int
    exit_code: int
    signal: int
    cause: str
    message: str = ""
    traceback: str = ""


class StopOrdered(Event):
    """The coordinator ended a round: this node stops its workers."""

    round: int
    reason: str


class WorkersStopped(Event):
    """No process of the round's workers is left on this node.

    `killed` had to be ended by SIGKILL. `strays` are the commands of processes that workers which
    ended well had left behind, and that had to be ended.
    """

    round: int
    duration_s: float
    killed: tuple[int, ...] = ()
    strays: tuple[str, ...] = ()


class WorkersHeld(Event):
    """Workers were stopped by SIGSTOP while it is unclear whether their round still stands."""

    round: int
    reason: str


class WorkersReleased(Event):
    """Held workers were continued: their round still stands."""

    round: int


class LeaseLost(Event):
    """The node's lease ran out and its workers were killed (fenced)."""

    round: int
    reason: str


class DrainStarted(Event):
    """A node leaves on purpose, after its workers have had `grace_s`."""

    reason: str
    grace_s: float


class StrangerTurnedAway(Event):
    """A connection to this agent's port spoke as no agent of this job does, and was ended."""

    address: str
    reason: str


class MemberLeft(Event):
    """The coordinator let a draining member go."""

    member: str
    reason: str


class MemberLost(Event):
    """The coordinator gave a member up; `cause` is tombstone, refused, silent or evicted."""

    member: str
    cause: str
    detail: str


class RoundEnded(Event):
    """A round is over: why, and whether it was charged to the restart budget."""

    round: int
    reason: str
    charged: bool
    restarts_used: int


class JobEnding(Event):
    """The coordinator decided how the job ends; `result` is succeeded or failed."""

    result: str
    reason: str


class JobEnded(Event):
    """A node learned how the job ended; `first_failure` is the same on every node."""

    result: str
    reason: str
    first_failure: Mapping[str, Any] = msgspec.field(default_factory=dict)


class AgentExited(Event):
    """The last event of an agent; `stuck` are processes that SIGKILL has not ended."""

    exit_code: int
    reason: str
    stuck: tuple[int, ...] = ()
