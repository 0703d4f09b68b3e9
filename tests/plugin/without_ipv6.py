"""A command on a machine without IPv6, as `ipv6.disable=1` makes it: no socket of that family.

    python without_ipv6.py COMMAND [ARGUMENT...]

By a filter of the kernel (seccomp) that all children inherit.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Sequence

_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _SKIP_UNLESS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_FAIL_WITH, _ALLOW = 0x0005_0000, 0x7FFF_0000
# The number of the call, and where its first argument is.
_SOCKET = {"x86_64": 41, "aarch64": 198}
_NUMBER_AT, _FAMILY_AT = 0, 16


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def main(command: Sequence[str]) -> None:
    """Become the command; exits with a sentence where there can be no such filter."""
    if os.uname().machine not in _SOCKET:
        raise SystemExit(f"cannot filter calls of {os.uname().machine}")
    lines = (
        (_LOAD, 0, 0, _NUMBER_AT),
        (_SKIP_UNLESS_EQUAL, 0, 3, _SOCKET[os.uname().machine]),
        (_LOAD, 0, 0, _FAMILY_AT),
        (_SKIP_UNLESS_EQUAL, 0, 1, socket.AF_INET6),
        (_RETURN, 0, 0, _FAIL_WITH | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = b"".join(struct.pack("=HBBI", *line) for line in lines)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(_Program(len(lines), code)), 0, 0):
        raise SystemExit(f"cannot filter calls: {os.strerror(ctypes.get_errno())}")
    os.execvp(command[0], list(command))


if __name__ == "__main__":
    main(sys.argv[1:])
