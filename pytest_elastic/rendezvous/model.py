"""The values a rendezvous is about: nodes and their order, failures, rounds.

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

from pytest_elastic.wire import Integer, Value

__all__ = [
    "NOT_AVAILABLE",
    "Assignment",
    "Failure",
    "Node",
    "free_name",
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
