"""Strangers: connections that faults open from nodes, to say what is no part of any protocol.

Their sockets live in the network of a node and are served by the loop of the cluster, so that
nothing runs on the node for it. A stranger says its words once, listens, and stays until it is sent
away, the other side has closed, or its node is gone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from elastic_harness.cluster.cluster import ClusterNode
from elastic_harness.cluster.facets import Sockets, Visits
from elastic_harness.future import Future
from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop

__all__ = ["LocalStrangers"]

_READ_BYTES = 64 << 10


@dataclass(slots=True, eq=False, kw_only=True)
class _Stranger:
    owner: str
    node: str
    unsaid: bytes
    sock: socket.socket | None = None
    is_connected: bool = False
    is_sent_away: bool = False
    is_closed: bool = False  # by the other side
    is_answered: bool = False
    refusal: str = ""

    @property
    def is_taken(self) -> bool:
        """Tell whether all that was said has arrived in the other side's kernel."""
        if self.is_closed:
            return True
        if self.sock is None or not self.is_connected or self.unsaid:
            return False
        # What the other side has not acknowledged yet (SIOCOUTQ, which has the number of TIOCOUTQ).
        left = fcntl.ioctl(self.sock.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
        return int(struct.unpack("i", left)[0]) == 0


class LocalStrangers:
    """`Strangers` of nodes on this machine; `nodes` are those that run now, by name."""

    def __init__(
        self, loop: Loop, sockets: Sockets, nodes: Callable[[], Mapping[str, ClusterNode]]
    ) -> None:
        self._loop = loop
        self._sockets = sockets
        self._nodes = nodes
        self._strangers: list[_Stranger] = []

    def send(
        self, owner: str, node: str, at: tuple[str, int], words: bytes, *, connections: int
    ) -> None:
        address = (self._nodes()[at[0]].address, at[1])
        self.send_to(owner, node, address, words, connections=connections)

    def send_to(
        self, owner: str, node: str, address: tuple[str, int], words: bytes, *, connections: int
    ) -> None:
        """Do what `send` does, with an address in place of a node."""
        for _ in range(connections):
            stranger = _Stranger(owner=owner, node=node, unsaid=words)
            self._strangers.append(stranger)
            try:
                opening = self._sockets.open(node)
            except UsageError as error:
                stranger.refusal = error.message
            else:
                opening.add_done_callback(partial(self._on_opened, stranger, address))

    def visits(self, owner: str) -> Visits:
        mine = [each for each in self._strangers if each.owner == owner]
        refusals = [each.refusal for each in mine if each.refusal]
        return Visits(
            wanted=len(mine),
            taken=sum(each.is_taken for each in mine),
            closed=sum(each.is_closed for each in mine),
            answered=sum(each.is_answered for each in mine),
            refusal=refusals[-1] if refusals else "",
        )

    def send_away(self, owner: str) -> None:
        self._end([each for each in self._strangers if each.owner == owner])

    def on_node_gone(self, node: str) -> None:
        """Let those of a node end with it: their sockets would keep its network alive."""
        self._end([each for each in self._strangers if each.node == node])

    def close(self) -> None:
        """Close everything; harmless twice."""
        self._end(list(self._strangers))

    def _end(self, strangers: list[_Stranger]) -> None:
        for stranger in strangers:
            stranger.is_sent_away = True
            self._hang_up(stranger)

    def _hang_up(self, stranger: _Stranger) -> None:
        if stranger.sock is not None:
            self._loop.unwatch(stranger.sock.fileno())
            stranger.sock.close()
            stranger.sock = None

    def _on_opened(
        self, stranger: _Stranger, at: tuple[str, int], done: Future[socket.socket]
    ) -> None:
        if done.error is not None:
            stranger.refusal = done.error.message
            return
        opened = done.result()
        running = self._nodes().get(stranger.node)
        if stranger.is_sent_away or running is None:
            opened.close()
            return
        opened.setblocking(False)
        try:
            # Where nodes share a network, the address is all that says which one calls.
            opened.bind((running.address, 0))
            error = opened.connect_ex(at)
        except OSError as refused:
            error = refused.errno or errno.EIO
        if error not in (0, errno.EINPROGRESS):
            stranger.refusal = os.strerror(error)
            opened.close()
            return
        stranger.sock = opened
        self._loop.watch(opened.fileno(), on_writable=partial(self._on_connected, stranger, opened))

    def _on_connected(self, stranger: _Stranger, sock: socket.socket) -> None:
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            stranger.refusal = os.strerror(error)
            self._hang_up(stranger)
            return
        stranger.is_connected = True
        self._say(stranger, sock)

    def _say(self, stranger: _Stranger, sock: socket.socket) -> None:
        if stranger.unsaid:
            try:
                stranger.unsaid = stranger.unsaid[sock.send(stranger.unsaid) :]
            except BlockingIOError:
                pass
            except OSError:
                self._on_closed(stranger)
                return
        self._loop.watch(
            sock.fileno(),
            on_readable=partial(self._listen, stranger, sock),
            on_writable=partial(self._say, stranger, sock) if stranger.unsaid else None,
        )

    def _listen(self, stranger: _Stranger, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                heard = sock.recv(_READ_BYTES)
            except (ConnectionError, TimeoutError):
                heard = b""
            if not heard:
                self._on_closed(stranger)
            stranger.is_answered = stranger.is_answered or bool(heard)

    def _on_closed(self, stranger: _Stranger) -> None:
        stranger.is_closed = True
        self._hang_up(stranger)
