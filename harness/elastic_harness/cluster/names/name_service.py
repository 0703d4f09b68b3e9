"""The name service of one node, for names that it takes for something else: on its loopback."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from elastic_harness.network.names import answer_to, question_in
from pytest_elastic.loop import Loop

__all__ = ["ADDRESS", "RESOLV_CONF", "KnownNames", "NameService"]

ADDRESS = ("127.0.0.1", 53)
# By name: the address (None: there is none), the seconds that an answer takes, and whose lie it is.
KnownNames = Mapping[str, tuple[str | None, float, str]]
# As long as glibc would wait; it asks a second time only when no answer has come by then.
RESOLV_CONF = f"nameserver {ADDRESS[0]}\noptions timeout:30 attempts:2\n"
# Names are asked for one by one; more at once than this is no resolver.
_MAX_WAITING = 1024


class NameService:
    """Serves until `close`.

    `asked` counts the questions about names that it knows: by whose they are, and by name.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._names: KnownNames = {}
        self._waiting = 0
        self.asked: dict[str, dict[str, int]] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._socket.bind(ADDRESS)
        except OSError:
            self._socket.close()
            raise
        loop.watch(self._socket.fileno(), on_readable=self._read)

    def tell(self, names: KnownNames) -> None:
        """Know these names from now on; there are no others."""
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
        address, slow_s, owner = self._names.get(question.name, (None, 0.0, ""))
        if question.name in self._names:
            by_name = self.asked.setdefault(owner, {})
            by_name[question.name] = by_name.get(question.name, 0) + 1
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
