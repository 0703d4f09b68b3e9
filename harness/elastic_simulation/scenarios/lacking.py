"""What simulated nodes do not have, refused in the words of the `Cluster` interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elastic_harness.cluster.cluster import ClusterError, ClusterNode, Done
from elastic_harness.cluster.disks.policy import DiskCounters, DiskPolicy
from elastic_harness.cluster.limits.cgroup_layout import GroupReadings
from elastic_harness.network.link_model import Pair
from elastic_harness.network.names import NameChange

__all__ = ["Lacking"]


class Lacking:
    """The operations of a cluster that need a kernel below the nodes."""

    _nodes: dict[str, ClusterNode]

    def _node(self, name: str) -> ClusterNode:
        raise NotImplementedError

    def limit_node(
        self,
        name: str,
        on_done: Done[None],
        *,
        cpu: float | None = None,
        memory: int | None = None,
        processes: int | None = None,
    ) -> None:
        """Refuse."""
        del cpu, memory, processes
        on_done(self._lacks(name, "processors, memory or processes"))

    def read_limits(self, name: str, on_done: Done[GroupReadings]) -> None:
        """Refuse."""
        on_done(self._lacks(name, "control groups"))

    def set_disk(
        self, name: str, path: str, owner: str, policy: DiskPolicy | None, on_done: Done[None]
    ) -> None:
        """Refuse."""
        del path, owner, policy
        on_done(self._lacks(name, "disks"))

    def count_disk(self, name: str, path: str, on_done: Done[DiskCounters]) -> None:
        """Refuse."""
        del path
        on_done(self._lacks(name, "disks"))

    def set_names(
        self, node: str, changes: Mapping[str, NameChange], on_done: Done[Mapping[str, str]]
    ) -> None:
        """Refuse, but to show the truth again."""
        names = {name: each.address for name, each in self._nodes.items()}
        on_done(self._lacks(node, "a table of names") if changes else names)

    def names_asked(self, node: str, on_done: Done[Mapping[str, Mapping[str, int]]]) -> None:
        """Refuse."""
        on_done(self._lacks(node, "a name service"))

    def capture(self, id: str, pairs: Sequence[Pair], path: str, on_done: Done[None]) -> None:
        """Refuse."""
        del id, pairs, path
        on_done(ClusterError("simulated links carry no packets that could be captured"))

    def captured(self, id: str, on_done: Done[int]) -> None:
        """Nothing is ever captured."""
        del id
        on_done(0)

    def end_capture(self, id: str, on_done: Done[int]) -> None:
        """Nothing is ever captured."""
        del id
        on_done(0)

    def _lacks(self, name: str, what: str) -> ClusterError:
        self._node(name)
        return ClusterError(f"simulated nodes have no {what}")
