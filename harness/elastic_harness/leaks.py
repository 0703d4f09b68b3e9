"""What a test has left behind: processes, namespaces, devices, files, descriptors, threads.

`snapshot` before and after, and `compare` says in sentences what is there that was not. Only what
can be ours is looked at, so that sessions beside this one do not disturb: our descendants, whatever
carries our mark or name, and this process itself.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic_harness.cluster import process_table
from elastic_harness.cluster.limits import cgroups
from elastic_harness.cluster.node.own_mounts import own_mounts
from elastic_harness.cluster.server.stale_resources import ENVIRONMENT_MARK, temporary_folder

if TYPE_CHECKING:
    from elastic_harness.cluster.cluster import LiveCluster

__all__ = [
    "Snapshot",
    "Spared",
    "compare",
    "leaks_since",
    "names_since",
    "snapshot",
    "what_is_left",
]

# How often to look again at what is just about to go away.
_LOOK_AGAIN_S = 0.02
# A process has executed its program long before.
_SETTLED_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What there was at one moment: for each kind of thing, its key and how a person knows it."""

    things: Mapping[str, Mapping[str, str]]

    @property
    def pids(self) -> list[int]:
        """The processes below this one, and orphans of sessions that are over."""
        return [int(key.partition("-")[0]) for key in self.things["process"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spared:
    """What many tests share, and none of them leaves behind: a cluster server, and ends of it here.

    `threads` are the kernel's numbers of threads of this process.
    """

    pids: frozenset[int] = frozenset()
    fds: frozenset[int] = frozenset()
    threads: frozenset[int | None] = frozenset()


_NOTHING = Spared()


def snapshot(*, spared: Spared = _NOTHING) -> Snapshot:
    """Look at everything now, but for what is spared."""
    ours = _our_processes(spared.pids)
    return Snapshot(
        things={
            "process": {f"{row.pid}-{row.start_ticks}": _describe(row) for row in ours},
            "network namespace": dict(_network_namespaces(ours)),
            "TUN device": dict(_tun_devices()),
            "mount": dict(_mounts()),
            "control group": dict(_control_groups(spared.pids)),
            "shared memory file": dict(_shared_memory()),
            "socket file": dict(_socket_files()),
            "temporary folder": dict(_temporary_folders(spared.pids)),
            "open descriptor": dict(_descriptors(spared.fds)),
            # Not by `ident`, which a new thread inherits from one that has ended.
            "thread": {
                str(thread.native_id): thread.name
                for thread in threading.enumerate()
                if thread.native_id not in spared.threads
            },
        }
    )


def compare(before: Snapshot, after: Snapshot) -> list[str]:
    """Say what is there that was not there before, one sentence each; empty when nothing is."""
    lines: list[str] = []
    for kind, things in after.things.items():
        known = before.things.get(kind, {})
        lines.extend(f"{kind} left: {text}" for key, text in things.items() if key not in known)
    return lines


def leaks_since(
    before: Snapshot,
    *,
    within_s: float = 1.0,
    spared: Spared = _NOTHING,
) -> list[str]:
    """Compare with now; what is just going away has `within_s` to do so.

    What was not there at the first look was not left: a process beside us has just made it.
    """
    deadline = time.monotonic() + within_s
    first = now = snapshot(spared=spared)
    while compare(before, now):
        if time.monotonic() > deadline:
            return compare(before, _without_strangers(now, before))
        time.sleep(_LOOK_AGAIN_S)
        now = _still_there(first, snapshot(spared=spared))
    return []


def names_since(
    before: Collection[str], look: Callable[[], Collection[str]], *, within_s: float = 1.0
) -> list[str]:
    """Return the names that are new; a process that is just ending may still remove its own."""
    deadline = time.monotonic() + within_s
    while True:
        left = sorted(name for name in look() if name not in before)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_LOOK_AGAIN_S)


def _still_there(first: Snapshot, now: Snapshot) -> Snapshot:
    return Snapshot(
        things={
            kind: {key: text for key, text in things.items() if key in first.things[kind]}
            for kind, things in now.things.items()
        }
    )


def _without_strangers(now: Snapshot, before: Snapshot) -> Snapshot:
    """Leave out shared memory that a process beside us uses: looking for that takes a while."""
    kind = "shared memory file"
    new = {key: text for key, text in now.things[kind].items() if key not in before.things[kind]}
    if not new:
        return now
    ours = {os.getpid(), *(row.pid for row in process_table.descendants(os.getpid()))}
    for pid in process_table.processes():
        if pid in ours:
            continue
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps:
            text = maps.read()
            new = {key: path for key, path in new.items() if path not in text}
    kept = {k: t for k, t in now.things[kind].items() if k in before.things[kind] or k in new}
    return Snapshot(things={**now.things, kind: kept})


def _our_processes(spared: Collection[int]) -> list[process_table.ProcessRow]:
    own = os.getpid()
    found = {row.pid: row for row in _descendants(own)}
    for pid, mark in _MARKS.of(pid for pid in process_table.processes() if pid != own):
        # An orphan of a session that is over counts for any; sessions beside us are not ours.
        row = process_table.row_of(pid) if pid not in found and cgroups.is_stale(mark) else None
        if row is not None:
            found[pid] = row
    return [found[pid] for pid in sorted(found) if pid not in spared]


def _descendants(root: int) -> list[process_table.ProcessRow]:
    """List all below a process, at a cost that does not grow with the machine where that goes."""
    try:
        waiting, found = process_table.children_of(root), []
        while waiting:
            pid = waiting.pop()
            if (row := process_table.row_of(pid)) is not None:
                found.append(row)
                waiting += process_table.children_of(pid)
    except NotImplementedError:
        return process_table.descendants(root)
    return found


class _Marks:
    """The session that each process belongs to: read once, for processes that others have started.

    A process may still execute what carries the mark a moment after it was seen: it is read again
    until it has been there for a while.
    """

    def __init__(self) -> None:
        self._read: dict[int, tuple[float, str]] = {}  # by pid: first seen, and the mark

    def of(self, pids: Iterable[int]) -> Iterator[tuple[int, str]]:
        """Yield each process with its mark, if it has one."""
        now, known = time.monotonic(), self._read
        self._read = {}
        for pid in pids:
            first, mark = known.get(pid, (now, ""))
            if now - first < _SETTLED_S:
                # What was there at the first look has not been started by what is looked at.
                first = first if known else now - _SETTLED_S
                mark = process_table.environ_of(pid).get(ENVIRONMENT_MARK, "")
            self._read[pid] = (first, mark)
            if mark:
                yield pid, mark


_MARKS = _Marks()


def _describe(row: process_table.ProcessRow) -> str:
    command = " ".join(process_table.command_of(row.pid)) or "(no command line)"
    return f"{row.pid} (state {row.state}): {command:.200}"


def _network_namespaces(rows: Iterable[process_table.ProcessRow]) -> Iterator[tuple[str, str]]:
    own = os.readlink("/proc/self/ns/net")
    for row in rows:
        with contextlib.suppress(OSError):
            namespace = os.readlink(f"/proc/{row.pid}/ns/net")
            if namespace != own:
                yield namespace, f"{namespace}, held by process {row.pid}"


def _tun_devices() -> Iterator[tuple[str, str]]:
    for name in os.listdir("/sys/class/net"):
        if os.path.exists(f"/sys/class/net/{name}/tun_flags"):
            yield name, name


def _mounts() -> Iterator[tuple[str, str]]:
    with open("/proc/self/mountinfo") as file:
        yield from own_mounts(file.read()).items()


def _control_groups(spared: Collection[int]) -> Iterator[tuple[str, str]]:
    for hierarchy in set(cgroups.find_hierarchies().values()):
        with contextlib.suppress(OSError):
            for name in os.listdir(hierarchy.folder):
                owner = cgroups.owner_of(name)
                if owner is None or not (cgroups.is_stale(name) or _is_child(owner)):
                    continue
                folder = f"{hierarchy.folder}/{name}"
                if owner not in spared:
                    yield folder, folder
                for group in os.listdir(folder):
                    if os.path.isdir(f"{folder}/{group}"):
                        yield f"{folder}/{group}", f"{folder}/{group}"


def _is_child(pid: int) -> bool:
    row = process_table.row_of(pid)
    return row is not None and row.ppid == os.getpid()


def _shared_memory() -> Iterator[tuple[str, str]]:
    with contextlib.suppress(OSError), os.scandir("/dev/shm") as entries:  # noqa: S108
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    yield entry.name, entry.path


def _socket_files() -> Iterator[tuple[str, str]]:
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISSOCK(facts.st_mode) and facts.st_uid == os.geteuid():
                    yield entry.path, entry.path


def _temporary_folders(spared: Collection[int]) -> Iterator[tuple[str, str]]:
    """Yield the folders of clusters: those that are over, and our own."""
    folder = tempfile.gettempdir()
    for name in os.listdir(folder):
        owner = cgroups.owner_of(name)
        if owner is None or owner in spared:
            continue
        if cgroups.is_stale(name) or _is_child(owner):
            yield name, f"{folder}/{name}"


def _descriptors(spared: Collection[int]) -> Iterator[tuple[str, str]]:
    with os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if int(entry.name) not in spared and not target.startswith("/proc/"):
                    yield f"{entry.name} {target}", f"{entry.name} ({target})"


def what_is_left(cluster: LiveCluster) -> list[str]:
    """Say what a cluster without a run has and should not have; empty when it is clean.

    A server's own answer to `reset` says that its nodes, devices and links are gone. This asks the
    kernel and the file system instead, so that a server that is wrong about itself is found out as
    well.

    Processes beside those that serve it, nodes, control groups of nodes with their limits, folders
    of runs, and files on nodes' disks where those lie in the host's file system.
    """
    return [
        *_nodes_of(cluster),
        *_processes_of(cluster),
        *_groups_of(cluster),
        *_folders_of(cluster),
    ]


def _nodes_of(cluster: LiveCluster) -> Iterator[str]:
    for name in cluster.nodes:
        yield f"node {name} runs"


def _processes_of(cluster: LiveCluster) -> Iterator[str]:
    own = cluster.own_pids
    for pid in sorted(own):
        if process_table.row_of(pid) is None:
            yield f"process {pid}, which serves it, is gone"
    below = {row.pid: row for pid in own for row in process_table.descendants(pid)}
    for pid, row in sorted(below.items()):
        if pid not in own:
            command = " ".join(process_table.command_of(pid))
            yield f"process {pid} (state {row.state}) is left: {command:.100}"


def _groups_of(cluster: LiveCluster) -> Iterator[str]:
    for hierarchy in set(cgroups.find_hierarchies().values()):
        with contextlib.suppress(OSError):
            for name in os.listdir(hierarchy.folder):
                if cgroups.owner_of(name) not in cluster.own_pids:
                    continue
                for group in os.listdir(f"{hierarchy.folder}/{name}"):
                    if os.path.isdir(f"{hierarchy.folder}/{name}/{group}"):
                        yield f"control group {name}/{group} is left"


def _folders_of(cluster: LiveCluster) -> Iterator[str]:
    if not cluster.scratch:
        return
    folders = {cluster.scratch: "run-", f"{cluster.scratch}/disks": ""}
    for folder, prefix in (*folders.items(), (temporary_folder(cluster.scratch), "")):
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(folder)):
                if name.startswith(prefix):
                    yield f"{folder}/{name} is left"
