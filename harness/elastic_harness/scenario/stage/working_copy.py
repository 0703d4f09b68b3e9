"""A copy of the folder that a job is started in, so that what it writes there is its run's own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection

from pytest_elastic.errors import UsageError

__all__ = ["copy_working_folder", "is_within"]

# What no program reads as it runs, or what is far larger than a program.
_LEFT_OUT = frozenset({
    "__pycache__", ".elastic", ".git", ".hg", ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache",
    ".svn", ".tox", ".venv", "node_modules", "venv",
})  # fmt: skip
# What is larger is data: the job sees the original, through a link.
_MOST_FILES = 2000
_MOST_BYTES = 16 << 20
_MOST_BYTES_AMONG_DATA = 16 << 10


def copy_working_folder(source: str, target: str, leave_out: Collection[str] = ()) -> list[str]:
    """Make `target` a copy of a folder, in which data sets and other large files are linked.

    `leave_out`: files and folders that are not in the copy, by their paths in the folder. A folder
    below it that holds many files is linked; one that holds large files is copied but for those, so
    that new files can be written beside them. Returns the originals that are linked, which no run
    may change. Raises UsageError where a file cannot be read.
    """
    copy = _Copy(source, target, leave_out)
    try:
        copy.take(source, target, _MOST_BYTES)
    except (OSError, shutil.Error) as error:
        raise UsageError(
            f"the working folder {source} cannot be copied: {error}",
            hint="Start in a folder that holds the program and what it needs, and little else.",
        ) from error
    return copy.linked


def is_within(path: str, folder: str) -> bool:
    """Tell whether a path is a folder, or lies below it; links are followed."""
    return f"{os.path.realpath(path)}/".startswith(f"{os.path.realpath(folder).rstrip('/')}/")


class _Copy:
    """A copy in the making; `linked` are the originals that it has links to."""

    def __init__(self, source: str, target: str, leave_out: Collection[str]) -> None:
        self._source = source
        self._target = target
        self._leave_out = {os.path.join(source, os.path.normpath(path)) for path in leave_out}
        self.linked: list[str] = []

    def take(self, folder: str, copy: str, most_bytes: int) -> None:
        """Copy a folder; files of it that have more than `most_bytes` are linked."""
        os.mkdir(copy)
        with os.scandir(folder) as entries:
            for entry in entries:
                if self._is_left_out(folder, entry.name):
                    continue
                # A folder that holds the copy itself would be copied without end.
                if not is_within(self._target, entry.path):
                    self._take(entry, os.path.join(copy, entry.name), most_bytes)

    def _take(self, entry: os.DirEntry[str], copy: str, most_bytes: int) -> None:
        if entry.is_symlink():
            self._follow(entry.path, copy)
        elif entry.is_dir():
            size, count = self._extent(entry.path)
            if count > _MOST_FILES:
                self._link(entry.path, copy)
            else:
                among_data = size > _MOST_BYTES
                self.take(entry.path, copy, _MOST_BYTES_AMONG_DATA if among_data else most_bytes)
        elif entry.is_file():
            if entry.stat().st_size > most_bytes:
                self._link(entry.path, copy)
            else:
                shutil.copy2(entry.path, copy)

    def _follow(self, link: str, copy: str) -> None:
        """Link to the copy of what a link leads to, if there is one."""
        inside = os.path.relpath(os.path.realpath(link), os.path.realpath(self._source))
        if _LEFT_OUT.isdisjoint(parts := inside.split("/")) and parts[0] != "..":
            os.symlink(os.path.join(self._target, inside), copy)
        else:
            self._link(link, copy)

    def _link(self, path: str, copy: str) -> None:
        self.linked.append(os.path.realpath(path))
        os.symlink(self.linked[-1], copy)

    def _extent(self, folder: str) -> tuple[int, int]:
        """Return how many bytes are to be copied in how many files; many are counted no further."""
        size = count = 0
        for place, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not self._is_left_out(place, name)]
            copied = [name for name in names if not self._is_left_out(place, name)]
            count += len(copied)
            if count > _MOST_FILES:
                break
            size += sum(os.lstat(os.path.join(place, name)).st_size for name in copied)
        return size, count

    def _is_left_out(self, folder: str, name: str) -> bool:
        return name in _LEFT_OUT or os.path.join(folder, name) in self._leave_out
