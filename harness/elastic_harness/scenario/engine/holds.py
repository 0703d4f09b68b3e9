"""Ranks that wait in their step hook until the fault pinned to that step is known to act."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from elastic_harness.history.worlds import WorkerView, World
from elastic_harness.scenario.engine.timeline import EntryState
from elastic_harness.scenario.triggers import AtStep

__all__ = ["HOLD_LIMIT_S", "HeldRank", "Holds", "why_past"]

# A rank is not held longer than this, whatever its fault does: a collective that waits for it must
# not run into its own timeout (15 s is the shortest in use), which would be a fault of ours.
HOLD_LIMIT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRank:
    """A rank that waits, since when."""

    pid: int
    rank: int
    step: int
    since: float


def why_past(
    world: World, worker: WorkerView, pinned: AtStep, held: int, *, asked_at: tuple[int, int] | None
) -> str | None:
    """Say why a rank that is held after a step is held too late; None if it is in time.

    `asked_at` is which worker (pid) had that rank when the step was asked for, and how many steps
    it had done; None if there was none. In time is the first step from the asked one on that the
    worker reports, or, of a worker to which the order had to be sent, the one after it: the order
    may have been on its way as the step ended.
    """
    rank, step = pinned.rank, pinned.step
    was_at = asked_at[1] if asked_at is not None and asked_at[0] == worker.pid else None
    if was_at is not None and was_at >= step:
        return f"rank {rank} was at step {was_at} already when step {step} was asked for"
    numbers = [each.count if each.step is None else each.step for each in worker.steps]
    done = [number for number in numbers if number < held]
    passed = [number for number in done if number >= step]
    if len(passed) > (was_at is not None):
        return (
            f"rank {rank} had done step {passed[-1]} before the order to hold it after step {step} "
            "reached it"
        )
    resumed_at = worker.resumed_at_step
    if held > step and not done and resumed_at is not None and resumed_at >= step:
        return (
            f"rank {rank} began round {world.ordinal} after step {resumed_at}: step {step} was past"
        )
    return None


class Holds:
    """The ranks that are held, and when they may go on."""

    def __init__(self) -> None:
        self._held: dict[int, HeldRank] = {}

    def add(self, held: HeldRank) -> None:
        """Note that a worker waits."""
        self._held[held.pid] = held

    def forget(self, pid: int) -> None:
        """Note that a worker waits no more, or is dead."""
        self._held.pop(pid, None)

    def shift(self, seconds: float) -> None:
        """Hold all ranks for so much longer: time stood still."""
        for pid, held in self._held.items():
            self._held[pid] = replace(held, since=held.since + seconds)

    def release(self, entries: Iterable[EntryState], now: float) -> Sequence[HeldRank]:
        """Release ranks that no entry needs any more, or that have been held for too long."""
        pinned = [entry.step for entry in entries if entry.holds_rank and entry.step is not None]
        released = [
            held
            for held in self._held.values()
            if now >= held.since + HOLD_LIMIT_S
            or not any(at.rank == held.rank and at.step <= held.step for at in pinned)
        ]
        for held in released:
            del self._held[held.pid]
        return released

    def deadline(self) -> float | None:
        """Return when the longest held rank must go at the latest."""
        starts = [held.since for held in self._held.values()]
        return min(starts) + HOLD_LIMIT_S if starts else None
