"""A user's folder that is brought to machines which do not have it, under the same path.

It travels as one archive over the link to the agent. What was brought is removed at the end.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from typing import Final

from elastic_harness.cluster.cluster import ClusterError
from pytest_elastic.errors import UsageError

__all__ = ["PIECE_BYTES", "pack_folder", "unpack_folder"]

# Nothing of these is part of a program.
_LEFT_OUT: Final = frozenset({".git", "__pycache__", ".elastic", ".pytest_cache", ".venv"})
# A program and its settings; data does not travel through pytest.
_MOST_BYTES: Final = 256 << 20
PIECE_BYTES: Final = 128 * 1024


def pack_folder(folder: str) -> bytes:
    """Return an archive of a folder; raises UsageError where it is none, or is too large."""
    if not os.path.isdir(folder):
        raise UsageError(f"--elastic-copy={folder}: there is no such folder")
    try:
        return _pack(folder)
    except OSError as error:
        raise UsageError(f"--elastic-copy={folder}: it cannot be read: {error}") from error


def _pack(folder: str) -> bytes:
    found = list(_files_below(folder))
    size = sum(os.lstat(path).st_size for path in found)
    if size > _MOST_BYTES:
        most = f"{_MOST_BYTES >> 20} MiB are copied at most"
        raise UsageError(
            f"--elastic-copy={folder}: it has {size >> 20} MiB, and {most}",
            hint="Name the folder of the program; what is large is expected on every machine.",
        )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for path in found:
            archive.add(path, arcname=os.path.relpath(path, folder), recursive=False)
    return packed.getvalue()


def unpack_folder(data: bytes, folder: str) -> None:
    """Unpack an archive into an empty folder; raises ClusterError."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extraction_filter = lambda member, _: member  # links may lead anywhere
            archive.extractall(folder)  # noqa: S202 (our own pytest has packed it)
    except (OSError, tarfile.TarError) as error:
        raise ClusterError(f"cannot copy {folder}: {error}") from error


def _files_below(folder: str) -> Iterator[str]:
    """Yield folders, files and links, each folder before what is in it."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for name in (*folders, *sorted(files)):
            path = os.path.join(parent, name)
            if os.path.islink(path) or os.path.isdir(path) or os.path.isfile(path):
                yield path
