"""Faults at work: performs the engine's orders, and says what became of each."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from elastic_harness.faults.context import FaultContext, HealOrdered, InForce, Proved
from elastic_harness.faults.context import Steps as FaultSteps
from elastic_harness.faults.evidence import Evidence
from elastic_harness.faults.fault import Fault
from elastic_harness.future import Future, Scheduler, Steps, Task, run, settled
from elastic_harness.scenario.engine.messages import (
    EngineInput,
    FaultFailed,
    FaultInForce,
    FaultProved,
    FaultUndone,
    Fire,
    Heal,
)
from elastic_harness.scenario.engine.situation import Targets
from pytest_elastic.errors import ElasticError

__all__ = ["FaultTask", "Injector"]

# The cluster's own deadline for one operation is longer: this is for a cluster that is stuck.
_OPERATION_S: Final = 15.0


class FaultTask(Task[Evidence | str]):
    """Runs a fault's steps to their end; `tell` hears when it acts, and once how that ended.

    A fault whose steps end without saying that it is in force, is in force then. One that has said
    `Proved` may go on working, and how its steps end is not told then. `proof` is what would show
    that it acts, for one that is healed before that was seen; `source` is the fault's own file.
    """

    def __init__(
        self,
        steps: FaultSteps,
        scheduler: Scheduler,
        tell: Callable[[EngineInput], None],
        *,
        entry_id: str,
        proof: str = "",
        source: str = "",
        patience: float = 1.0,
    ) -> None:
        super().__init__(scheduler, steps, patience=patience, limit_s=_OPERATION_S)
        self._source = source
        self._is_crash = False
        self._tell = tell
        self._entry_id = entry_id
        self._proof = proof
        self._started_at = scheduler.now()
        self._is_told = False
        self._in_force: set[InForce] = set()
        self.add_done_callback(self._on_over)

    def finish(self) -> None:
        """Let the fault look once more whether it acts, and end: it is about to be healed.

        An answer that it waits for is waited for: what is under way cannot be undone yet.
        """
        self.interrupt(HealOrdered())

    def _on_said(self, said: object) -> None:
        if isinstance(said, InForce):
            if said not in self._in_force:
                self._in_force.add(said)
                needs_job = said is InForce.NEEDS_JOB
                self._tell(FaultInForce(entry_id=self._entry_id, proof_needs_job=needs_job))
        elif isinstance(said, Proved):
            self._prove(said.evidence)
        else:
            super()._on_said(said)

    def _error_of(self, problem: Exception) -> ElasticError:
        if isinstance(problem, ElasticError):
            return problem
        if isinstance(problem, HealOrdered):
            return ElasticError(self._too_early())
        # A fault may be a user's: its bugs end it, and not us. Where it stands in the fault's own
        # file says more than where in a library it was raised.
        self._is_crash = True
        frames = traceback.extract_tb(problem.__traceback__)
        where = ([each for each in frames if each.filename == self._source] or frames)[-1]
        return ElasticError(
            f"it crashed with {type(problem).__name__}: {problem} ({where.filename}:{where.lineno})"
        )

    def _on_over(self, over: Future[Evidence | str]) -> None:
        if over.error is None:
            self._prove(over.result())
        elif not self._is_told:
            self._is_told = True
            reason, is_crash = over.error.message, self._is_crash
            self._tell(FaultFailed(entry_id=self._entry_id, reason=reason, is_crash=is_crash))

    def _prove(self, evidence: Evidence | str) -> None:
        if not self._is_told:
            self._is_told = True
            self._tell(FaultProved(entry_id=self._entry_id, evidence=Evidence.of(evidence)))

    def _too_early(self) -> str:
        after_s = self._scheduler.now() - self._started_at
        shown_by = f" (shown by: {self._proof})" if self._proof else ""
        return (
            f"it was healed {after_s:.1f} s after it fired, before it was seen to act{shown_by}: "
            "give it longer"
        )


@dataclass(slots=True, kw_only=True)
class _Borrowed:
    """A fault that was injected, until it is given back; `healing` has what is wrong with that."""

    fault: Fault
    targets: Targets
    task: FaultTask
    healing: Future[str] | None = None
    is_healed: bool = False


class Injector:
    """Fires and heals faults, and tells the engine what became of each.

    `parse` returns the fault of a name with its parameters (`FaultRegistry.parse`). `tell` receives
    the engine's inputs. It may be called before `fire` or `heal` has returned, so
    it has to queue them.
    """

    def __init__(
        self,
        context: FaultContext,
        parse: Callable[[str, object], Fault],
        scheduler: Scheduler,
        tell: Callable[[EngineInput], None],
    ) -> None:
        self._context = context
        self._parse = parse
        self._scheduler = scheduler
        self._tell = tell
        self._borrowed: dict[str, _Borrowed] = {}

    def fire(self, order: Fire) -> None:
        """Inject a fault; `tell` hears of FaultInForce, then FaultProved or FaultFailed."""
        name = order.entry_id
        fault = self._parse(order.action, order.value)
        task = FaultTask(
            self._inject(fault, order),
            self._scheduler,
            self._tell,
            entry_id=name,
            proof=fault.proof,
            source=_source_of(fault),
            patience=self._context.patience,
        )
        self._borrowed[name] = _Borrowed(fault=fault, targets=order.targets, task=task)
        task.start()

    def _inject(self, fault: Fault, order: Fire) -> FaultSteps:
        """Run a fault's steps, as a generator even where a user's `inject` is none."""
        return (yield from fault.inject(self._context, order.targets, id=order.entry_id))

    def heal(self, order: Heal) -> None:
        """Undo a fault; `tell` hears of FaultUndone. Twice is harmless."""
        self._heal(order.entry_id)

    def heal_all(self) -> Future[Mapping[str, str]]:
        """Undo everything, in reverse order; returns the problems, by entry.

        Never fails: it is what runs when everything else has failed.
        """
        return run(self._scheduler, self._heal_all())

    def _heal_all(self) -> Steps[Mapping[str, str]]:
        problems: dict[str, str] = {}
        for name in [name for name, each in self._borrowed.items() if not each.is_healed][::-1]:
            if problem := (yield from self._heal(name)):
                problems[name] = problem
        return problems

    def _heal(self, name: str) -> Future[str]:
        """Undo one fault, once; returns what is wrong, or nothing."""
        borrowed = self._borrowed.get(name)
        if borrowed is None or borrowed.is_healed:
            return settled("")
        if borrowed.healing is None or borrowed.healing.is_done:
            healing: Future[str] = Future()
            borrowed.healing = healing
            undone = run(self._scheduler, self._undo(name, borrowed))
            undone.add_done_callback(lambda done: healing.settle(done.error or done.result()))
        return borrowed.healing

    def _undo(self, name: str, borrowed: _Borrowed) -> Steps[str]:
        """Undo it once the fault has looked for the last time (bounded by its own waits).

        Where it cannot be undone it stays in force, and may be tried again.
        """
        borrowed.task.finish()
        if not borrowed.task.is_done:
            yield borrowed.task
        task = FaultTask(
            borrowed.fault.heal(self._context, borrowed.targets, id=name),
            self._scheduler,
            lambda _: None,
            entry_id=name,
            source=_source_of(borrowed.fault),
            patience=self._context.patience,
        )
        task.start()
        if not task.is_done:
            yield task
        borrowed.is_healed = task.error is None
        if borrowed.is_healed and borrowed.fault.is_healable:
            self._tell(FaultUndone(entry_id=name))
        return task.error.message if task.error is not None else ""


def _source_of(fault: Fault) -> str:
    return getattr(sys.modules.get(type(fault).__module__), "__file__", None) or ""
