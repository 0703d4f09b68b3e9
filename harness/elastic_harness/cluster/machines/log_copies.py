"""What processes of a machine write into their logs, sent to pytest while they write it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.future import Future, Steps, run
from pytest_elastic.loop import Loop, Timer

__all__ = ["LogCopies", "write_copy"]

# As often as pytest looks at logs that are here.
_LOOK_S: Final = 0.05
_CHUNK: Final = 128 * 1024
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True, kw_only=True, eq=False)
class _File:
    path: str
    sent: int = 0
    sending: Future[None] | None = None


class LogCopies:
    """Follows files, and all files below folders; each piece waits until the last one has arrived.

    `send(path, offset, data)` is done when pytest has written that piece.
    """

    def __init__(self, loop: Loop, send: Callable[[str, int, bytes], Future[None]]) -> None:
        self._loop = loop
        self._send = send
        self._folders: dict[str, None] = {}
        self._files: dict[str, _File] = {}
        self._timer: Timer | None = None

    def follow(self, path: str) -> None:
        """Follow a file, which need not be there yet."""
        self._files.setdefault(path, _File(path=path))
        self._start()

    def follow_folder(self, path: str) -> None:
        """Follow all files below a folder."""
        self._folders[path] = None
        self._start()

    def forget(self) -> None:
        """Follow nothing any more."""
        self._folders.clear()
        self._files.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def flush(self) -> Steps[None]:
        """Wait until all that is written now has arrived."""
        self._find_files()
        wanted = [(file, _size(file.path)) for file in self._files.values()]
        for file, size in wanted:
            while file.sent < min(size, _size(file.path)):
                if file.sending is None or file.sending.is_done:
                    file.sending = run(self._loop, self._send_rest(file))
                yield from file.sending

    def _start(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self._loop.now() + _LOOK_S, self._look)

    def _look(self) -> None:
        self._find_files()
        for file in self._files.values():
            is_idle = file.sending is None or file.sending.is_done
            if is_idle and _size(file.path) != file.sent:
                file.sending = run(self._loop, self._send_rest(file))
        self._timer = self._loop.call_at(self._loop.now() + _LOOK_S, self._look)

    def _find_files(self) -> None:
        for folder in self._folders:
            for path in _files_below(folder):
                self._files.setdefault(path, _File(path=path))

    def _send_rest(self, file: _File) -> Steps[None]:
        if _size(file.path) < file.sent:
            file.sent = 0  # it was begun anew
        while data := _read(file.path, file.sent):
            yield from self._send(file.path, file.sent, data)
            file.sent += len(data)


def write_copy(path: str, offset: int, data: bytes) -> None:
    """Write a piece of a log where it belongs; raises ClusterError."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, _WRITE, 0o644)
        try:
            if offset == 0:
                os.ftruncate(fd, 0)
            written = os.pwrite(fd, data, offset)
        finally:
            os.close(fd)
    except OSError as error:
        raise ClusterError(f"cannot write the log {path}: {error.strerror}") from error
    if written != len(data):
        raise ClusterError(f"cannot write the log {path}: only {written} of {len(data)} bytes")


def _files_below(folder: str) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            yield os.path.join(parent, name)


def _size(path: str) -> int:
    try:
        found = os.lstat(path)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _read(path: str, offset: int) -> bytes:
    if not _size(path):
        return b""  # also what is no plain file, and would have to be waited for
    try:
        fd = os.open(path, _READ)
    except OSError:
        return b""
    try:
        return os.pread(fd, _CHUNK, offset)
    except OSError:
        return b""
    finally:
        os.close(fd)
