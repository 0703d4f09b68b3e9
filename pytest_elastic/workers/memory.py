"""Whether a SIGKILL was the kernel running out of memory, as far as that can be known."""

from __future__ import annotations

import os

__all__ = ["count_memory_kills"]


def count_memory_kills() -> int | None:
    """Return how often the kernel has killed for memory in this process's cgroup; None: unknown.

    Only differences mean something. Where the cgroup tells nothing, the whole machine's count
    serves.
    """
    for file, key in (*_cgroup_files(), ("/proc/vmstat", "oom_kill")):
        count = _read(file, key)
        if count is not None:
            return count
    return None


def _cgroup_files() -> list[tuple[str, str]]:
    files = []
    try:
        with open("/proc/self/cgroup") as lines:
            entries = [line.strip().split(":", 2) for line in lines]
    except OSError:
        return []
    for number, controllers, path in (entry for entry in entries if len(entry) == 3):
        if number == "0":
            files.append((os.path.normpath(f"/sys/fs/cgroup/{path}/memory.events"), "oom_kill"))
        elif "memory" in controllers.split(","):
            root = "/sys/fs/cgroup/memory"
            files.append((os.path.normpath(f"{root}/{path}/memory.oom_control"), "oom_kill"))
    return files


def _read(file: str, key: str) -> int | None:
    try:
        with open(file) as lines:
            for line in lines:
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
    except (OSError, ValueError):
        pass
    return None
