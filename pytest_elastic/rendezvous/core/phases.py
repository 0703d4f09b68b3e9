"""What a follower and a leader can be in the middle of, and how they get from there to there."""

from __future__ import annotations

from enum import Enum

__all__ = [
    "CONNECTION_ALLOWED",
    "GROUP_ALLOWED",
    "LEADER_ALLOWED",
    "WITH_WORKERS",
    "ConnectionPhase",
    "GroupPhase",
    "LeaderPhase",
]


class ConnectionPhase(Enum):
    """What stands between a node and its leader."""

    __hash__ = object.__hash__  # Enum hashes by name, in Python, at every look into a set

    UNSTARTED = "unstarted"
    SEEKING = "seeking"  # the registry, and other nodes, were asked who leads
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
    ENDING = "ending"  # the end is proposed; waits until all who can be reached have it
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
