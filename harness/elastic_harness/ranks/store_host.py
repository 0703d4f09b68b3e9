"""A process of its own for the ranks' stores: it has threads, and what forks ranks must not."""

from __future__ import annotations

import os
import signal
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from elastic_harness.cluster.node.namespace import die_with_parent
from elastic_harness.ranks.lookups import without_lookups

__all__ = ["StoreHost"]


class StoreHost:
    """Hosts one store at a time, on a port of the kernel's choice."""

    def __init__(self) -> None:
        self._conn, other = Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                die_with_parent(signal.SIGKILL)
                self._conn.close()
                _host(other)
            finally:
                os._exit(1)
        other.close()

    def renew(self) -> int:
        """Let the present store go and host an empty one; return its port."""
        self._conn.send(None)
        port: int = self._conn.recv()
        return port


def _host(conn: Connection) -> None:
    import torch.distributed as dist

    store = None
    while True:
        conn.recv()
        del store
        with without_lookups():
            store = dist.TCPStore(  # type: ignore[attr-defined]
                "127.0.0.1", 0, is_master=True, wait_for_workers=False
            )
        conn.send(store.port)
