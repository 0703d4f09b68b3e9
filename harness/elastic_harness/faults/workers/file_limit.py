"""A worker that may open no more files, and says so when it is refused one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from elastic_harness.faults.context import (
    Evidence,
    FaultContext,
    FaultImpossible,
    InForce,
    Steps,
    Waits,
    wait_for_proof,
)
from elastic_harness.faults.workers.worker import (
    ORDER_S,
    WorkerFault,
    facts_of,
    listed,
    order,
    wait_for_answer,
)
from elastic_harness.scenario.engine.situation import Targets, WorkerRef

__all__ = ["LimitFiles"]


class LimitFiles(WorkerFault):
    """A worker may open `free` more files than it has open now; then it gets EMFILE.

    Sockets and pipes count as files. It is proven by what Python code asks for: where native code
    opens files by itself (`torch.save` to a path does), say `optional: true`. Stands for a leak of
    descriptors, a limit that is too low for many peers. Does not stand for: a limit on the whole
    machine (ENFILE), what its children open.
    """

    name = "file_limit"
    layer = "resource"
    proof = (
        "seen in the worker: its script was about to open a file, list a folder or start a "
        "process, with every number below this limit in use (the kernel's answer is EMFILE)"
    )
    is_healable: ClassVar[bool] = True

    free: int = Field(default=0, ge=0)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        limits = yield from self._limit(context, targets, id)
        refused = yield from wait_for_proof(context, lambda: _refused(context, targets, id))
        if not refused:
            raise FaultImpossible(
                f"in force ({_as_text(limits)}), but nothing was refused: the Python code of "
                f"{listed(targets.workers)} wanted no more files"
            )
        return Evidence(
            text="; ".join(
                f"{worker} wanted `{wanted}` with all numbers below {limits[worker]} in use"
                for worker, wanted in refused.items()
            ),
            facts={
                "errno": "EMFILE",
                "workers": facts_of(tuple(refused), {}),
                "wanted": list(refused.values()),
                "limits": [limits[worker] for worker in refused],
            },
        )

    def _limit(
        self, context: FaultContext, targets: Targets, id: str
    ) -> Waits[dict[WorkerRef, int]]:
        """Limit workers, each while it stands between two steps and begins to watch itself."""
        limits = {}
        given = {"do": "act", "act": "watch_files"}
        order(context, targets.workers, given, "see whether it is refused files", by=id)
        yield InForce.NEEDS_JOB  # the order is done in the step hook, and a held rank stands there
        try:
            for worker in targets.workers:
                began = ("began", "ended")
                yield from wait_for_answer(
                    context, worker, "watch_files", began, by=id, within_s=ORDER_S
                )
                found = yield from context.limits.limit_files(id, worker.process, free=self.free)
                if found is None:
                    raise FaultImpossible(f"{worker} had ended before it was limited")
                limits[worker] = found.limit
        finally:
            for worker in targets.workers:
                context.probes.order(worker.process, {"do": "resume"})
        return limits

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from context.limits.unlimit_files(id)
        return f"{listed(targets.workers)} may open files as before"


def _as_text(limits: Mapping[WorkerRef, int]) -> str:
    return ", ".join(f"{worker} below {limit}" for worker, limit in limits.items())


def _refused(context: FaultContext, targets: Targets, id: str) -> Waits[dict[WorkerRef, str]]:
    """Return what workers wanted that met this limit; raises FaultImpossible for another's."""
    yield from ()
    refused = {}
    for worker in targets.workers:
        said = context.probes.answer_of(worker.process, id)
        if (said.get("act"), said.get("phase")) == ("watch_files", "ended"):
            if not context.limits.is_narrowest_for_files(id, worker.process):
                raise FaultImpossible(f"{worker} met the lower limit of another fault")
            refused[worker] = str(said["detail"])
    return refused
