"""What `/proc/PID/cmdline` and `/proc/PID/environ` show for a process that was forked, not exec'ed.

`ps`, `pgrep -f` and other readers of a worker's environment from outside see the strings that lie
where the kernel put them at exec. PR_SET_MM_MAP (no privilege needed) points it at new ones. Where
the kernel refuses, nothing changes: this is for the eyes only.

C's `environ` points at the new strings, too. Programs that change their own title (setproctitle, as
PostgreSQL did first) look for what they may overwrite in front of the first variable.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Mapping, Sequence

__all__ = ["show"]

_PR_SET_MM = 35
_PR_SET_MM_MAP = 14
# These must live as long as the process does.
_kept: list[tuple[mmap.mmap, ctypes.Array[ctypes.c_void_p]]] = []


def show(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Make this process look as if it had been started with these; False where that fails."""
    arguments = b"".join(os.fsencode(word) + b"\0" for word in argv)
    variables = b"".join(
        os.fsencode(name) + b"=" + os.fsencode(value) + b"\0" for name, value in environ.items()
    )
    try:
        return _point_at(arguments, variables)
    except (OSError, ValueError, IndexError):
        return False


def _point_at(arguments: bytes, variables: bytes) -> bool:
    with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
        # Counted from 3, the field behind the command in parentheses; proc(5) counts from 1.
        fields = stat.read().rpartition(")")[2].split()
    start_code, end_code, start_stack = (int(fields[n - 3]) for n in (26, 27, 28))
    start_data, end_data, start_brk = (int(fields[n - 3]) for n in (45, 46, 47))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    # Private: the kernel shows anonymous memory only, and shared memory does not count as that.
    area = mmap.mmap(
        -1, len(arguments) + len(variables) + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    area.write(arguments + variables)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(area))
    middle = begin + len(arguments)
    # struct prctl_mm_map: 11 addresses, then auxv, its size and exe_fd, left alone.
    layout = struct.pack(
        "=12QIi",
        *(start_code, end_code, start_data, end_data, start_brk, libc.sbrk(0), start_stack),
        *(begin, middle, middle, middle + len(variables)),
        *(0, 0, -1),
    )
    raw = ctypes.create_string_buffer(layout, len(layout))
    code = libc.prctl(
        _PR_SET_MM, _PR_SET_MM_MAP, raw, ctypes.c_ulong(len(layout)), ctypes.c_ulong(0)
    )
    if code != 0:
        return False
    starts = [middle]
    for each in variables.split(b"\0")[:-1]:
        starts.append(starts[-1] + len(each) + 1)
    pointers = (ctypes.c_void_p * len(starts))(*starts[:-1], None)
    ctypes.c_void_p.in_dll(libc, "environ").value = ctypes.addressof(pointers)
    _kept.append((area, pointers))
    return True
