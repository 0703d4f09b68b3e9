"""What a member can be in the middle of: its link to the coordinator, and its part in a round."""

from __future__ import annotations

from enum import Enum

__all__ = ["LINK_ALLOWED", "PART_ALLOWED", "WITH_WORKERS", "Link", "Part"]


class Link(Enum):
    """What stands between this node and the coordinator."""

    # There is one object of each; Enum hashes by name, in Python, at every look into a set.
    __hash__ = object.__hash__

    UNSTARTED = "unstarted"
    SEEKING = "seeking"  # the endpoint's store was asked where the coordinator is
    DIALING = "dialing"
    GREETING = "greeting"  # connected; the greeting was sent
    JOINED = "joined"  # welcomed: beats run, orders hold
    RESTING = "resting"  # no connection; the next try comes after a pause, or when workers are gone
    OVER = "over"  # the agent was told that the job is over here


class Part(Enum):
    """What this node has to do with a round."""

    # There is one object of each; Enum hashes by name, in Python, at every look into a set.
    __hash__ = object.__hash__

    NONE = "none"  # in no round; no worker
    SEALED = "sealed"  # has a roster, waits for the commit; no worker
    RUNNING = "running"  # workers run
    SUCCEEDED = "succeeded"  # workers ended with status 0
    STOPPING = "stopping"  # workers are being stopped as ordered
    GONE = "gone"  # workers of the round are gone, as ordered
    FENCING = "fencing"  # workers are being killed: the round goes on without us, or may


LINK_ALLOWED: dict[Link, frozenset[Link]] = {
    Link.UNSTARTED: frozenset({Link.SEEKING, Link.OVER}),
    Link.SEEKING: frozenset({Link.DIALING, Link.RESTING, Link.OVER}),
    Link.DIALING: frozenset({Link.GREETING, Link.RESTING, Link.OVER}),
    Link.GREETING: frozenset({Link.JOINED, Link.RESTING, Link.OVER}),
    Link.JOINED: frozenset({Link.DIALING, Link.RESTING, Link.OVER}),
    Link.RESTING: frozenset({Link.SEEKING, Link.DIALING, Link.OVER}),
    Link.OVER: frozenset(),
}

PART_ALLOWED: dict[Part, frozenset[Part]] = {
    Part.NONE: frozenset({Part.SEALED}),
    Part.SEALED: frozenset({Part.RUNNING, Part.GONE, Part.NONE}),
    Part.RUNNING: frozenset({Part.SUCCEEDED, Part.STOPPING, Part.GONE, Part.FENCING}),
    Part.SUCCEEDED: frozenset({Part.STOPPING, Part.GONE, Part.FENCING}),
    Part.STOPPING: frozenset({Part.GONE, Part.FENCING}),
    Part.GONE: frozenset({Part.SEALED, Part.NONE}),
    Part.FENCING: frozenset({Part.NONE}),
}

WITH_WORKERS = frozenset({Part.RUNNING, Part.STOPPING})
