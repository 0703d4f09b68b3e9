"""What a test's author is shown of an error that says whose doing it was: the test's own line.

Our frames, and the error of a library that ours was made from, say nothing to the user who wrote
`loss="120%"`. Errors of ours that are bugs keep all they have.
"""

from __future__ import annotations

import os
import sysconfig
from types import TracebackType

import elastic_harness
from elastic_harness.job import NotSeen

import pytest_elastic
from pytest_elastic.errors import ElasticError, InternalError, UsageError

__all__ = ["leave_out_ours"]

_OURS = tuple(
    os.path.join(os.path.abspath(folder), "")
    for package in (pytest_elastic, elastic_harness)
    for folder in package.__path__
)
# Between our frames: threads, context managers, pydantic.
_LIBRARIES = tuple(
    os.path.join(path, "")
    for name, path in sysconfig.get_paths().items()
    if name in {"stdlib", "platstdlib", "purelib", "platlib"}
)


def leave_out_ours(error: BaseException) -> None:
    """Cut a traceback behind its last frame that is neither ours nor a library's, if there is one.

    Done to what we say to a test: a UsageError and its like, and a wait that was in vain.
    """
    if not isinstance(error, (ElasticError, NotSeen)) or isinstance(error, InternalError):
        return
    last: TracebackType | None = None
    frame = error.__traceback__
    while frame is not None:
        if not frame.tb_frame.f_code.co_filename.startswith((*_OURS, *_LIBRARIES)):
            last = frame
        frame = frame.tb_next
    if last is None:
        return
    last.tb_next = None
    if isinstance(error, UsageError):
        error.__cause__ = None
        error.__suppress_context__ = True
