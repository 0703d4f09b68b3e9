"""The resources of a run's nodes (`Resources`): who has limited what, and what holds of it."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from elastic_harness.cluster.cluster import PRIVATE_TREES, Cluster, ClusterError
from elastic_harness.cluster.disks.policy import DiskCounters, DiskPolicy
from elastic_harness.cluster.limits.cgroup_layout import GroupReadings
from elastic_harness.cluster.process_table import is_same_process
from elastic_harness.faults.disks.job_files import Place, corrupt_newest
from elastic_harness.faults.nodes.resource_context import FileLimit, Limited
from elastic_harness.faults.ticket import FaultImpossible, Ticket
from elastic_harness.observe.listeners import find_listeners
from elastic_harness.scenario.engine.situation import ProcessRef
from pytest_elastic.errors import ElasticError

__all__ = ["NodeResources"]

_Number = TypeVar("_Number", int, float)


class _Layer(NamedTuple):
    """What one owner has limited on one node, in one incarnation of it."""

    incarnation: int
    cpu: float | None
    memory: int | None
    processes: int | None


class NodeResources:
    """Limits laid over nodes by several owners; `data_folders` hold the job's own files.

    `clock_folders` says where a node's clock looks for how wrong it is; None: it does not.
    `on_covered` is called with the name of a node when a directory of it has been covered.
    """

    def __init__(
        self,
        cluster: Cluster,
        data_folders: Sequence[str] = (),
        *,
        clock_folders: Callable[[str], str] | None = None,
        on_covered: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._on_covered = on_covered
        self._clock_folders = clock_folders
        self._clocks: dict[tuple[str, str], float] = {}
        self._data_folders = tuple(data_folders)
        self._layers: dict[tuple[str, str], _Layer] = {}  # by owner and node
        # By owner, node and path: the node's incarnation.
        self._covered: dict[tuple[str, str, str | None], int] = {}
        self._files: dict[tuple[str, ProcessRef], int] = {}  # by owner
        self._soft_limits: dict[ProcessRef, int] = {}  # what they had before any of these

    def limit(
        self,
        owner: str,
        node: str,
        *,
        cpu: float | None = None,
        memory: int | None = None,
        processes: int | None = None,
    ) -> Ticket[None]:
        """Limit a node beside what others have limited."""
        running = self._cluster.nodes.get(node)
        if running is not None:
            self._layers[owner, node] = _Layer(running.incarnation, cpu, memory, processes)
        return self._apply([node])

    def unlimit(self, owner: str) -> Ticket[None]:
        """Take away the limits of an owner."""
        mine = [key for key in self._layers if key[0] == owner]
        for key in mine:
            del self._layers[key]
        return self._apply([node for _, node in mine if node in self._cluster.nodes])

    def readings(self, node: str) -> Ticket[GroupReadings]:
        """Read what the kernel has counted."""
        ticket: Ticket[GroupReadings] = Ticket()
        if node in self._cluster.nodes:
            self._cluster.read_limits(node, ticket.settle)
        else:
            ticket.settle(ClusterError(f"{node} is not up any more"))
        return ticket

    def narrowest(self, node: str, of: Limited) -> tuple[str, ...]:
        """Return whose limit of this kind holds on a node."""
        running = self._cluster.nodes.get(node)
        given: dict[str, float] = {}
        for (owner, name), layer in self._layers.items():
            is_here = running is not None and (name, layer.incarnation) == (
                node,
                running.incarnation,
            )
            if is_here and (value := getattr(layer, of)) is not None:
                given[owner] = value
        return tuple(owner for owner, value in given.items() if value == min(given.values()))

    def is_narrowest_for_files(self, owner: str, process: ProcessRef) -> bool:
        """Tell whether no other owner lets a process open fewer files."""
        mine = self._files.get((owner, process))
        others = self._limits_on(process, apart_from=owner)
        return mine is not None and mine <= min(others, default=mine)

    def limit_files(self, owner: str, process: ProcessRef, *, free: int) -> FileLimit | None:
        """Let a process open `free` more files than it has."""
        if not _is_there(process):
            return None
        try:
            taken = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
            soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
            # The limit is on numbers, and a process is always given the lowest that is free.
            usable = [number for number in range(len(taken) + free + 1) if number not in taken]
            others = self._limits_on(process, apart_from=owner)
            wanted = min(usable[free], *others) if others else usable[free]
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (wanted, hard))
            limit, _ = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        except (ProcessLookupError, FileNotFoundError):
            return None
        self._soft_limits.setdefault(process, soft)
        self._files[owner, process] = usable[free]
        return FileLimit(limit=limit, lowest_free=usable[0])

    def unlimit_files(self, owner: str) -> None:
        """Give processes back the limits they had, as far as no other owner limits them."""
        mine = [process for name, process in self._files if name == owner]
        for process in mine:
            del self._files[owner, process]
            others = self._limits_on(process, apart_from=owner)
            soft = min(others, default=self._soft_limits[process])
            if _is_there(process):
                with contextlib.suppress(ProcessLookupError):
                    _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
                    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))
            if not others:
                del self._soft_limits[process]

    def _limits_on(self, process: ProcessRef, *, apart_from: str) -> list[int]:
        return [
            limit
            for (owner, limited), limit in self._files.items()
            if limited == process and owner != apart_from
        ]

    def set_clock(self, owner: str, node: str, offset_s: float | None) -> None:
        """Put a node's time of day off, or take that away."""
        folder = self._clock_folders(node) if self._clock_folders is not None else None
        if offset_s is None:
            if self._clocks.pop((owner, node), None) is None:
                return
        elif folder is None:
            raise FaultImpossible(
                "the job was started without libfaketime: put the fault on the timeline before it"
            )
        else:
            self._clocks[owner, node] = offset_s
        assert folder is not None, "a clock that was put off has a folder"
        with open(f"{folder}/clock.new", "w") as file:
            file.write(f"{self.clock_offset(node):+g}\n")
        os.replace(f"{folder}/clock.new", f"{folder}/clock")

    def clock_offset(self, node: str) -> float:
        """Return by how much a node's time of day is to be wrong."""
        return sum(each for (_, name), each in self._clocks.items() if name == node)

    def time_of_day(self) -> float:
        """Return the right time."""
        return time.time()

    def set_disk(
        self, owner: str, node: str, path: str | None, policy: DiskPolicy | None
    ) -> Ticket[None]:
        """Lay a policy over a directory of a node, or take it away."""
        ticket: Ticket[None] = Ticket()
        running = self._cluster.nodes.get(node)
        key = (owner, node, path)
        if policy is None and self._covered.pop(key, None) != (running and running.incarnation):
            ticket.settle(None)  # never laid there, or gone with the node that it was laid on
        elif running is None:
            ticket.settle(ClusterError(f"{node} is not up any more"))
        else:
            if policy is not None:
                self._covered[key] = running.incarnation

            def settle(outcome: ElasticError | None) -> None:
                if outcome is None:
                    self._on_covered(node)
                ticket.settle(outcome)

            self._cluster.set_disk(node, self._directory(path), owner, policy, settle)
        return ticket

    def count_disk(self, node: str, path: str | None) -> Ticket[DiskCounters]:
        """Read what policies over a directory have done."""
        ticket: Ticket[DiskCounters] = Ticket()
        if node in self._cluster.nodes:
            self._cluster.count_disk(node, self._directory(path), ticket.settle)
        else:
            ticket.settle(ClusterError(f"{node} is not up any more"))
        return ticket

    def _directory(self, path: str | None) -> str:
        return os.path.normpath(os.path.join(self._data_folders[0], path or ""))

    def listeners(self, node: str, port: int) -> tuple[ProcessRef, ...]:
        """Return who listens at a TCP port of a node."""
        if node not in self._cluster.nodes:
            return ()
        return find_listeners([info.pid for info in self._cluster.processes(node)], port)

    def corrupt(self, node: str | None, pattern: str, how: str) -> str:
        """Damage the newest file of the job that matches."""
        places = [Place(name=folder, path=folder) for folder in self._data_folders]
        if node is not None:
            places += self._own_places(node)
        return corrupt_newest(places, pattern, how)

    def _own_places(self, node: str) -> list[Place]:
        """Return the directories that a node has for itself."""
        running = self._cluster.nodes.get(node)
        if running is None:
            raise FaultImpossible(f"{node} is not up any more")
        if not self._cluster.capabilities.has("private_disk"):
            return [Place(name=running.disk, path=running.disk)]
        root = f"/proc/{running.pid}/root"
        names = dict.fromkeys((running.disk, *PRIVATE_TREES))
        return [Place(name=name, path=f"{root}{name}") for name in names]

    def _apply(self, nodes: list[str]) -> Ticket[None]:
        ticket: Ticket[None] = Ticket()
        waiting = len(nodes)
        if not nodes:
            ticket.settle(None)

        def on_done(outcome: ClusterError | None) -> None:
            nonlocal waiting
            waiting -= 1
            if isinstance(outcome, ClusterError) or not waiting:
                ticket.settle(outcome)

        for node in nodes:
            if node not in self._cluster.nodes:
                on_done(ClusterError(f"{node} is not up any more"))
                continue
            layers = self._layers_of(node)
            self._cluster.limit_node(
                node,
                on_done,
                cpu=_narrowest(layers, lambda each: each.cpu),
                memory=_narrowest(layers, lambda each: each.memory),
                processes=_narrowest(layers, lambda each: each.processes),
            )
        return ticket

    def _layers_of(self, node: str) -> list[_Layer]:
        now = self._cluster.nodes[node].incarnation
        return [
            layer
            for (_, name), layer in self._layers.items()
            if name == node and layer.incarnation == now
        ]


def _narrowest(layers: list[_Layer], choose: Callable[[_Layer], _Number | None]) -> _Number | None:
    return min((value for each in layers if (value := choose(each)) is not None), default=None)


def _is_there(process: ProcessRef) -> bool:
    if process.start_time:
        return is_same_process(process.pid, process.start_time)
    return os.path.exists(f"/proc/{process.pid}")
