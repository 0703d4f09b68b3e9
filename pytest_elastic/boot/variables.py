"""Which environment variables modules read while they are imported, as far as they ask Python.

A warm interpreter records this while it imports what is preloaded: a program whose variables differ
in one of them must not be forked from it. What libraries read by the C function getenv is not seen
here; `workers.library_reads` lists that.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["Reads", "recorded"]

_MAPPINGS = frozenset({"os", "_collections_abc", "collections.abc", "copy"})


class Reads:
    """The `names` that were asked for, and the packages that went through all variables."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.by_all: set[str] = set()


@contextlib.contextmanager
def recorded() -> Iterator[Reads]:
    """Record what is read from `os.environ` and `os.environb`, by `os.getenv` and its like too."""
    reads = Reads()
    kind: Any = type(os.environ)
    get, iterate = kind.__getitem__, kind.__iter__

    def get_and_note(environ: object, name: object) -> object:
        if isinstance(name, str | bytes):
            reads.names.add(os.fsdecode(name))
        return get(environ, name)

    def iterate_and_note(environ: object) -> object:
        reads.by_all.add(_asking_package())
        return iterate(environ)

    kind.__getitem__, kind.__iter__ = get_and_note, iterate_and_note
    try:
        yield reads
    finally:
        kind.__getitem__, kind.__iter__ = get, iterate


def _asking_package() -> str:
    """Return the package whose code goes through a mapping, past the library that helps it to."""
    frame = sys._getframe(2)  # noqa: SLF001 (no other way to know a caller)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _MAPPINGS:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
