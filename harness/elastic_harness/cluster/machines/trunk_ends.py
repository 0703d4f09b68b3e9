"""How the connections of trunks between machines are made: by their agents, for their switches.

Of two machines, that with the higher number dials. Both say with the token of the run who they are
(`agent_channel`), and then nothing more, until pytest has heard from all: what comes after that is
the switches' own. Where trunks are datagrams, they say at which port these go, too, and the one
that dials says with which cookie all of them begin.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.future import Future, Steps, within
from pytest_elastic.agent_channel import AgentChannel
from pytest_elastic.channel import JsonObject, connect
from pytest_elastic.credentials import Credentials
from pytest_elastic.frames import Probation
from pytest_elastic.loop import Loop

__all__ = ["TrunkEnd", "TrunkEnds"]

# Beyond it a firewall is in the way: on one network an answer takes milliseconds.
_DIAL_LIMIT_S: Final = 10.0
# All other machines may dial at once: more of them than there may be nodes are of no use.
_MAX_STRANGERS: Final = 256
# As hard to guess as a TCP connection's sequence numbers are, and more.
_COOKIE_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkEnd:
    """A connected socket, and what datagrams over it begin with, in hexadecimal digits."""

    socket: socket.socket
    cookie: str


class TrunkEnds:
    """One machine's ends of trunks that no switch has yet. `host` is its address for the others."""

    def __init__(
        self,
        loop: Loop,
        machine: int,
        host: str,
        credentials: Credentials,
        *,
        by_datagrams: bool = False,
    ) -> None:
        self._by_datagrams = by_datagrams
        self._loop = loop
        self._machine = machine
        self._credentials = credentials
        self._ready: dict[int, TrunkEnd] = {}
        self._strangers: list[AgentChannel] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self._listener.setblocking(False)
        loop.watch(self._listener.fileno(), on_readable=self._accept)

    @property
    def port(self) -> int:
        """Where the others dial."""
        return int(self._listener.getsockname()[1])

    def fileno(self) -> int:
        """Return the descriptor of the listener."""
        return self._listener.fileno()

    def close(self) -> None:
        """Listen no more, and hang up what no switch has."""
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()
        for channel in self._strangers:
            channel.close()
        for end in self.take().values():
            end.socket.close()

    def take(self) -> Mapping[int, TrunkEnd]:
        """Hand over the ends that are ready, by the machine at the other end."""
        ready, self._ready = self._ready, {}
        return ready

    def dial(self, machine: int, host: str, port: int) -> Steps[None]:
        """Connect to another machine; over when both sides are ready. Raises ClusterError."""
        connected: Future[socket.socket] = Future()
        connect(
            self._loop,
            host,
            port,
            timeout_s=_DIAL_LIMIT_S,
            on_connected=connected.settle,
            on_failed=lambda error: connected.settle(_failure(host, port, error.strerror)),
        )
        sock = yield from connected
        answered: Future[JsonObject] = Future()
        channel = self._talk(
            sock,
            is_caller=True,
            on_message=answered.settle,
            on_closed=lambda reason: answered.settle(_failure(host, port, reason)),
        )
        end, end_port = self._end_of(channel)
        cookie = secrets.token_hex(_COOKIE_BYTES)
        channel.send({"machine": self._machine, "port": end_port, "cookie": cookie})
        try:
            told = yield from within(answered, _DIAL_LIMIT_S, f"an answer of {host}:{port}")
            self._keep(machine, channel, end, told["port"], cookie)
        except ClusterError:
            end.close()
            raise
        finally:
            channel.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._greet(sock)
            # The oldest silent connection is closed: our machines say at once who they are.
            self._strangers = [each for each in self._strangers if not each.is_closed]
            if len(self._strangers) > _MAX_STRANGERS:
                self._strangers.pop(0).close()

    def _greet(self, sock: socket.socket) -> None:
        def on_message(told: JsonObject) -> None:
            end, port = self._end_of(channel)
            channel.send({"machine": self._machine, "port": port})
            self._keep(told["machine"], channel, end, told["port"], told["cookie"])
            channel.close()

        channel = self._talk(sock, is_caller=False, on_message=on_message, on_closed=lambda _: None)
        self._strangers.append(channel)

    def _talk(
        self,
        sock: socket.socket,
        *,
        is_caller: bool,
        on_message: Callable[[JsonObject], None],
        on_closed: Callable[[str], None],
    ) -> AgentChannel:
        return AgentChannel(
            self._loop,
            sock,
            credentials=self._credentials,
            is_caller=is_caller,
            on_message=on_message,
            on_closed=on_closed,
            probation=None if is_caller else Probation(),
        )

    def _end_of(self, channel: AgentChannel) -> tuple[socket.socket, int]:
        """Return our end of a trunk to the other side of a channel, and its port.

        Without datagrams that is the connection of the channel, and has none (0).
        """
        if not self._by_datagrams:
            return channel.socket.dup(), 0
        end = socket.socket(channel.socket.family, socket.SOCK_DGRAM)
        end.bind((channel.socket.getsockname()[0], 0))
        return end, int(end.getsockname()[1])

    def _keep(
        self, machine: int, channel: AgentChannel, end: socket.socket, port: int, cookie: str
    ) -> None:
        """Keep an end; `port` is that of the other one."""
        if self._by_datagrams:
            end.connect((channel.socket.getpeername()[0], port))
        if machine in self._ready:
            self._ready[machine].socket.close()
        self._ready[machine] = TrunkEnd(socket=end, cookie=cookie)


def _failure(host: str, port: int, reason: str | None) -> ClusterError:
    return ClusterError(
        f"cannot connect to {host}:{port}: {reason}. Nodes with networks of their own need a TCP "
        "connection between every two machines; without one: --elastic-overlay=off"
    )
