"""Faults of a worker's GPU: done by the worker itself, between two steps.

They have not been run on a device yet: `docs/faults.md` says so. A worker that has no device, or
whose torch knows none, says why it cannot, and the fault has failed.
"""

from __future__ import annotations

import signal
from typing import ClassVar, Final

from pydantic import Field

from elastic_harness.faults.context import (
    Evidence,
    FaultContext,
    FaultImpossible,
    InForce,
    Steps,
)
from elastic_harness.faults.workers.worker import (
    ORDER_S,
    WorkerFault,
    ends_of,
    facts_of,
    listed,
    order,
    see_worker_end,
    wait_for_answer,
)
from elastic_harness.scenario.engine.situation import Targets, WorkerRef
from elastic_harness.scenario.fields import Seconds
from pytest_elastic.exit_codes import exit_text

__all__ = ["AbortNccl", "DeviceAssert", "GpuSleep"]

# The first call of CUDA in a process sets up its context, and aborting waits for kernels.
_DEVICE_S: Final = 60.0
# Clocks of a device go up and down: what was calibrated before may take this much less.
_LEAST_SHARE: Final = 0.5


class GpuFault(WorkerFault):
    """A fault of a worker's GPU."""

    layer = "gpu"
    capability: ClassVar[str | None] = "cuda"


class DeviceAssert(GpuFault):
    """A kernel of a worker's GPU fails an assertion, and every later call of CUDA there fails.

    The kernel is an index out of range, started between two steps; the worker meets it at its next
    call of CUDA. Stands for a label out of range, an embedding looked up beyond its table. Does not
    stand for: a device that has fallen off the bus, an uncorrectable memory error (ECC).
    """

    name = "device_assert"
    proof = (
        "the worker acknowledged that it started the kernel, and the process is gone, neither in "
        "success nor by SIGKILL or SIGTERM"
    )

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from _have_done(context, targets, "device_assert", until="began", by=id)
        ends: dict[WorkerRef, int | None] = {}
        for worker in targets.workers:
            code = ends[worker] = yield from see_worker_end(context, worker, within_s=_DEVICE_S)
            if code in (0, -signal.SIGKILL, -signal.SIGTERM):
                raise FaultImpossible(
                    f"{worker} started a kernel that asserts, but it ended with {exit_text(code)}"
                )
        return Evidence(
            text=f"started a kernel that asserts: {ends_of(ends)}",
            facts={"acknowledged": True, "workers": facts_of(targets.workers, ends)},
        )


class GpuSleep(GpuFault):
    """A kernel that does nothing stands in the way of a worker's others, for `lasts`.

    It is put on the worker's current stream between two steps, and spins for as many cycles as
    were measured to take that long. Stands for a kernel that is much slower than it should be, a
    device whose clock was lowered. Does not stand for: a device that is busy on all of its
    multiprocessors (it takes one), other streams that wait (NCCL's own go on).
    """

    name = "gpu_sleep"
    proof = "the device's own events: the kernel took at least half of `lasts`"

    lasts: Seconds = Field(default=2.0, ge=0.001, le=600.0)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        milliseconds = int(self.lasts * 1000)
        yield from _have_done(
            context, targets, "gpu_sleep", until="began", by=id, argument=milliseconds
        )
        took = []
        given = {"do": "act", "act": "gpu_slept"}
        order(context, targets.workers, given, "use its GPU", by=id)
        for worker in targets.workers:
            within_s = ORDER_S + 4 * self.lasts
            text = yield from wait_for_answer(
                context, worker, "gpu_slept", ("ended",), by=id, within_s=within_s
            )
            if float(text) < _LEAST_SHARE * milliseconds:
                raise FaultImpossible(f"{worker}: the kernel took {text} ms of {milliseconds} ms")
            took.append(f"{worker}: {text} ms")
        return Evidence(
            text="; ".join(took),
            facts={"acknowledged": True, "workers": facts_of(targets.workers, {})},
        )


class AbortNccl(GpuFault):
    """A worker aborts the NCCL communicator of its default process group, between two steps.

    Its next collective fails, and its peers wait for it in theirs. Stands for a communicator that a
    watchdog has aborted, a network card that is lost. Does not stand for: an abort in the middle of
    a collective; communicators of other groups go on.
    """

    name = "nccl_abort"
    proof = "the worker acknowledged this order, and that its communicator was aborted"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from _have_done(context, targets, "nccl_abort", until="ended", by=id)
        return Evidence(
            text=f"{listed(targets.workers)} has no communicator any more",
            facts={"acknowledged": True, "workers": facts_of(targets.workers, {})},
        )


def _have_done(
    context: FaultContext, targets: Targets, act: str, *, until: str, by: str, **given: int
) -> Steps:
    """Have workers do something to their GPU, and wait until each says that it is that far."""
    order(context, targets.workers, {"do": "act", "act": act, **given}, "use its GPU", by=by)
    yield InForce.NEEDS_JOB
    for worker in targets.workers:
        yield from wait_for_answer(context, worker, act, (until,), by=by, within_s=_DEVICE_S)
    return ""
