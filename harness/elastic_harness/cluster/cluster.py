"""What every kind of cluster is: nodes and processes, what can be done to them, what cannot.

A runner drives any cluster from one event loop: an operation returns a `Future`. What happens
without being asked for (a process ended, a node is gone) arrives at the `on_event` callback given
to the cluster. Nodes are named by the caller; their `index` (1 to 250) fixes their address. They
need not be on this machine: a process is named by node, pid and start time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from elastic_harness.cluster.facets import (
    Clock,
    Disks,
    Files,
    Limits,
    Logs,
    Names,
    Network,
    Reporters,
    Sockets,
    Strangers,
)
from elastic_harness.cluster.process import ProcessHandle, ProcessInfo, ProcessRef, ProcessSpec
from elastic_harness.future import Future
from pytest_elastic.errors import ElasticError, UsageError

__all__ = [
    "CAPABILITIES",
    "GATEWAY",
    "MAX_NODES",
    "PRIVATE_TREES",
    "Capabilities",
    "Capability",
    "Cluster",
    "ClusterError",
    "ClusterEvent",
    "ClusterNode",
    "LiveCluster",
    "NodeGone",
    "NodeSpec",
    "ProcessExited",
    "ServerLost",
    "having",
]

# The name of the place where host-side services listen inside the cluster's network.
GATEWAY = "gateway"
# Each node has these for itself, where it has disks of its own.
PRIVATE_TREES = ("/tmp", "/dev/shm")  # noqa: S108 (the directories themselves, not files in them)
# Addresses are 10.77.0.N/24 and .254 is the gateway.
MAX_NODES = 250

# Every capability there is, with what it means to lack it.
CAPABILITIES: Mapping[str, str] = {
    "network": "links between nodes can be cut, slowed and made lossy, and a power cut is silent",
    "names": "each node has its own host name, and nodes find each other by name",
    "private_disk": "each node has its own /tmp, /dev/shm and local disk",
    "private_pids": "each node has its own process numbers, and nothing can outlive its node",
    "pause": "a whole node can be frozen between two instructions",
    "cpu_limit": "a node's share of the processors can be limited",
    "memory_limit": "a node's memory can be limited, so that the kernel kills for lack of it",
    "process_limit": "the number of a node's processes and threads can be limited",
    "disk_faults": "what a node reads and writes below a path can be refused, fail and take long",
    "clock_skew": "the time of day can be wrong on a node",
    "cuda": "workers have a GPU that CUDA can use",
    "placement": "nodes can be put on machines with certain resources and labels",
    "gateway": "nodes can connect to services of the harness, such as proxies",
    "listeners": "the process that listens at a port of a node can be found",
    "node_sockets": "the harness can connect from a node",
    "common_clock": "times that different nodes state can be compared",
    "shared_files": "nodes see the files of the machine that pytest runs on",
    "same_kernel": "all nodes and pytest run on one kernel",
}


class ClusterError(ElasticError):
    """The machine that carries the cluster refused something, or did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One thing a cluster may be able to do; `reason` is a sentence for people."""

    name: str
    available: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one kind of cluster can do on this machine."""

    entries: tuple[Capability, ...]

    @classmethod
    def of(cls, found: Mapping[str, tuple[bool, str]]) -> Capabilities:
        """Return all that there are, with whether they are available and why."""
        return cls(
            tuple(
                Capability(name=name, available=found[name][0], reason=found[name][1])
                for name in CAPABILITIES
            )
        )

    def __getitem__(self, name: str) -> Capability:
        for entry in self.entries:
            if entry.name == name:
                return entry
        if name in CAPABILITIES:
            return Capability(name=name, available=False, reason="this cluster does not have it")
        known = ", ".join(sorted(CAPABILITIES))
        raise UsageError(
            f"cannot tell whether a cluster has '{name}': no such capability",
            hint=f"known: {known}",
        )

    def has(self, name: str) -> bool:
        """Tell whether the cluster can do `name`; raises UsageError for an unknown name."""
        return self[name].available

    def missing(self, names: Sequence[str]) -> tuple[Capability, ...]:
        """Return those of `names` that the cluster lacks, with reasons, in the order given."""
        return tuple(entry for name in names if not (entry := self[name]).available)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A node to be started.

    `shared` are directories that stay the host's even when they lie below a directory that is
    private to the node (/tmp, /dev/shm). `keep_disk` keeps what an earlier node of this name left
    on its local disk (a reboot); without it the disk is empty (a replacement). `read_only` are
    files and directories that the node may read and not write; a cluster whose nodes have no
    mounts of their own cannot keep that.
    `sysctls` are written below /proc/sys/net of the node. Its machine has `labels`, and `resources`
    for it alone (capability `placement`).
    """

    name: str
    index: int
    shared: Sequence[str] = ()
    read_only: Sequence[str] = ()
    keep_disk: bool = False
    sysctls: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        allowed = self.name.replace("-", "").replace(".", "")
        if not (allowed.isascii() and allowed.isalnum() and len(self.name) <= 63):
            raise UsageError(f"cannot name a node {self.name!r}: a host name is expected")
        if self.name == GATEWAY:
            raise UsageError(f"cannot name a node '{GATEWAY}': that is the host's own place")
        if not 1 <= self.index <= MAX_NODES:
            raise UsageError(
                f"cannot give node '{self.name}' the index {self.index}: 1 to {MAX_NODES} expected"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A running node.

    `address` is where other nodes reach it; `hostname` is its name or, where a cluster has no
    names, its address. `disk` is its local disk as its own processes see it. `pid` is its init
    process in the caller's numbers; `incarnation` counts the starts of this name.
    """

    name: str
    index: int
    incarnation: int
    address: str
    hostname: str
    disk: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited:
    """A process that was started through the cluster ended (also because its node did)."""

    process: ProcessHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGone:
    """A node ended: every process of it is dead.

    `cause` is the operation that did it: crash, power_cut or teardown; lost: none did.
    """

    node: str
    incarnation: int
    cause: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLost:
    """The cluster's server ended without being asked to: all nodes are gone with it."""

    reason: str


ClusterEvent = ProcessExited | NodeGone | ServerLost

T = TypeVar("T")


class Cluster(Protocol):
    """Nodes, their processes, and the facets of what else can be done to them.

    Names of nodes that do not run, and impossible values, raise UsageError at once. What the
    surroundings may refuse is a ClusterError of the future, which comes within the operation's own
    deadline.
    """

    @property
    def kind(self) -> str:
        """What `--elastic-cluster` calls this kind."""

    @property
    def capabilities(self) -> Capabilities:
        """What this cluster can do here, and why not more."""

    @property
    def network(self) -> Network | None:
        """Its links (capability `network`)."""

    @property
    def sockets(self) -> Sockets | None:
        """Sockets in the network of a node; None where nodes are not of this machine."""

    @property
    def disks(self) -> Disks | None:
        """What nodes read and write (capability `disk_faults`)."""

    @property
    def limits(self) -> Limits | None:
        """What nodes and processes may use; which of it, the capabilities say."""

    @property
    def names(self) -> Names | None:
        """Names that mean something else on a node (capability `names`)."""

    @property
    def logs(self) -> Logs:
        """What processes of nodes print and log."""

    @property
    def files(self) -> Files:
        """What jobs write into files."""

    @property
    def strangers(self) -> Strangers | None:
        """Connections that are no part of the job (capability `node_sockets`)."""

    @property
    def clock(self) -> Clock | None:
        """The time of day on nodes (capability `clock_skew`)."""

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        """The nodes that run now, by name, in the order of their start."""

    def start(self) -> Future[None]:
        """Start the server (once, before anything else)."""

    def reset(self, *, seed: str = "") -> Future[None]:
        """End all nodes, heal all links and prove that nothing is left.

        What links draw by chance from now on follows from `seed`.
        """

    def close(self) -> Future[None]:
        """Reset, and end the server."""

    # Nodes

    def start_node(self, spec: NodeSpec) -> Future[ClusterNode]:
        """Start a node; a name that ran before gets its next incarnation."""

    def stop_node(self, name: str) -> Future[None]:
        """End a node and take it off the network."""

    def crash_node(self, name: str) -> Future[None]:
        """End all processes of a node at once; its kernel goes on: sockets close, FINs go out."""

    def power_cut(self, name: str) -> Future[None]:
        """Silence a node's links, then end it: nothing of it is ever seen on the wire again."""

    def pause_node(self, name: str) -> Future[None]:
        """Stop every process of a node, those being forked included; twice is harmless."""

    def resume_node(self, name: str) -> Future[None]:
        """Let a paused node go on; harmless when it runs."""

    # Processes

    def spawn(self, node: str, spec: ProcessSpec) -> Future[ProcessHandle]:
        """Start a process on a node; the result arrives once the program has been executed."""

    def processes(self, node: str) -> Future[tuple[ProcessInfo, ...]]:
        """List the processes of a node, its own init excluded, by node pid."""

    def signal(self, process: ProcessRef, signum: int) -> Future[bool]:
        """Send a signal to that very process; False when it has ended."""

    def state(self, process: ProcessRef) -> Future[str]:
        """Return the letter of /proc/PID/stat for that very process, "" when it has ended."""

    def ended(self, process: ProcessRef) -> Future[int | None]:
        """Watch a process from now on; done when it has ended, with how.

        Negative: by that signal. None: nothing tells, or it had ended before.
        """


class LiveCluster(Cluster, Protocol):
    """A cluster whose processes are real, as a session holds it."""

    def stacks(self, process: ProcessRef, *, fd: int, signum: int) -> Future[tuple[str, str]]:
        """Have that very process write its stacks into its file `fd` by a signal, and read them.

        The second text says why there are none. Takes a second at most, on its machine.
        """

    @property
    def reporters(self) -> Reporters:
        """Where probes and launchers on nodes report to the harness."""

    @property
    def clock_errors(self) -> Mapping[str, float]:
        """By how many seconds times may be off, by the node that stated them since the last reset.

        Nodes that have the clock of this process are not in it.
        """

    @property
    def scratch(self) -> str:
        """A folder for our files on the host, removed even if this process is killed.

        "" where there is none, as nothing of this host is used.
        """

    @property
    def own_pids(self) -> frozenset[int]:
        """The processes of this machine that serve a cluster without nodes."""

    @property
    def own_fds(self) -> frozenset[int]:
        """The descriptors of this process that a started cluster uses."""


def having(facet: T | None, capability: Capability) -> T:
    """Return a facet; raises ClusterError with the reason of the capability where it is lacking."""
    if facet is None:
        raise ClusterError(f"this cluster has no {capability.name}: {capability.reason}")
    return facet
