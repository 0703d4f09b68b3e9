"""The resources of a played world (`Resources`): plain values, answered when time passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from elastic_harness.cluster.disks.policy import DiskCounters, DiskPolicy
from elastic_harness.cluster.limits.cgroup_layout import GroupReadings
from elastic_harness.faults.nodes.resource_context import FileLimit, Limited
from elastic_harness.faults.ticket import FaultImpossible, Ticket
from elastic_harness.scenario.engine.situation import ProcessRef

__all__ = ["Budget"]


class Budget:
    """What nodes of a played world have been left; `counted` is what their kernel says."""

    def __init__(self, later: Callable[[Callable[[], None]], None], *, numb: bool = False) -> None:
        self._later = later
        self._numb = numb
        self.counted: dict[str, GroupReadings] = {}
        self.limits: dict[str, dict[str, Any]] = {}
        self.files: dict[str, int] = {}
        self.clocks: dict[tuple[str, str], float] = {}
        self.disks: dict[tuple[str, str | None], DiskPolicy] = {}
        self.disk_counts = DiskCounters()
        self.serving: dict[tuple[str, int], tuple[int, ...]] = {}
        self.is_damaged = False
        self.damaged: list[tuple[str | None, str, str]] = []

    def count(self, node: str, **counted: int) -> None:
        """Let the kernel count something."""
        self.counted[node] = replace(self.counted.get(node, GroupReadings()), **counted)

    def limit(self, owner: str, node: str, **limits: object) -> Ticket[None]:
        self.limits.setdefault(owner, {})[node] = limits
        return self._answer(None)

    def unlimit(self, owner: str) -> Ticket[None]:
        self.limits.pop(owner, None)
        return self._answer(None)

    def narrowest(self, node: str, of: Limited) -> tuple[str, ...]:
        given = {
            owner: value
            for owner, limits in self.limits.items()
            if (value := limits.get(node, {}).get(of)) is not None
        }
        return tuple(owner for owner, value in given.items() if value == min(given.values()))

    def is_narrowest_for_files(self, owner: str, process: ProcessRef) -> bool:
        return self.files[owner] == min(self.files.values())

    def readings(self, node: str) -> Ticket[GroupReadings]:
        return self._answer(self.counted.get(node, GroupReadings()))

    def limit_files(self, owner: str, process: ProcessRef, *, free: int) -> FileLimit | None:
        if self._numb:
            return None
        self.files[owner] = free
        return FileLimit(limit=9 + free, lowest_free=9)

    def set_clock(self, owner: str, node: str, offset_s: float | None) -> None:
        if offset_s is None:
            self.clocks.pop((owner, node), None)
        else:
            self.clocks[owner, node] = offset_s

    def clock_offset(self, node: str) -> float:
        return sum(each for (_, name), each in self.clocks.items() if name == node)

    def time_of_day(self) -> float:
        return 1000.0

    def set_disk(
        self, owner: str, node: str, path: str | None, policy: DiskPolicy | None
    ) -> Ticket[None]:
        if policy is None:
            self.disks.pop((node, path), None)
        else:
            self.disks[node, path] = policy
        return self._answer(None)

    def count_disk(self, node: str, path: str | None) -> Ticket[DiskCounters]:
        return self._answer(self.disk_counts)

    def listeners(self, node: str, port: int) -> tuple[ProcessRef, ...]:
        return tuple(ProcessRef(pid=pid) for pid in self.serving.get((node, port), ()))

    def corrupt(self, node: str | None, pattern: str, how: str) -> str:
        if self._numb or self.is_damaged:
            raise FaultImpossible("what was written over it was there already")
        self.damaged.append((node, pattern, how))
        return f"{how} {pattern}"

    def unlimit_files(self, owner: str) -> None:
        self.files.pop(owner, None)

    def _answer(self, value: Any) -> Ticket[Any]:  # noqa: ANN401 (one answer for all questions)
        ticket: Ticket[Any] = Ticket()
        self._later(lambda: ticket.settle(value))
        return ticket
