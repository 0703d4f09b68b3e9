"""Where control groups can be made and what is written into them, in version 1 and in version 2.

Values in, values out: what /proc and the group's own files say is handed in as text.

In version 1 each controller has a hierarchy of its own, and a group below the one that we are in
will do. In version 2 a process is in exactly one group, whose parent must have the controllers
enabled (`cgroup.subtree_control`) and may then have no processes itself; so our groups go below the
nearest ancestor that has the most enabled, and a session's own group enables them once more. Where
none has any, a person has to delegate a group (`docs/cluster.md`): no process is moved by us but
those of nodes.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

__all__ = [
    "FEATURES",
    "GroupReadings",
    "Hierarchy",
    "explain",
    "files_to_read",
    "find",
    "limit",
    "readings",
]

# What we use groups for, with the controller's name in version 1 and in version 2 ("": it is part
# of every group there).
FEATURES: Mapping[str, tuple[str, str]] = {
    "freeze": ("freezer", ""),
    "cpu": ("cpu", "cpu"),
    "memory": ("memory", "memory"),
    "process": ("pids", "pids"),
}

_CONTROLLERS = tuple(name for _, name in FEATURES.values() if name)

# Short enough for a worker not to notice the turns, long enough for the kernel's accounting.
_PERIOD_US = 20_000
_SHORTEST_QUOTA_US = 1_000
# With version 1, by how much the limit of memory and swap is above that of memory alone: more than
# the kernel takes at once, so that the latter is met first. Kernels count only that one (6.18).
_SWAP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """A mounted hierarchy: its version, and the group below which ours are made.

    `controllers` are those of ours that a version 2 group has enabled for the groups below it.
    """

    version: int
    folder: str
    controllers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReadings:
    """What the kernel has counted in a group; only differences mean something.

    `throttled` are periods in which the group had used up its share of processor, `memory_hits`
    allocations that met the limit, `processes_refused` forks. `memory` is in bytes.
    """

    throttled: int = 0
    memory: int = 0
    memory_hits: int = 0
    memory_kills: int = 0
    processes: int = 0
    processes_refused: int = 0


def find(
    mountinfo: str,
    cgroup: str,
    *,
    read: Callable[[str], str],
    is_writable: Callable[[str], bool],
) -> dict[str, Hierarchy]:
    """Return where groups for each feature can be made; absent: nowhere.

    `mountinfo` and `cgroup` are those files of /proc/self. `read` returns "" for what cannot be
    read. Version 2 is preferred where both can do it: its frozen processes can be killed.
    """
    mounts = _mounted(mountinfo)
    found: dict[str, Hierarchy] = {}
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in mounts:
            continue
        top, root = mounts[controllers]
        folder = os.path.normpath(f"{top}/{os.path.relpath(path, root)}")
        if controllers == "":
            found.update(_find_v2(top, folder, read, is_writable))
        elif _can_have_ours(folder, is_writable):
            names = controllers.split(",")
            for feature, (name, _) in FEATURES.items():
                if name in names and (feature not in found or found[feature].version == 1):
                    found[feature] = Hierarchy(version=1, folder=folder)
    return found


def explain(
    feature: str,
    mountinfo: str,
    cgroup: str,
    *,
    read: Callable[[str], str],
    is_writable: Callable[[str], bool],
) -> str:
    """Say why no group for a feature can be made where `find` found none."""
    version_1, version_2 = FEATURES[feature]
    own = _own_folder(mountinfo, cgroup, version_1)
    version = "1"
    if own is None:
        own, version = _own_folder(mountinfo, cgroup), "2"
    if own is None:
        return "none are mounted"
    top, folder = own
    if version == "2" and version_2 not in (there := read(f"{top}/cgroup.controllers").split()):
        names = ", ".join(there) or "none"
        return f"{top} has no controller '{version_2}' (it has {names})"
    if _is_read_only(mountinfo, top):
        return f"{top} is mounted read-only"
    if not _can_have_ours(folder, is_writable):
        return f"we may make none below {folder} (version {version})"
    return f"the controller '{version_2}' is not enabled in a group above {folder} that is ours"


def _can_have_ours(folder: str, is_writable: Callable[[str], bool]) -> bool:
    """Tell whether groups can be made below one, and processes be moved there from another."""
    return is_writable(folder) and is_writable(f"{folder}/cgroup.procs")


def _own_folder(mountinfo: str, cgroup: str, controller: str = "") -> tuple[str, str] | None:
    """Return where a hierarchy is mounted, and the folder of the group that we are in."""
    mounts = _mounted(mountinfo)
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in mounts and controller in controllers.split(","):
            top, root = mounts[controllers]
            return top, os.path.normpath(f"{top}/{os.path.relpath(path, root)}")
    return None


def _ancestors(top: str, folder: str) -> Iterator[str]:
    """Yield a group's folder and those above it that are to be seen, nearest first."""
    while folder == top or folder.startswith(f"{top.rstrip('/')}/"):
        yield folder
        if folder == top:
            break
        folder = os.path.dirname(folder)


def _is_read_only(mountinfo: str, top: str) -> bool:
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        mount, options = before.split()[4:6]
        if mount == top:
            return "ro" in (*options.split(","), *after.split()[2].split(","))
    return False


def _mounted(mountinfo: str) -> dict[str, tuple[str, str]]:
    """Return mount point and root of each hierarchy, by its controllers ("" for version 2)."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split()[:3]
        root, top = before.split()[3:5]
        if kind == "cgroup2":
            mounts.setdefault("", (top, root))
        elif kind == "cgroup":
            names = [name for name in options.split(",") if name not in {"rw", "ro"}]
            mounts.setdefault(",".join(names), (top, root))
    return mounts


def _find_v2(
    top: str, folder: str, read: Callable[[str], str], is_writable: Callable[[str], bool]
) -> dict[str, Hierarchy]:
    """Return the features of the nearest ancestor that has the most controllers enabled."""
    best: Hierarchy | None = None
    for above in _ancestors(top, folder):
        # A group that has controllers enabled beside processes takes threads only below it.
        is_plain = read(f"{above}/cgroup.type").strip() in {"", "domain"}
        if is_plain and _can_have_ours(above, is_writable):
            enabled = read(f"{above}/cgroup.subtree_control").split()
            controllers = tuple(name for name in _CONTROLLERS if name in enabled)
            if best is None or len(controllers) > len(best.controllers):
                best = Hierarchy(version=2, folder=above, controllers=controllers)
    if best is None:
        return {}
    return {
        feature: best
        for feature, (_, name) in FEATURES.items()
        if not name or name in best.controllers
    }


# --- limits: pairs of a file and what is written into it, in this order -------------------------


def limit(version: int, feature: str, most: float | None) -> list[tuple[str, str]]:
    """Return what gives a group so much of a feature (None: all there is).

    A share of one processor; bytes of memory, next to no swap; processes and threads. Files with
    "swap" or "memsw" in their names are not there where the kernel does not count swap.
    """
    count = None if most is None else int(most)
    match feature, version:
        case "cpu", _:
            quota = None if most is None else max(int(most * _PERIOD_US), _SHORTEST_QUOTA_US)
            if version == 2:
                return [("cpu.max", f"{'max' if quota is None else quota} {_PERIOD_US}")]
            return [
                ("cpu.cfs_period_us", str(_PERIOD_US)),
                ("cpu.cfs_quota_us", str(-1 if quota is None else quota)),
            ]
        case "memory", 2:
            size = "max" if count is None else str(count)
            return [("memory.max", size), ("memory.swap.max", "max" if count is None else "0")]
        case "memory", _:
            # The sum of both may never be below the first, so it is out of the way meanwhile.
            return [
                ("memory.memsw.limit_in_bytes", "-1"),
                ("memory.limit_in_bytes", str(-1 if count is None else count)),
                ("memory.memsw.limit_in_bytes", str(-1 if count is None else count + _SWAP_BYTES)),
            ]
        case _:
            return [("pids.max", "max" if count is None else str(count))]


# --- readings -----------------------------------------------------------------------------------


def files_to_read(version: int, feature: str) -> tuple[str, ...]:
    """Return the files that `readings` wants of a feature."""
    match feature, version:
        case "cpu", _:
            return ("cpu.stat",)
        case "memory", 2:
            return ("memory.events", "memory.current")
        case "memory", _:
            return ("memory.oom_control", "memory.failcnt", "memory.usage_in_bytes")
        case "process", _:
            return ("pids.current", "pids.events")
        case _:
            return ()


def readings(texts: Mapping[str, str]) -> GroupReadings:
    """Return what the files of a group's features say, whichever version they are of."""
    kills = _field(texts, "memory.events", "oom_kill")
    kills += _field(texts, "memory.oom_control", "oom_kill")
    return GroupReadings(
        throttled=_field(texts, "cpu.stat", "nr_throttled"),
        memory=_number(texts, "memory.current") + _number(texts, "memory.usage_in_bytes"),
        memory_hits=_field(texts, "memory.events", "max") + _number(texts, "memory.failcnt"),
        memory_kills=kills,
        processes=_number(texts, "pids.current"),
        processes_refused=_field(texts, "pids.events", "max"),
    )


def _field(texts: Mapping[str, str], file: str, key: str) -> int:
    for line in texts.get(file, "").splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


def _number(texts: Mapping[str, str], file: str) -> int:
    return int(texts.get(file, "").strip() or 0)
