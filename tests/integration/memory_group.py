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
from elastic_harness.cluster.limits import cgroup_layout, cgroups

__all__ = ["limited_memory"]

# Who was killed is gone at once, but for what the kernel has to take back from it.
_GONE_WITHIN_S = 30.0


@contextlib.contextmanager
def limited_memory(limit_bytes: int) -> Iterator[Path]:
    """Make a group where the harness makes its own; skips the test where that cannot be done.

    Processes are put into it by writing their pids to its `cgroup.procs`.
    """
    place = cgroups.find_hierarchies().get("memory")
    if place is None:
        pytest.skip("there is no control group for memory below which one could be made")
    group = Path(place.folder, f"pytest-elastic-test-{os.getpid()}")
    group.mkdir()
    try:
        for name, value in cgroup_layout.limit(place.version, "memory", limit_bytes):
            if (group / name).exists():
                (group / name).write_text(value)
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
