"""Commands whose output is not read to its end, or has no room: `command | head`, a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable

__all__ = ["NO_ROOM_EXIT_CODE", "UNREAD_EXIT_CODE", "until_unread"]

# What a shell says of a program that SIGPIPE has ended: 128 + 13.
UNREAD_EXIT_CODE = 141
# EX_IOERR of sysexits.h.
NO_ROOM_EXIT_CODE = 74


def until_unread(command: Callable[[], int]) -> int:
    """Do what a command does; return its exit code.

    Or 141 once its reader has closed the pipe, 74 if its output cannot be written.
    """
    try:
        code = command()
        # Flush here: an error while the interpreter ends could not be caught.
        if sys.stdout is not None:  # a process may be started without an output
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # The interpreter must not complain about it either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.EPIPE:
            return UNREAD_EXIT_CODE
        with contextlib.suppress(OSError):
            os.write(2, f"cannot write the output: {error.strerror}\n".encode())
        return NO_ROOM_EXIT_CODE
    return code
