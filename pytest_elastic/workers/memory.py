"""Whether a SIGKILL was the kernel running out of memory, as far as that can be known."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["MemoryKills", "count_memory_kills"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKills:
    """How often the kernel has killed for memory, as `file` counts it; only growth means anything.

    `since_start`: the file counts from when its group was made, and not from the machine's start.
    """

    file: str
    count: int
    since_start: bool

    def has_grown_to(self, later: MemoryKills) -> bool:
        """Tell whether the kernel has killed between two readings.

        A process may have been moved to another group in between: all that this group has counted
        is taken to be more recent.
        """
        if self.file != later.file:
            return later.since_start and later.count > 0
        return later.count > self.count


def count_memory_kills() -> MemoryKills | None:
    """Return what the cgroup of this process has counted; None: unknown.

    Where the cgroup tells nothing, the whole machine's count serves.
    """
    groups = [(file, True) for file in _cgroup_files()]
    for file, since_start in (*groups, ("/proc/vmstat", False)):
        count = _read(file)
        if count is not None:
            return MemoryKills(file=file, count=count, since_start=since_start)
    return None


def _cgroup_files() -> list[str]:
    files = []
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as lines:
            entries = [line.strip().split(":", 2) for line in lines]
    except OSError:
        return []
    for number, controllers, path in (entry for entry in entries if len(entry) == 3):
        if number == "0":
            files.append(os.path.normpath(f"/sys/fs/cgroup/{path}/memory.events"))
        elif "memory" in controllers.split(","):
            files.append(os.path.normpath(f"/sys/fs/cgroup/memory/{path}/memory.oom_control"))
    return files


def _read(file: str) -> int | None:
    try:
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    except (OSError, ValueError):
        pass
    return None
