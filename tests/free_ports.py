"""Ports that tests tell programs to listen at."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]

# Below what the kernel gives to connections: those of other tests would take a port in between.
_FIRST, _LAST = 10_000, 19_999
_any = random.SystemRandom()


def free_port() -> int:
    """Return a port that is free at all addresses of this machine."""
    while True:
        port = _any.randint(_FIRST, _LAST)
        try:
            socket.create_server(("", port)).close()
        except OSError:
            continue
        return port
