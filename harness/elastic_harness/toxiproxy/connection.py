"""One proxied connection: two sockets, and a stream of toxics in each direction.

The client is accepted before the upstream has answered. Each side may end its direction and still
be answered in the other; a toxic or a broken socket ends both.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

from elastic_harness.toxiproxy.address import Dial, OpenSocket
from elastic_harness.toxiproxy.stream import Direction, Stream, Toxic
from elastic_harness.toxiproxy.toxics import Ending, Item
from pytest_elastic.loop import Loop, Timer

__all__ = ["Connection"]

_READ_BYTES = 64 << 10
# Bytes that a sender had under way when we close on it. Read, they end in silence; unread, the
# kernel answers with a reset, and what the other side has not read yet may be lost to it.
_DRAIN_BYTES = 1 << 20
_LINGER_NOT = struct.pack("ii", 1, 0)


class _Flow:
    """What is on its way in one direction."""

    __slots__ = ("is_ended", "is_read", "sink", "source", "stream", "timer", "unsent")

    def __init__(self, source: socket.socket, stream: Stream) -> None:
        self.source = source
        self.sink: socket.socket | None = None  # the upstream's, until it is connected
        self.stream = stream
        self.unsent: memoryview | None = None
        self.is_read = False  # the source has nothing more to say
        self.is_ended = False  # and the sink was told
        self.timer: Timer | None = None


class Connection:
    """Owns the client's socket from the start, and the upstream's from its connection on."""

    def __init__(
        self,
        loop: Loop,
        client: socket.socket,
        upstream: str,
        *,
        chance_for: Callable[[Direction, str], Random],
        on_closed: Callable[[Connection], None],
        on_read: Callable[[Direction], None] = lambda _: None,
        on_harmed: Callable[[str], None] = lambda _: None,
        open_socket: OpenSocket | None = None,
    ) -> None:
        self._loop = loop
        self._client = client
        self._server: socket.socket | None = None
        self._on_closed = on_closed
        self._on_read = on_read
        self._is_closed = False
        self._watched: dict[int, tuple[bool, bool]] = {}
        self._streams = {way: Stream(partial(chance_for, way), on_harmed) for way in Direction}
        self._flows: dict[Direction, _Flow] = {}
        self._dial = Dial(
            loop,
            upstream,
            on_connected=self._connected,
            on_failed=self.close,
            open_socket=open_socket,
        )

    def start(self) -> None:
        """Dial the upstream; may close the connection before it returns."""
        self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._dial.start()

    def add_toxic(self, toxic: Toxic) -> None:
        """Let a toxic work on what comes from now on."""
        self._streams[toxic.direction].add(toxic, self._loop.now())
        self._pump(toxic.direction)

    def change_toxic(self, toxic: Toxic) -> None:
        """Let a toxic go on with other attributes."""
        self._streams[toxic.direction].change(toxic, self._loop.now())
        self._pump(toxic.direction)

    def remove_toxic(self, toxic: Toxic) -> None:
        """Do without a toxic from now on."""
        self._streams[toxic.direction].remove(toxic.name, self._loop.now())
        self._pump(toxic.direction)

    def close(self, *, with_reset: bool = False) -> None:
        """End both sides at once; what is held is lost. Harmless twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._dial.cancel()
        for flow in self._flows.values():
            if flow.timer is not None:
                flow.timer.cancel()
        for side in (self._client, self._server):
            if side is None:
                continue
            self._loop.unwatch(side.fileno())
            with suppress(OSError):
                if with_reset:
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
                else:
                    _part_in_silence(side)
            side.close()
        self._on_closed(self)

    def _connected(self, server: socket.socket) -> None:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server = server
        ends = {
            Direction.UPSTREAM: (self._client, server),
            Direction.DOWNSTREAM: (server, self._client),
        }
        for way, (source, sink) in ends.items():
            flow = self._flows[way] = _Flow(source, self._streams[way])
            flow.sink = sink
        for way in Direction:
            self._pump(way)

    def _read(self, way: Direction) -> None:
        flow = self._flows[way]
        try:
            data = flow.source.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            flow.is_read = True
            item: Item = Ending.CLOSE
        else:
            flow.is_read = not data
            item = data or Ending.END
        self._on_read(way)
        flow.stream.take(item, self._loop.now())
        self._pump(way)

    def _pump(self, way: Direction) -> None:
        """Write what may be written, and see to it that we are called when there is more."""
        flow = self._flows.get(way)
        if flow is None or self._is_closed:
            return
        now = self._loop.now()
        while flow.unsent is not None or not flow.is_ended:
            if flow.unsent is not None:
                if not self._send(flow):
                    break
                continue
            item = flow.stream.give(now)
            if item is None:
                break
            if isinstance(item, bytes):
                flow.unsent = memoryview(item)
            elif item is Ending.END:
                self._end(flow)
            else:
                self.close(with_reset=item is Ending.RESET)
        if self._has_closed():
            return
        flow.stream.step(now)
        if flow.stream.is_to_be_reset:
            self.close(with_reset=True)
            return
        self._arm(way, flow)
        self._watch(flow.source)
        assert flow.sink is not None, "a flow has both its ends"
        self._watch(flow.sink)

    def _has_closed(self) -> bool:
        """Look again: whatever is called may have closed the connection."""
        return self._is_closed

    def _send(self, flow: _Flow) -> bool:
        """Send what is left of the item; tell whether the next may follow."""
        assert flow.sink is not None, "a flow has both its ends"
        assert flow.unsent is not None, "there is something to be sent"
        try:
            sent = flow.sink.send(flow.unsent)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        flow.unsent = flow.unsent[sent:] if sent < len(flow.unsent) else None
        return flow.unsent is None

    def _end(self, flow: _Flow) -> None:
        """Tell the sink that there is no more; the last of both ends the connection."""
        assert flow.sink is not None, "a flow has both its ends"
        flow.is_ended = True
        try:
            flow.sink.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        if all(other.is_ended for other in self._flows.values()):
            self.close()

    def _arm(self, way: Direction, flow: _Flow) -> None:
        when = flow.stream.wake_at()
        timer = flow.timer
        if when is None or flow.is_ended:
            return
        if timer is not None and not timer.is_cancelled:
            if timer.when <= when:
                return  # it will look again when it fires
            timer.cancel()
        flow.timer = self._loop.call_at(when, lambda: self._pump(way))

    def _watch(self, side: socket.socket) -> None:
        """Watch a socket for what its two flows wait for, and tell the loop only of changes."""
        reads = writes = None
        for way, flow in self._flows.items():
            if flow.source is side and not flow.is_read and flow.stream.has_room:
                reads = way
            if flow.sink is side and flow.unsent is not None:
                writes = way
        wanted = (reads is not None, writes is not None)
        if self._watched.get(side.fileno(), (False, False)) == wanted:
            return
        self._watched[side.fileno()] = wanted
        self._loop.watch(
            side.fileno(),
            on_readable=None if reads is None else partial(self._read, reads),
            on_writable=None if writes is None else partial(self._pump, writes),
        )


def _part_in_silence(side: socket.socket) -> None:
    """Say good-bye, and take what was under way to us off the kernel's hands."""
    side.shutdown(socket.SHUT_WR)
    for _ in range(_DRAIN_BYTES // _READ_BYTES):
        if not side.recv(_READ_BYTES):
            return
