"""What a rank server is told to run, and what it tells of each rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from elastic_harness.ranks.chaos import Order

__all__ = ["RankEnd", "RankTask", "ServerLink", "Work"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """One call of the work on `size` ranks, of at most `limit_s` seconds.

    `limit_of` says why the ranks are ended then, where it is not the test's own limit.
    `payload` is what the work is told (picklable), the same on every rank.
    """

    size: int
    limit_s: float
    limit_of: str = ""
    backend: str = ""
    payload: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended.

    `result` is what the work returned, None if it returned nothing; `died` is a clause that says
    how the process ended instead ("was killed by SIGSEGV (11)"), or "". `ended_s` counts seconds
    from the start of the task to when the work returned, or the process ended. `overdue` says why
    we killed the rank ("" if we did not), and `stacks` is the text of faulthandler with the stacks
    of its threads at that time, or at a fatal signal. `asked` says that the end was asked for by
    the test itself, and how ("was ended by this test with SIGKILL"), or "".
    """

    rank: int
    ended_s: float
    result: Any = None
    died: str = ""
    overdue: str = ""
    stacks: str = field(default="", repr=False)
    asked: str = ""


class ServerLink:
    """From a rank to its server; for the main thread of the rank."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def pause_limit(self, *, is_paused: bool) -> None:
        """Stop the clock of the test's limit, for a debugger, or let it go on."""
        self._conn.send(("paused", is_paused))

    def send_order(self, order: Order) -> str:
        """Have the server inject a fault; return what was wrong, "" once it has taken effect."""
        self._conn.send(("order", order))
        answer: str = self._conn.recv()
        return answer


# Called in each rank with its number, the task and its link to the server. What it returns is
# picklable, and `is_failure` tells the server whether the other ranks wait in vain.
Work = Callable[[int, RankTask, ServerLink], tuple[Any, bool]]
