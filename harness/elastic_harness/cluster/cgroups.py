"""Control groups of nodes: freezing now, limits of processor and memory.

Groups are made on demand and live below the group the server was started in, in a folder named
after the session's supervisor, so that whatever a double kill leaves behind can be recognised and
removed by the next session. Version 2 is preferred where both can freeze: its frozen processes can
be killed, while those of version 1 first have to be thawed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from elastic_harness.cluster import process_table

__all__ = [
    "Hierarchy",
    "NodeGroup",
    "find_hierarchies",
    "is_stale",
    "owner_of",
    "remove_session",
    "session_tag",
    "stale_sessions",
]

_PREFIX = "pytest-elastic-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """A mounted hierarchy: its version and the folder of the group this process is in."""

    version: int
    folder: str


def find_hierarchies() -> dict[str, Hierarchy]:
    """Return where we may make groups for "freeze", "cpu" and "memory"; absent: nowhere."""
    mounts = _mounted()
    found: dict[str, Hierarchy] = {}
    with open("/proc/self/cgroup") as lines:
        for line in lines:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            mount = mounts.get(controllers)
            if mount is None:
                continue
            top, root = mount
            folder = os.path.normpath(f"{top}/{os.path.relpath(path, root)}")
            if not os.access(folder, os.W_OK):
                continue
            for feature in _features(controllers, folder):
                version = 2 if controllers == "" else 1
                if feature not in found or version == 2:
                    found[feature] = Hierarchy(version=version, folder=folder)
    return found


def _mounted() -> dict[str, tuple[str, str]]:
    """Return mount point and root of each hierarchy, by its controllers ("" for version 2)."""
    mounts: dict[str, tuple[str, str]] = {}
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()[:3]
            root, top = before.split()[3:5]
            if kind == "cgroup2":
                mounts.setdefault("", (top, root))
            elif kind == "cgroup":
                names = [name for name in options.split(",") if name not in {"rw", "ro"}]
                mounts.setdefault(",".join(names), (top, root))
    return mounts


def _features(controllers: str, folder: str) -> list[str]:
    if controllers:
        names = {"freezer": "freeze", "cpu": "cpu", "memory": "memory"}
        return [names[name] for name in controllers.split(",") if name in names]
    features = ["freeze"]
    with contextlib.suppress(OSError), open(f"{folder}/cgroup.subtree_control") as enabled:
        features.extend(name for name in enabled.read().split() if name in {"cpu", "memory"})
    return features


class NodeGroup:
    """The groups of one node, one folder for each hierarchy that is in use."""

    def __init__(self, session: str, node: str, hierarchies: Mapping[str, Hierarchy]) -> None:
        self._hierarchies = hierarchies
        self._path = f"{session}/{node}"
        self._made: dict[str, str] = {}

    @property
    def folders(self) -> list[str]:
        """The folders made so far, each once."""
        return list(dict.fromkeys(self._made.values()))

    def make(self, feature: str) -> str:
        """Make the node's group for a feature; returns its folder. Raises OSError."""
        if feature not in self._made:
            hierarchy = self._hierarchies.get(feature)
            if hierarchy is None:
                raise OSError(
                    0, f"there is no control group for {feature} below which we may make one"
                )
            folder = f"{hierarchy.folder}/{self._path}"
            os.makedirs(folder, exist_ok=True)
            self._made[feature] = folder
        return self._made[feature]

    def freeze(self, *, frozen: bool) -> None:
        """Ask the kernel to freeze or thaw the group; it is done when `is_frozen` says so."""
        folder = self.make("freeze")
        if self._hierarchies["freeze"].version == 2:
            _write(f"{folder}/cgroup.freeze", "1" if frozen else "0")
        else:
            _write(f"{folder}/freezer.state", "FROZEN" if frozen else "THAWED")

    def is_frozen(self) -> bool:
        """Tell whether every process of the group stands still."""
        folder = self._made.get("freeze")
        if folder is None:
            return False
        if self._hierarchies["freeze"].version == 2:
            return "frozen 1" in _read(f"{folder}/cgroup.events")
        return _read(f"{folder}/freezer.state").strip() == "FROZEN"

    def limit_cpu(self, share: float | None) -> None:
        """Give the group `share` of one processor (None: all there is)."""
        folder = self.make("cpu")
        period_us = 20_000
        quota = None if share is None else max(int(share * period_us), 1000)
        if self._hierarchies["cpu"].version == 2:
            _write(f"{folder}/cpu.max", f"{'max' if quota is None else quota} {period_us}")
        else:
            _write(f"{folder}/cpu.cfs_period_us", str(period_us))
            _write(f"{folder}/cpu.cfs_quota_us", str(-1 if quota is None else quota))

    def limit_memory(self, size: int | None) -> None:
        """Let the group have `size` bytes of memory (None: all there is)."""
        folder = self.make("memory")
        if self._hierarchies["memory"].version == 2:
            _write(f"{folder}/memory.max", "max" if size is None else str(size))
            with contextlib.suppress(OSError):
                _write(f"{folder}/memory.swap.max", "max" if size is None else "0")
        else:
            _write(f"{folder}/memory.limit_in_bytes", str(-1 if size is None else size))

    def move(self, pid: int) -> None:
        """Move a process into every group made so far; harmless when it has ended."""
        for folder in self.folders:
            with contextlib.suppress(ProcessLookupError):
                _write(f"{folder}/cgroup.procs", str(pid))

    def remove(self) -> None:
        """Take the groups away; their processes must have ended."""
        for folder in self.folders:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(folder)
        self._made.clear()


def session_tag(pid: int) -> str:
    """Return a name that says whose a left-over is: pid namespace, process, time of its start."""
    namespace = os.stat(f"/proc/{pid}/ns/pid").st_ino
    return f"{_PREFIX}{namespace}-{pid}-{process_table.start_ticks(pid)}"


def owner_of(tag: str) -> int | None:
    """Return the process that a tag names, None when it is no tag or from another namespace."""
    facts = _parse(tag)
    return None if facts is None else facts[0]


def is_stale(tag: str) -> bool:
    """Tell whether a tag is from our pid namespace and its process is no more."""
    facts = _parse(tag)
    if facts is None:
        return False
    pid, started = facts
    row = process_table.row_of(pid)
    return row is None or row.start_ticks != started or row.state == "Z"


def _parse(tag: str) -> tuple[int, int] | None:
    """Return pid and time of start of the process that a tag of our pid namespace names."""
    parts = tag.removeprefix(_PREFIX).split("-")
    if not tag.startswith(_PREFIX) or len(parts) != 3 or not all(map(str.isdecimal, parts)):
        return None
    namespace, pid, started = (int(part) for part in parts)
    return (pid, started) if namespace == os.stat("/proc/self/ns/pid").st_ino else None


def remove_session(tag: str) -> list[str]:
    """Remove the groups of a session; returns those that would not go (their processes live)."""
    left = []
    for hierarchy in set(find_hierarchies().values()):
        top = f"{hierarchy.folder}/{tag}"
        for folder, _, _ in os.walk(top, topdown=False):
            if hierarchy.version == 1 and os.path.exists(f"{folder}/freezer.state"):
                _write(f"{folder}/freezer.state", "THAWED")
            try:
                os.rmdir(folder)
            except OSError:
                left.append(folder)
    return left


def stale_sessions() -> set[str]:
    """Return the tags of sessions that have ended and left groups."""
    folders = {hierarchy.folder for hierarchy in find_hierarchies().values()}
    return {name for folder in folders for name in os.listdir(folder) if is_stale(name)}


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
