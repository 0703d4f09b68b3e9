"""Freezing: a worker, an agent or a whole node stands still for a while, and then goes on."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from elastic_harness.cluster.process import ProcessRef
from elastic_harness.faults.context import (
    IN_FORCE,
    Evidence,
    FaultContext,
    FaultImpossible,
    Steps,
)
from elastic_harness.faults.fault import Fault, with_exclude
from elastic_harness.faults.nodes.node import names_of
from elastic_harness.faults.workers.stall import processes_of, stop_and_see
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.fields import Select
from elastic_harness.scenario.selectors import resolve_nodes, resolve_workers

__all__ = ["Pause"]


class Pause(Fault):
    """A worker, an agent or a node stops between two instructions; healing lets it go on.

    Exactly one of `worker`, `agent` and `node`. Stands for a hang, a debugger, a live migration, a
    stop-the-world pause, swapping. Does not stand for: slowness (it is all or nothing), time that
    passes unseen (a paused process sees its clocks jump).
    """

    name = "pause"
    sometimes_needs = "pause (`node`)"
    layer = "worker"
    proof = (
        "state T after this SIGSTOP, and not before; a node: the cluster's answer to this order "
        "(the freezer says so, or every process was signalled)"
    )
    shorthand: ClassVar[str | None] = "worker"
    is_healable: ClassVar[bool] = True
    pauses: ClassVar[bool] = True
    may_end_launchers: ClassVar[bool] = True

    worker: Select | None = None
    agent: Select | None = None
    node: Select | None = None
    exclude: Select | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Pause:
        given = [key for key in ("worker", "agent", "node") if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"`pause` has exactly one of worker, agent and node: found {found}")
        return self

    @property
    def needs(self) -> str | None:
        return "pause" if self.node is not None else None

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        if self.worker is not None:
            chosen = with_exclude(self.worker, self.exclude)
            return Targets(workers=resolve_workers(chosen, situation, stream=stream))
        place = self.agent or self.node
        assert place is not None, "a pause has a target"
        chosen = with_exclude(place, self.exclude)
        return Targets(nodes=resolve_nodes(chosen, situation, stream=stream))

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        if self.node is not None:
            for node in targets.nodes:
                yield from context.stops.pause_node(id, node.name)
            yield IN_FORCE
            return Evidence(
                text=f"every process of {names_of(targets.nodes)} stopped",
                facts={"paused": [node.name for node in targets.nodes]},
            )
        processes = self._processes(context, targets)
        if not processes:
            raise FaultImpossible(f"no launcher runs on {names_of(targets.nodes)}")
        return (yield from stop_and_see(context, processes, owner=id))

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        if self.node is not None:
            for node in targets.nodes:
                if node.name in context.cluster.nodes:
                    yield from context.stops.resume_node(id, node.name)
            return f"{names_of(targets.nodes)} goes on"
        yield from context.stops.release(id)
        return "continued"

    def _processes(self, context: FaultContext, targets: Targets) -> list[ProcessRef]:
        if self.worker is not None:
            return processes_of(targets.workers)
        launchers = [context.launchers.launcher_of(node.name) for node in targets.nodes]
        return [launcher for launcher in launchers if launcher is not None]
