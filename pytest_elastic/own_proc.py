"""Whether what /proc says of a pid is said of ours."""

from __future__ import annotations

import os

from pytest_elastic.errors import UsageError

__all__ = ["check_own_proc"]


def check_own_proc() -> None:
    """Raise UsageError where /proc shows no processes, or those of another PID namespace.

    Whatever is read there of a pid of ours would be of a stranger, who could be killed for it.
    """
    try:
        own = os.readlink("/proc/self")
    except OSError:
        own = ""
    if own != str(os.getpid()):
        shown = "is that of another PID namespace" if own else "shows no processes"
        raise UsageError(
            f"/proc {shown}, so that the processes of a job cannot be found, and ended",
            hint="Mount it: `mount -t proc proc /proc`, or `unshare --fork --pid --mount-proc`.",
        )
