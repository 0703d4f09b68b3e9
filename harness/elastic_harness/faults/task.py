"""One fault at work: its generator, stepped by the runner's loop, every wait with its deadline."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final, Protocol

from typing_extensions import assert_never

from elastic_harness.faults.context import (
    Evidence,
    FaultImpossible,
    HealOrdered,
    InForce,
    Proved,
    Settled,
    Sleep,
    Steps,
    Until,
    Wait,
)

__all__ = ["FaultTask", "Scheduler"]

# How often a condition is asked: at first as fast as a kill, later as often as costs nothing.
_FIRST_LOOK_S: Final = 0.001
_SLOWEST_LOOK_S: Final = 0.05


class Scheduler(Protocol):
    """The part of a loop that is needed here; `pytest_elastic.loop.Loop` is one."""

    def now(self) -> float:
        """Return the time in seconds."""

    def call_at(self, when: float, callback: Callable[[], None]) -> object:
        """Call back once, at `when`."""


class FaultTask:
    """Runs a fault's steps to their end, and reports exactly once how they ended.

    `on_in_force(needs_job)` is called when the fault begins to act; then `on_done(evidence)` or
    `on_failed(reason)`. A fault whose steps end without saying that it is in force, is in force
    then. One that has said `Proved` may go on working, and how its steps end is not reported then.
    `proof` is what would show that it acts, for one that is healed before that was seen.
    `patience` multiplies what is waited for, and no time that the fault itself lets pass.
    """

    def __init__(
        self,
        steps: Steps,
        scheduler: Scheduler,
        *,
        on_in_force: Callable[[bool], None],
        on_done: Callable[[Evidence], None],
        on_failed: Callable[[str], None],
        proof: str = "",
        patience: float = 1.0,
    ) -> None:
        self._steps = steps
        self._patience = patience
        self._proof = proof
        self._started_at = scheduler.now()
        self._scheduler = scheduler
        self._on_in_force = on_in_force
        self._on_done = on_done
        self._on_failed = on_failed
        self._turn = 0
        self._is_reported = False
        self._is_asking = False
        self._is_to_finish = False
        self.is_over = False

    def start(self) -> None:
        """Take the first steps, as many as need no wait."""
        self._advance(None)

    def finish(self) -> None:
        """Let the fault look once more whether it acts, and end: it is about to be healed.

        An answer that it waits for is waited for: what is under way cannot be undone yet.
        """
        if self._is_asking:
            self._is_to_finish = True
        elif not self.is_over:
            self._advance(HealOrdered())

    def _advance(self, error: Exception | None) -> None:
        self._turn += 1
        try:
            wait = next(self._steps) if error is None else self._steps.throw(error)
            while isinstance(wait, (InForce, Proved)):
                if isinstance(wait, Proved):
                    self._prove(wait.evidence)
                else:
                    self._on_in_force(wait is InForce.NEEDS_JOB)
                wait = next(self._steps)
        except StopIteration as stop:
            self._end()
            self._prove(stop.value)
        except FaultImpossible as problem:
            self._fail(problem.message)
        except HealOrdered:
            self._fail(self._too_early())
        except Exception as bug:  # noqa: BLE001 (a fault may be a user's: its bugs end it, not us)
            where = traceback.extract_tb(bug.__traceback__)[-1]
            text = f"it crashed with {type(bug).__name__}: {bug} ({where.filename}:{where.lineno})"
            self._fail(text)
        else:
            self._wait(wait)

    def _end(self) -> None:
        self.is_over = True
        self._is_asking = False

    def _too_early(self) -> str:
        after_s = self._scheduler.now() - self._started_at
        shown_by = f" (shown by: {self._proof})" if self._proof else ""
        return (
            f"it was healed {after_s:.1f} s after it fired, before it was seen to act{shown_by}: "
            "give it longer"
        )

    def _prove(self, evidence: Evidence | str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._on_done(Evidence.of(evidence))

    def _fail(self, reason: str) -> None:
        self._end()
        if not self._is_reported:
            self._is_reported = True
            self._on_failed(reason)

    def _wait(self, wait: Wait) -> None:
        self._is_asking = isinstance(wait, Settled)
        if self._is_to_finish and not self._is_asking:
            self._is_to_finish = False
            self._advance(HealOrdered())
            return
        now = self._scheduler.now()
        match wait:
            case Sleep(seconds=seconds):
                self._at(now + seconds, lambda: self._advance(None))
            case Until(condition=condition, within_s=within_s, otherwise=otherwise):
                deadline = now + within_s * self._patience
                self._look(condition, deadline, otherwise, _FIRST_LOOK_S)
            case Settled(ticket=ticket, within_s=within_s, what=what):
                within_s *= self._patience
                otherwise = f"{what}: no answer within {within_s:g} s"
                self._look(lambda: ticket.is_settled, now + within_s, otherwise, _FIRST_LOOK_S)
            case InForce() | Proved():
                raise AssertionError("what a fault says of itself is no wait")
            case _:
                assert_never(wait)

    def _look(
        self,
        condition: Callable[[], bool],
        deadline: float,
        otherwise: str | Callable[[], str],
        pause_s: float,
    ) -> None:
        if condition():
            self._advance(None)
        elif (now := self._scheduler.now()) >= deadline:
            reason = otherwise if isinstance(otherwise, str) else otherwise()
            self._advance(FaultImpossible(reason))
        else:
            longer_s = min(2 * pause_s, _SLOWEST_LOOK_S)
            self._at(
                min(now + pause_s, deadline),
                lambda: self._look(condition, deadline, otherwise, longer_s),
            )

    def _at(self, when: float, callback: Callable[[], None]) -> None:
        """Call back unless the steps have moved on by then (a heal was ordered in between)."""
        turn = self._turn

        def call() -> None:
            if not self.is_over and self._turn == turn:
                callback()

        self._scheduler.call_at(when, call)
