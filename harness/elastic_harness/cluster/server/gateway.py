"""The cluster's edge: where services of the host are offered to nodes, and nodes' to the host.

In a namespace cluster it is 10.77.0.254, a place in the cluster's network whose sockets belong to
this process. Without networks of their own nodes share the host's loopback, and so does the
gateway.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

from elastic_harness.cluster.cluster import GATEWAY, Cluster, ClusterError
from elastic_harness.future import Future, settled
from elastic_harness.toxiproxy.address import Dial, MakeDial

__all__ = ["Gateway"]

_ADDRESS = "10.77.0.254"
_LOOPBACK = "127.0.0.1"
_BACKLOG = 4096


class Gateway:
    """Listens where nodes can connect to, and connects to what listens on nodes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._is_isolated = cluster.capabilities.has("gateway")

    @property
    def address(self) -> str:
        """Where nodes find what listens here."""
        return _ADDRESS if self._is_isolated else _LOOPBACK

    def listen(self, port: int) -> Future[socket.socket]:
        """Open a socket that listens at a port of the gateway (0: any that is free)."""

        def listen(opened: socket.socket) -> socket.socket:
            try:
                opened.setblocking(False)
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                opened.bind((self.address, port))
                opened.listen(_BACKLOG)
            except OSError as error:
                opened.close()
                where = f"{self.address}:{port}"
                raise ClusterError(
                    f"cannot listen at the gateway, {where}: {error.strerror}"
                ) from error
            return opened

        return self._open().then(listen)

    @property
    def dial_nodes(self) -> MakeDial:
        """How to connect to an address inside the cluster."""
        if not self._is_isolated:
            return Dial
        return partial(Dial, open_socket=self._open_for)

    def _open(self) -> Future[socket.socket]:
        if self._cluster.sockets is None:
            return settled(ClusterError("nodes on other machines do not share our sockets"))
        return self._cluster.sockets.open(GATEWAY)

    def _open_for(self, on_opened: Callable[[socket.socket | None], None]) -> None:
        self._open().add_done_callback(
            lambda done: on_opened(None if done.error is not None else done.result())
        )
