"""Performs the engine's orders: injects faults, says what became of them, heals them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from elastic_harness.faults.context import FaultContext
from elastic_harness.faults.fault import Fault
from elastic_harness.faults.task import FaultTask
from elastic_harness.future import Future, Scheduler, Steps, run, settled
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

__all__ = ["Catalog", "Injector"]


class Catalog(Protocol):
    """Where faults come from; `FaultRegistry` is one."""

    def parse(self, name: str, value: object) -> Fault:
        """Return a fault with its parameters."""


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

    `tell` receives the engine's inputs. It may be called before `fire` or `heal` has returned, so
    it has to queue them.
    """

    def __init__(
        self,
        context: FaultContext,
        catalog: Catalog,
        scheduler: Scheduler,
        tell: Callable[[EngineInput], None],
    ) -> None:
        self._context = context
        self._catalog = catalog
        self._scheduler = scheduler
        self._tell = tell
        self._borrowed: dict[str, _Borrowed] = {}

    def fire(self, order: Fire) -> None:
        """Inject a fault; `tell` hears of FaultInForce, then FaultProved or FaultFailed."""
        name = order.entry_id
        fault = self._catalog.parse(order.action, order.value)
        task = FaultTask(
            fault.inject(self._context, order.targets, id=name),
            self._scheduler,
            on_in_force=lambda needs_job: self._tell(
                FaultInForce(entry_id=name, proof_needs_job=needs_job)
            ),
            on_done=lambda evidence: self._tell(FaultProved(entry_id=name, evidence=evidence)),
            on_failed=lambda reason: self._tell(FaultFailed(entry_id=name, reason=reason)),
            proof=fault.proof,
            patience=self._context.patience,
        )
        self._borrowed[name] = _Borrowed(fault=fault, targets=order.targets, task=task)
        task.start()

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
        for name in [name for name in reversed(self._borrowed) if not self._is_healed(name)]:
            if problem := (yield from self._heal(name)):
                problems[name] = problem
        return problems

    def _is_healed(self, name: str) -> bool:
        return self._borrowed[name].is_healed

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
        problems: list[str] = []
        task = FaultTask(
            borrowed.fault.heal(self._context, borrowed.targets, id=name),
            self._scheduler,
            on_in_force=lambda _: None,
            on_done=lambda _: None,
            on_failed=problems.append,
            patience=self._context.patience,
        )
        task.start()
        if not task.is_done:
            yield task
        borrowed.is_healed = not problems
        if borrowed.is_healed and borrowed.fault.is_healable:
            self._tell(FaultUndone(entry_id=name))
        return "".join(problems)
