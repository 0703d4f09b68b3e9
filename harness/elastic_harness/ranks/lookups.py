"""Keeps torch from looking names up for its log lines, and from remarking that it found none."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from pytest_elastic.name_servers import without_name_servers

__all__ = ["without_lookups"]

_REMARK = b"The hostname of the client socket cannot be retrieved"


@contextlib.contextmanager
def without_lookups() -> Iterator[None]:
    """Let this thread ask no DNS server, whose answer may take seconds, and torch not remark on it.

    torch wants names for its log lines alone. All else that is written to standard error meanwhile
    is written there at the end.
    """
    sys.stderr.flush()
    real, held = os.dup(2), os.memfd_create("remarks")
    os.dup2(held, 2)
    try:
        with without_name_servers():
            yield
    finally:
        os.dup2(real, 2)
        os.close(real)
        lines = os.pread(held, os.fstat(held).st_size, 0).splitlines(keepends=True)
        os.close(held)
        if said := b"".join(line for line in lines if _REMARK not in line):
            os.write(2, said)
