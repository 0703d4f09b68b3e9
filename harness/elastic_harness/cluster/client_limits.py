"""The operations of a cluster that leave nodes too little: processor, memory, processes, disk."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

from elastic_harness.cluster.cluster import Capabilities, ClusterError, Done
from elastic_harness.cluster.disks.policy import DiskCounters, DiskPolicy, policy_to
from elastic_harness.cluster.limits.cgroup_layout import GroupReadings
from elastic_harness.conversation import Answer

__all__ = ["LimitOrders"]

_LIMITS: Final = {"cpu": "cpu_limit", "memory": "memory_limit", "processes": "process_limit"}


class LimitOrders(ABC):
    """The part of a client that orders limits; `ClusterClient` is the rest."""

    capabilities: Capabilities

    def limit_node(
        self,
        name: str,
        on_done: Done[None],
        *,
        cpu: float | None = None,
        memory: int | None = None,
        processes: int | None = None,
    ) -> None:
        """Limit a node to a share of one processor, bytes of memory, processes (None: no limit)."""
        self._require(name)
        wanted = {"cpu": cpu, "memory": memory, "processes": processes}
        able = {
            key: value
            for key, value in wanted.items()
            if value is not None or self.capabilities.has(_LIMITS[key])
        }
        self._ask("limit_node", {"name": name, **able}, lambda _: on_done(None), on_done)

    def read_limits(self, name: str, on_done: Done[GroupReadings]) -> None:
        """Read what the kernel has counted in a node's control groups."""
        self._require(name)

        def on_read(answer: Answer) -> None:
            counted = {
                each.name: answer.fields[each.name] for each in dataclasses.fields(GroupReadings)
            }
            on_done(GroupReadings(**counted))

        self._ask("read_limits", {"name": name}, on_read, on_done)

    def set_disk(
        self, name: str, path: str, owner: str, policy: DiskPolicy | None, on_done: Done[None]
    ) -> None:
        """Lay a policy over a directory of a node (None: take it away)."""
        self._require(name)
        more = {} if policy is None else {"policy": policy_to(policy)}
        order = {"name": name, "path": path, "order": "unset" if policy is None else "set"}
        request = {**order, "fields": {"owner": owner, **more}}
        self._ask("disk", request, lambda _: on_done(None), on_done)

    def count_disk(self, name: str, path: str, on_done: Done[DiskCounters]) -> None:
        """Read what the policies over a directory have done."""
        self._require(name)

        def on_read(answer: Answer) -> None:
            names = [each.name for each in dataclasses.fields(DiskCounters)]
            on_done(DiskCounters(**{name: answer.fields[name] for name in names}))

        request = {"name": name, "path": path, "order": "count", "fields": {}}
        self._ask("disk", request, on_read, on_done)

    # What the rest provides

    @abstractmethod
    def _require(self, name: str) -> None:
        """Raise UsageError for a node that does not run."""

    @abstractmethod
    def _ask(
        self,
        op: str,
        fields: Mapping[str, Any],
        on_result: Callable[[Answer], None],
        on_error: Callable[[ClusterError], None],
    ) -> None:
        """Ask the server for something."""
