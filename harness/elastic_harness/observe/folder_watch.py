"""Which files of a folder are written, by any process, as the kernel tells it (inotify).

What a job saves becomes a part of its history that way, without a word in its script.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from typing import Final

from pytest_elastic.loop import Loop

__all__ = ["FolderWatch"]

_CLOSE_WRITE, _MOVED_TO, _CREATE, _IS_DIR = 0x8, 0x80, 0x100, 0x40000000
_NON_BLOCKING_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT = struct.Struct("iIII")
_CHUNK = 1 << 16
# A folder for each step, each of some files: nobody means to watch more than this.
_MOST_FOLDERS = 10_000


class FolderWatch:
    """Calls `on_written(path, how)` for files below a folder, the path relative to it.

    `how` is "written" (somebody who wrote has closed it) or "moved" (it was given this name). Where
    the kernel has no room for another watch, `problem` says so; else it is empty.
    """

    def __init__(self, loop: Loop, folder: str, on_written: Callable[[str, str], None]) -> None:
        self._loop = loop
        self._folder = folder
        self._on_written = on_written
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._folders: dict[int, str] = {}
        self.problem = ""
        self._fd = self._libc.inotify_init1(_NON_BLOCKING_CLOEXEC)
        if self._fd < 0:
            self.problem = f"inotify: {os.strerror(ctypes.get_errno())}"
            return
        self._add("", tells=False)
        loop.watch(self._fd, on_readable=self.read)

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
                if watch in self._folders and name:
                    self._on_event(os.path.join(self._folders[watch], name), mask)

    def close(self) -> None:
        """Watch no more; harmless twice."""
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _on_event(self, path: str, mask: int) -> None:
        if mask & _IS_DIR:
            self._add(path, tells=True)
        elif mask & _CLOSE_WRITE:
            self._on_written(path, "written")
        elif mask & _MOVED_TO:
            self._on_written(path, "moved")

    def _add(self, path: str, *, tells: bool) -> None:
        """Watch a folder and those in it; with `tells`, its files are newer than the job."""
        whole = os.path.join(self._folder, path)
        mask = _CLOSE_WRITE | _MOVED_TO | _CREATE
        watch = self._libc.inotify_add_watch(self._fd, os.fsencode(whole), mask)
        if watch < 0 or len(self._folders) >= _MOST_FOLDERS:
            self.problem = self.problem or f"{whole}: {os.strerror(ctypes.get_errno())}"
            return
        self._folders[watch] = path
        try:
            with os.scandir(whole) as entries:
                for entry in entries:
                    inside = os.path.join(path, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        self._add(inside, tells=tells)
                    elif tells:
                        self._on_written(inside, "written")
        except OSError:
            return  # it is gone again
