"""Version 2 control groups on a real kernel, as far as this machine's version 2 hierarchy has them.

Where version 1 has taken processor, memory and processes, their version 2 files are only tested as
recorded (`tests/unit/cluster/test_cgroup_layout.py`); freezing, killing what is frozen and
enabling controllers work in any version 2 hierarchy.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elastic_harness.cluster.limits import cgroups
from elastic_harness.cluster.limits.cgroup_layout import Hierarchy

_LIMIT_S = 20.0
_MOUNTS = Path("/proc/self/mountinfo")


@pytest.fixture
def top() -> Path:
    """The group of version 2 below which ours can be made; skips where the kernel has none.

    That is asked of the kernel, and not of what is tested.
    """
    own = re.search(r"(?m)^0::/(.*)$", Path("/proc/self/cgroup").read_text())
    mounts = re.findall(r"(?m)^\S+ \S+ \S+ / (\S+) .* - cgroup2 ", _MOUNTS.read_text())
    folders = [Path(mount, own[1]) for mount in mounts] if own is not None else []
    if not any(os.access(folder, os.W_OK) for folder in folders):
        pytest.skip("there is no version 2 hierarchy in which groups can be made")
    freezer = cgroups.find_hierarchies()["freeze"]
    assert freezer.version == 2
    return Path(freezer.folder)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process to be put into groups."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def _wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"not in time: {what}"
        os.sched_yield()


def test_what_is_frozen_by_version_2_stands_still_and_can_be_killed(
    top: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    """It is frozen when the kernel says so; SIGKILL ends it all the same, and the group can go."""
    session = cgroups.session_tag(os.getpid())
    group = cgroups.NodeGroup(session, "n1", {"freeze": Hierarchy(version=2, folder=str(top))})
    try:
        group.make("freeze")
        group.move(sleeper.pid)
        group.freeze(frozen=True)
        _wait_for(group.is_frozen, "the group to be frozen")
        group.freeze(frozen=False)
        _wait_for(lambda: not group.is_frozen(), "the group to be thawed")
        group.freeze(frozen=True)
        _wait_for(group.is_frozen, "the group to be frozen again")
        sleeper.send_signal(signal.SIGKILL)
        assert sleeper.wait(_LIMIT_S) == -signal.SIGKILL
    finally:
        sleeper.kill()
        sleeper.wait()
        group.remove()
        (top / session).rmdir()


def test_a_sessions_group_enables_its_controllers_for_its_nodes(
    top: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    """The files of a controller are in a node's group, which may have processes."""
    known = (top / "cgroup.controllers").read_text().split()
    if not known:
        pytest.skip(f"{top} has no controller that could be enabled")
    session = cgroups.session_tag(os.getpid())
    hierarchy = Hierarchy(version=2, folder=str(top), controllers=(known[0],))
    with _enabled(top, known[0]):
        group = cgroups.NodeGroup(session, "n1", {"freeze": hierarchy})
        try:
            folder = Path(group.make("freeze"))
            group.move(sleeper.pid)
            assert known[0] in (folder / "cgroup.controllers").read_text().split()
            assert (folder / "cgroup.procs").read_text().split() == [str(sleeper.pid)]
        finally:
            sleeper.kill()
            sleeper.wait()
            group.remove()
            (top / session).rmdir()


@contextlib.contextmanager
def _enabled(top: Path, controller: str) -> Iterator[None]:
    """Enable a controller below a group for a while; skips where it must not."""
    table = top / "cgroup.subtree_control"
    was_there = controller in table.read_text().split()
    if not was_there:
        if (top / "cgroup.type").exists() and (top / "cgroup.procs").read_text():
            pytest.skip(f"{top} has processes, and groups beside them would take none")
        try:
            table.write_text(f"+{controller}")
        except OSError as error:
            pytest.skip(f"{top} cannot enable {controller}: {error}")
    yield
    if not was_there:
        table.write_text(f"-{controller}")
