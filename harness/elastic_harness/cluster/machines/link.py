"""A stream of messages between pytest and the agent of a machine that outlives its connections.

The agent dials, and dials again every second when the connection is lost or silent. Each message
has a number and is kept until the other side has acknowledged it, so that a new connection goes on
where the last one broke: no message is lost, and none arrives twice. Every connection is signed
with the token of the run (`agent_channel`).

Both sides send a ping each second. An agent that has heard nothing for as long as its lease ends
itself, with all that it has started; pytest takes a machine for lost a little later.
"""

from __future__ import annotations

import errno
import ipaddress
import secrets
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from pytest_elastic.agent_channel import AgentChannel
from pytest_elastic.channel import JsonObject, connect
from pytest_elastic.credentials import Credentials
from pytest_elastic.frames import Probation
from pytest_elastic.loop import Loop, Timer

__all__ = ["DRIFT", "ClockEstimate", "Dialler", "Link", "Switchboard"]

BEAT_S: Final = 1.0
# TCP itself comes back late after a cut, by its growing pauses (13 s after one of 40 s).
_SILENCE_S: Final = 3.0
_DIAL_LIMIT_S: Final = 2.0
# Nothing listens at that port any more: pytest is gone, or its machine has been started anew.
_REFUSALS: Final = 3
# An agent that has closed its connection dials again at once; one that was killed does not.
_REDIAL_LIMIT_S: Final = 10.0
# Beyond the lease: the agent is certainly gone then.
_LEASE_MARGIN_S: Final = 5.0
_GREETING_LIMIT_S: Final = 10.0
_MAX_STRANGERS: Final = 64
# A peer that has not acknowledged so much takes no part any more.
_MAX_KEPT: Final = 100_000
# Two quartz clocks, each off by 50 millionths at most.
DRIFT: Final = 1e-4


class ClockEstimate:
    """How far another machine's clock is ahead of ours, and by how much that may be wrong.

    The best of all samples: it errs by half its round trip, and by the drift since it was taken.
    """

    def __init__(self) -> None:
        self.offset_s = 0.0
        self._error_s = float("inf")
        self._at = 0.0

    def error_s(self, now: float) -> float:
        """Return the bound of the error now; infinite without a sample."""
        return self._error_s + DRIFT * (now - self._at)

    def learn(self, sent_at: float, theirs: float, now: float) -> None:
        """Take a sample: their clock was read between two readings of ours."""
        error_s = (now - sent_at) / 2
        if error_s <= self.error_s(now):
            self.offset_s = theirs - (sent_at + now) / 2
            self._error_s, self._at = error_s, now


class Link:
    """One end of the stream, as a conversation uses it (`MessageStream`)."""

    def __init__(self, loop: Loop) -> None:
        self.clock = ClockEstimate()
        self.last_heard = loop.now()
        self.channel: AgentChannel | None = None
        self._loop = loop
        self._kept: deque[tuple[int, JsonObject]] = deque()
        self._sent = 0
        self._received = 0
        self._on_message: Callable[[JsonObject, list[int]], None] | None = None
        self._on_closed: Callable[[str], None] | None = None
        self._is_closed = False
        self._beats: Timer = loop.call_at(loop.now(), self._beat)

    @property
    def is_closed(self) -> bool:
        """Tell whether the stream has ended; a connection may be lost before that."""
        return self._is_closed

    @property
    def received(self) -> int:
        """The number of the newest message that has arrived."""
        return self._received

    def open(
        self,
        on_message: Callable[[JsonObject, list[int]], None],
        on_closed: Callable[[str], None],
    ) -> Link:
        """Say who receives; nothing has arrived before that."""
        self._on_message, self._on_closed = on_message, on_closed
        return self

    def send(self, message: JsonObject, fds: Sequence[int] = ()) -> None:
        """Queue one message; it is sent again until it has arrived."""
        assert not fds, "descriptors do not travel to another machine"
        if self._is_closed:
            return
        self._sent += 1
        self._kept.append((self._sent, message))
        if len(self._kept) > _MAX_KEPT:
            self._loop.call_soon(lambda: self.end(f"{_MAX_KEPT} messages were not acknowledged"))
        elif self.channel is not None:
            self._send_kept(self._sent, message)

    def resume(self, channel: AgentChannel, acknowledged: int) -> None:
        """Go on over a new connection, whose other side has received so many messages."""
        if self.channel is not None:
            self.channel.close()
        self.channel = channel
        self.last_heard = self._loop.now()
        self._forget(acknowledged)
        for number, message in self._kept:
            self._send_kept(number, message)
        self._ping()

    def hear(self, frame: JsonObject) -> None:
        """Take what has arrived over the connection."""
        now = self.last_heard = self._loop.now()
        self._forget(frame["ack"])
        if "ping" in frame and self.channel is not None:
            pong = {"pong": frame["ping"], "at": now, "ack": self._received}
            self.channel.send(pong)
        elif "pong" in frame:
            self.clock.learn(frame["pong"], frame["at"], now)
        elif "n" in frame and frame["n"] == self._received + 1:
            self._received += 1
            assert self._on_message is not None, "a link is opened before it is connected"
            self._on_message(frame["m"], [])

    def close(self) -> None:
        """End the stream at once, and its connection."""
        self._is_closed = True
        self._beats.cancel()
        if self.channel is not None:
            self.channel.close_when_flushed()
            self.channel = None

    def end(self, reason: str) -> None:
        """End the stream, and say why."""
        if not self._is_closed:
            self.close()
            if self._on_closed is not None:
                self._on_closed(reason)

    def _send_kept(self, number: int, message: JsonObject) -> None:
        if self.channel is not None:
            self.channel.send({"n": number, "m": message, "ack": self._received})

    def _forget(self, acknowledged: int) -> None:
        while self._kept and self._kept[0][0] <= acknowledged:
            self._kept.popleft()

    def _beat(self) -> None:
        self._ping()
        self._beats = self._loop.call_at(self._loop.now() + BEAT_S, self._beat)

    def _ping(self) -> None:
        if self.channel is not None:
            self.channel.send({"ping": self._loop.now(), "ack": self._received})


class Dialler:
    """The agent's side: dials pytest at one of several addresses, for as long as the lease holds.

    `on_ready` is called at the first connection, `on_end` when pytest is gone.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        machine: int,
        addresses: Sequence[tuple[str, int]],
        credentials: Credentials,
        lease_s: float,
        on_ready: Callable[[], None],
        on_end: Callable[[str], None],
    ) -> None:
        self.link = Link(loop)
        self.local_address = ""
        self._loop = loop
        self._greeting = {"machine": machine, "agent": secrets.token_hex(8)}
        self._addresses = list(addresses)
        self._credentials = credentials
        self._lease_s = lease_s
        self._on_ready = on_ready
        self._on_end = on_end
        self._channel: AgentChannel | None = None
        self._give_up: Callable[[], None] = lambda: None
        self._tried = 0
        self._refusals = 0
        self._failures: dict[str, str] = {}
        self._is_over = False
        self._dialled_at = 0.0
        self._timer = loop.call_at(loop.now() + BEAT_S, self._look)
        loop.call_soon(self._dial)

    def close(self) -> None:
        """Dial no more."""
        self._is_over = True
        self._timer.cancel()
        self._give_up()
        self.link.close()
        if self._channel is not None and not self.local_address:
            self._channel.close()

    def _dial(self) -> None:
        if self._is_over:
            return
        host, port = self._addresses[self._tried % len(self._addresses)]
        self._tried += 1
        self._give_up = connect(
            self._loop,
            host,
            port,
            timeout_s=_DIAL_LIMIT_S,
            on_connected=self._greet,
            on_failed=lambda error: self._on_failed(f"{host}:{port}", error),
        )

    def _on_failed(self, where: str, error: OSError) -> None:
        self._failures[where] = error.strerror or str(error)
        if not self.local_address:
            if self._tried >= _REFUSALS * len(self._addresses):
                failures = (f"{place}: {why}" for place, why in self._failures.items())
                self._end(f"cannot reach pytest ({'; '.join(failures)})")
                return
        elif error.errno == errno.ECONNREFUSED:
            self._refusals += 1
            if self._refusals >= _REFUSALS:
                self._end(f"pytest is gone: {where} refuses connections")
                return
        is_round_over = self._tried % len(self._addresses) == 0
        pause_s = BEAT_S if is_round_over or self.local_address else 0.0
        self._loop.call_at(self._loop.now() + pause_s, self._dial)

    def _greet(self, sock: socket.socket) -> None:
        # The address that answered is the one to come back to.
        address = self._addresses[(self._tried - 1) % len(self._addresses)]
        local = sock.getsockname()[0]

        def on_message(frame: JsonObject) -> None:
            if self.link.channel is not channel:
                self._addresses = [address]
                self._refusals = 0
                is_first = not self.local_address
                self.local_address = self.local_address or local
                self.link.resume(channel, frame["received"])
                if is_first:
                    self._on_ready()
            else:
                self.link.hear(frame)

        def on_closed(reason: str) -> None:
            if channel.unwelcome is not None:
                self._end(f"pytest at {address[0]}:{address[1]} will not talk: {reason}")
            else:
                self._hang_up(channel)

        channel = self._channel = AgentChannel(
            self._loop,
            sock,
            credentials=self._credentials,
            is_caller=True,
            on_message=on_message,
            on_closed=on_closed,
        )
        channel.send({**self._greeting, "received": self.link.received})
        self._dialled_at = self._loop.now()

    def _hang_up(self, channel: AgentChannel) -> None:
        channel.close()
        if self._channel is channel:
            self._channel = None
            if self.link.channel is channel:
                self.link.channel = None
            self._loop.call_at(self._loop.now() + BEAT_S, self._dial)

    def _look(self) -> None:
        """End with the lease; give up a connection that is silent."""
        silent_s = self._loop.now() - self.link.last_heard
        if silent_s > self._lease_s:
            self._end(f"nothing was heard of pytest for {self._lease_s:g} s")
            return
        channel = self._channel
        if channel is not None:
            since = max(self.link.last_heard, self._dialled_at)
            if self._loop.now() - since > _SILENCE_S:
                self._hang_up(channel)
        self._timer = self._loop.call_at(self._loop.now() + BEAT_S, self._look)

    def _end(self, reason: str) -> None:
        if not self._is_over:
            self.close()
            self._on_end(reason)


class Switchboard:
    """Pytest's side: where the agents of all machines call, each with a link of its own."""

    def __init__(
        self, loop: Loop, listener: socket.socket, *, credentials: Credentials, lease_s: float
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._credentials = credentials
        self._lease_s = lease_s
        self._links: dict[int, Link] = {}
        self._agents: dict[int, str] = {}
        self._called_at: dict[int, str] = {}
        self._hung_up_at: dict[int, float] = {}
        self._on_called: dict[int, Callable[[], None]] = {}
        self._strangers: list[AgentChannel] = []
        listener.setblocking(False)
        loop.watch(listener.fileno(), on_readable=self._accept)
        self._timer = loop.call_at(loop.now() + BEAT_S, self._look)

    @property
    def fds(self) -> frozenset[int]:
        """The descriptors of this process that are the switchboard's."""
        channels = [link.channel for link in self._links.values() if link.channel is not None]
        socks = [self._listener, *(channel.socket for channel in (*channels, *self._strangers))]
        return frozenset(sock.fileno() for sock in socks) - {-1}

    @property
    def port(self) -> int:
        """Where agents call."""
        return int(self._listener.getsockname()[1])

    @property
    def called_at(self) -> Sequence[str]:
        """The addresses of ours at which agents have called, each once."""
        return tuple(dict.fromkeys(self._called_at.values()))

    def expect(self, machine: int, on_called: Callable[[], None]) -> Link:
        """Return the link of a machine whose agent will call; `on_called`: it has."""
        link = self._links[machine] = Link(self._loop)
        self._on_called[machine] = on_called
        return link

    def has_called(self, machine: int) -> bool:
        """Tell whether the agent of a machine has called."""
        return machine in self._agents

    def close(self) -> None:
        """Hang up, and accept no connection any more: agents see that as the end of pytest."""
        if self._listener.fileno() < 0:
            return
        self._timer.cancel()
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()
        for channel in self._strangers:
            channel.close()
        for link in self._links.values():
            link.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if len(self._strangers) >= _MAX_STRANGERS:
                sock.close()
                continue
            self._greet(sock)

    def _greet(self, sock: socket.socket) -> None:
        machine = 0

        def on_message(frame: JsonObject) -> None:
            nonlocal machine
            if machine:
                link = self._links[machine]
                if link.channel is channel:
                    link.hear(frame)
                return
            machine = self._welcome(channel, frame)

        def on_closed(_: str) -> None:
            if channel in self._strangers:
                self._strangers.remove(channel)
            if machine and self._links[machine].channel is channel:
                self._links[machine].channel = None
                self._hung_up_at[machine] = self._loop.now()

        def give_up() -> None:
            if channel in self._strangers:
                self._strangers.remove(channel)
                channel.close()

        channel = AgentChannel(
            self._loop,
            sock,
            credentials=self._credentials,
            is_caller=False,
            on_message=on_message,
            on_closed=on_closed,
            probation=Probation(),
        )
        self._strangers.append(channel)
        self._loop.call_at(self._loop.now() + _GREETING_LIMIT_S, give_up)

    def _welcome(self, channel: AgentChannel, frame: JsonObject) -> int:
        """Take the call of an agent, which has signed it; returns its machine, 0 for another's."""
        machine, agent = int(frame["machine"]), str(frame["agent"])
        self._strangers.remove(channel)
        link = self._links.get(machine)
        if link is None or link.is_closed or self._agents.setdefault(machine, agent) != agent:
            channel.close()
            return 0
        self._called_at[machine] = _own_address(channel.socket)
        channel.trust()
        self._hung_up_at.pop(machine, None)
        channel.send({"received": link.received})
        link.resume(channel, frame["received"])
        if (on_called := self._on_called.pop(machine, None)) is not None:
            on_called()
        return machine

    def _look(self) -> None:
        """Take machines for lost that are silent, or whose agent has hung up for good."""
        now = self._loop.now()
        for machine in self._agents:
            link = self._links[machine]
            hung_up_at = self._hung_up_at.get(machine)
            if hung_up_at is not None and now - hung_up_at > _REDIAL_LIMIT_S:
                link.end("its agent has ended")
            elif now - link.last_heard > self._lease_s + _LEASE_MARGIN_S:
                link.end(f"nothing was heard of its agent for {now - link.last_heard:.0f} s")
        self._timer = self._loop.call_at(now + BEAT_S, self._look)


def _own_address(sock: socket.socket) -> str:
    """Return the address of ours that the other side connected to."""
    address = ipaddress.ip_address(sock.getsockname()[0].partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address)
