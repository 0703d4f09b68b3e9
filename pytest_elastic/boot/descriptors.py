"""Descriptors: those that this process has, those of processes, and a parent's after a fork."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import select
import warnings
from collections.abc import Collection

__all__ = ["close_all_but", "open_descriptors", "open_pidfd", "raise_limit", "wait_for"]

_END = 1 << 20


def close_all_but(keep: Collection[int] = ()) -> None:
    """Close every descriptor above 2 that is not in `keep`.

    To be called when the parent's objects are unreachable: sockets that live on in cycles are
    collected first, lest they close, much later, a descriptor of the same number but not theirs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # they are the parent's to close
        gc.collect()
    low = 3
    for fd in sorted(fd for fd in set(keep) if fd > 2):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, _END)


def open_descriptors() -> dict[int, str]:
    """Return what is open in this process, as the kernel names it."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that the folder itself was read by
            found[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
    return found


def raise_limit() -> None:
    """Let this process, and those that it starts from now on, have as many as it may.

    Most systems allow a thousand at first, and many more on request.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # where the system's own limit is lower by now
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def wait_for(fd: int, event: int, timeout_s: float) -> bool:
    """Wait until `select.POLLIN` or `select.POLLOUT` is so, or it has ended; tell whether it is.

    `select.select` takes no descriptor above 1,023.
    """
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(max(timeout_s, 0.0) * 1000))


def open_pidfd(pid: int) -> int:
    """Return a descriptor of a process; raises ProcessLookupError when it is gone.

    Older kernels (seen: 6.1) say EINVAL of one whose process group or session has outlived it.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from error
        raise
