"""What a kernel does not remove when the processes of a session end, and who removes it.

The session's supervisor does, last of all. What is left when it was killed itself is recognised by
the tag that all of it carries, and removed when the next session starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile

from elastic_harness.cluster import process_table
from elastic_harness.cluster.limits import cgroups

__all__ = [
    "ENVIRONMENT_MARK",
    "reap",
    "remove_clock_of",
    "remove_session",
    "remove_stale",
    "scratch_folder",
    "temporary_folder",
]

# Every process of a cluster carries this variable; its value is the tag of its session.
ENVIRONMENT_MARK = "PYTEST_ELASTIC_CLUSTER"


def scratch_folder(tag: str) -> str:
    """Return the folder of temporary files that a session without namespaces uses."""
    return f"{tempfile.gettempdir()}/{tag}"


def temporary_folder(scratch: str, node: str = "") -> str:
    """Return where nodes without a /tmp of their own keep temporary files, or one of them."""
    return os.path.join(scratch, "temporary", node) if node else f"{scratch}/temporary"


def remove_clock_of(pid: int) -> None:
    """Remove what libfaketime shares between a process and those that it has started.

    It does so itself when a process exits, but not for one that was killed or left by `_exit`.
    """
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        with contextlib.suppress(OSError):
            os.unlink(f"/dev/shm/{name}")  # noqa: S108 (the one place where it puts them)


def reap() -> tuple[int, int]:
    """Collect a child that has ended, if any has; returns its pid, or 0, and its wait status.

    What it shared goes first: if this process is killed in between, the child's next parent still
    hears of it. Raises ChildProcessError without children.
    """
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return 0, 0
    remove_clock_of(ended.si_pid)
    return os.waitpid(ended.si_pid, 0)


def remove_session(tag: str) -> list[str]:
    """Remove control groups and files of a session; returns what would not go yet."""
    folder = scratch_folder(tag)
    shutil.rmtree(folder, ignore_errors=True)
    left = cgroups.remove_session(tag)
    return [*left, folder] if os.path.exists(folder) else left


def remove_stale() -> None:
    """Remove what sessions have left that are over, as far as it can be known to be theirs."""
    for pid in process_table.processes():
        if cgroups.is_stale(process_table.environ_of(pid).get(ENVIRONMENT_MARK, "")):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                remove_clock_of(pid)
    tags = {name for name in os.listdir(tempfile.gettempdir()) if cgroups.is_stale(name)}
    for tag in sorted(tags | cgroups.stale_sessions()):
        remove_session(tag)
