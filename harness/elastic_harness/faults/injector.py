"""Performs the engine's orders: injects faults, says what became of them, heals them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from elastic_harness.faults.context import FaultContext
from elastic_harness.faults.fault import Fault
from elastic_harness.faults.task import FaultTask, Scheduler
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
    """A fault that was injected, until it is given back."""

    fault: Fault
    targets: Targets
    task: FaultTask
    heals: list[Callable[[str], None]] = field(default_factory=list)
    is_healing: bool = False
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

    @property
    def in_force(self) -> tuple[str, ...]:
        """The entries that were fired and, where there is something to heal, are not healed."""
        return tuple(
            name
            for name, each in self._borrowed.items()
            if each.fault.is_healable and not each.is_healed
        )

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
        self._heal(order.entry_id, lambda _: None)

    def heal_all(self, on_done: Callable[[Mapping[str, str]], None]) -> None:
        """Undo everything, in reverse order; `on_done` gets the problems, by entry.

        Never raises: it is what runs when everything else has failed.
        """
        waiting = [name for name in reversed(self._borrowed) if not self._borrowed[name].is_healed]
        problems: dict[str, str] = {}

        def next_one(name: str | None, problem: str) -> None:
            if name is not None and problem:
                problems[name] = problem
            if not waiting:
                on_done(problems)
                return
            following = waiting.pop(0)
            self._heal(following, lambda problem: next_one(following, problem))

        next_one(None, "")

    def _heal(self, name: str, on_healed: Callable[[str], None]) -> None:
        borrowed = self._borrowed.get(name)
        if borrowed is None or borrowed.is_healed:
            on_healed("")
            return
        borrowed.heals.append(on_healed)
        if borrowed.is_healing:
            return
        borrowed.is_healing = True
        borrowed.task.finish()
        self._undo_when_finished(name, borrowed)

    def _undo_when_finished(self, name: str, borrowed: _Borrowed) -> None:
        """Begin to undo once the fault has looked for the last time (bounded by its own waits)."""
        if not borrowed.task.is_over:
            self._scheduler.call_at(
                self._scheduler.now() + 0.005, lambda: self._undo_when_finished(name, borrowed)
            )
            return
        task = FaultTask(
            borrowed.fault.heal(self._context, borrowed.targets, id=name),
            self._scheduler,
            on_in_force=lambda _: None,
            on_done=lambda _: self._on_healed(name, borrowed, ""),
            on_failed=lambda reason: self._on_healed(name, borrowed, reason),
            patience=self._context.patience,
        )
        task.start()

    def _on_healed(self, name: str, borrowed: _Borrowed, problem: str) -> None:
        """Say so, unless it could not be undone: then it stays in force, and may be tried again."""
        borrowed.is_healing = False
        borrowed.is_healed = not problem
        waiting, borrowed.heals = borrowed.heals, []
        if borrowed.is_healed and borrowed.fault.is_healable:
            self._tell(FaultUndone(entry_id=name))
        for on_healed in waiting:
            on_healed(problem)
