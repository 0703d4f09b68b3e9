"""Faults that end a training process: a signal, an exit code, an exception, a crash, no memory."""

from __future__ import annotations

import builtins
import signal
from collections.abc import Generator, Mapping
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from elastic_harness.faults.context import (
    IN_FORCE,
    FaultContext,
    FaultImpossible,
    InForce,
    Sleep,
    Steps,
    Until,
    Wait,
)
from elastic_harness.faults.fault import Fault, with_exclude
from elastic_harness.scenario.fields import Select
from elastic_harness.scenario.selectors import Selector, resolve_workers
from elastic_harness.scenario.situation import Situation, Targets, WorkerRef

__all__ = [
    "ORDER_S",
    "AbortWorker",
    "ExitWorker",
    "KillWorker",
    "RaiseInWorker",
    "SegfaultWorker",
    "SignalName",
    "WorkerFault",
    "listed",
    "order",
    "until_gone",
    "wait_for_answer",
]

# A process that cannot refuse a signal is gone in a few milliseconds, or it hangs in the kernel.
_DEATH_S: Final = 5.0
# An order is done in the worker's step hook: as long as a slow first step may take.
ORDER_S: Final = 30.0
# A worker that dies of an act has said so right before: that is read within milliseconds.
_LAST_WORDS_S: Final = 0.3
_CANNOT_BE_REFUSED: Final = frozenset({"SIGKILL"})
_STOPPING: Final = frozenset({"SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU"})


def _signal_name(value: object) -> str:
    name = str(value).upper()
    if name.isascii() and name.isdigit():
        if len(name) > 2 or int(name) not in signal.Signals.__members__.values():
            raise ValueError(f"{value!r} is not the number of a signal with a name: try SIGTERM")
        name = signal.Signals(int(name)).name
    name = name if name.startswith("SIG") else f"SIG{name}"
    if isinstance(value, bool) or name not in signal.Signals.__members__:
        raise ValueError(f"{value!r} is not a signal: write for example SIGTERM, or 15")
    if name in _STOPPING:
        raise ValueError(f"{name} stops a process and does not end it: use `pause`")
    return name


SignalName = Annotated[
    str,
    BeforeValidator(_signal_name),
    PlainSerializer(str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": "^(SIG)?[A-Z0-9]+$"},
                {"type": "integer", "minimum": 1, "maximum": 64},
            ]
        }
    ),
]


class WorkerFault(Fault):
    """A fault that hits workers: `worker` says which, `exclude` which not."""

    layer = "worker"
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
    proof = "the process is gone (SIGKILL); any other signal: it was delivered"

    signal: SignalName = "SIGKILL"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        number = signal.Signals[self.signal]
        for worker in targets.workers:
            if not context.signal(worker.process, number):
                raise FaultImpossible(f"{worker} had ended before {self.signal} was sent")
        yield IN_FORCE
        if self.signal not in _CANNOT_BE_REFUSED:
            return f"{self.signal} was delivered to {listed(targets.workers)}"
        yield until_gone(context, targets.workers, _DEATH_S)
        return f"{listed(targets.workers)} gone"


class ExitWorker(WorkerFault):
    """A worker ends by itself with an exit code, between two steps.

    Stands for a program that gives up: a failed health check, `sys.exit(3)`. Does not stand for:
    an exit in the middle of a collective or of a checkpoint.
    """

    name = "exit"
    proof = "the process is gone"

    code: int = Field(default=1, ge=0, le=255)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        given = {"do": "exit", "code": self.code}
        return (yield from _end(context, targets, given, f"exit with {self.code}"))


def _exception(value: str) -> str:
    found = getattr(builtins, value, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        # Pydantic reports a ValueError; a TypeError would pass for a bug.
        raise ValueError(  # noqa: TRY004
            f"{value!r} is none of Python's own exceptions, such as ValueError"
        )
    return value


class RaiseInWorker(WorkerFault):
    """An exception is raised in a worker's main thread, between two steps.

    Stands for a bug that shows on one rank: bad data, an index error. Does not stand for: an error
    inside a collective, an asynchronous CUDA error.
    """

    name = "raise"
    proof = "the process is gone"

    error: Annotated[str, AfterValidator(_exception)] = "RuntimeError"
    message: str = "injected by pytest-elastic"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        given = {"do": "raise", "error": self.error, "message": self.message}
        return (yield from _end(context, targets, given, f"raise {self.error}"))


class SegfaultWorker(WorkerFault):
    """A worker reads from address 0 in native code, between two steps, and dies of SIGSEGV.

    Stands for a bug in a native extension, a broken build, a bit that flipped. Does not stand for:
    a crash inside a collective; no core file is written.
    """

    name = "segfault"
    proof = "the worker had begun to, and the process is gone"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        return (yield from _act(context, targets, "segfault"))


class AbortWorker(WorkerFault):
    """A worker calls abort() between two steps, and dies of SIGABRT.

    Stands for a failed assertion in native code, a watchdog that gives up (NCCL's does so), glibc
    finding a corrupt heap. Does not stand for: what such a library prints before; no core file is
    written.
    """

    name = "abort"
    proof = "the worker had begun to, and the process is gone"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        return (yield from _act(context, targets, "abort"))


def order(
    context: FaultContext, workers: tuple[WorkerRef, ...], given: Mapping[str, object], what: str
) -> None:
    """Order workers to do something in their step hook; raises FaultImpossible."""
    for worker in workers:
        if not context.order_worker(worker.process, given):
            raise FaultImpossible(f"{worker} has no probe that could {what}")


def wait_for_answer(
    context: FaultContext, worker: WorkerRef, act: str, phases: tuple[str, ...], *, within_s: float
) -> Generator[Wait, None, str]:
    """Wait until a worker has said that it is so far with an act; returns the detail it gave."""

    def is_answered() -> bool:
        answer = context.answer_of(worker.process)
        said = (answer.get("act"), answer.get("phase"))
        return said in {(act, phase) for phase in (*phases, "refused", "unknown")}

    yield Until(
        condition=lambda: is_answered() or not context.is_alive(worker.process),
        within_s=within_s,
        otherwise=f"{worker} took no step within {within_s:g} s in which it could {act}",
    )
    if not context.answer_of(worker.process):
        yield Sleep(seconds=_LAST_WORDS_S)  # it is dead, and its last words may not be read yet
    answer = context.answer_of(worker.process)
    if answer.get("phase") == "unknown":
        raise FaultImpossible(f"{worker} has a probe that does not know how to {act}")
    if answer.get("phase") == "refused":
        raise FaultImpossible(f"{worker} cannot {act}: {answer['detail']}")
    if not answer:
        raise FaultImpossible(f"{worker} ended before it could {act}")
    return str(answer["detail"])


def _act(context: FaultContext, targets: Targets, act: str) -> Steps:
    order(context, targets.workers, {"do": "act", "act": act}, act)
    yield InForce.NEEDS_JOB
    for worker in targets.workers:
        yield from wait_for_answer(context, worker, act, ("began",), within_s=ORDER_S)
    yield until_gone(context, targets.workers, ORDER_S)
    return f"{listed(targets.workers)} told to {act}, and gone"


def _end(context: FaultContext, targets: Targets, given: Mapping[str, object], what: str) -> Steps:
    order(context, targets.workers, given, what)
    yield InForce.NEEDS_JOB  # the order is done in the step hook, and a held rank stands there
    yield until_gone(context, targets.workers, ORDER_S)
    return f"{listed(targets.workers)} told to {what}, and gone"


def until_gone(context: FaultContext, workers: tuple[WorkerRef, ...], within_s: float) -> Until:
    """Return the wait for the end of workers."""
    return Until(
        condition=lambda: not any(context.is_alive(worker.process) for worker in workers),
        within_s=within_s,
        otherwise=f"still alive after {within_s:g} s: one of {listed(workers)}",
    )


def listed(workers: tuple[WorkerRef, ...]) -> str:
    """Return workers as text."""
    return ", ".join(str(worker) for worker in workers)
