"""Looks host names up within a time limit, which `getaddrinfo` alone does not have.

A lookup runs on a thread of its own. When it takes longer than its caller can wait, the caller gets
the addresses of the last lookup that succeeded, and the late answer serves the next caller.
"""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import threading

from pytest_elastic.channel import host_to_look_up, numeric_address

__all__ = ["addresses_of", "name_or_address", "resolve"]

# What is no such name stays out of a worker's environment, as another node has said it.
_NAME = re.compile(r"[\w.-]{1,253}", re.ASCII)


class _Lookup:
    """One lookup in progress, and its result."""

    def __init__(self, host: str) -> None:
        self.is_done = threading.Event()
        self.addresses: list[str] = []
        self.error: OSError | UnicodeError | None = None
        self._host = host

    def run(self) -> None:
        try:
            self.addresses = resolve(self._host)
        except (OSError, UnicodeError) as error:
            self.error = error
        with _lock:
            _running.pop(self._host, None)
            if self.error is None:
                _last_known[self._host] = self.addresses
        self.is_done.set()


_lock = threading.Lock()
_running: dict[str, _Lookup] = {}  # at most one for each host, however often it is asked for
_last_known: dict[str, list[str]] = {}


def addresses_of(host: str, timeout_s: float, *, share_if_known: float = 1.0) -> list[str]:
    """Return the addresses of a host, in the order in which they are to be tried.

    If no answer comes in time, or the name service has a temporary failure, these are the addresses
    of the last successful lookup of this process; where there was one, only a share of the time is
    waited, so that the caller has the rest. Without one, raises TimeoutError or socket.gaierror.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return [host]
    with _lock:
        lookup = _running.get(host)
        if lookup is None:
            lookup = _running[host] = _Lookup(host)
            threading.Thread(target=lookup.run, daemon=True).start()
        last_known = _last_known.get(host)
    is_done = lookup.is_done.wait(timeout_s * (1.0 if last_known is None else share_if_known))
    error: Exception | None = lookup.error
    if is_done and error is None:
        return lookup.addresses
    if not is_done:
        why = f"the lookup of the name {host} had no answer within {timeout_s:g} s"
        error = TimeoutError(errno.ETIMEDOUT, why)
    elif not (isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN):
        assert error is not None, "a lookup that is done has addresses or an error"
        raise error
    if last_known is not None:
        return last_known
    raise error


def name_or_address(name: str, address: str, timeout_s: float) -> str:
    """Return a name for an address if it leads here to that address alone, else the address."""
    if not _NAME.fullmatch(name):
        return address
    try:
        found = addresses_of(name, timeout_s)
    except (OSError, UnicodeError):
        return address
    return name if found == [address] else address


def resolve(host: str) -> list[str]:
    """Return the addresses of a host, for as long as that takes; raises OSError."""
    found = socket.getaddrinfo(host_to_look_up(host), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(numeric_address(entry[4]) for entry in found))
