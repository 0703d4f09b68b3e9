"""What a rank server does with the orders of its ranks: when they take effect, and that they do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from elastic_harness.cluster.process_table import has_ended, row_of
from elastic_harness.ranks.chaos import Order

__all__ = ["RankFaults", "Target"]

# A process ends by SIGKILL, and stops by SIGSTOP, in milliseconds on a machine that has time.
_EFFECT_S = 5.0
_LOOK_AGAIN_S = 0.001


@dataclass(frozen=True, slots=True)
class Target:
    """A rank that has not been collected yet."""

    pid: int
    pidfd: int
    conn: Connection


class RankFaults:
    """The faults of one task."""

    def __init__(self, size: int, present: Callable[[], Mapping[int, Target]]) -> None:
        self._size = size
        self._present = present
        self._waiting: dict[int, Order] = {}
        self._paused: dict[int, float | None] = {}  # until when, None: until it is resumed
        # That the end of a rank was asked for, and how; the signals that it was sent.
        self._asked: dict[int, str] = {}
        self._sent: dict[int, set[int]] = {}
        self.returned: set[int] = set()  # the ranks whose test is over

    @property
    def next_s(self) -> float | None:
        """In how many seconds a pause is over, None if that is not known of any."""
        ends = [until for until in self._paused.values() if until is not None]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def take(self, rank: int, order: Order) -> None:
        """Take an order of a rank; it is answered when it has taken effect."""
        if order.is_shared:
            self._waiting[rank] = order
        else:
            self._answer([rank], self._perform(order))

    def look(self) -> None:
        """Do what is due: after orders, ends and times."""
        now = time.monotonic()
        for rank in [r for r, until in self._paused.items() if until is not None and until <= now]:
            self._resume(rank)
        present = self._present()
        self._paused = {rank: until for rank, until in self._paused.items() if rank in present}
        able = set(present) - self.returned - set(self._paused)
        if self._waiting and able <= set(self._waiting):
            self._perform_shared([rank for rank in self._waiting if rank in able])
        if present and set(present) == set(self._paused) and self.next_s is None:
            # Nothing would heal them: all that could are gone.
            for rank in list(self._paused):
                self._asked[rank] = "was still paused by this test when the other ranks had ended"
                self._send(rank, present[rank], signal.SIGKILL)
                del self._paused[rank]

    def why_ended(self, rank: int, exit_code: int) -> str:
        """Say how the end of a rank was asked for, "" if it ended for another reason.

        One that has caught the signal it was sent may end by an exit code, not by another signal.
        """
        if exit_code < 0 and -exit_code not in self._sent.get(rank, ()):
            return ""
        return self._asked.get(rank, "")

    def has_paused(self, rank: int) -> bool:
        """Tell whether a rank stands still because a rank wants that."""
        return rank in self._paused

    def resume_all(self) -> None:
        """Let all go on, so that they can show their stacks."""
        for rank in list(self._paused):
            self._resume(rank)

    def _perform_shared(self, ranks: Sequence[int]) -> None:
        orders = {rank: self._waiting[rank] for rank in ranks}
        self._waiting.clear()
        if len(set(orders.values())) > 1:
            each = "; ".join(f"rank {rank}: {order}" for rank, order in sorted(orders.items()))
            self._answer(ranks, f"here() means the same fault on every rank, but {each}")
        elif orders:
            self._answer(ranks, self._perform(orders[ranks[0]]))

    def _perform(self, order: Order) -> str:
        """Do it, and wait until it has taken effect; return what was wrong, or ""."""
        if unknown := [rank for rank in order.targets if rank >= self._size]:
            return (
                f"{order}: there is no rank {unknown[0]} among {self._size} (0 to {self._size - 1})"
            )
        for rank in order.targets:
            target = self._present().get(rank)
            if order.action == "heal":
                self._resume(rank)
            elif target is None or rank in self.returned or has_ended(target.pidfd):
                if rank in self.returned or rank not in self._asked:
                    return f"{order}: rank {rank} had ended before"
            elif not (self._kill if order.action == "kill" else self._pause)(rank, target, order):
                return f"{order}: it took no effect within {_EFFECT_S:g} s"
        return ""

    def _kill(self, rank: int, target: Target, order: Order) -> bool:
        self._asked[rank] = f"was ended by this test with {signal.Signals(order.signum).name}"
        self._send(rank, target, order.signum)
        self._paused.pop(rank, None)
        if order.signum != signal.SIGKILL:
            return True
        return bool(wait([target.pidfd], _EFFECT_S))

    def _send(self, rank: int, target: Target, signum: int) -> None:
        self._sent.setdefault(rank, set()).add(signum)
        os.kill(target.pid, signum)

    def _pause(self, rank: int, target: Target, order: Order) -> bool:
        lasting = order.lasting_s
        self._paused[rank] = None if lasting is None else time.monotonic() + lasting
        os.kill(target.pid, signal.SIGSTOP)
        deadline = time.monotonic() + _EFFECT_S
        while time.monotonic() < deadline:
            row = row_of(target.pid)
            if row is None or row.state in "TtZX":
                return row is not None and row.state in "Tt"
            time.sleep(_LOOK_AGAIN_S)
        return False

    def _resume(self, rank: int) -> None:
        if rank in self._paused:
            del self._paused[rank]
            if (target := self._present().get(rank)) is not None:
                os.kill(target.pid, signal.SIGCONT)

    def _answer(self, ranks: Sequence[int], text: str) -> None:
        present = self._present()
        for rank in ranks:
            target = present.get(rank)
            if target is not None and not target.conn.closed and not has_ended(target.pidfd):
                try:
                    target.conn.send(text)
                except OSError:  # it has died meanwhile
                    continue
