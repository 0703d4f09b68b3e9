"""A copy of the folder that a job is started in, so that what it writes there is its run's own."""

from __future__ import annotations

import os
import shutil

from pytest_elastic.errors import UsageError

__all__ = ["copy_working_folder"]

# What no program reads as it runs, or what is far larger than a program.
_LEFT_OUT = frozenset({
    "__pycache__", ".elastic", ".git", ".hg", ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache",
    ".svn", ".tox", ".venv", "node_modules", "venv",
})  # fmt: skip
# An entry that is larger is data: the job sees the original, through a symbolic link.
_MOST_BYTES = 16 << 20
_MOST_FILES = 2000


def copy_working_folder(source: str, target: str) -> None:
    """Make `target` a copy of a folder: data sets and other large entries are linked, not copied.

    Raises UsageError where a file of it cannot be read.
    """
    os.makedirs(target)
    try:
        with os.scandir(source) as entries:
            for entry in entries:
                if entry.name not in _LEFT_OUT and not _holds(entry, target):
                    _take(entry, os.path.join(target, entry.name))
    except (OSError, shutil.Error) as error:
        raise UsageError(
            f"the working folder {source} cannot be copied: {error}",
            hint="Start in a folder that holds the program and what it needs, and little else.",
        ) from error


def _take(entry: os.DirEntry[str], copy: str) -> None:
    if entry.is_symlink() or _is_large(entry):
        os.symlink(os.path.realpath(entry.path), copy)
    elif entry.is_dir():
        shutil.copytree(entry.path, copy, symlinks=True, ignore=_leave_out)
    elif entry.is_file():
        shutil.copy2(entry.path, copy)


def _leave_out(_: str, names: list[str]) -> set[str]:
    return set(names) & _LEFT_OUT


def _holds(entry: os.DirEntry[str], target: str) -> bool:
    """Tell whether a folder holds the copy itself: it would be copied without end."""
    return f"{os.path.realpath(target)}/".startswith(f"{os.path.realpath(entry.path)}/")


def _is_large(entry: os.DirEntry[str]) -> bool:
    if not entry.is_dir():
        return entry.is_file() and entry.stat().st_size > _MOST_BYTES
    size = count = 0
    for folder, folders, names in os.walk(entry.path):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        count += len(names)
        size += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
        if size > _MOST_BYTES or count > _MOST_FILES:
            return True
    return False
