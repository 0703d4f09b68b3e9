"""Which files of a folder are written, by any process, as the kernel tells it (inotify).

What a job saves becomes a part of its history that way, without a word in its script.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

from elastic_harness.cluster.facets import OnUnseen, OnWritten
from pytest_elastic.loop import Loop

__all__ = ["FolderWatch", "folder_identity"]

_CLOSE_WRITE, _MOVED_TO, _CREATE, _OVERFLOW, _IS_DIR = 0x8, 0x80, 0x100, 0x4000, 0x40000000
_NON_BLOCKING_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT = struct.Struct("iIII")
_CHUNK = 1 << 16
# A folder for each step, each of some files: more than this is a mistake.
_MOST_FOLDERS = 10_000
# What an error number says, where the kernel's own words name another thing.
_NO_ROOM: Final = {
    errno.EMFILE: "no more inotify instances or open files (fs.inotify.max_user_instances)",
    errno.ENOSPC: "no more inotify watches (fs.inotify.max_user_watches)",
}


class FolderWatch:
    """Watches a folder as `Files.watch` does, from `start` until `close`."""

    def __init__(
        self,
        loop: Loop,
        folder: str,
        on_written: OnWritten,
        on_unseen: OnUnseen,
    ) -> None:
        self._loop = loop
        self._folder = folder
        self._on_written = on_written
        self._on_unseen = on_unseen
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._folders: dict[int, str] = {}
        self._misses_files = False
        self._fd = -1

    def start(self) -> None:
        """Watch: what is there already is not told."""
        self._fd = self._libc.inotify_init1(_NON_BLOCKING_CLOEXEC)
        if self._fd < 0:
            self._miss(_error_text(ctypes.get_errno()))
            return
        self._add("", tells="")
        self._loop.watch(self._fd, on_readable=self.read)

    def read(self) -> None:
        """Tell of everything that has been written so far."""
        while self._fd >= 0:
            try:
                data = os.read(self._fd, _CHUNK)
            except BlockingIOError:
                return
            while data:
                watch, mask, _, length = _EVENT.unpack_from(data)
                name = os.fsdecode(data[_EVENT.size : _EVENT.size + length].rstrip(b"\0"))
                data = data[_EVENT.size + length :]
                if mask & _OVERFLOW:
                    self._miss(
                        "files were written faster than they were told of "
                        "(fs.inotify.max_queued_events)"
                    )
                elif watch in self._folders and name:
                    self._on_event(os.path.join(self._folders[watch], name), mask)

    def close(self) -> None:
        """Watch no more; harmless twice."""
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _on_event(self, path: str, mask: int) -> None:
        if mask & _IS_DIR:
            # One that is renamed is complete, and so is what lies in it.
            self._add(path, tells="moved" if mask & _MOVED_TO else "written")
        elif mask & _CLOSE_WRITE:
            self._tell(path, "written")
        elif mask & _MOVED_TO:
            self._tell(path, "moved")

    def _tell(self, path: str, how: str) -> None:
        try:
            size = os.stat(self._whole(path)).st_size
        except OSError:
            size = None
        self._on_written(path, how, size)

    def _add(self, path: str, *, tells: str) -> None:
        """Watch a folder and those in it; `tells` how its files came, if they are newer than us."""
        whole = self._whole(path)
        if len(self._folders) >= _MOST_FOLDERS:
            self._miss(f"{self._folder} has more than {_MOST_FOLDERS} folders")
            return
        mask = _CLOSE_WRITE | _MOVED_TO | _CREATE
        watch = self._libc.inotify_add_watch(self._fd, os.fsencode(whole), mask)
        if watch < 0:
            self._on_error(path, ctypes.get_errno())
            return
        self._folders[watch] = path
        try:
            with os.scandir(whole) as entries:
                for entry in entries:
                    inside = os.path.join(path, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        self._add(inside, tells=tells)
                    elif tells:
                        self._tell(inside, tells)
        except OSError as error:
            self._on_error(path, error.errno or 0)

    def _on_error(self, path: str, number: int) -> None:
        """Say that a folder cannot be watched, if the job may write there."""
        whole = self._whole(path)
        if path and number in (errno.ENOENT, errno.ENOTDIR):
            return  # it is gone again
        if path and number == errno.EACCES and not os.access(whole, os.X_OK, effective_ids=True):
            return  # neither can the job enter it, which has the same rights
        self._miss(f"{whole}: {_error_text(number)}")

    def _whole(self, path: str) -> str:
        return os.path.join(self._folder, path) if path else self._folder

    def _miss(self, reason: str) -> None:
        if not self._misses_files:
            self._misses_files = True
            self._on_unseen(reason)


def folder_identity(folder: str) -> str:
    """Return what names a folder on all machines: two that see the same one, on one kernel, agree.

    Machines that share it over a network do not; their kernels tell each of its own writers only.
    """
    found = os.stat(folder)
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {found.st_dev} {found.st_ino}"


def _error_text(number: int) -> str:
    return _NO_ROOM.get(number, os.strerror(number))
