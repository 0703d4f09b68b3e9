"""A proxy: an address listened on, connections to an upstream, and the toxics they all share."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from random import Random

from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.toxiproxy.address import Listener, OpenSocket, resolved
from elastic_harness.toxiproxy.connection import Connection
from elastic_harness.toxiproxy.stream import Direction, Toxic
from pytest_elastic.loop import Loop

__all__ = ["Proxy"]

# Each has two descriptors and, under a latency, up to 64 MiB.
_MAX_CONNECTIONS = 4096


class Proxy:
    """Belongs to a loop's thread, and is off until `start`."""

    def __init__(
        self,
        loop: Loop,
        seed: Seed,
        *,
        name: str,
        listen: str,
        upstream: str,
        open_socket: OpenSocket | None = None,
    ) -> None:
        self.name = name
        self.listen = listen
        self.upstream = upstream
        self._loop = loop
        self._seed = seed
        self._listener: Listener | None = None
        self._connections: list[Connection] = []
        self._accepted = 0
        self._toxics: list[Toxic] = []
        self._open_socket = open_socket
        self._met: dict[str, int] = {}
        self._read = dict.fromkeys(Direction, 0)

    @property
    def is_enabled(self) -> bool:
        """Tell whether it listens."""
        return self._listener is not None

    @property
    def toxics(self) -> list[Toxic]:
        """Return those of the upstream direction, then the others, each in order of addition."""
        return [toxic for way in Direction for toxic in self._toxics if toxic.direction is way]

    def start(self) -> None:
        """Listen; harmless when it does already. Raises AddressError."""
        if self._listener is None:
            self._listener = Listener(self._loop, self.listen, on_accepted=self._connect)
            self.listen = self._listener.address

    def start_at(self, bound: socket.socket) -> None:
        """Listen at a socket that does so already, and is the proxy's from now on."""
        self._listener = Listener(self._loop, self.listen, on_accepted=self._connect, bound=bound)

    def met(self, toxic: str) -> int:
        """Return how often a toxic had something to do, since it was added.

        Of a connection that it harms: bytes in its direction (`slow_close`: their end;
        `limit_data`: those that reach its limit; `slicer`: more at once than a slice).
        """
        return self._met.get(toxic, 0)

    def read(self, way: Direction) -> int:
        """Return how often any connection had bytes, or their end, to pass on in a direction."""
        return self._read[way]

    def stop(self) -> None:
        """Listen no more and close every connection; harmless twice."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            connection.close()

    def move(self, *, listen: str, upstream: str, enabled: bool) -> None:
        """Take on these three. A change of address closes every connection. Raises AddressError.

        An address that cannot be understood changes nothing. One that cannot be had leaves the
        proxy off, on that address.
        """
        if self.differs(listen=listen, upstream=upstream):
            self.stop()
            self.listen, self.upstream = listen, upstream
        if enabled:
            self.start()
        else:
            self.stop()

    def differs(self, *, listen: str, upstream: str) -> bool:
        """Tell whether these are other addresses; port 0 always is. Raises AddressError."""
        return self.listen != (resolved(listen) if listen else ":0") or self.upstream != upstream

    def find_toxic(self, name: str) -> Toxic | None:
        """Return the toxic of that name."""
        return next((toxic for toxic in self._toxics if toxic.name == name), None)

    def add_toxic(self, toxic: Toxic) -> None:
        """Put a toxic at the end of its direction's chain, on every connection."""
        self._toxics.append(toxic)
        self._met[toxic.name] = 0
        for connection in list(self._connections):
            connection.add_toxic(toxic)

    def change_toxic(self, toxic: Toxic) -> None:
        """Put a toxic in the place of the one of that name."""
        self._toxics = [toxic if old.name == toxic.name else old for old in self._toxics]
        for connection in list(self._connections):
            connection.change_toxic(toxic)

    def remove_toxics(self, toxics: Iterable[Toxic]) -> None:
        """Do without some of the toxics."""
        for toxic in toxics:
            self._toxics.remove(toxic)
            for connection in list(self._connections):
                connection.remove_toxic(toxic)

    def _connect(self, client: socket.socket) -> None:
        if len(self._connections) >= _MAX_CONNECTIONS:
            client.close()
            return
        self._accepted += 1
        number = self._accepted

        def chance_for(way: Direction, toxic: str) -> Random:
            return self._seed.stream(f"toxiproxy/{self.name}/{number}/{way.value}/{toxic}")

        connection = Connection(
            self._loop,
            client,
            self.upstream,
            chance_for=chance_for,
            on_closed=self._connections.remove,
            on_read=self._count_read,
            on_harmed=self._count_harmed,
            open_socket=self._open_socket,
        )
        self._connections.append(connection)
        for toxic in self._toxics:
            connection.add_toxic(toxic)
        connection.start()

    def _count_read(self, way: Direction) -> None:
        self._read[way] += 1

    def _count_harmed(self, toxic: str) -> None:
        self._met[toxic] = self._met.get(toxic, 0) + 1
