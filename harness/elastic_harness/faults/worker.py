"""Faults of one training process: a signal, an exit code, an exception."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from elastic_harness.faults.context import (
    IN_FORCE,
    FaultContext,
    FaultImpossible,
    InForce,
    Steps,
    Until,
)
from elastic_harness.faults.fault import Fault, with_exclude
from elastic_harness.scenario.fields import Select
from elastic_harness.scenario.selectors import Selector, resolve_workers
from elastic_harness.scenario.situation import Situation, Targets, WorkerRef

__all__ = ["ExitWorker", "KillWorker", "RaiseInWorker", "SignalName", "WorkerFault"]

# A process that cannot refuse a signal is gone in a few milliseconds, or it hangs in the kernel.
_DEATH_S: Final = 5.0
# An order is done in the worker's step hook: as long as a slow first step may take.
_ORDER_S: Final = 30.0
_CANNOT_BE_REFUSED: Final = frozenset({"SIGKILL"})
_STOPPING: Final = frozenset({"SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU"})


def _signal_name(value: object) -> str:
    name = str(value).upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    if isinstance(value, bool) or name not in signal.Signals.__members__:
        raise ValueError(f"{value!r} is not a signal: write for example SIGTERM")
    if name in _STOPPING:
        raise ValueError(f"{name} stops a process and does not end it: use `pause`")
    return name


SignalName = Annotated[
    str,
    BeforeValidator(_signal_name),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": "^(SIG)?[A-Z0-9]+$"}),
]


class WorkerFault(Fault):
    """A fault that hits workers: `worker` says which, `exclude` which not."""

    layer = "process"
    shorthand: ClassVar[str | None] = "worker"

    worker: Select
    exclude: Select | None = None

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        chosen: Selector = with_exclude(self.worker, self.exclude)
        return Targets(workers=resolve_workers(chosen, situation, stream=stream))


class KillWorker(WorkerFault):
    """A worker gets a signal (SIGKILL if none is named).

    Stands for the kernel's out-of-memory killer, a crash in native code (SIGSEGV, SIGABRT) and an
    operator's kill. Does not stand for: memory pressure before the kill, a GPU left in a bad state.
    """

    name = "kill"

    signal: SignalName = "SIGKILL"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        number = signal.Signals[self.signal]
        for worker in targets.workers:
            if not context.signal(worker.process, number):
                raise FaultImpossible(f"{worker} had ended before {self.signal} was sent")
        yield IN_FORCE
        if self.signal not in _CANNOT_BE_REFUSED:
            return f"{self.signal} was delivered to {_listed(targets.workers)}"
        yield _all_gone(context, targets.workers, _DEATH_S)
        return f"{_listed(targets.workers)} gone"


class ExitWorker(WorkerFault):
    """A worker ends by itself with an exit code, between two steps.

    Stands for a program that gives up: a failed health check, `sys.exit(3)`. Does not stand for:
    an exit in the middle of a collective or of a checkpoint.
    """

    name = "exit"

    code: int = Field(default=1, ge=0, le=255)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        order = {"do": "exit", "code": self.code}
        return (yield from _order(context, targets, order, f"exit with {self.code}"))


class RaiseInWorker(WorkerFault):
    """An exception is raised in a worker's main thread, between two steps.

    Stands for a bug that shows on one rank: bad data, an index error. Does not stand for: an error
    inside a collective, an asynchronous CUDA error.
    """

    name = "raise"

    error: str = "RuntimeError"
    message: str = "injected by pytest-elastic"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        order = {"do": "raise", "error": self.error, "message": self.message}
        return (yield from _order(context, targets, order, f"raise {self.error}"))


def _order(
    context: FaultContext, targets: Targets, order: Mapping[str, object], what: str
) -> Steps:
    for worker in targets.workers:
        if not context.order_worker(worker.process, order):
            raise FaultImpossible(f"{worker} has no probe that could {what}")
    yield InForce.NEEDS_JOB  # the order is done in the step hook, and a held rank stands there
    yield _all_gone(context, targets.workers, _ORDER_S)
    return f"{_listed(targets.workers)} told to {what}, and gone"


def _all_gone(context: FaultContext, workers: tuple[WorkerRef, ...], within_s: float) -> Until:
    return Until(
        condition=lambda: not any(context.is_alive(worker.process) for worker in workers),
        within_s=within_s,
        otherwise=f"still alive after {within_s:g} s: one of {_listed(workers)}",
    )


def _listed(workers: tuple[WorkerRef, ...]) -> str:
    return ", ".join(str(worker) for worker in workers)
