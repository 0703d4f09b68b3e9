"""What some clusters can do beside running nodes: each facet a small interface of its own.

A cluster that lacks a facet has None in its place, and a `Capability` that says why. What the
surroundings may refuse comes as the error of a future.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from elastic_harness.cluster.disks.policy import DiskCounters, DiskPolicy
from elastic_harness.cluster.limits.cgroup_layout import GroupReadings
from elastic_harness.cluster.process import ProcessRef
from elastic_harness.future import Future
from elastic_harness.network.link_model import Layers, LinkCounters, Pair
from elastic_harness.network.names import NameChange

__all__ = [
    "Clock",
    "Connection",
    "Disks",
    "FileLimit",
    "Limited",
    "Limits",
    "LogFile",
    "Logs",
    "Names",
    "Network",
    "NetworkCounters",
    "Reporters",
    "Sockets",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCounters:
    """What the network did.

    `own_drops` are packets that were lost by no policy of the caller's, by reason: where it is not
    empty, nothing may be concluded from a run. `spread_s` is by how much the moments may differ, at
    most, in which a policy came into force on links of several machines.
    """

    links: Mapping[Pair, LinkCounters]
    own_drops: Mapping[str, int]
    spread_s: float = 0.0


class Network(Protocol):
    """Links between nodes (and the gateway), each one way."""

    def lay(
        self, pairs: Sequence[Pair], layers: Layers, *, traffic: str | None = None
    ) -> Future[None]:
        """Lay policies over (source, destination) links, for those before; done when in force.

        With `traffic` they are for one class of what passes there, which meets those for all of it
        as well. What the policy of each owner did is counted for itself.
        """

    def learn_traffic(self, endpoints: Mapping[str, Sequence[tuple[str, int]]]) -> Future[None]:
        """Say which (node, port) belongs to which class of traffic, in place of what was said."""

    def counters(self) -> Future[NetworkCounters]:
        """Read what the network has done since the last reset."""

    def capture(self, id: str, pairs: Sequence[Pair], path: str) -> Future[Sequence[str]]:
        """Write what passes over links into a new pcapng file; its value are all that are written.

        On several machines there is one for each on which a link begins, named after `path`.
        """

    def captured(self, id: str) -> Future[int]:
        """Return how many packets a capture has, all of them in its files."""

    def end_capture(self, id: str) -> Future[int]:
        """End a capture and return how many packets it has; harmless when there is none."""


class Sockets(Protocol):
    """Sockets of this process that live in the network of a node, or where all nodes reach them.

    On other machines only the latter: at the gateway.
    """

    @property
    def gateway_address(self) -> str:
        """Where nodes find what listens at the gateway, once a socket was opened there.

        Raises ClusterError where there is no such address.
        """

    def open(self, node: str, *, datagram: bool = False) -> Future[socket.socket]:
        """Open a TCP (or UDP) socket in the network of a node, or of the gateway.

        The caller binds, listens, connects and closes it, as one of its own. It hears nothing any
        more after the next reset.
        """

    def listeners(self, node: str, port: int) -> Future[tuple[ProcessRef, ...]]:
        """Return the processes of a node that listen at a TCP port of it."""


class Disks(Protocol):
    """What a node reads and writes below a directory."""

    def set_policy(
        self, node: str, path: str, owner: str, policy: DiskPolicy | None
    ) -> Future[None]:
        """Lay a policy over a directory of a node (None: take it away), beside those of others."""

    def counters(self, node: str, path: str) -> Future[DiskCounters]:
        """Read what the policies over a directory have done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimit:
    """A limit on descriptors that is in force.

    `asked` is what was asked for; where that is more than `at_most`, it is not the `limit`.
    """

    limit: int
    asked: int


# What a node can have too little of; the capability is called "cpu_limit", and so on.
Limited = Literal["cpu", "memory", "process"]


class Limits(Protocol):
    """What a node, or one process, may use. Which limits there are, the capabilities say."""

    def limit_node(self, node: str, of: Limited, most: float | None) -> Future[None]:
        """Limit a node to a share of one processor, bytes of memory, processes (None: no limit).

        The limit on memory is on what its processes take from then on.
        """

    def readings(self, node: str) -> Future[GroupReadings]:
        """Read what the kernel has counted in a node's control groups."""

    def limit_files(
        self, process: ProcessRef, *, free: int, at_most: int | None = None
    ) -> Future[FileLimit | None]:
        """Let a process open `free` more files than it has (no number from `at_most` on).

        None when it has ended.
        """

    def restore_files(self, process: ProcessRef, *, at_most: int | None = None) -> Future[None]:
        """Give a process its own limit back, or `at_most`; harmless when it has ended."""


class Names(Protocol):
    """What nodes find under a host's name."""

    def set_names(self, node: str, changes: Mapping[str, NameChange]) -> Future[Mapping[str, str]]:
        """Have a node take names for something else, in place of what it was told before.

        No changes show it the truth again. Done with its table of hosts now, where none of the
        names stands that it is to take for something else: it must ask for those.
        """

    def asked(self, node: str) -> Future[Mapping[str, Mapping[str, int]]]:
        """Return how often a node asked for which changed name, by whose change it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """What lies below a folder of logs under a name that ends in ".log", as it is now.

    `identity` changes when another file takes the name. `problem` says why a file, or a folder
    there, cannot be read. `link_to` is where a link leads that leads to no log of the folder.
    """

    path: str
    size: int = 0
    modified_at: float = 0.0
    identity: tuple[int, int] = (0, 0)
    link_to: str = ""
    problem: str = ""


class Logs(Protocol):
    """What processes of nodes write into their output and their folder of logs (`ProcessSpec`).

    Answers at once, in any thread, with what has arrived here so far. All that a process wrote has
    arrived before its end is reported.
    """

    def list(self, folder: str) -> Sequence[LogFile]:
        """Return what lies below a folder, at any depth."""

    def read(self, path: str, offset: int, size: int) -> bytes:
        """Read up to `size` bytes of a file; raises OSError where it cannot be read."""

    def is_complete(self, path: str, size: int) -> bool:
        """Tell whether a file has this size and no process can write to it any more."""


# (its path below the folder, "written" or "moved", its size in bytes or None: it is gone again)
OnWritten: TypeAlias = Callable[[str, str, int | None], None]
# (why files may be written from now on that are not told of)
OnUnseen: TypeAlias = Callable[[str], None]


class Files(Protocol):
    """What jobs write into folders that all nodes have under one path, and on nodes' own disks."""

    def watch(self, folder: str, on_written: OnWritten, on_unseen: OnUnseen) -> Callable[[], None]:
        """Tell of each file that a node writes below a folder, until what is returned is called.

        "written": a writer has closed it; "moved": it was given this name. What is there
        already is not told. `on_unseen` is called once, with the first reason.
        """

    def corrupt(
        self, pattern: str, how: str, *, folders: Sequence[str], node: str | None = None
    ) -> Future[str]:
        """Damage the newest file that matches: "torn", "truncate" or "flip" (`corrupt`'s words).

        A relative pattern means the first of `folders`, an absolute one any of them or a disk of
        `node`, as that sees it. Returns what was done.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """So many connections were `wanted`, and so many of them have come so far.

    `taken` are those whose every byte the other side's kernel has acknowledged, or that the other
    side has closed: of one that says nothing, that it was accepted. `closed` are those that the
    other side has ended since, `answered` those that it has said something on. `refusal` is what
    the newest one that came to nothing met with, "" if none did.
    """

    wanted: int = 0
    taken: int = 0
    closed: int = 0
    answered: int = 0
    refusal: str = ""


class Strangers(Protocol):
    """Connections from nodes that are no part of the job."""

    def send(
        self, owner: str, node: str, at: tuple[str, int], words: bytes, *, connections: int
    ) -> None:
        """Open connections from `node` to a node and port; each says `words`, and stays open."""

    def visits(self, owner: str) -> Visits:
        """Return what has become of the connections of `owner` so far."""

    def send_away(self, owner: str) -> None:
        """Close the connections of `owner`; harmless when there are none."""


class Clock(Protocol):
    """The time of day on nodes."""

    def set_offset(self, node: str, file: str, offset_s: float) -> Future[None]:
        """Put off the time of day of all processes that were started with this file for a clock."""

    def time_of_day(self, node: str) -> Future[float]:
        """Return the right time on a node, in seconds since the epoch."""


class Connection(Protocol):
    """A process on a node that reports to the harness: a worker's probe, or a launcher.

    `pid` is in the caller's numbers, `start_time` as in `ProcessRef`. `clock_offset_s` is added to
    times that it states, so that they are times of this process's clock.
    """

    pid: int
    clock_offset_s: float

    @property
    def start_time(self) -> int:
        """When it was started, in the kernel's ticks; 0 where it is gone."""

    @property
    def is_closed(self) -> bool:
        """Tell whether nothing can be said any more."""

    def ancestors(self) -> Sequence[int]:
        """Return the processes above it, its parent first."""

    def open(self, on_data: Callable[[bytes], None], on_closed: Callable[[], None]) -> None:
        """Set the callbacks for its data and its end."""

    def read(self) -> None:
        """Hear now what it has said already."""

    def send(self, data: bytes) -> None:
        """Tell it something; lost where it does not listen."""

    def close(self) -> None:
        """Hang up; harmless when that has been done."""

    def watch_end(self, on_ended: Callable[[], None]) -> None:
        """Call back when the process is dead."""

    def has_ended(self) -> bool:
        """Tell whether the process is dead, once its end is watched."""

    def unwatch_end(self) -> None:
        """Watch its end no more; harmless when it is not watched."""


class Reporters(Protocol):
    """Where processes on nodes report to the harness."""

    def listen(self, path: str, on_connection: Callable[[Connection], None]) -> Callable[[], None]:
        """Take the connections that processes on nodes make to a Unix socket at `path`.

        Returns what ends that. Raises UsageError for a path that is too long.
        """
