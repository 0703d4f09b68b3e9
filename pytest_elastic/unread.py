"""Commands whose output is not read to its end: `command | head`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

__all__ = ["UNREAD_EXIT_CODE", "until_unread"]

# What a shell says of a program that SIGPIPE has ended: 128 + 13.
UNREAD_EXIT_CODE = 141


def until_unread(command: Callable[[], int]) -> int:
    """Do what a command does; return its exit code, or 141 once its reader has closed the pipe."""
    try:
        code = command()
        # Flush here: an error while the interpreter ends could not be caught.
        if sys.stdout is not None:  # a process may be started without an output
            sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter must not complain about it either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return UNREAD_EXIT_CODE
    return code
