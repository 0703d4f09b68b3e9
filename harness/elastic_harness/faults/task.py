"""One fault at work: its generator, and what it says of itself."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final

from elastic_harness.faults.context import HealOrdered, InForce, Proved, Steps
from elastic_harness.faults.evidence import Evidence
from elastic_harness.future import Future, Scheduler, Task
from pytest_elastic.errors import ElasticError

__all__ = ["FaultTask"]

# The cluster's own deadline for one operation is longer: this is for a cluster that is stuck.
_OPERATION_S: Final = 15.0


class FaultTask(Task[Evidence | str]):
    """Runs a fault's steps to their end, and reports exactly once how they ended.

    `on_in_force(needs_job)` is called when the fault begins to act; then `on_done(evidence)` or
    `on_failed(reason)`. A fault whose steps end without saying that it is in force, is in force
    then. One that has said `Proved` may go on working, and how its steps end is not reported then.
    `proof` is what would show that it acts, for one that is healed before that was seen.
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
        super().__init__(scheduler, steps, patience=patience, limit_s=_OPERATION_S)
        self._proof = proof
        self._started_at = scheduler.now()
        self._on_in_force = on_in_force
        self._on_proved = on_done
        self._on_failed = on_failed
        self._is_reported = False
        self.add_done_callback(self._on_over)

    def finish(self) -> None:
        """Let the fault look once more whether it acts, and end: it is about to be healed.

        An answer that it waits for is waited for: what is under way cannot be undone yet.
        """
        self.interrupt(HealOrdered())

    def _on_said(self, said: object) -> None:
        if isinstance(said, InForce):
            self._on_in_force(said is InForce.NEEDS_JOB)
        elif isinstance(said, Proved):
            self._prove(said.evidence)
        else:
            super()._on_said(said)

    def _error_of(self, problem: Exception) -> ElasticError:
        if isinstance(problem, ElasticError):
            return problem
        if isinstance(problem, HealOrdered):
            return ElasticError(self._too_early())
        # A fault may be a user's: its bugs end it, and not us.
        where = traceback.extract_tb(problem.__traceback__)[-1]
        return ElasticError(
            f"it crashed with {type(problem).__name__}: {problem} ({where.filename}:{where.lineno})"
        )

    def _on_over(self, over: Future[Evidence | str]) -> None:
        if over.error is None:
            self._prove(over.result())
        elif not self._is_reported:
            self._is_reported = True
            self._on_failed(over.error.message)

    def _prove(self, evidence: Evidence | str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._on_proved(Evidence.of(evidence))

    def _too_early(self) -> str:
        after_s = self._scheduler.now() - self._started_at
        shown_by = f" (shown by: {self._proof})" if self._proof else ""
        return (
            f"it was healed {after_s:.1f} s after it fired, before it was seen to act{shown_by}: "
            "give it longer"
        )
