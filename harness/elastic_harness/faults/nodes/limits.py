"""Faults that leave a node or a worker too little: processor, memory, processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

from pydantic import Field

from elastic_harness.cluster.cluster import having
from elastic_harness.cluster.facets import Limited
from elastic_harness.cluster.limits.cgroup_layout import GroupReadings
from elastic_harness.faults.context import (
    Evidence,
    FaultContext,
    FaultImpossible,
    InForce,
    Sleep,
    Steps,
    Waits,
    wait_for_proof,
)
from elastic_harness.faults.nodes.node import NodeFault, names_of, read_each
from elastic_harness.faults.workers.worker import (
    ORDER_S,
    WorkerFault,
    ends_of,
    facts_of,
    order,
    see_worker_end,
    wait_for_answer,
)
from elastic_harness.scenario.engine.situation import Targets, WorkerRef
from elastic_harness.scenario.fields import Fraction, Size
from pytest_elastic.exit_codes import exit_text

__all__ = ["LimitCpu", "LimitMemory", "LimitProcesses", "OutOfMemory"]

# How much more than it may have a worker tries to take: the kernel first reclaims what it can.
_GREED_BYTES: Final = 256 << 20
_MANY_PROCESSES: Final = 1_000_000
# A thread that lives for a moment is seen by few of these looks.
_LOOKS_AT_PROCESSES: Final = 10
_BETWEEN_LOOKS_S: Final = 0.05


class _Met:
    """How often nodes have met a limit, by a counter of the kernel.

    It is read before the limit is laid: a job may meet the limit, say so and have it healed before
    another reading is answered. What is counted while another fault's limit is narrower is not
    this one's.
    """

    def __init__(
        self,
        context: FaultContext,
        nodes: Sequence[str],
        counter: Callable[[GroupReadings], int],
        *,
        of: Limited,
        by: str,
    ) -> None:
        self._context = context
        self._nodes = nodes
        self._counter = counter
        self._of: Limited = of
        self._by = by
        self._seen: dict[str, int] = {}
        self._was_narrowest: dict[str, bool] = {}

    def begin(self) -> Waits[None]:
        """Note what was counted before the limit."""
        for node, reading in (yield from _readings(self._context, self._nodes)).items():
            self._seen[node] = self._counter(reading)
            self._was_narrowest[node] = not self._context.limits.narrowest(node, self._of)

    def count(self) -> Waits[dict[str, int]]:
        """Return what was counted since the look before, where this limit has held since then."""
        met = {}
        for node, reading in (yield from _readings(self._context, self._nodes)).items():
            now = self._counter(reading)
            more, self._seen[node] = now - self._seen.get(node, now), now
            is_narrowest = self._by in self._context.limits.narrowest(node, self._of)
            if more > 0 and is_narrowest and self._was_narrowest[node]:
                met[node] = more
            self._was_narrowest[node] = is_narrowest
        return met


class _NodeLimit(NodeFault):
    """A limit that the kernel keeps, and counts how often it had to."""

    layer = "resource"
    may_end_launchers: ClassVar[bool] = False
    is_healable: ClassVar[bool] = True

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from context.limits.unlimit(id)
        return f"{names_of(targets.nodes)} without this limit"


class LimitCpu(_NodeLimit):
    """A node has `share` of one processor for all of its processes together.

    What a reboot or replacement starts is not limited. Stands for a machine that is overcommitted,
    a container with a small quota, thermal throttling. Does not stand for: a slow GPU or memory, a
    single slow rank among fast ones on its node (that is `slow`).
    """

    name = "cpu_limit"
    capability = "cpu_limit"
    proof = (
        "the kernel counted periods in which the node had used up its share, while no other fault "
        "gave it less"
    )

    share: Fraction = Field(default=0.2, gt=0)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        met = _Met(context, _names(targets), lambda each: each.throttled, of="cpu", by=id)
        yield from met.begin()
        for node in targets.nodes:
            yield from context.limits.limit(id, node.name, "cpu", self.share)
        counted = yield from wait_for_proof(context, met.count)
        if not counted:
            raise FaultImpossible(
                f"no process on {names_of(targets.nodes)} wanted more than {self.share:.0%} of a "
                "processor"
            )
        return Evidence(
            text=f"throttled in so many periods: {_by_node(counted)}",
            facts={"throttled": counted, "share": self.share},
        )


class LimitMemory(_NodeLimit):
    """A node may take `size` of memory from now on, for all of its processes together.

    What they have already is not counted. Where they want more, the kernel reclaims caches, then
    kills. Stands for a container with a memory limit, a leak in a neighbour. Does not stand for:
    swapping, memory of a GPU, a whole machine that is short of memory.
    """

    name = "memory_limit"
    capability = "memory_limit"
    makes_kernel_kill: ClassVar[bool] = True
    proof = "the kernel counted allocations that met the limit, while no other fault's was lower"

    size: Size = Field(gt=0)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        met = _Met(context, _names(targets), lambda each: each.memory_hits, of="memory", by=id)
        yield from met.begin()
        for node in targets.nodes:
            yield from _limit_memory(context, node.name, self.size, id)
        counted = yield from wait_for_proof(context, met.count)
        if not counted:
            raise FaultImpossible(
                f"no process on {names_of(targets.nodes)} wanted {self.size} more bytes of memory"
            )
        return Evidence(
            text=f"met the limit so many times: {_by_node(counted)}",
            facts={"memory_hits": counted, "size": self.size},
        )


class LimitProcesses(_NodeLimit):
    """A node may start `free` more processes and threads than it has now.

    Those that come and go are not counted: what it has is the fewest seen within half a second.
    Where some end before any was refused, the limit follows: to the most seen within a second.
    Stands for a limit on pids of a container or a user, a leak of threads. Does not stand for: a
    machine that is out of process numbers. Root is limited as well, unlike by RLIMIT_NPROC.
    """

    name = "process_limit"
    capability = "process_limit"
    proof = (
        "the kernel counted processes that it refused to start, while no other fault's limit was "
        "lower"
    )

    free: int = Field(default=0, ge=0)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        nodes = _names(targets)
        met = _Met(context, nodes, lambda each: each.processes_refused, of="process", by=id)
        yield from met.begin()
        for node in targets.nodes:
            # Processes are counted once they are in a group.
            yield from context.limits.limit(id, node.name, "process", _MANY_PROCESSES)
        there = yield from _fewest_processes(context, nodes)
        for name, number in there.items():
            yield from context.limits.limit(id, name, "process", number + self.free)
        seen: list[Mapping[str, int]] = []

        def look() -> Waits[dict[str, int]]:
            """Leave no room where processes have ended that were counted."""
            if counted := (yield from met.count()):
                return counted
            now = yield from _processes(context, nodes)
            seen.append(now)
            if len(seen) == _LOOKS_AT_PROCESSES:
                for name in [each for each in there if each in now]:
                    limit = there[name]
                    there[name] = min(limit, max(each.get(name, 0) for each in seen))
                    if there[name] != limit:
                        yield from context.limits.limit(
                            id, name, "process", there[name] + self.free
                        )
                seen.clear()
            return {}

        counted = yield from wait_for_proof(context, look)
        if not counted:
            raise FaultImpossible(
                f"no process on {names_of(targets.nodes)} tried to start more processes"
            )
        return Evidence(
            text=f"refused so many processes: {_by_node(counted)}",
            facts={"processes_refused": counted},
        )


class OutOfMemory(WorkerFault):
    """The kernel kills a worker because its node has no memory left for what it takes.

    The node may take `headroom` more than it has, the worker takes that and more between two steps,
    and is the one that the kernel chooses; the limit is lifted when it is dead. Stands for a leak,
    a batch that is too large, on a node or container with a limit. Does not stand for: a GPU out of
    memory (an exception in torch), other processes that the kernel might choose, swapping.
    """

    name = "oom"
    capability = "memory_limit"
    proof = (
        "the worker acknowledged the order to take memory, the kernel counted a kill for lack "
        "of memory under this limit, and the process ended by SIGKILL"
    )

    headroom: Size = Field(default=128 << 20, gt=0)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        greed = self.headroom + _GREED_BYTES
        ends: dict[WorkerRef, int | None] = {}
        kills: dict[str, int] = {}
        for worker in targets.workers:
            given = {"do": "act", "act": "eat", "argument": greed}
            order(context, (worker,), given, "take memory", by=id)
            yield InForce.NEEDS_JOB
            began = ("began", "ended")
            yield from wait_for_answer(context, worker, "eat", began, by=id, within_s=ORDER_S)
            # Only now is it the one that the kernel chooses: before, others might meet the limit.
            before = yield from _limit_memory(context, worker.node, self.headroom, id)
            context.probes.order(worker.process, {"do": "resume"})
            code = ends[worker] = yield from see_worker_end(context, worker, within_s=ORDER_S)
            after = yield from _read(context, worker.node)
            is_ours = id in context.limits.narrowest(worker.node, "memory")
            yield from context.limits.unlimit(id)
            kills[worker.node] = after.memory_kills - before.memory_kills
            if not kills[worker.node]:
                raise FaultImpossible(f"{worker} is gone, but not for lack of memory")
            if code not in (None, -signal.SIGKILL):
                raise FaultImpossible(
                    f"the kernel killed something on {worker.node} for lack of memory, but "
                    f"{worker} ended with {exit_text(code)}"
                )
            if not is_ours:
                raise FaultImpossible(f"another fault leaves {worker.node} less memory")
        return Evidence(
            text=f"killed by the kernel for lack of memory: {ends_of(ends)}",
            facts={
                "acknowledged": True,
                "memory_kills": kills,
                "workers": facts_of(targets.workers, ends),
            },
        )

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from context.limits.unlimit(id)
        return "no limit left"


def _names(targets: Targets) -> list[str]:
    return [node.name for node in targets.nodes]


def _by_node(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{node} {number}" for node, number in counted.items())


def _limit_memory(context: FaultContext, node: str, more: int, id: str) -> Waits[GroupReadings]:
    """Let a node take so much more memory; returns what was counted before."""
    before = yield from _read(context, node)
    yield from context.limits.limit(id, node, "memory", before.memory + more)
    return before


def _fewest_processes(context: FaultContext, nodes: Sequence[str]) -> Waits[dict[str, int]]:
    """Count the processes that stay, on nodes where others come and go."""
    fewest: dict[str, int] = {}
    for _ in range(_LOOKS_AT_PROCESSES):
        yield Sleep(seconds=_BETWEEN_LOOKS_S)
        now = yield from _processes(context, nodes)
        fewest = {name: min(number, fewest.get(name, number)) for name, number in now.items()}
    return fewest


def _processes(context: FaultContext, nodes: Sequence[str]) -> Waits[dict[str, int]]:
    found = yield from _readings(context, nodes)
    return {node: each.processes for node, each in found.items()}


def _readings(context: FaultContext, nodes: Sequence[str]) -> Waits[dict[str, GroupReadings]]:
    limits = having(context.cluster.limits, context.cluster.capabilities["cpu_limit"])
    return (yield from read_each(context, nodes, limits.readings))


def _read(context: FaultContext, node: str) -> Waits[GroupReadings]:
    return (yield from _readings(context, [node]))[node]
