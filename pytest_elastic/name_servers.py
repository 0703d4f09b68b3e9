"""Keeps one thread from asking DNS servers: torch looks names up for its log lines."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

__all__ = ["without_name_servers"]


class _ResolverState(ctypes.Structure):
    """The first fields of `struct __res_state` of <resolv.h>, glibc's settings of one thread."""

    _fields_ = (
        ("retrans", ctypes.c_int),
        ("retry", ctypes.c_int),
        ("options", ctypes.c_ulong),
        ("nscount", ctypes.c_int),
    )


@contextlib.contextmanager
def without_name_servers() -> Iterator[None]:
    """Let this thread ask no DNS server: its lookups fail at once, except for /etc/hosts.

    torch's client asks for the name of the address that it is connected to, for its log lines, and
    waits for as long as the resolver takes (10 s where none answers). A C library without this
    state, or a name service that is not DNS (nss-resolve, nscd), is left as it is.
    """
    libc = ctypes.CDLL(None)
    try:
        initialise, state_of_thread = libc["__res_init"], libc["__res_state"]
    except AttributeError:
        yield
        return
    state_of_thread.restype = ctypes.POINTER(_ResolverState)
    initialise()
    state = state_of_thread().contents
    before, state.nscount = state.nscount, 0
    try:
        yield
    finally:
        state.nscount = before
