"""Faults that leave a node or a worker too little: processor, memory, processes, open files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import ClassVar, Final

from pydantic import Field

from elastic_harness.cluster.cgroup_layout import GroupReadings
from elastic_harness.faults.context import (
    IN_FORCE,
    FaultContext,
    FaultImpossible,
    HealOrdered,
    InForce,
    Settled,
    Sleep,
    Steps,
    Ticket,
    Wait,
)
from elastic_harness.faults.node import CLUSTER_S, NodeFault, names_of
from elastic_harness.faults.worker import ORDER_S, WorkerFault, listed, order, until_gone
from elastic_harness.scenario.fields import Fraction, Size
from elastic_harness.scenario.situation import NodeRef, Targets

__all__ = ["LimitCpu", "LimitFiles", "LimitMemory", "LimitProcesses", "OutOfMemory"]

Readings = Generator[Wait, None, GroupReadings]
Counting = Generator[Wait, None, int]

# A job that does not meet a limit within this time is not bothered by it.
_PROOF_S: Final = 20.0
_LOOK_S: Final = 0.1
# How much more than it may have a worker tries to take: the kernel first reclaims what it can.
_GREED_BYTES: Final = 256 << 20
_MANY_PROCESSES: Final = 1_000_000
# A thread that lives for a moment is seen by few of these looks.
_LOOKS_AT_PROCESSES: Final = 10
_BETWEEN_LOOKS_S: Final = 0.05


class _Met:
    """How often nodes have met a limit, by a counter of the kernel.

    It is read before the limit is laid: a job may meet the limit, say so and have it healed before
    another reading is answered.
    """

    def __init__(
        self,
        context: FaultContext,
        nodes: tuple[NodeRef, ...],
        counter: Callable[[GroupReadings], int],
    ) -> None:
        self._context = context
        self._nodes = nodes
        self._counter = counter
        self._before = 0

    def begin(self) -> Generator[Wait, None, None]:
        """Take note of what was counted before the limit."""
        self._before = yield from self._count()

    def wait(self, otherwise: str, *, at_each_look: Callable[[], Steps] | None = None) -> Counting:
        """Wait until more is counted; returns how much."""
        yield InForce.NEEDS_JOB
        deadline = self._context.now() + _PROOF_S
        while self._context.now() < deadline:
            try:
                yield Sleep(seconds=_LOOK_S)
            except HealOrdered:
                deadline = 0.0  # the last look
            now = yield from self._count()
            if now > self._before:
                return now - self._before
            if at_each_look is not None and deadline:
                yield from at_each_look()
        raise FaultImpossible(otherwise)

    def _count(self) -> Counting:
        total = 0
        for node in self._nodes:
            total += self._counter((yield from _read(self._context, node.name)))
        return total


class _NodeLimit(NodeFault):
    """A limit that the kernel keeps, and counts how often it had to."""

    layer = "resource"
    is_healable: ClassVar[bool] = True

    def excuses(self, targets: Targets) -> tuple[str, ...]:
        return ()

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from _settle(context.resources.unlimit(id), "lifting limits")
        return f"{names_of(targets.nodes)} without this limit"


class LimitCpu(_NodeLimit):
    """A node has `share` of one processor for all of its processes together.

    What a reboot or replacement starts is not limited. Stands for a machine that is overcommitted,
    a container with a small quota, thermal throttling. Does not stand for: a slow GPU or memory, a
    single slow rank among fast ones on its node (that is `slow`).
    """

    name = "cpu_limit"
    capability = "cpu_limit"
    proof = "the kernel counted periods in which the node had used up its share"

    share: Fraction = Field(default=0.2, gt=0)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        met = _Met(context, targets.nodes, lambda readings: readings.throttled)
        yield from met.begin()
        for node in targets.nodes:
            ticket = context.resources.limit(id, node.name, cpu=self.share)
            yield from _settle(ticket, f"limiting {node.name}")
        counted = yield from met.wait(
            f"nobody on {names_of(targets.nodes)} wanted more than {self.share:.0%} of a processor"
        )
        return f"{names_of(targets.nodes)} throttled in {counted} periods"


class LimitMemory(_NodeLimit):
    """A node may take `size` of memory from now on, for all of its processes together.

    What they have already is not counted. Where they want more, the kernel reclaims caches, then
    kills. Stands for a container with a memory limit, a leak in a neighbour. Does not stand for:
    swapping, memory of a GPU, a whole machine that is short of memory.
    """

    name = "memory_limit"
    capability = "memory_limit"
    proof = "the kernel counted allocations that met the limit"

    size: Size = Field(gt=0)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        met = _Met(
            context,
            targets.nodes,
            lambda readings: readings.memory_hits + readings.memory_kills,
        )
        yield from met.begin()
        for node in targets.nodes:
            yield from _limit_memory(context, node.name, self.size, id)
        counted = yield from met.wait(
            f"nobody on {names_of(targets.nodes)} wanted {self.size} more bytes of memory"
        )
        return f"{names_of(targets.nodes)} met the limit {counted} times"


class LimitProcesses(_NodeLimit):
    """A node may start `free` more processes and threads than it has now.

    Those that come and go are not counted: what it has is the fewest seen within half a second.
    Where some end before any was refused, the limit follows: to the most seen within a second.
    Stands for a limit on pids of a container or a user, a leak of threads. Does not stand for: a
    machine that is out of process numbers. Root is limited as well, unlike by RLIMIT_NPROC.
    """

    name = "process_limit"
    capability = "process_limit"
    proof = "the kernel counted processes that it refused to start"

    free: int = Field(default=0, ge=0)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        met = _Met(context, targets.nodes, lambda readings: readings.processes_refused)
        yield from met.begin()
        for node in targets.nodes:
            # Processes are counted once they are in a group.
            ticket = context.resources.limit(id, node.name, processes=_MANY_PROCESSES)
            yield from _settle(ticket, f"counting the processes of {node.name}")
        there = yield from _fewest_processes(context, targets.nodes)
        for node in targets.nodes:
            yield from self._limit(context, node.name, there[node.name], id)
        seen: list[Mapping[str, int]] = []

        def follow() -> Steps:
            """Leave no room where processes have ended that were counted."""
            seen.append((yield from _processes(context, targets.nodes)))
            if len(seen) == _LOOKS_AT_PROCESSES:
                for name, limit in there.items():
                    if (most := max(each[name] for each in seen)) < limit:
                        there[name] = most
                        yield from self._limit(context, name, most, id)
                seen.clear()
            return ""

        counted = yield from met.wait(
            f"nobody on {names_of(targets.nodes)} tried to start more processes",
            at_each_look=follow,
        )
        return f"{names_of(targets.nodes)} refused {counted} processes"

    def _limit(self, context: FaultContext, node: str, there: int, id: str) -> Steps:
        ticket = context.resources.limit(id, node, processes=there + self.free)
        return (yield from _settle(ticket, f"limiting {node}"))


class LimitFiles(WorkerFault):
    """A worker may open `free` more files than it has open now; then it gets EMFILE.

    Sockets and pipes count as files. Stands for a leak of descriptors, a limit that is too low for
    many peers. Does not stand for: a limit on the whole machine (ENFILE), what its children open.
    """

    name = "file_limit"
    layer = "resource"
    proof = "the limit stands right above the numbers that are in use or free to be used"
    is_healable: ClassVar[bool] = True

    free: int = Field(default=0, ge=0)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        limits = []
        for worker in targets.workers:
            found = context.resources.limit_files(id, worker.process, free=self.free)
            if found is None:
                raise FaultImpossible(f"{worker} had ended before it was limited")
            limits.append(f"{worker}: the next is {found.lowest_free}, the limit {found.limit}")
        yield IN_FORCE
        return "; ".join(limits)

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        context.resources.unlimit_files(id)
        yield from ()
        return f"{listed(targets.workers)} may open files as before"


class OutOfMemory(WorkerFault):
    """The kernel kills a worker because its node has no memory left for what it takes.

    The node may take `headroom` more than it has, the worker takes that and more between two steps,
    and is the one that the kernel chooses; the limit is lifted when it is dead. Stands for a leak,
    a batch that is too large, on a node or container with a limit. Does not stand for: a GPU out of
    memory (an exception in torch), other processes that the kernel might choose, swapping.
    """

    name = "oom"
    capability = "memory_limit"
    proof = "the kernel counted a kill for lack of memory, and the process is gone"

    headroom: Size = Field(default=128 << 20, gt=0)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        greed = self.headroom + _GREED_BYTES
        for worker in targets.workers:
            before = yield from _limit_memory(context, worker.node, self.headroom, id)
            order(context, (worker,), {"do": "act", "act": "eat", "argument": greed}, "take memory")
            yield InForce.NEEDS_JOB
            yield until_gone(context, (worker,), ORDER_S)
            after = yield from _read(context, worker.node)
            yield from _settle(context.resources.unlimit(id), f"lifting the limit of {worker.node}")
            if after.memory_kills == before.memory_kills:
                raise FaultImpossible(f"{worker} is gone, but not for lack of memory")
        return f"{listed(targets.workers)} killed by the kernel for lack of memory"

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from _settle(context.resources.unlimit(id), "lifting limits")
        return "no limit left"


def _limit_memory(context: FaultContext, node: str, more: int, id: str) -> Readings:
    """Let a node take so much more memory; returns what was counted before."""
    before = yield from _read(context, node)
    ticket = context.resources.limit(id, node, memory=before.memory + more)
    yield from _settle(ticket, f"limiting {node}")
    return before


def _fewest_processes(
    context: FaultContext, nodes: tuple[NodeRef, ...]
) -> Generator[Wait, None, dict[str, int]]:
    """Count the processes that stay, on nodes where others come and go."""
    fewest = dict.fromkeys((node.name for node in nodes), _MANY_PROCESSES)
    for _ in range(_LOOKS_AT_PROCESSES):
        yield Sleep(seconds=_BETWEEN_LOOKS_S)
        for name, there in (yield from _processes(context, nodes)).items():
            fewest[name] = min(fewest[name], there)
    return fewest


def _processes(
    context: FaultContext, nodes: tuple[NodeRef, ...]
) -> Generator[Wait, None, dict[str, int]]:
    found = {}
    for node in nodes:
        found[node.name] = (yield from _read(context, node.name)).processes
    return found


def _read(context: FaultContext, node: str) -> Readings:
    ticket = context.resources.readings(node)
    yield Settled(ticket=ticket, within_s=CLUSTER_S, what=f"reading what {node} used")
    return ticket.result()


def _settle(ticket: Ticket[None], what: str) -> Steps:
    yield Settled(ticket=ticket, within_s=CLUSTER_S, what=what)
    ticket.result()
    return ""
