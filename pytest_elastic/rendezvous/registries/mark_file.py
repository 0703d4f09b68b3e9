"""The mark of a job, as a file on this machine (R12).

It outlives the processes of a node, and neither a loss of power nor another boot: it tells the
boot's id, and its time is CLOCK_BOOTTIME. There is one for each run and endpoint, so that nodes
that share a machine do not take each other's. If anything is wrong with the file or its folder,
there is no mark. A thread reads and writes it, because its file system may hang.

The folder is this user's alone. The first line of a file holds the time, and nothing but that is
written once a beat.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import time
from collections.abc import Callable

import msgspec

from pytest_elastic.channel import read_object
from pytest_elastic.file_thread import FileThread
from pytest_elastic.rendezvous.consensus.records import KnownJob, Mark

__all__ = ["MarkFile"]

_FORMAT = "pytest-elastic mark 1"
# The job of a thousand nodes has a fifth of this.
_MAX_BYTES = 1024 * 1024
# The first line: a time, and the end of the line.
_TIME_BYTES = 24
# One is being written, and the next one will be the newest that there is by then.
_MAX_WAITING = 2
# Marks of killed jobs stay; after this long no node of such a job looks for the others.
_STALE_S = 24 * 3600.0
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class MarkFile:
    """The mark of one run at one endpoint, in a folder that is made when it is needed.

    `find_folder` returns the folder; the thread calls it, as to find it may take for ever.
    """

    def __init__(self, find_folder: Callable[[], str], run_id: str, endpoint: str) -> None:
        name = hashlib.sha256(f"{run_id}\0{endpoint}".encode(errors="surrogatepass")).hexdigest()
        self._find_folder = find_folder
        self._folder = self._path = ""  # not found yet
        self._name = f"{name[:32]}.mark"
        self._whose = {"format": _FORMAT, "run_id": run_id, "endpoint": endpoint}
        self._thread = FileThread()
        self._newest: tuple[KnownJob, float] | None = None  # to be written, and of when it is
        self._written: KnownJob | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this process has written it."""
        return self._newest is not None

    def read(self) -> Mark | None:
        """Return what was left here since this machine booted, None for anything else.

        Call it on a thread: it may take for ever.
        """
        try:
            self._find()
            if not self._has_own_folder():
                return None
            text = self._text()
            at, _, body = text.partition("\n")
            fields = dict(read_object(body) or {})
            whose = {name: fields.pop(name) for name in (*self._whose, "boot_id")}
            if whose != {**self._whose, "boot_id": _boot_id()}:
                return None
            job = msgspec.convert(fields, KnownJob)
            renewed_at = float(at)
        except (OSError, ValueError, KeyError, msgspec.ValidationError):
            return None
        if not 0 <= renewed_at <= _now():
            return None
        return Mark(job=job, renewed_at=renewed_at)

    def write(self, job: KnownJob) -> None:
        """Leave a mark, or renew it: at this moment its writer is in contact with the job."""
        self._newest = job, _now()
        if self._thread.waiting < _MAX_WAITING:
            self._thread.do(self._write)

    def remove(self) -> None:
        """Leave nothing: the job has ended."""
        self._newest = None
        self._thread.do(self._remove)

    def wait(self, limit_s: float) -> bool:
        """Wait at most `limit_s` until all has been done, and tell whether it has."""
        return self._thread.wait(limit_s)

    # What the thread does; none of it raises.

    def _write(self) -> None:
        if self._newest is None:
            return
        job, at = self._newest
        with contextlib.suppress(OSError):
            self._find()
            if self._written is None:
                self._prepare()
            if job == self._written and self._renew(at):
                return
            self._written = job
            if self._has_own_folder():
                self._replace(job, at)

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self._find()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)  # unless another job has a mark there
        self._written = None

    def _find(self) -> None:
        if not self._folder:
            self._folder = self._find_folder()
            self._path = os.path.join(self._folder, self._name)

    def _prepare(self) -> None:
        """Make the folder, and clear away what is a day old."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        if not self._has_own_folder():
            return
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE_S:
                        os.unlink(entry.path)

    def _has_own_folder(self) -> bool:
        """Tell whether the folder is there, and only this user can write into it."""
        facts = os.lstat(self._folder)
        is_closed = not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and is_closed

    def _text(self) -> str:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self._path, flags)
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
                raise ValueError("another user's")
            if facts.st_size > _MAX_BYTES:
                raise ValueError("too large")
            return os.pread(fd, _MAX_BYTES, 0).decode()
        finally:
            os.close(fd)

    def _replace(self, job: KnownJob, at: float) -> None:
        body = {**self._whose, "boot_id": _boot_id(), **msgspec.to_builtins(job)}
        new = f"{self._path}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        fd = os.open(new, flags, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(_time_line(at) + json.dumps(body).encode())
            os.rename(new, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise

    def _renew(self, at: float) -> bool:
        """Write the time only; tell whether the file is still there for that."""
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            os.pwrite(fd, _time_line(at), 0)
        finally:
            os.close(fd)
        return True


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _time_line(at: float) -> bytes:
    return f"{math.floor(at * 1000) / 1000:.3f}".ljust(_TIME_BYTES - 1).encode() + b"\n"


def _boot_id() -> str:
    with open(_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()
