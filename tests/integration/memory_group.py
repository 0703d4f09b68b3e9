"""A control group with little memory, for tests of what happens when there is none left."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["limited_memory"]

# Who was killed is gone at once, but for what the kernel has to take back from it.
_GONE_WITHIN_S = 30.0


@contextlib.contextmanager
def limited_memory(limit_bytes: int) -> Iterator[Path]:
    """Make a group below the one that the tests run in; skips the test where that cannot be done.

    Processes are put into it by writing their pids to its `cgroup.procs`.
    """
    group, limits = _new_group(limit_bytes)
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        for name, value in limits.items():
            if (group / name).exists():
                (group / name).write_text(value)
        if not any((group / name).exists() for name in limits):
            pytest.skip("control groups here do not limit memory")
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """Take the group away once the last process in it has gone: the kernel says when."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while True:
        try:
            group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            select.select([], [], [], 0.02)
        else:
            return


def _new_group(limit_bytes: int) -> tuple[Path, dict[str, str]]:
    name = f"pytest-elastic-test-{os.getpid()}"
    v2 = {"memory.max": str(limit_bytes), "memory.swap.max": "0"}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            top = Path("/sys/fs/cgroup/memory")
            return top / path.lstrip("/") / name, {"memory.limit_in_bytes": str(limit_bytes)}
        unified = Path("/sys/fs/cgroup") / path.lstrip("/") / name
    return unified, v2
