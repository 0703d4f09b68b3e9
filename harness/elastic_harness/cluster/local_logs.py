"""Logs of nodes on this machine: they are files here already."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
from collections.abc import Iterator, Sequence
from typing import Final

from elastic_harness.cluster.facets import LogFile

__all__ = ["LocalLogs"]

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNREADABLE: Final = "it cannot be read"


class LocalLogs:
    """`Logs`, by the file system."""

    def list(self, folder: str) -> Sequence[LogFile]:
        return [*_entries(folder)]

    def read(self, path: str, offset: int, size: int) -> bytes:
        fd = os.open(path, _READ)
        try:
            return os.pread(fd, size, offset)
        finally:
            os.close(fd)

    def is_complete(self, path: str, size: int) -> bool:
        """Ask the kernel for a read lease: it refuses while any process has the file open to write.

        A process that opens it before the lease is given back waits until it is; the signal that
        would tell us is one that is ignored. Where leases are refused altogether, no file is
        complete before the end.
        """
        try:
            fd = os.open(path, _READ)
        except OSError:
            return False
        try:
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            return os.fstat(fd).st_size == size
        except OSError:
            return False
        finally:
            os.close(fd)  # and with it, the lease


def _entries(folder: str) -> Iterator[LogFile]:
    problems: list[LogFile] = []

    def on_error(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            path = str(error.filename)
            problems.append(LogFile(path=path, problem=error.strerror or _UNREADABLE))

    for inside, folders, names in os.walk(folder, onerror=on_error):
        logs = [os.path.join(inside, name) for name in sorted(names) if name.endswith(".log")]
        for path in (*(os.path.join(inside, name) for name in folders), *logs):
            if os.path.islink(path) and not _is_listed(target := os.path.realpath(path), folder):
                yield LogFile(path=path, link_to=target)
        yield from (_entry(path) for path in logs if not os.path.islink(path))
    yield from problems


def _is_listed(target: str, folder: str) -> bool:
    """Tell whether what a link leads to has another name below a folder of logs."""
    inside = os.path.realpath(folder) + os.sep
    return target.startswith(inside) and (target.endswith(".log") or os.path.isdir(target))


def _entry(path: str) -> LogFile:
    try:
        found = os.lstat(path)
    except OSError as error:
        return LogFile(path=path, problem=error.strerror or _UNREADABLE)
    return LogFile(
        path=path,
        size=found.st_size,
        modified_at=found.st_mtime,
        identity=(found.st_dev, found.st_ino),
        problem="" if stat.S_ISREG(found.st_mode) else "it is no regular file",
    )
