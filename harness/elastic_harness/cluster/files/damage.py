"""Finding a file that a job has written, and damaging it; nothing else is ever touched.

Looks below given directories only, never through a symbolic link and never into another mount. A
node's own directories are reached through its init's `/proc/PID/root`, where a link that is
followed would lead to the host's files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

from elastic_harness.cluster.cluster import ClusterError

__all__ = ["Place", "corrupt_newest"]

# A job's directory with more files than this is not one of checkpoints.
_MAX_FILES = 100_000
# No more than this is changed at a time: the harness stands still meanwhile.
_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory whose files are the job's: as the job names it, and where it is for us."""

    name: str
    path: str


def corrupt_newest(places: Sequence[Place], pattern: str, how: str) -> str:
    """Damage the newest file that matches; returns what was done, raises ClusterError.

    A relative pattern means the first place.
    """
    place, rest = _place_of(places, pattern)
    best: tuple[int, str] | None = None
    count = 0
    for relative, mtime_ns in _files_in(place):
        if PurePosixPath(f"/{relative}").match(f"/{rest}" if "/" in rest else rest):
            count += 1
            best = max(best or (0, ""), (mtime_ns, relative))
    if best is None:
        raise ClusterError(f"no file in {place.name} matches {rest!r}")
    with _opened(place, best[1]) as fd:
        what = _damage(fd, how)
    return f"{place.name}/{best[1]}, the newest of {count}: {what}"


def _place_of(places: Sequence[Place], pattern: str) -> tuple[Place, str]:
    """Return the place that a pattern means, the innermost one, and the rest of the pattern."""
    if not pattern.startswith("/"):
        return places[0], pattern
    inside = [place for place in places if pattern.startswith(f"{place.name.rstrip('/')}/")]
    if not inside:
        raise ClusterError(
            f"{pattern} is outside of what the job may lose: "
            f"{', '.join(place.name for place in places)}"
        )
    place = max(inside, key=lambda place: len(place.name))
    return place, pattern[len(place.name.rstrip("/")) + 1 :]


def _files_in(place: Place) -> Iterator[tuple[str, int]]:
    """Yield the regular files below a place, as (relative path, time of last change)."""
    try:
        device = os.stat(place.path).st_dev
    except OSError as error:
        raise ClusterError(f"{place.name} cannot be looked into: {error.strerror}") from error
    seen = 0
    for folder, folders, names, fd in os.fwalk(place.path, follow_symlinks=False):
        if os.fstat(fd).st_dev != device:
            folders.clear()
            continue
        folders.sort()
        inside = os.path.relpath(folder, place.path)
        for name in sorted(names):
            seen += 1
            if seen > _MAX_FILES:
                raise ClusterError(f"{place.name} has more than {_MAX_FILES} files")
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue  # a temporary file of the job's
            if stat.S_ISREG(found.st_mode):
                yield os.path.normpath(f"{inside}/{name}"), found.st_mtime_ns


@contextmanager
def _opened(place: Place, relative: str) -> Iterator[int]:
    """Open a file below a place, step by step, so that no link on the way is followed."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    fds = [os.open(place.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    *folders, name = relative.split("/")
    try:
        for folder in folders:
            fds.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | flags, dir_fd=fds[-1]))
        fds.append(os.open(name, os.O_RDWR | flags, dir_fd=fds[-1]))
        yield fds[-1]
    except OSError as error:
        raise ClusterError(f"{place.name}/{relative}: {error.strerror}") from error
    finally:
        for fd in fds:
            os.close(fd)


def _damage(fd: int, how: str) -> str:
    """Damage a file, leave its times as they were, and read back that it is damaged."""
    before = os.fstat(fd)
    size = before.st_size
    if size < 2:
        raise ClusterError(f"it has {size} bytes, of which none can be missed")
    middle = max(size // 2, size - _MAX_BYTES) if how == "torn" else size // 2
    match how:
        case "truncate":
            os.ftruncate(fd, middle)
            is_damaged = os.fstat(fd).st_size == middle
            what = f"cut to {middle} of {size} bytes"
        case "torn":
            old = os.pread(fd, size - middle, middle)
            os.pwrite(fd, bytes(len(old)), middle)
            is_damaged = os.pread(fd, len(old), middle) != old
            what = f"zeros from byte {middle} of {size}"
        case _:
            (old_byte,) = os.pread(fd, 1, middle)
            os.pwrite(fd, bytes([old_byte ^ 1]), middle)
            is_damaged = os.pread(fd, 1, middle) != bytes([old_byte])
            what = f"one bit of byte {middle} of {size} flipped"
    os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
    if not is_damaged:
        raise ClusterError("what was written over it was there already")
    return what
