"""A name service that takes its time, for the processes of one node: on its loopback, port 53."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from elastic_harness.network.names import answer_to, question_in
from pytest_elastic.loop import Loop

__all__ = ["ADDRESS", "RESOLV_CONF", "SlowNames"]

ADDRESS = ("127.0.0.1", 53)
# As long as glibc would wait; it asks a second time only when no answer has come by then.
RESOLV_CONF = f"nameserver {ADDRESS[0]}\noptions timeout:30 attempts:2\n"
# Names are asked for one by one; more at once than this is no resolver.
_MAX_WAITING = 1024


class SlowNames:
    """Serves until `close`. `asked` counts the questions about names that it knows."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._names: Mapping[str, tuple[str, float]] = {}
        self._waiting = 0
        self.asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._socket.bind(ADDRESS)
        except OSError:
            self._socket.close()
            raise
        loop.watch(self._socket.fileno(), on_readable=self._read)

    def tell(self, names: Mapping[str, tuple[str, float]]) -> None:
        """Know these names from now on: address, and the seconds that an answer takes."""
        self._names = names

    def close(self) -> None:
        """Serve no more; who waits for an answer gets none."""
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()

    def _read(self) -> None:
        try:
            message, asker = self._socket.recvfrom(512)
        except OSError:
            return
        question = question_in(message)
        if question is None or self._waiting >= _MAX_WAITING:
            return
        address, slow_s = self._names.get(question.name, (None, 0.0))
        self.asked += address is not None
        self._waiting += 1

        def answer() -> None:
            self._waiting -= 1
            if self._socket.fileno() >= 0:
                self._send(answer_to(question, address), asker)

        self._loop.call_at(self._loop.now() + slow_s, answer)

    def _send(self, message: bytes, asker: tuple[str, int]) -> None:
        try:
            self._socket.sendto(message, asker)
        except OSError:
            return  # the asker has gone
