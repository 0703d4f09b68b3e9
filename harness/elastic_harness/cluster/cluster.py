"""What a cluster is, whoever makes it: nodes, what can be done to them, and what cannot.

A runner drives any cluster from one event loop: an operation takes `on_done`, which is called
exactly once with the result or with a `ClusterError`, within the operation's deadline. What happens
without being asked for (a process ended, a node is gone) arrives at the `on_event` callback given
to the cluster. Nodes are named by the caller; their `index` (1 to 250) fixes their address.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from elastic_harness.cluster.disks.policy import DiskCounters, DiskPolicy
from elastic_harness.cluster.limits.cgroup_layout import GroupReadings
from elastic_harness.network.link_model import Layers, LinkCounters, LinkPolicy, Pair
from elastic_harness.network.names import NameChange
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
    "Done",
    "NetworkCounters",
    "NodeGone",
    "NodeSpec",
    "ProcessExited",
    "ProcessHandle",
    "ProcessInfo",
    "ProcessSpec",
    "ServerLost",
]

# The name of the place where host-side services listen inside the cluster's network.
GATEWAY = "gateway"
# Each node has these for itself, where it has disks of its own.
PRIVATE_TREES = ("/tmp", "/dev/shm")  # noqa: S108 (the directories themselves, not files in them)
# Addresses are 10.77.0.N/24 and .254 is the gateway.
MAX_NODES = 250

# Every capability there is, with what it means to somebody who lacks it.
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
    "gateway": "services of the host can listen inside the cluster's network",
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
    on its local disk (a reboot); without it the disk is empty (a replacement).
    `sysctls` are written below /proc/sys/net of the node.
    """

    name: str
    index: int
    shared: Sequence[str] = ()
    keep_disk: bool = False
    sysctls: Mapping[str, str] = field(default_factory=dict)

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
class ProcessSpec:
    """A process to be started on a node, as a session leader with clean signal dispositions.

    `argv` is the whole command and `environ` the whole environment. `stdout` and `stderr` are files
    to append to (None: nowhere), and must lie in a shared directory to be read outside.

    In a child of the preloaded server, instead of executing `argv`: `preloaded_entry` names a
    "module:function" that takes `argv[1:]` and returns an exit status; `preloaded_role` names one
    that takes them and returns a `pytest_elastic.boot.role.Role`, so that the process can go on
    forking warm programs.
    """

    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: str
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    preloaded_entry: str | None = None
    preloaded_role: str | None = None

    def __post_init__(self) -> None:
        if not self.argv:
            raise UsageError("cannot start a process without a command")
        named = [name for name in (self.preloaded_entry, self.preloaded_role) if name is not None]
        if len(named) > 1:
            raise UsageError(f"cannot start a process both as {named[0]!r} and as {named[1]!r}")
        for name in named:
            if name.count(":") != 1:
                raise UsageError(f"cannot call {name!r}: 'module:function' is expected")


@dataclass(slots=True, eq=False, kw_only=True)
class ProcessHandle:
    """A process we started. `pid` is in the caller's numbers, `node_pid` in its node's.

    `exit_code` is None while it runs; negative: ended by that signal. `pidfd` is closed by the
    cluster after the process has ended, and -1 from then on.
    """

    node: str
    id: int
    pid: int
    node_pid: int
    pidfd: int
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A process seen on a node.

    `pid` is in the caller's numbers, `node_pid` and `node_ppid` in the node's; `started_at` is in
    CLOCK_BOOTTIME seconds, `state` the letter of /proc/PID/stat.
    """

    node: str
    pid: int
    node_pid: int
    node_ppid: int
    command: tuple[str, ...]
    started_at: float
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCounters:
    """What the network did.

    `own_drops` are packets that were lost by no policy of the caller's, by reason: where it is not
    empty, nothing may be concluded from a run.
    """

    links: Mapping[Pair, LinkCounters]
    own_drops: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited:
    """A process that was started through the cluster ended (also because its node did)."""

    process: ProcessHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGone:
    """A node ended: every process of it is dead. `asked` tells whether we did it."""

    node: str
    incarnation: int
    asked: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLost:
    """The cluster's server ended without being asked to: all nodes are gone with it."""

    reason: str


ClusterEvent = ProcessExited | NodeGone | ServerLost

T = TypeVar("T")
Done = Callable[[T | ClusterError], None]


class Cluster(Protocol):
    """A set of nodes that processes can be started on and faults be injected into.

    Names of nodes that do not run, and impossible values, raise UsageError at once. Everything that
    the surroundings may refuse is reported to `on_done`.
    """

    @property
    def kind(self) -> str:
        """What `--elastic-cluster` calls this kind."""

    @property
    def capabilities(self) -> Capabilities:
        """What this cluster can do here, and why not more."""

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        """The nodes that run now, by name, in the order of their start."""

    def start(self, on_done: Done[None]) -> None:
        """Start the server (once, before anything else)."""

    def start_node(self, spec: NodeSpec, on_done: Done[ClusterNode]) -> None:
        """Start a node; a name that ran before gets its next incarnation."""

    def stop_node(self, name: str, on_done: Done[None]) -> None:
        """End a node and take it off the network."""

    def crash_node(self, name: str, on_done: Done[None]) -> None:
        """End all processes of a node at once; its kernel goes on: sockets close, FINs go out."""

    def power_cut(self, name: str, on_done: Done[None]) -> None:
        """Silence a node's links, then end it: nothing of it is ever seen on the wire again."""

    def pause_node(self, name: str, on_done: Done[None]) -> None:
        """Stop every process of a node, those being forked included; twice is harmless."""

    def resume_node(self, name: str, on_done: Done[None]) -> None:
        """Let a paused node go on; harmless when it runs."""

    def limit_node(
        self,
        name: str,
        on_done: Done[None],
        *,
        cpu: float | None = None,
        memory: int | None = None,
        processes: int | None = None,
    ) -> None:
        """Limit a node to a share of one processor, bytes of memory, processes (None: no limit).

        The limit on memory is on what its processes take from then on.
        """

    def read_limits(self, name: str, on_done: Done[GroupReadings]) -> None:
        """Read what the kernel has counted in a node's control groups."""

    def set_disk(
        self, name: str, path: str, owner: str, policy: DiskPolicy | None, on_done: Done[None]
    ) -> None:
        """Lay a policy over a directory of a node (None: take it away), beside those of others."""

    def count_disk(self, name: str, path: str, on_done: Done[DiskCounters]) -> None:
        """Read what the policies over a directory have done."""

    def spawn(self, node: str, spec: ProcessSpec, on_done: Done[ProcessHandle]) -> None:
        """Start a process on a node; the result arrives once the program has been executed."""

    def open_socket(
        self, node: str, on_done: Done[socket.socket], *, datagram: bool = False
    ) -> None:
        """Open a TCP (or UDP) socket that lives in the network of a node, or of the gateway.

        The caller binds, listens, connects and closes it, as one of its own. It hears nothing any
        more after the next reset.
        """

    def signal(self, process: ProcessHandle | ProcessInfo, signum: int) -> bool:
        """Send a signal at once; False when the process has ended."""

    def processes(self, node: str) -> tuple[ProcessInfo, ...]:
        """List the processes of a node, its own init excluded, by node pid."""

    def set_policy(
        self,
        pairs: Sequence[Pair],
        policy: LinkPolicy,
        on_done: Done[None],
        *,
        traffic: str | None = None,
        layers: Layers = (),
    ) -> None:
        """Apply a policy to (source, destination) links; done when it is in force.

        With `traffic` it is for one class of what passes there, which then meets both policies.
        `layers` are those of several owners that make it; what each did is counted for itself.
        """

    def learn_traffic(
        self, endpoints: Mapping[str, Sequence[tuple[str, int]]], on_done: Done[None]
    ) -> None:
        """Say which (node, port) belongs to which class of traffic, in place of what was said."""

    def set_names(
        self, node: str, changes: Mapping[str, NameChange], on_done: Done[Mapping[str, str]]
    ) -> None:
        """Have a node take names for something else, in place of what it was told before.

        No changes show it the truth again. Done with its table of hosts now, where none of the
        names stands that it is to take for something else: it must ask for those.
        """

    def names_asked(self, node: str, on_done: Done[Mapping[str, Mapping[str, int]]]) -> None:
        """Return how often a node asked for which changed name, by whose change it is."""

    def capture(self, id: str, pairs: Sequence[Pair], path: str, on_done: Done[None]) -> None:
        """Write what passes over links into a new pcapng file; raises UsageError if it cannot."""

    def captured(self, id: str, on_done: Done[int]) -> None:
        """Return how many packets a capture has, all of them in its file."""

    def end_capture(self, id: str, on_done: Done[int]) -> None:
        """End a capture and return how many packets it has; harmless when there is none."""

    def counters(self, on_done: Done[NetworkCounters]) -> None:
        """Read what the network has done since the last reset."""

    def reset(self, on_done: Done[None], *, seed: str = "") -> None:
        """End all nodes, heal all links and prove that nothing is left.

        What links draw by chance from now on follows from `seed`.
        """

    def close(self, on_done: Done[None]) -> None:
        """Reset, and end the server."""
