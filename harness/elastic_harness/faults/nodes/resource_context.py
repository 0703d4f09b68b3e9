"""What a fault may do to the resources of nodes: the part of `FaultContext` that is about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from elastic_harness.cluster.disks.policy import DiskCounters, DiskPolicy
from elastic_harness.cluster.limits.cgroup_layout import GroupReadings
from elastic_harness.faults.ticket import Ticket
from elastic_harness.scenario.engine.situation import ProcessRef

__all__ = ["FileLimit", "Limited", "Resources"]

# What a node can have too little of.
Limited = Literal["cpu", "memory", "processes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimit:
    """A limit on descriptors that is in force: `lowest_free` is the number the next one needs."""

    limit: int
    lowest_free: int


class Resources(Protocol):
    """Processor, memory, files and disks. Nothing here waits."""

    def limit(
        self,
        owner: str,
        node: str,
        *,
        cpu: float | None = None,
        memory: int | None = None,
        processes: int | None = None,
    ) -> Ticket[None]:
        """Limit a node, beside what others have limited; the narrowest limit holds."""

    def unlimit(self, owner: str) -> Ticket[None]:
        """Take away the limits that `owner` has set; harmless when there are none."""

    def narrowest(self, node: str, of: Limited) -> tuple[str, ...]:
        """Return whose limit of this kind holds on a node: of several owners the narrowest."""

    def readings(self, node: str) -> Ticket[GroupReadings]:
        """Read what the kernel has counted for a node since it was first limited."""

    def limit_files(self, owner: str, process: ProcessRef, *, free: int) -> FileLimit | None:
        """Let a process open `free` more files than it has; None when it has ended."""

    def is_narrowest_for_files(self, owner: str, process: ProcessRef) -> bool:
        """Tell whether no other owner lets a process open fewer files."""

    def set_clock(self, owner: str, node: str, offset_s: float | None) -> None:
        """Put a node's time of day off, beside what others did; None takes that away.

        Raises FaultImpossible where launchers were not started for it.
        """

    def clock_offset(self, node: str) -> float:
        """Return by how much a node's time of day is to be wrong, by all faults together."""

    def time_of_day(self) -> float:
        """Return the right time, in seconds since the epoch."""

    def set_disk(
        self, owner: str, node: str, path: str | None, policy: DiskPolicy | None
    ) -> Ticket[None]:
        """Lay a policy over a directory of a node, beside those of others; None takes it away.

        No path means the checkpoint directory. Taking away twice is harmless.
        """

    def count_disk(self, node: str, path: str | None) -> Ticket[DiskCounters]:
        """Read what policies over a directory have done."""

    def listeners(self, node: str, port: int) -> tuple[ProcessRef, ...]:
        """Return the processes of a node that listen at a TCP port of it."""

    def corrupt(self, node: str | None, pattern: str, how: str) -> str:
        """Damage the newest file of the job that matches; raises FaultImpossible."""

    def unlimit_files(self, owner: str) -> None:
        """Give the processes of `owner` back the limits they had; harmless when they are gone."""
