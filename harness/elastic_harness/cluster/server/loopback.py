"""Loopback addresses that no session beside this one uses."""

from __future__ import annotations

import os
import socket

from elastic_harness.cluster.cluster import ClusterError

__all__ = ["LoopbackRange"]

# 127.2.2 to 127.251.251: clear of what other programs use, and of the network's own first and last.
_FIRST, _COUNT = 2, 250


class LoopbackRange:
    """The addresses `prefix`.1 to `prefix`.250, ours until `close`.

    The lock is an abstract socket: it is as local to the network as loopback is, leaves no file,
    and the kernel lets go of it when this process ends, however it does.
    """

    def __init__(self) -> None:
        for attempt in range(_COUNT * _COUNT):
            high, low = divmod((os.getpid() + attempt) % (_COUNT * _COUNT), _COUNT)
            self.prefix = f"127.{high + _FIRST}.{low + _FIRST}"
            self._lock = socket.socket(socket.AF_UNIX)
            try:
                self._lock.bind(f"\0pytest-elastic-{self.prefix}")
            except OSError:
                self._lock.close()
            else:
                return
        raise ClusterError("cannot find loopback addresses that no other session uses")

    def fileno(self) -> int:
        """Return the descriptor that holds the addresses."""
        return self._lock.fileno()

    def close(self) -> None:
        """Let another session have the addresses."""
        self._lock.close()
