"""Where the other nodes reach this one; looked at again until it has joined (R14).

The name of an endpoint may get its address later than a node starts (a pod's DNS record), and with
it the node learns which of its addresses leads there. Until then it listens at a guess.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence

from pytest_elastic.channel import listen, listen_on_free_port
from pytest_elastic.config import Endpoint
from pytest_elastic.errors import UsageError
from pytest_elastic.port_range import PortRange
from pytest_elastic.rendezvous.ports import EndpointStore

__all__ = ["OwnPlace"]

# Names that were looked up a moment ago, for the endpoint's store, answer in no time.
_LOOK_S = 1.0


class OwnPlace:
    """The address under which a node is known to the others, and the socket that listens there.

    `endpoints`: where nodes meet, as that is what the address depends on; None: it stays as it is.
    `on_moved` is told when there is another socket, and `on_doubt` what is doubtful about the
    address, once for each text. Raises UsageError for an address that is not ours.
    """

    def __init__(
        self,
        address: str,
        *,
        ports: PortRange | None,
        store: EndpointStore,
        endpoints: Sequence[Endpoint] | None,
        on_moved: Callable[[socket.socket], None],
        on_doubt: Callable[[str], None],
    ) -> None:
        self.address = address
        self._ports = ports
        self._store = store
        self._endpoints = endpoints
        self._on_moved = on_moved
        self._on_doubt = on_doubt
        self._doubts: set[str] = set()
        try:
            self.listener = listen_on_free_port(address, ports, after=None)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {address} for the other nodes: {error.strerror}",
                hint="An address of this machine is expected, and a port that no process uses.",
            ) from error

    @property
    def port(self) -> int:
        """The port on which this node listens."""
        return int(self.listener.getsockname()[1])

    def look_again(self, on_done: Callable[[str], None]) -> None:
        """Find out which address is the right one now, and call back with it."""
        if self._endpoints is None:
            on_done(self.address)
            return

        def take(address: str, doubt: str) -> None:
            if doubt and doubt not in self._doubts:
                self._doubts.add(doubt)
                self._on_doubt(doubt)
            on_done(address or self.address)

        self._store.own_address(self._endpoints, timeout_s=_LOOK_S, on_done=take)

    def move(self, address: str) -> socket.socket | None:
        """Listen at an address; return the socket of before, to be closed, if it was another."""
        if address == self.address:
            return None
        try:
            listener = self._listen(address)
        except OSError:
            return None  # it has gone already, or cannot be used yet: it is looked at again
        before, self.listener, self.address = self.listener, listener, address
        self._on_moved(listener)
        return before

    def _listen(self, address: str) -> socket.socket:
        """Listen on the port of before, as others may know it, or on any that may be used."""
        try:
            return listen(address, self.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return listen_on_free_port(address, self._ports, after=None)
