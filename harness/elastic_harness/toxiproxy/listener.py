"""A listening socket on a loop."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

from elastic_harness.toxiproxy.address import bind
from pytest_elastic.loop import Loop, Timer

__all__ = ["Listener"]

_ACCEPTS_AT_ONCE = 64
# When the process has no descriptor left, those who wait keep the listener readable.
_PAUSE_S = 0.1
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """Listens from its making until `close`, and hands over what it accepts, not blocking.

    Raises AddressError where the address cannot be had; `address` is the one it is bound to. A
    `bound` socket that listens already is taken over instead.
    """

    def __init__(
        self,
        loop: Loop,
        address: str,
        *,
        on_accepted: Callable[[socket.socket], None],
        bound: socket.socket | None = None,
    ) -> None:
        self._socket, self.address = (bound, address) if bound is not None else bind(address)
        self._loop = loop
        self._on_accepted = on_accepted
        self._pause: Timer | None = None
        self._is_closed = False
        self._watch()

    def close(self) -> None:
        """Listen no more; harmless twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()

    def _watch(self) -> None:
        self._loop.watch(self._socket.fileno(), on_readable=self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            if self._is_closed:
                return
            try:
                accepted, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF:
                    self._loop.unwatch(self._socket.fileno())
                    self._pause = self._loop.call_at(self._loop.now() + _PAUSE_S, self._watch)
                    return
                continue  # that one has gone already
            accepted.setblocking(False)
            self._on_accepted(accepted)
