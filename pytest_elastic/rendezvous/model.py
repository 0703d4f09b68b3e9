"""The values a rendezvous is about: nodes and their order, settings, failures, rounds.

Ranks are positions in the roster: contiguous, the same on every node, and as stable as possible
(R9). Survivors keep their order. A node that comes back under its old name takes its old place. New
nodes go behind all survivors, so that rank 0, from which training code usually broadcasts its
state, is a survivor whenever there is one. Nodes pinned by `--node-rank` come first, in the order
of their numbers, which are an order and not ranks: gaps are allowed.
"""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from pytest_elastic.errors import UsageError
from pytest_elastic.wire import Integer, Value

__all__ = [
    "NOT_AVAILABLE",
    "Assignment",
    "Failure",
    "Node",
    "Settings",
    "free_name",
    "has_beats",
    "natural_key",
    "no_restart_left",
    "rank_order",
]


class Node(Value, kw_only=True):
    """One agent as the others know it; its index in a roster is its group rank.

    `incarnation` is unique for each start of an agent; a node is the same only if name *and*
    incarnation are. `address:port` is where the agent listens (IP literal; port
    0: not known). `slots` is how many
    workers it runs. `pinned` is `--node-rank`, which orders nodes (gaps allowed), or None.
    `is_name_explicit` tells a name that the user gave from one made of the host name (R14).
    `host_name` is what the user calls its address (`--local-addr`), often a name; "" for nothing.
    """

    name: str
    incarnation: str
    address: str
    port: Integer = 0
    slots: Integer
    pinned: Integer | None = None
    is_name_explicit: bool = False
    role: str = "default"
    host_name: str = ""

    def named(self, name: str) -> Node:
        """Return the node under a name."""
        return self if name == self.name else replace(self, name=name)


def has_beats(lease_s: float, beat_interval_s: float, beats: int) -> bool:
    """Tell whether a lease is so many beats long: 1.2 s are three of 0.4 s, whatever floats say."""
    return lease_s >= beats * beat_interval_s * (1 - 1e-9)


class Settings(Value):
    """What all nodes of a job must agree on; compared by digest when they meet (R14).

    All durations in seconds. `beat_interval_s` and `lease_s`: see R6. `last_call_s`: how long a
    first round below max_nodes stays open (R1). `join_timeout_s`: how long a job waits below
    min_nodes. `shutdown_timeout_s`: grace between stop and kill; `failure_grace_s`: that where a
    worker failed or a member was lost, as others may wait for it in a collective (R2).
    `kill_timeout_s`: what killed processes may take to be gone before a member is evicted (R2).
    `min_round_s`: shortest round that counts as progress (R3) and shortest time between rounds made
    for newcomers (R7).
    `newcomer_window_s`: how long, from the first arrival, newcomers are gathered (R7).
    `linger_s`: how long an ending job answers peers (R10). `drift_s` is d of R6: the margin for
    clock drift and killing. `store_timeout_s`: how long group rank 0 may take to open a worker
    store (R8). `quorum`: which voters allow a leader to decide (R12), "coordinator" (itself) or
    "majority" (a majority of the voters of the last record, which also elects a successor).
    `endpoints`: where nodes meet if that is in several places, "" if it is in one (R12).
    """

    run_id: str
    min_nodes: int
    max_nodes: int
    max_restarts: int
    beat_interval_s: float = 1.0
    lease_s: float = 5.0
    drift_s: float = 0.5
    last_call_s: float = 30.0
    join_timeout_s: float = 600.0
    shutdown_timeout_s: float = 30.0
    failure_grace_s: float = 3.0
    kill_timeout_s: float = 60.0
    min_round_s: float = 5.0
    newcomer_window_s: float = 1.0
    linger_s: float = 5.0
    store_timeout_s: float = 1.0
    quorum: str = "coordinator"
    endpoints: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise UsageError(
                f"a job of {self.min_nodes} to {self.max_nodes} nodes is impossible: "
                "1 <= MIN <= MAX is expected (--nnodes=MIN:MAX)"
            )
        if not has_beats(self.lease_s, self.beat_interval_s, 2):
            raise UsageError(
                f"a lease of {self.lease_s:g} s with a beat every {self.beat_interval_s:g} s would "
                "be lost by one late beat: lease must be at least twice the beat interval"
            )
        if self.quorum not in {"coordinator", "majority", "granted"}:
            raise UsageError(
                f"quorum={self.quorum!r} is not known: 'coordinator' or 'majority' is expected"
            )
        if self.has_succession and not has_beats(self.lease_s, self.beat_interval_s, 3):
            raise UsageError(
                f"a lease of {self.lease_s:g} s with a beat every {self.beat_interval_s:g} s is "
                "too short for quorum=majority, where a leader's own lease is a beat old when "
                "it grants one: lease must be at least three times the beat interval"
            )

    @property
    def has_succession(self) -> bool:
        """Whether the members elect a successor of their leader (R11)."""
        return self.quorum == "majority"

    @property
    def could_be_two(self) -> bool:
        """Whether two groups of nodes could both be large enough for a job (R12)."""
        return 2 * self.min_nodes <= self.max_nodes

    @property
    def is_granted(self) -> bool:
        """Whether an external service, such as etcd, names the leader and may name another."""
        return self.quorum == "granted"

    @property
    def outlives_coordinator(self) -> bool:
        """Whether the job can go on under another leader."""
        return self.has_succession or self.is_granted


# What torch writes for a missing error file or signal.
NOT_AVAILABLE = "<N/A>"


class Failure(Value):
    """One worker's failure, as the job-wide summary names it.

    `order` is given by the leader in the order in which failures reached it; the smallest of a
    round is the *first observed* failure. `exit_code` is the process's (negative: signal, as in
    `subprocess`). `error_file` is a path on the node, and `timestamp` is that node's wall clock in
    seconds (0: unknown), to be shown and never compared with another's. Together with `exitcode`,
    `error_file_data` and `signal_name` they are what torch's ProcessFailure has.
    """

    node: str
    rank: Integer
    local_rank: Integer
    pid: Integer
    exit_code: Integer
    message: str = ""
    traceback: str = ""
    round: Integer = 0
    error_file: str = NOT_AVAILABLE
    timestamp: Integer = 0

    @property
    def exitcode(self) -> int:
        return self.exit_code

    @property
    def error_file_data(self) -> Mapping[str, Any]:
        """Return the message and the traceback in the layout of an error file of torch's."""
        if self.error_file == NOT_AVAILABLE:
            return {"message": self.message}
        said = {"py_callstack": self.traceback, "timestamp": str(self.timestamp)}
        return {"message": {"message": self.message, "extraInfo": said}}

    def signal_name(self) -> str:
        """Return the name of the signal that ended the worker, or "<N/A>"."""
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return NOT_AVAILABLE


class Assignment(Value):
    """Everything a member needs to start its workers of a round.

    `restart_count` is the job-wide number of restarts used, the same on every rank (R3).
    `group_rank` is this node's index in `roster`.
    """

    round: int
    term: int
    roster: tuple[Node, ...]
    group_rank: int
    restart_count: int
    max_restarts: int
    store_address: str
    store_port: int
    spares: tuple[str, ...] = ()


_DIGITS = re.compile(r"(\d+)")


def no_restart_left(max_restarts: int) -> str:
    """Say why a job gets no other restart, of so many that it was allowed."""
    if max_restarts == 0:
        return "no restart is allowed (max_restarts is 0)"
    used = "the only restart is" if max_restarts == 1 else f"all {max_restarts} restarts are"
    return f"{used} used up"


@functools.lru_cache(maxsize=1024)  # a job's nodes are put in order again and again
def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which n2 comes before n10."""
    return tuple(
        (0, int(part), part) if part.isdecimal() else (1, 0, part)
        for part in _DIGITS.split(name)
        if part
    )


def rank_order(nodes: Iterable[Node], previous: Sequence[str]) -> tuple[Node, ...]:
    """Return `nodes` in rank order, given the names of the last roster in its order."""
    places = {name: place for place, name in enumerate(previous)}
    behind = len(places)

    def key(node: Node) -> tuple[int, int, int, tuple[tuple[int, int, str], ...], str]:
        return (
            0 if node.pinned is not None else 1,
            node.pinned if node.pinned is not None else 0,
            places.get(node.name, behind),
            natural_key(node.name),
            node.incarnation,
        )

    return tuple(sorted(nodes, key=key))


def free_name(name: str, taken: Container[str]) -> str:
    """Return `name` with the smallest suffix, from -2 on, that is free."""
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"
