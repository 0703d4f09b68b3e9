"""What several faults have laid over one run, each in a layer of its own.

A fault takes away its own layer and no other, in whichever order faults are healed; what is in
force is what the layers make together. How that is done to a node, a facet of the cluster knows.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from elastic_harness.cluster.cluster import Cluster, ClusterError, having
from elastic_harness.cluster.disks.policy import DiskCounters, DiskPolicy
from elastic_harness.cluster.facets import FileLimit, Limited
from elastic_harness.cluster.process import ProcessRef
from elastic_harness.faults.workers.stops import Stops
from elastic_harness.future import Future, gather, settled
from elastic_harness.network.endpoints import Endpoints
from elastic_harness.network.link_model import Layers, LinkPolicy, Pair
from elastic_harness.network.names import NameChange
from elastic_harness.network.overlay import Overlay
from pytest_elastic.errors import ElasticError
from pytest_elastic.events.model import Record

__all__ = [
    "ClockLayers",
    "DiskLayers",
    "LimitLayers",
    "LinkLayers",
    "NameLayers",
    "StopLayers",
]


# A link, and the class of its traffic that a layer is for (None: everything).
_Place = tuple[Pair, str | None]


def _nothing(_: object) -> None:
    return None


class LinkLayers:
    """Policies over links; `endpoints` tell which traffic is of which class."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # By link and class of traffic (None: everything): a packet meets the layers of both.
        self._overlay: Overlay[_Place, LinkPolicy] = Overlay()
        self._tells_apart = False
        self.endpoints = Endpoints()

    def learn(self, record: Record) -> None:
        """Note what a record tells about endpoints."""
        if self.endpoints.learn(record) and self._tells_apart:
            self._tell_apart()

    def impose(
        self,
        owner: str,
        pairs: Sequence[Pair],
        policy: LinkPolicy,
        *,
        traffic: str | None = None,
    ) -> Future[None]:
        """Lay a policy over links, on top of what others have laid there.

        With `traffic` it is for one class of what passes there (`network.traffic`).
        """
        if traffic is not None and not self._tells_apart:
            self._tells_apart = True
            self._tell_apart()
        places = [(pair, traffic) for pair in pairs]
        return self._apply(self._overlay.impose(owner, places, policy))

    def lift(self, owner: str) -> Future[None]:
        """Take away what `owner` has laid over links; harmless when that is nothing."""
        return self._apply(self._overlay.lift(owner))

    def _tell_apart(self) -> None:
        if self._cluster.network is not None:
            self._cluster.network.learn_traffic(self.endpoints.by_class)

    def _apply(self, changed: Mapping[_Place, Mapping[str, LinkPolicy]]) -> Future[None]:
        # Links with the same layers are changed in one order to the switch.
        groups: dict[tuple[Layers, str | None], list[Pair]] = {}
        for (pair, traffic), layers in changed.items():
            groups.setdefault((tuple(layers.items()), traffic), []).append(pair)
        if not groups:
            return settled(None)
        network = having(self._cluster.network, self._cluster.capabilities["network"])
        return gather(
            network.lay(pairs, layers, traffic=traffic)
            for (layers, traffic), pairs in groups.items()
        ).then(_nothing)


class NameLayers:
    """Names that nodes take for something else."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._overlay: Overlay[str, Mapping[str, NameChange]] = Overlay()

    def change(
        self, owner: str, node: str, changes: Mapping[str, NameChange]
    ) -> Future[Mapping[str, str]]:
        """Have a node take names for something else; done with its table of hosts."""
        theirs = {name: replace(change, owner=owner) for name, change in changes.items()}
        self._overlay.impose(owner, [node], theirs)
        return self._show(node)

    def restore(self, owner: str) -> Future[None]:
        """Undo what `owner` did to names, on every node that is up; harmless twice."""
        nodes = [node for node in self._overlay.lift(owner) if node in self._cluster.nodes]
        return gather(self._show(node) for node in nodes).then(_nothing)

    def change_again(self, node: str) -> None:
        """Have a new incarnation of a node take names for what its predecessor did."""
        if self._overlay.of(node):
            self._show(node)

    def _show(self, node: str) -> Future[Mapping[str, str]]:
        names = having(self._cluster.names, self._cluster.capabilities["names"])
        # The last who changed a name is right.
        changes = [each for layer in self._overlay.of(node).values() for each in layer.items()]
        return names.set_names(node, dict(changes))


class _Limit(NamedTuple):
    """What one owner has limited on one node, in one incarnation of it."""

    incarnation: int
    most: float


class LimitLayers:
    """Limits on nodes, and on the files of processes: the narrowest holds."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # By node and what is limited there.
        self._overlay: Overlay[tuple[str, Limited], _Limit] = Overlay()
        self._files: dict[tuple[str, ProcessRef], int] = {}  # by owner

    def limit(self, owner: str, node: str, of: Limited, most: float) -> Future[None]:
        """Limit a node, beside what others have limited; `most` is as in `Limits.limit_node`."""
        running = self._cluster.nodes.get(node)
        if running is None:
            return settled(ClusterError(f"{node} is not up any more"))
        self._overlay.impose(owner, [(node, of)], _Limit(running.incarnation, most))
        return self._apply(node, of)

    def unlimit(self, owner: str) -> Future[None]:
        """Take away the limits that `owner` has set; harmless when there are none."""
        changed = self._overlay.lift(owner)
        nodes = self._cluster.nodes
        return gather(self._apply(node, of) for node, of in changed if node in nodes).then(_nothing)

    def narrowest(self, node: str, of: Limited) -> tuple[str, ...]:
        """Return whose limit of this kind holds on a node: of several owners the narrowest."""
        given = self._limits_of(node, of)
        return tuple(owner for owner, most in given.items() if most == min(given.values()))

    def _apply(self, node: str, of: Limited) -> Future[None]:
        limits = having(self._cluster.limits, self._cluster.capabilities[f"{of}_limit"])
        most = min(self._limits_of(node, of).values(), default=None)
        return limits.limit_node(node, of, most)

    def _limits_of(self, node: str, of: Limited) -> dict[str, float]:
        running = self._cluster.nodes.get(node)
        return {
            owner: limit.most
            for owner, limit in self._overlay.of((node, of)).items()
            if running is not None and limit.incarnation == running.incarnation
        }

    def limit_files(
        self, owner: str, process: ProcessRef, *, free: int
    ) -> Future[FileLimit | None]:
        """Let a process open `free` more files than it has; None when it has ended."""

        def note(limit: FileLimit | None) -> FileLimit | None:
            if limit is not None:
                self._files[owner, process] = limit.asked
            return limit

        limits = having(self._cluster.limits, self._cluster.capabilities["process_limit"])
        lowest = min(self._limits_on(process, apart_from=owner), default=None)
        return limits.limit_files(process, free=free, at_most=lowest).then(note)

    def unlimit_files(self, owner: str) -> Future[None]:
        """Give processes back the limits they had, as far as no other owner limits them."""
        mine = [process for name, process in self._files if name == owner]
        for process in mine:
            del self._files[owner, process]
        if self._cluster.limits is None:
            return settled(None)
        limits = self._cluster.limits
        return gather(
            limits.restore_files(
                process, at_most=min(self._limits_on(process, apart_from=owner), default=None)
            )
            for process in mine
        ).then(_nothing)

    def is_narrowest_for_files(self, owner: str, process: ProcessRef) -> bool:
        """Tell whether no other owner lets a process open fewer files."""
        mine = self._files.get((owner, process))
        return mine is not None and mine <= min(
            self._limits_on(process, apart_from=owner), default=mine
        )

    def _limits_on(self, process: ProcessRef, *, apart_from: str) -> list[int]:
        return [
            limit
            for (owner, limited), limit in self._files.items()
            if limited == process and owner != apart_from
        ]


class DiskLayers:
    """Policies over directories of nodes; no path means `checkpoints`.

    `on_overlay` is called with the name of a node when it has got an overlay on a directory.
    """

    def __init__(
        self,
        cluster: Cluster,
        checkpoints: str = "",
        *,
        on_overlay: Callable[[str], None] = _nothing,
    ) -> None:
        self._cluster = cluster
        self._checkpoints = checkpoints
        self._on_overlay = on_overlay
        # By owner, node and path: the node's incarnation.
        self._overlaid: dict[tuple[str, str, str | None], int] = {}

    def set(
        self, owner: str, node: str, path: str | None, policy: DiskPolicy | None
    ) -> Future[None]:
        """Lay a policy over a directory of a node, beside those of others; None takes it away.

        Taking away twice is harmless.
        """
        running = self._cluster.nodes.get(node)
        incarnation = running.incarnation if running is not None else 0
        laid_on = self._overlaid.pop((owner, node, path), 0)
        if policy is None and (not laid_on or laid_on != incarnation):
            return settled(None)  # never laid there, or gone with the node that it was laid on
        if running is None:
            return settled(ClusterError(f"{node} is not up any more"))
        if policy is not None:
            self._overlaid[owner, node, path] = incarnation
        disks = having(self._cluster.disks, self._cluster.capabilities["disk_faults"])
        laid = disks.set_policy(node, self._directory(path), owner, policy)
        return laid.then(lambda _: self._on_overlay(node))

    def count(self, node: str, path: str | None) -> Future[DiskCounters]:
        """Read what policies over a directory have done."""
        if node not in self._cluster.nodes:
            return settled(ClusterError(f"{node} is not up any more"))
        disks = having(self._cluster.disks, self._cluster.capabilities["disk_faults"])
        return disks.counters(node, self._directory(path))

    def _directory(self, path: str | None) -> str:
        return os.path.normpath(os.path.join(self._checkpoints, path or ""))


class ClockLayers:
    """How wrong the time of day is on nodes, by all faults together.

    `file_of` says which file a node's processes have for a clock; None: they were started without.
    """

    def __init__(self, cluster: Cluster, file_of: Callable[[str], str] | None = None) -> None:
        self._cluster = cluster
        self._file_of = file_of
        self._offsets: dict[tuple[str, str], float] = {}  # by owner and node

    def set(self, owner: str, node: str, offset_s: float | None) -> Future[None]:
        """Put a node's time of day off, beside what others did; None takes that away."""
        if offset_s is None and self._offsets.pop((owner, node), None) is None:
            return settled(None)
        if self._file_of is None:
            return settled(
                ElasticError(
                    "the job was started without libfaketime: put the fault on the timeline before "
                    "it"
                )
            )
        if offset_s is not None:
            self._offsets[owner, node] = offset_s
        clock = having(self._cluster.clock, self._cluster.capabilities["clock_skew"])
        return clock.set_offset(node, self._file_of(node), self.offset(node))

    def offset(self, node: str) -> float:
        """Return by how much a node's time of day is to be wrong."""
        return sum(each for (_, name), each in self._offsets.items() if name == node)


class StopLayers:
    """Stopped processes and paused nodes, until the last fault that wants them so is healed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stops = Stops()

    def stop(self, owner: str, process: ProcessRef) -> Future[bool]:
        """Stop a process by SIGSTOP; False when that very process has ended."""

        def note(is_sent: bool) -> bool:  # noqa: FBT001 (the value of a future)
            if is_sent:
                self._stops.stop(owner, process)
            return is_sent

        return self._cluster.signal(process, signal.SIGSTOP).then(note)

    def owners_of(self, process: ProcessRef) -> tuple[str, ...]:
        """Return which faults stop a process, or pause its node."""
        return self._stops.owners_of(process)

    def release(self, owner: str) -> Future[None]:
        """Continue the processes that only `owner` has stopped; harmless twice."""
        return self._send(self._stops.release(owner), signal.SIGCONT)

    def pause_node(self, owner: str, node: str) -> Future[None]:
        """Freeze every process of a node."""
        self._stops.pause(owner, node)
        return self._cluster.pause_node(node)

    def resume_node(self, owner: str, node: str) -> Future[None]:
        """Let a frozen node go on, unless another owner has paused it too; harmless twice."""
        if not self._stops.resume(owner, node):
            return settled(None)

        def on_done(_: Future[None]) -> None:
            # Where there is no freezer, all of its processes were stopped and continued.
            released, held = self._stops.after_resume(node)
            self._send(released, signal.SIGCONT)
            self._send(held, signal.SIGSTOP)

        resumed = self._cluster.resume_node(node)
        resumed.add_done_callback(on_done)
        return resumed

    def forget(self, node: str) -> None:
        """Note that a node is gone, with all that was stopped there."""
        self._stops.forget(node)

    def _send(self, processes: Sequence[ProcessRef], signum: int) -> Future[None]:
        return gather(self._cluster.signal(each, signum) for each in processes).then(_nothing)
