"""Faults that end a training process: a signal, an exit code, an exception, a crash, no memory."""

from __future__ import annotations

import builtins
import signal
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from elastic_harness.cluster.process import ProcessRef, is_running
from elastic_harness.faults.context import (
    IN_FORCE,
    Evidence,
    FaultContext,
    FaultImpossible,
    HealOrdered,
    InForce,
    Sleep,
    Steps,
    Until,
    Waits,
)
from elastic_harness.faults.fault import Fault, with_exclude
from elastic_harness.scenario.engine.situation import Situation, Targets, WorkerRef
from elastic_harness.scenario.fields import Select
from elastic_harness.scenario.selectors import Selector, resolve_workers
from pytest_elastic.exit_codes import exit_text

__all__ = [
    "ORDER_S",
    "AbortWorker",
    "ExitWorker",
    "KillWorker",
    "RaiseInWorker",
    "SegfaultWorker",
    "SignalName",
    "WorkerFault",
    "ends_of",
    "facts_of",
    "kill_each",
    "listed",
    "order",
    "see_end",
    "see_worker_end",
    "send_to_each",
    "wait_for_answer",
]

K = TypeVar("K")

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
    proof = (
        "SIGKILL: it was delivered, and the process has ended by that signal; "
        "any other signal: it was delivered, whatever the program makes of it"
    )

    signal: SignalName = "SIGKILL"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        processes = {worker: worker.process for worker in targets.workers}
        if self.signal not in _CANNOT_BE_REFUSED:
            yield from send_to_each(context, processes, signal.Signals[self.signal])
            yield IN_FORCE
            return Evidence(
                text=f"{self.signal} was delivered to {listed(targets.workers)}",
                facts={"delivered": self.signal, "workers": facts_of(targets.workers, {})},
            )
        ends = yield from kill_each(context, processes)
        return Evidence(
            text=f"{self.signal} was delivered: {ends_of(ends)}",
            facts={"delivered": self.signal, "workers": facts_of(targets.workers, ends)},
        )


class ExitWorker(WorkerFault):
    """A worker ends by itself with an exit code, between two steps.

    Stands for a program that gives up: a failed health check, `sys.exit(3)`. Does not stand for:
    an exit in the middle of a collective or of a checkpoint.
    """

    name = "exit"
    proof = (
        "the worker acknowledged this order, and ended with that exit code (where nothing tells "
        "it: its interpreter went down by itself)"
    )

    code: int = Field(default=1, ge=0, le=255)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        given = {"do": "exit", "code": self.code}

        def proves(code: int | None, went_down: bool) -> bool:  # noqa: FBT001 (asked by position)
            return went_down if code is None else code == self.code

        return (yield from _end(context, targets, given, id=id, proves=proves))


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
    proof = (
        "the worker acknowledged this order, and its interpreter went down of that exception, or "
        "it took no further step and ended with an exit code that is not 0"
    )

    error: Annotated[str, AfterValidator(_exception)] = "RuntimeError"
    message: str = "injected by pytest-elastic"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        given = {"do": "raise", "error": self.error, "message": self.message}

        def proves(code: int | None, went_down: bool) -> bool:  # noqa: FBT001 (asked by position)
            return went_down or (code is not None and code > 0)

        return (yield from _end(context, targets, given, id=id, proves=proves))


class _CrashWorker(WorkerFault):
    """A worker that dies of a signal that its own native code has caused."""

    _dies_of: ClassVar[signal.Signals]

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        given = {"do": "act", "act": self.name}
        of_it = (None, -self._dies_of)
        return (
            yield from _end(context, targets, given, id=id, proves=lambda code, _: code in of_it)
        )


class SegfaultWorker(_CrashWorker):
    """A worker reads from address 0 in native code, between two steps, and dies of SIGSEGV.

    Stands for a bug in a native extension, a broken build, a bit that flipped. Does not stand for:
    a crash inside a collective; no core file is written.
    """

    name = "segfault"
    proof = (
        "the worker acknowledged this order, and ended by SIGSEGV (where nothing tells how it "
        "ended: right after)"
    )
    _dies_of = signal.SIGSEGV


class AbortWorker(_CrashWorker):
    """A worker calls abort() between two steps, and dies of SIGABRT.

    Stands for a failed assertion in native code, a watchdog that gives up (NCCL's does so), glibc
    finding a corrupt heap. Does not stand for: what such a library prints before; no core file is
    written.
    """

    name = "abort"
    proof = (
        "the worker acknowledged this order, and ended by SIGABRT (where nothing tells how it "
        "ended: right after)"
    )
    _dies_of = signal.SIGABRT


def order(
    context: FaultContext,
    workers: tuple[WorkerRef, ...],
    given: Mapping[str, object],
    what: str,
    *,
    by: str,
) -> None:
    """Order workers to do something in their step hook; raises FaultImpossible.

    `by` is the entry that orders it: that tells its answers from those to others.
    """
    for worker in workers:
        context.ends.of(worker.process)  # it is watched from now on
        if not context.probes.order(worker.process, {**given, "by": by}):
            raise FaultImpossible(f"{worker} has no probe that could {what}")


def wait_for_answer(
    context: FaultContext,
    worker: WorkerRef,
    act: str,
    phases: tuple[str, ...],
    *,
    by: str,
    within_s: float,
) -> Waits[str]:
    """Wait until a worker has said that it is so far with this very order; returns the detail."""
    wanted = {*phases, "refused", "unknown"}

    def answer() -> Mapping[str, Any]:
        found = _answer(context, worker, act, by)
        return found if found.get("phase") in wanted else {}

    end = context.ends.of(worker.process)
    yield Until(
        condition=lambda: bool(answer()) or end.is_done,
        within_s=within_s,
        otherwise=f"{worker} took no step within {within_s:g} s in which it could {act}",
    )
    if not answer():
        yield Sleep(seconds=_LAST_WORDS_S)  # it is dead, and its last words may not be read yet
    said = answer()
    if said.get("phase") == "unknown":
        raise FaultImpossible(f"{worker} has a probe that does not know how to {act}")
    if said.get("phase") == "refused":
        raise FaultImpossible(f"{worker} cannot {act}: {said['detail']}")
    if not said:
        raise FaultImpossible(f"{worker} ended before it could {act}")
    return str(said["detail"])


def see_end(
    context: FaultContext, process: ProcessRef, *, within_s: float, otherwise: str
) -> Waits[int | None]:
    """Wait until a process is gone; returns how it ended, negative: by that signal; None: not told.

    It is watched since it was to end. Where it is healed before that is told, it counts if it is
    gone.
    """
    end = context.ends.of(process)
    try:
        yield Until(end, within_s, otherwise)
    except HealOrdered:
        if is_running((yield from context.cluster.state(process))):
            raise
        return None
    return end.result()


def send_to_each(
    context: FaultContext, processes: Mapping[K, ProcessRef], signum: signal.Signals
) -> Waits[None]:
    """Send a signal to processes, by what they are called, and watch how they end (`see_end`).

    Raises FaultImpossible for one that had ended.
    """
    for who, process in processes.items():
        context.ends.of(process)
        if not (yield from context.cluster.signal(process, signum)):
            raise FaultImpossible(f"{who} had ended before {signum.name} was sent")


def kill_each(
    context: FaultContext, processes: Mapping[K, ProcessRef]
) -> Waits[dict[K, int | None]]:
    """Kill processes, by what they are called, and return how each ended (None: not told).

    It is in force in between. Raises FaultImpossible for one that something else has ended.
    """
    yield from send_to_each(context, processes, signal.SIGKILL)
    yield IN_FORCE
    ends = {}
    for who, process in processes.items():
        otherwise = f"still alive after {_DEATH_S:g} s: {who}"
        code = yield from see_end(context, process, within_s=_DEATH_S, otherwise=otherwise)
        if code not in (None, -signal.SIGKILL):
            raise FaultImpossible(f"{who} got SIGKILL, but it ended with {exit_text(code)}")
        ends[who] = code
    return ends


def see_worker_end(
    context: FaultContext, worker: WorkerRef, *, within_s: float
) -> Waits[int | None]:
    """Wait until a worker is gone; returns how it ended."""
    otherwise = f"still alive after {within_s:g} s: {worker}"
    return (yield from see_end(context, worker.process, within_s=within_s, otherwise=otherwise))


def facts_of(
    workers: tuple[WorkerRef, ...], ends: Mapping[WorkerRef, int | None]
) -> list[dict[str, object]]:
    """Return workers as facts, with their exit codes where they have ended."""
    return [
        {
            "rank": worker.rank,
            "node": worker.node,
            "pid": worker.process.pid,
            **({"exit_code": ends[worker]} if worker in ends else {}),
        }
        for worker in workers
    ]


def ends_of(ends: Mapping[WorkerRef, int | None]) -> str:
    """Return how workers have ended as text."""
    return ", ".join(f"{worker} ended with {exit_text(code)}" for worker, code in ends.items())


def _answer(context: FaultContext, worker: WorkerRef, act: str, by: str) -> Mapping[str, Any]:
    """Return what a worker last said, if that is about this very order."""
    found = context.probes.answer_of(worker.process, by)
    return found if found.get("act") == act else {}


def _end(
    context: FaultContext,
    targets: Targets,
    given: Mapping[str, object],
    *,
    id: str,
    proves: Callable[[int | None, bool], bool],
) -> Steps:
    """Order workers to end, and see that each begins to, and ends of that and nothing else.

    `proves` is asked with an exit code (None: nothing tells it) and with whether the interpreter
    went down of the order, by the worker's own word.
    """
    act = str(given.get("act", given["do"]))
    order(context, targets.workers, given, act, by=id)
    yield InForce.NEEDS_JOB  # the order is done in the step hook, and a held rank stands there
    ends: dict[WorkerRef, int | None] = {}
    for worker in targets.workers:
        began = ("began", "ended")
        yield from wait_for_answer(context, worker, act, began, by=id, within_s=ORDER_S)
        code = yield from see_worker_end(context, worker, within_s=ORDER_S)
        phase = _answer(context, worker, act, id).get("phase")
        if phase == "refused":
            raise FaultImpossible(f"{worker} began to {act}, but its script caught that")
        if not proves(code, phase == "ended"):
            raise FaultImpossible(f"{worker} began to {act}, but it ended with {exit_text(code)}")
        ends[worker] = code
    return Evidence(
        text=f"began to {act} as ordered: {ends_of(ends)}",
        facts={"ordered": dict(given), "acknowledged": True, "workers": facts_of((*ends,), ends)},
    )


def listed(workers: tuple[WorkerRef, ...]) -> str:
    """Return workers as text."""
    return ", ".join(str(worker) for worker in workers)
