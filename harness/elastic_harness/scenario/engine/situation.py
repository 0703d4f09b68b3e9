"""What selectors and faults know at the moment when a fault fires: a frozen picture of the run."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic_harness.cluster.process import ProcessRef
from elastic_harness.scenario.planning.seed import Seed

__all__ = ["NodeRef", "Situation", "Targets", "WorkerRef"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRef:
    """A live worker of the current world."""

    rank: int
    local_rank: int
    node: str
    process: ProcessRef

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.node}, pid {self.process.pid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRef:
    """A node that is up. `started_at` orders nodes by age; `launcher` is None once it has ended."""

    name: str
    address: str
    incarnation: int
    started_at: float
    launcher: ProcessRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The run as it is now: nodes in natural order, workers in rank order.

    `used_names` are all node names that the run has had, so that a newcomer gets a fresh one.
    """

    nodes: tuple[NodeRef, ...]
    workers: tuple[WorkerRef, ...]
    store_host: str | None
    seed: Seed
    used_names: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[NodeRef, ...]:
        """The nodes that take part: those with a launcher, or all where none is known."""
        return tuple(node for node in self.nodes if node.launcher is not None) or self.nodes

    def node(self, name: str) -> NodeRef | None:
        """Return the node of that name, if it is up."""
        return next((node for node in self.nodes if node.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What a fault turned out to be aimed at when it fired.

    `links` are directed (from, to) pairs of node names. `new_nodes` are names that do not run yet.
    `proxies` are names of the run's proxies.
    `peers` are workers that are not hit, and in which the effect can be seen.
    """

    workers: tuple[WorkerRef, ...] = ()
    nodes: tuple[NodeRef, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    new_nodes: tuple[str, ...] = field(default=())
    proxies: tuple[str, ...] = ()
    peers: tuple[WorkerRef, ...] = field(default=())

    def describe(self) -> tuple[str, ...]:
        """Return each target as text, in a fixed order."""
        links = tuple(f"{source}->{target}" for source, target in self.links)
        return (
            *(str(worker) for worker in self.workers),
            *(node.name for node in self.nodes),
            *links,
            *self.new_nodes,
            *self.proxies,
        )
