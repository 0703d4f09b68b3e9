"""Performs what the rendezvous machines decide: sockets, timers and the endpoint's store.

Every agent listens on one port. Who connects says with the first message what it wants: a member
greets the coordinator (if it runs here), a coordinator asks whether this agent is alive. The agent
that hosts the endpoint's store runs the coordinator; its own member talks to it in memory, over a
connection with an id like any other.

Inputs are queued and handed to the machines one at a time, so that the commands of one step are
performed before the next input, whatever those commands cause.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import assert_never

from pytest_elastic.channel import Channel, JsonObject
from pytest_elastic.config import Endpoint
from pytest_elastic.events.model import CoordinatorStarted, Event
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.agent_probe import probe_agent
from pytest_elastic.rendezvous.coordinator import CoordinatorMachine
from pytest_elastic.rendezvous.member import MemberMachine
from pytest_elastic.rendezvous.messages import Hello, ProbeAnswer, ProbeRequest
from pytest_elastic.rendezvous.model import Node, Settings
from pytest_elastic.rendezvous.uplink import Uplink
from pytest_elastic.rendezvous.wire import BadMessage, decode, encode

__all__ = ["C10dRendezvous"]

_TERM = 1  # the first coordinator's; succession raises it


@dataclass(slots=True)
class _Peer:
    """A connection that somebody made to our port."""

    channel: Channel
    patience: Timer
    has_greeted: bool = False


class C10dRendezvous:
    """One node's rendezvous over a c10d store (see `ports.Rendezvous`)."""

    def __init__(
        self,
        loop: Loop,
        *,
        node: Node,
        settings: Settings,
        endpoint: Endpoint,
        is_host: bool | None,
        listener: socket.socket,
        store: ports.EndpointStore,
        on_notice: Callable[[ports.Notice], None],
        on_event: Callable[[Event], None],
    ) -> None:
        self._loop = loop
        self._node = node
        self._settings = settings
        self._endpoint = endpoint
        self._is_host = is_host
        self._listener = listener
        self._store = store
        self._on_notice = on_notice
        self._on_event = on_event
        self._member = MemberMachine(node=node, settings=settings)
        self._coordinator: CoordinatorMachine | None = None
        self._key = f"pytest-elastic/{settings.run_id}/coordinator"
        self._queue: deque[Callable[[], None]] = deque()
        self._is_pumping = False
        self._member_timer: Timer | None = None
        self._coordinator_timer: Timer | None = None
        self._uplink = Uplink(
            loop,
            tell_member=self._tell_member,
            tell_coordinator=self._tell_coordinator,
            new_connection=self._new_connection,
        )
        self._peers: dict[int, _Peer] = {}
        self._newest_connection = 0
        self._on_closed: Callable[[], None] | None = None
        self._has_finished = False
        self._is_over = False

    def open(self) -> None:
        """Begin to look for the job: host it if this is the place, and join it."""
        self._loop.watch(self._listener.fileno(), on_readable=self._accept)
        if self._endpoint.port == 0:
            # Nobody could find a store on a port that nobody knows: the job is this node alone.
            self._become_coordinator("the job is this node alone")
            return
        if self._is_host is False:
            self._tell_member(v.Start())
            return
        self._store.host(
            self._endpoint.host,
            self._endpoint.port,
            is_forced=self._is_host is True,
            on_done=self._on_hosted,
        )

    def request(self, request: ports.Request) -> None:
        """Pass on what the agent says."""
        self._tell_member(request)

    def close(self, on_closed: Callable[[], None]) -> None:
        """Take no further part; calls back when nobody needs this node any more.

        A coordinator whose job is not over is of no use without its agent: it ends at once, and the
        others find it gone.
        """
        self._on_closed = on_closed
        self._close_when_finished()

    # Who hosts (R14)

    def _on_hosted(self, why_not: str) -> None:
        if not why_not:
            self._become_coordinator(f"{self._endpoint} is an address of this node")
        elif self._is_host is True:
            self._on_notice(
                ports.JobOver(
                    result="refused",
                    reason=f"cannot host the rendezvous at {self._endpoint}: {why_not}",
                )
            )
        else:
            self._tell_member(v.Start())

    def _become_coordinator(self, reason: str) -> None:
        self._coordinator = CoordinatorMachine(
            settings=self._settings, node=self._node, term=_TERM, now=self._loop.now()
        )
        self._on_event(
            CoordinatorStarted(
                term=_TERM,
                address=self._node.address,
                port=self._node.port,
                quorum=self._settings.quorum,
                reason=reason,
            )
        )
        if self._endpoint.port != 0:
            place = {
                "address": self._node.address,
                "port": self._node.port,
                "term": _TERM,
                "incarnation": self._node.incarnation,
            }
            self._store.publish(self._key, json.dumps(place), on_done=self._on_published)
        self._tell_member(v.Start())

    def _on_published(self, error: str) -> None:
        if error:
            self._on_notice(
                ports.JobOver(
                    result="lost",
                    reason=f"cannot publish the coordinator at {self._endpoint}: {error}",
                )
            )

    # The machines and their queue

    def _tell_member(self, given: v.MemberInput) -> None:
        self._queue.append(lambda: self._step_member(given))
        self._pump()

    def _tell_coordinator(self, given: v.CoordinatorInput) -> None:
        self._queue.append(lambda: self._step_coordinator(given))
        self._pump()

    def _pump(self) -> None:
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._queue:
                self._queue.popleft()()
        finally:
            self._is_pumping = False

    def _step_member(self, given: v.MemberInput) -> None:
        for command in self._member.step(given, self._loop.now()):
            self._perform_for_member(command)
        if self._member_timer is not None:
            self._member_timer.cancel()
        wake_at = self._member.wake_at()
        self._member_timer = (
            None
            if wake_at is None
            else self._loop.call_at(wake_at, lambda: self._tell_member(v.TimePassed()))
        )

    def _step_coordinator(self, given: v.CoordinatorInput) -> None:
        if self._coordinator is None:
            return
        for command in self._coordinator.step(given, self._loop.now()):
            self._perform_for_coordinator(command)
        if self._coordinator_timer is not None:
            self._coordinator_timer.cancel()
        wake_at = self._coordinator.wake_at()
        self._coordinator_timer = (
            None
            if wake_at is None
            else self._loop.call_at(wake_at, lambda: self._tell_coordinator(v.TimePassed()))
        )

    def _perform_for_member(self, command: v.MemberCommand) -> None:
        match command:
            case v.Notify(notice=notice):
                self._is_over |= isinstance(notice, ports.JobOver)
                self._on_notice(notice)
            case v.FindCoordinator(answer_within_s=within_s):
                self._find_coordinator(within_s)
            case v.Dial():
                self._uplink.dial(command, is_here=self._coordinator is not None)
            case v.Send(message=message):
                self._uplink.send(message)
            case v.Hangup():
                self._uplink.hang_up()
            case v.Emit(event=event):
                self._on_event(event)
            case _:
                assert_never(command)

    def _perform_for_coordinator(self, command: v.CoordinatorCommand) -> None:
        match command:
            case v.SendTo(connection=connection, message=message):
                if self._uplink.is_local(connection):
                    self._tell_member(v.MessageReceived(message=message))
                elif peer := self._peers.get(connection):
                    peer.channel.send(encode(message))
            case v.Disconnect(connection=connection):
                self._disconnect(connection)
            case v.Probe():
                self._probe(command)
            case v.Emit(event=event):
                self._on_event(event)
            case v.Finished():
                self._has_finished = True
                self._close_when_finished()
            case _:
                assert_never(command)

    def _probe(self, order: v.Probe) -> None:
        def tell(outcome: v.Outcome) -> None:
            self._tell_coordinator(
                v.ProbeAnswered(name=order.name, incarnation=order.incarnation, outcome=outcome)
            )

        probe_agent(self._loop, self._settings.run_id, order, tell)

    # Finding the coordinator

    def _find_coordinator(self, within_s: float) -> None:
        if self._coordinator is not None:
            self._tell_member(
                v.CoordinatorFound(
                    address=self._node.address,
                    port=self._node.port,
                    term=_TERM,
                    is_here=True,
                    incarnation=self._node.incarnation,
                )
            )
            return
        self._store.fetch(
            self._endpoint.host,
            self._endpoint.port,
            self._key,
            timeout_s=within_s,
            on_done=self._on_fetched,
        )

    def _on_fetched(self, value: str, error: str) -> None:
        if error:
            self._tell_member(v.CoordinatorNotFound(reason=error))
            return
        try:
            place = json.loads(value)
            found = v.CoordinatorFound(
                address=str(place["address"]),
                port=int(place["port"]),
                term=int(place["term"]),
                incarnation=str(place["incarnation"]),
            )
        except (ValueError, KeyError, TypeError):
            self._tell_member(
                v.CoordinatorNotFound(
                    reason=f"the store at {self._endpoint} holds {value!r:.80} as coordinator"
                )
            )
            return
        self._tell_member(found)

    # Connections made to our port

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        connection = self._new_connection()
        channel = Channel(
            self._loop,
            sock,
            on_message=lambda fields, _: self._on_peer_frame(connection, fields),
            on_closed=lambda reason: self._on_peer_closed(connection, reason),
        )
        patience = self._loop.call_at(
            self._loop.now() + self._settings.lease_s,
            lambda: self._disconnect(connection),
        )
        self._peers[connection] = _Peer(channel, patience)

    def _new_connection(self) -> int:
        self._newest_connection += 1
        return self._newest_connection

    def _on_peer_frame(self, connection: int, fields: JsonObject) -> None:
        peer = self._peers.get(connection)
        if peer is None:
            return
        try:
            message = decode(fields)
        except BadMessage as error:
            self._drop_peer(connection, str(error))
            return
        if isinstance(message, ProbeRequest):
            answer = ProbeAnswer(incarnation=self._node.incarnation, is_tombstone=False)
            peer.channel.send(encode(answer))
            return
        if not peer.has_greeted:
            if not isinstance(message, Hello) or self._coordinator is None:
                self._disconnect(connection)
                return
            peer.has_greeted = True
            peer.patience.cancel()
        self._tell_coordinator(v.PeerMessage(connection=connection, message=message))

    def _on_peer_closed(self, connection: int, reason: str) -> None:
        peer = self._peers.pop(connection, None)
        if peer is None:
            return
        peer.patience.cancel()
        if peer.has_greeted:
            self._tell_coordinator(v.PeerLost(connection=connection, reason=reason))

    def _drop_peer(self, connection: int, reason: str) -> None:
        if peer := self._peers.get(connection):
            peer.channel.close()
            self._on_peer_closed(connection, reason)

    def _disconnect(self, connection: int) -> None:
        if self._uplink.is_local(connection):
            self._uplink.end_local("the coordinator ended the connection")
        elif peer := self._peers.pop(connection, None):
            peer.patience.cancel()
            peer.channel.close_when_flushed()

    # The end

    def _close_when_finished(self) -> None:
        is_needed = self._coordinator is not None and self._is_over and not self._has_finished
        if self._on_closed is None or is_needed:
            return
        on_closed, self._on_closed = self._on_closed, None
        for timer in (self._member_timer, self._coordinator_timer):
            if timer is not None:
                timer.cancel()
        self._loop.unwatch(self._listener.fileno())
        self._uplink.hang_up()
        for peer in self._peers.values():
            peer.patience.cancel()
            peer.channel.close_when_flushed()
        self._peers.clear()
        on_closed()
