"""Which environment variables modules read while they are imported, as far as they ask Python.

A warm interpreter records this while it imports what is preloaded: a program whose variables differ
in one of them must not be forked from it. What libraries read by the C function getenv is not seen
here; `workers.warm.library_reads` lists that.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from pytest_elastic.boot import warning_filters

__all__ = ["Reads", "recorded"]

# Importing torch and torch._dynamo makes 177: in one place they save a worker 0.7 MB.
_LOGGERS = 256
_MAPPINGS = frozenset({"os", "_collections_abc", "collections.abc", "copy"})


class Reads:
    """What was asked for, and while which module was imported.

    `names` are variables by that module ("": none), `imported_by` says which other module imported
    it, `by_all` are the packages that went through all variables, `loggers` says which module made
    which logger, and `filters` which filters of warnings. On `sys.meta_path`, it sees every import
    begin.
    """

    def __init__(self) -> None:
        self.names: dict[str, set[str]] = defaultdict(set)
        self.by_all: set[str] = set()
        self.loggers: dict[str, str] = {}
        self.filters: list[warning_filters.Added] = []
        self.imported_by: dict[str, str] = {}
        self._importing: list[str] = []

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Find nothing, but note who looks for a module."""
        if name not in sys.modules:  # else it is executed once more
            self.imported_by[name] = self.innermost()
            self._importing.append(name)

    def innermost(self) -> str:
        """Return the module that is being executed now, or nothing."""
        while self._importing and not _is_executing(self._importing[-1]):
            self._importing.pop()
        return self._importing[-1] if self._importing else ""


@contextlib.contextmanager
def recorded() -> Iterator[Reads]:
    """Record what is read from `os.environ` and `os.environb`, by `os.getenv` and its like too.

    And who makes loggers, and filters of warnings, which are out of force afterwards.
    """
    import logging

    reads = Reads()
    kind: Any = type(os.environ)
    get, iterate = kind.__getitem__, kind.__iter__

    def get_and_note(environ: object, name: object) -> object:
        if isinstance(name, str | bytes) and not _is_step_of_a_walk():
            reads.names[reads.innermost()].add(os.fsdecode(name))
        return get(environ, name)

    def iterate_and_note(environ: object) -> object:
        reads.by_all.add(_asking_package())
        return iterate(environ)

    # They lie together: a child that gives them back (`boot.loggers`) writes into each.
    ready = [logging.Logger("") for _ in range(_LOGGERS)]  # noqa: LOG001 (they get their names)

    def make_and_note(name: str) -> logging.Logger:
        reads.loggers[name] = reads.innermost()
        kind = logging.getLoggerClass()
        if kind is not logging.Logger or not ready:
            return kind(name)
        logger = ready.pop()
        logger.name = name
        return logger

    kind.__getitem__, kind.__iter__ = get_and_note, iterate_and_note
    logging.root.manager.loggerClass = make_and_note  # type: ignore[assignment]  # it is only called
    try:
        with warning_filters.noted(reads.innermost) as reads.filters:
            yield reads
    finally:
        kind.__getitem__, kind.__iter__ = get, iterate
        logging.root.manager.loggerClass = None


def _is_step_of_a_walk() -> bool:
    """Tell whether `items()` or `values()` asks for the next variable: `by_all` tells of those."""
    frame = sys._getframe(2)  # noqa: SLF001 (no other way to know a caller)
    return frame.f_code.co_name == "__iter__" and frame.f_globals.get("__name__") in _MAPPINGS


def _is_executing(module: str) -> bool:
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _asking_package() -> str:
    """Return the package whose code goes through a mapping, past the library that helps it to."""
    frame = sys._getframe(2)  # noqa: SLF001 (no other way to know a caller)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _MAPPINGS:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
