"""Control groups of nodes: freezing, limits of processor, memory and processes, what they counted.

Groups are made on demand and live where `cgroup_layout` finds a place for them, in a folder named
after the session's supervisor, so that whatever a double kill leaves behind can be recognised and
removed by the next session. Version 2 is preferred where both can freeze: its frozen processes can
be killed, while those of version 1 first have to be thawed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from elastic_harness.cluster import process_table
from elastic_harness.cluster.limits import cgroup_layout
from elastic_harness.cluster.limits.cgroup_layout import GroupReadings, Hierarchy
from elastic_harness.cluster.node.namespace import write_file

__all__ = [
    "NodeGroup",
    "find_hierarchies",
    "is_stale",
    "is_tag",
    "owner_of",
    "remove_session",
    "session_tag",
    "stale_sessions",
]

_PREFIX = "pytest-elastic-"


def find_hierarchies() -> dict[str, Hierarchy]:
    """Return where we may make groups, by feature; absent: nowhere."""
    return cgroup_layout.find(*_tables(), read=_read_if_there, is_writable=_is_writable)


def _tables() -> tuple[str, str]:
    return _read("/proc/self/mountinfo"), _read("/proc/self/cgroup")


def _is_writable(path: str) -> bool:
    return os.access(path, os.W_OK)


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
                why = cgroup_layout.explain(
                    feature, *_tables(), read=_read_if_there, is_writable=_is_writable
                )
                raise OSError(0, f"there is no control group for {feature}: {why}")
            folder = f"{hierarchy.folder}/{self._path}"
            os.makedirs(folder, exist_ok=True)
            _enable_controllers(hierarchy, os.path.dirname(folder))
            self._made[feature] = folder
        return self._made[feature]

    def freeze(self, *, frozen: bool) -> None:
        """Ask the kernel to freeze or thaw the group; it is done when `is_frozen` says so."""
        folder = self.make("freeze")
        if self._hierarchies["freeze"].version == 2:
            write_file(f"{folder}/cgroup.freeze", "1" if frozen else "0")
        else:
            write_file(f"{folder}/freezer.state", "FROZEN" if frozen else "THAWED")

    def is_frozen(self) -> bool:
        """Tell whether every process of the group stands still."""
        folder = self._made.get("freeze")
        if folder is None:
            return False
        if self._hierarchies["freeze"].version == 2:
            return "frozen 1" in _read(f"{folder}/cgroup.events")
        return _read(f"{folder}/freezer.state").strip() == "FROZEN"

    def limit(self, feature: str, most: float | None) -> None:
        """Limit the group to a share of one processor, bytes of memory, processes (None: all)."""
        if most is None and feature not in self._made:
            return
        folder = self.make(feature)
        for name, text in cgroup_layout.limit(self._hierarchies[feature].version, feature, most):
            is_there = "swap" not in name and "memsw" not in name
            if is_there or os.path.exists(f"{folder}/{name}"):
                write_file(f"{folder}/{name}", text)

    def read(self) -> GroupReadings:
        """Return what the kernel has counted in the groups made so far."""
        texts = {
            name: _read_if_there(f"{folder}/{name}")
            for feature, folder in self._made.items()
            for name in cgroup_layout.files_to_read(self._hierarchies[feature].version, feature)
        }
        return cgroup_layout.readings(texts)

    def move(self, pid: int) -> None:
        """Move a process into every group made so far; harmless when it has ended."""
        for folder in self.folders:
            with contextlib.suppress(ProcessLookupError):
                write_file(f"{folder}/cgroup.procs", str(pid))

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


def is_tag(name: str) -> bool:
    """Tell whether a name is the tag of a session of our pid namespace."""
    return owner_of(name) is not None


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
                write_file(f"{folder}/freezer.state", "THAWED")
            try:
                os.rmdir(folder)
            except OSError:
                left.append(folder)
    return left


def stale_sessions() -> set[str]:
    """Return the tags of sessions that have ended and left groups."""
    folders = {hierarchy.folder for hierarchy in find_hierarchies().values()}
    return {name for folder in folders for name in os.listdir(folder) if is_stale(name)}


def _enable_controllers(hierarchy: Hierarchy, session: str) -> None:
    """Enable the controllers of a session's own group for the groups of its nodes (version 2)."""
    if hierarchy.controllers:
        write_file(
            f"{session}/cgroup.subtree_control",
            " ".join(f"+{name}" for name in hierarchy.controllers),
        )


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _read_if_there(path: str) -> str:
    try:
        return _read(path)
    except OSError:
        return ""
