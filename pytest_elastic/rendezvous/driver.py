"""Performs what the rendezvous machines decide: sockets, timers, and a registry to be found in.

Every agent listens on one port. Who connects says with the first message what it wants: a member
greets the coordinator (if it runs here), a coordinator asks whether this agent is alive. The
registry says which agent runs the coordinator; its own member talks to it in memory, over a
connection with an id like any other.

Inputs are queued and handed to the machines one at a time, so that the commands of one step are
performed before the next input, whatever those commands cause.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

from typing_extensions import assert_never

from pytest_elastic.credentials import Credentials
from pytest_elastic.events.model import CoordinatorStarted, Event, StrangerTurnedAway
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.announcer import found_at, place_of
from pytest_elastic.rendezvous.coordinator import CoordinatorMachine
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.inquiries import Inquiries
from pytest_elastic.rendezvous.mandate import Mandate
from pytest_elastic.rendezvous.mark import Mark
from pytest_elastic.rendezvous.member import MemberMachine
from pytest_elastic.rendezvous.messages import (
    Announcement,
    Place,
    ProbeRequest,
    Question,
    SealAcknowledged,
)
from pytest_elastic.rendezvous.model import Node, Settings
from pytest_elastic.rendezvous.own_place import OwnPlace
from pytest_elastic.rendezvous.probing import answer_of
from pytest_elastic.rendezvous.reception import Reception
from pytest_elastic.rendezvous.registry import Registry
from pytest_elastic.rendezvous.uplink import Uplink
from pytest_elastic.rendezvous.wait_teller import WaitTeller

__all__ = ["NodeRendezvous"]


class NodeRendezvous:
    """One node's rendezvous (see `ports.Rendezvous`), over any registry.

    `where` is how to say, to a person, where the registry is. `place` is where the node listens, if
    that may change until it has joined.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        node: Node,
        settings: Settings,
        registry: Registry,
        listener: socket.socket,
        on_notice: Callable[[ports.Notice], None],
        on_event: Callable[[Event], None],
        credentials: Credentials | None = None,
        where: str = "the endpoint",
        place: OwnPlace | None = None,
    ) -> None:
        self._loop = loop
        self._place = place
        self._settings = settings
        self._registry = registry
        self._on_notice = on_notice
        self._on_event = on_event
        self.member = MemberMachine(node=node, settings=settings)
        self._coordinator: CoordinatorMachine | None = None
        self._queue: deque[Callable[[], None]] = deque()
        self._is_pumping = False
        self._member_timer: Timer | None = None
        self._coordinator_timer: Timer | None = None
        self._uplink = Uplink(
            loop,
            credentials=credentials,
            tell_member=self.tell_member,
            tell_coordinator=self.tell_coordinator,
            new_connection=self._new_connection,
        )
        self._reception = Reception(
            loop,
            listener,
            credentials=credentials,
            patience_s=settings.lease_s,
            new_connection=self._new_connection,
            is_coordinated=lambda: self._coordinator is not None,
            tell_coordinator=self.tell_coordinator,
            on_question=self._on_question,
            on_stranger=lambda host, why: on_event(StrangerTurnedAway(address=host, reason=why)),
        )
        self._inquiries = Inquiries(
            loop,
            settings.run_id,
            credentials=credentials,
            tell_member=self.tell_member,
            tell_coordinator=self.tell_coordinator,
        )
        self._wait_teller = WaitTeller(loop, settings, where, on_event)
        self._newest_connection = 0
        self._on_closed: Callable[[], None] | None = None
        self._has_finished = False
        self._is_over = False
        self._is_released = False
        self.has_acknowledged = False
        """Whether this node was in a sealed round, so that there is a job."""

    def open(self) -> None:
        """Begin to look for the job: host it if this is the place, and join it."""
        self._reception.open()
        self._registry.open(self)

    def request(self, request: ports.Request) -> None:
        """Pass on what the agent says."""
        self.tell_member(request)

    def close(self, on_closed: Callable[[], None]) -> None:
        """Take no further part; calls back when nobody needs this node any more.

        A coordinator whose job is not over is of no use without its agent: it ends at once, and the
        others find it gone.
        """
        self._on_closed = on_closed
        self._close_when_finished()

    def look_at_place(self, then: Callable[[], None]) -> None:
        """Find out where this node is for the others; see `registry.NodeSide`."""
        if self._place is not None and self._may_move:
            self._place.look_again(lambda address: self._move(address, then))
        else:
            then()

    @property
    def node(self) -> Node:
        """The node, under the name that it was given last, and where the others reach it."""
        return self.member.node

    @property
    def _may_move(self) -> bool:
        return self._coordinator is None and self.member.may_move

    def _move(self, address: str, then: Callable[[], None]) -> None:
        place = self._place
        assert place is not None, "it was looked at"
        if self._may_move and (before := place.move(address)) is not None:
            self._reception.move(place.listener)
            before.close()
            self.tell_member(v.Moved(address=place.address, port=place.port))
        self._queue.append(then)  # when the member knows
        self._pump()

    # Who decides

    def notify(self, notice: ports.Notice) -> None:
        """Tell the agent what the member did not decide."""
        self._on_notice(notice)

    def coordinate(
        self,
        term: int,
        reason: str,
        *,
        heritage: Heritage | None = None,
        mandate: Mandate | None = None,
        mark: Mark | None = None,
    ) -> None:
        """Run the coordinator of a term here; see `registry.NodeSide`."""
        self._end_coordinator()
        self._coordinator = CoordinatorMachine(
            settings=self._settings,
            node=self.node,
            term=term,
            now=self._loop.now(),
            mandate=mandate,
            heritage=heritage,
            mark=mark,
        )
        self._on_event(
            CoordinatorStarted(
                term=term,
                address=self.node.address,
                port=self.node.port,
                quorum=self._settings.quorum,
                reason=reason,
            )
        )
        if self._is_over:  # whoever named it had been asked before this node left
            self.tell_coordinator(v.HandOver(reason="has left"))

    def hear_of(self, place: Place, *, otherwise: Callable[[], None]) -> None:
        """Have a place looked at that somebody says is the coordinator's; see `NodeSide`."""
        self.tell_member(v.Announced(place=place))
        coordinator = self._coordinator
        if coordinator is None or place.term <= coordinator.term:
            return
        self._inquiries.ask_whether_decides(
            place,
            self._settings.lease_s,
            lambda found: otherwise() if found is None else self.tell_coordinator(found),
        )

    def _lead(self, heritage: Heritage) -> None:
        """Follow a coordinator that was lost, or has left."""
        reason = f"{heritage.why_followed}; this node was elected"
        self.coordinate(heritage.term, reason, heritage=heritage)
        place = place_of(self.node, heritage.term)
        self.tell_coordinator(v.TimePassed())
        self.tell_member(v.Announced(place=place))
        members = {entry.incarnation: entry for entry in heritage.known}
        self._registry.announce(place, tuple(members.values()))

    def _end_coordinator(self) -> None:
        """Be no coordinator any more, if this is one: members were told."""
        if self._coordinator is None:
            return
        self._coordinator = None
        if self._coordinator_timer is not None:
            self._coordinator_timer.cancel()
        self._reception.dismiss_members()
        self._uplink.end_local("the coordinator stepped down")
        self._close_when_finished()
        self._registry.end()

    # The machines and their queue

    def tell_member(self, given: v.MemberInput) -> None:
        """Hand the member an input, after those that wait."""
        self._queue.append(lambda: self._step_member(given))
        self._pump()

    def tell_coordinator(self, given: v.CoordinatorInput) -> None:
        """Hand the coordinator an input, after those that wait, if one is here then."""
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
        self._wait_teller.hear(given)
        for command in self.member.step(given, self._loop.now()):
            self._perform_for_member(command)
        if self._member_timer is not None:
            self._member_timer.cancel()
        self._wait_teller.look(self.member, self._coordinator)
        wake_at = self.member.wake_at()
        self._member_timer = (
            None
            if wake_at is None
            else self._loop.call_at(wake_at, lambda: self.tell_member(v.TimePassed()))
        )

    def _step_coordinator(self, given: v.CoordinatorInput) -> None:
        coordinator = self._coordinator
        if coordinator is None:
            return
        for command in coordinator.step(given, self._loop.now()):
            self._registry.pass_on(command)
        if self._coordinator_timer is not None:
            self._coordinator_timer.cancel()
        if self._coordinator is not coordinator:
            return  # it has stepped down
        self._wait_teller.look(self.member, coordinator)
        wake_at = coordinator.wake_at()
        self._coordinator_timer = (
            None
            if wake_at is None
            else self._loop.call_at(wake_at, lambda: self.tell_coordinator(v.TimePassed()))
        )

    def _perform_for_member(self, command: v.MemberCommand) -> None:
        match command:
            case v.Notify(notice=notice):
                self._is_over |= isinstance(notice, ports.JobOver)
                self._on_notice(notice)
            case v.FindCoordinator(answer_within_s=within_s, peers=peers):
                self._find_coordinator(within_s)
                self._inquiries.ask_place(peers, within_s, self.member.ending)
            case v.Dial():
                self._wait_teller.dialling(command)
                self._uplink.dial(command, is_here=self._coordinator is not None)
            case v.Send(message=message):
                if isinstance(message, SealAcknowledged):
                    self.has_acknowledged = True
                    self._registry.remember()
                self._uplink.send(message)
            case v.Hangup():
                self._uplink.hang_up()
            case v.Probe():
                self._inquiries.probe_for_member(command)
            case v.Emit(event=event):
                self._on_event(event)
            case v.AskVote():
                self._inquiries.ask_vote(command)
            case v.AnswerTo(connection=connection, message=answer):
                self._reception.send(connection, answer)
            case v.Supersede(term=term):
                self.tell_coordinator(v.Superseded(term=term))
            case v.HandOver():
                self.tell_coordinator(command)
            case v.Released():
                self._is_released = True
                self._close_when_finished()
            case v.Lead(heritage=heritage):
                self._lead(heritage)
            case _:
                assert_never(command)

    def perform(self, command: v.CoordinatorCommand) -> None:
        """Do what the coordinator has decided."""
        match command:
            case v.SendTo(connection=connection, message=message):
                if self._uplink.is_local(connection):
                    self.tell_member(v.MessageReceived(message=message))
                else:
                    self._reception.send(connection, message)
            case v.Disconnect(connection=connection):
                self._disconnect(connection)
            case v.Probe():
                self._inquiries.probe_for_coordinator(command)
            case v.Emit(event=event):
                self._on_event(event)
            case v.FoundJob():
                raise AssertionError("whoever looks after several endpoints sees to that")
            case v.Finished():
                self._has_finished = True
                self._close_when_finished()
            case v.SteppedDown():
                self._end_coordinator()
            case _:
                assert_never(command)

    # What others ask

    def _on_question(self, connection: int, question: Question) -> None:
        match question:
            case ProbeRequest(ended=ended):
                is_meant = question.incarnation == self.node.incarnation
                if ended is not None and is_meant and question.run_id == self._settings.run_id:
                    self.tell_coordinator(v.EndHeard(ending=ended))
                    self.tell_member(v.EndHeard(ending=ended))
                self._reception.send(connection, answer_of(self.member))
            case Announcement(run_id=run_id, place=place):
                if run_id == self._settings.run_id:
                    self.hear_of(place, otherwise=lambda: None)
            case _:
                self.tell_member(v.Asked(connection=connection, question=question))

    def _find_coordinator(self, within_s: float) -> None:
        if self._coordinator is None:
            self._registry.find(within_s)
            return
        self.tell_member(found_at(place_of(self.node, self._coordinator.term), is_here=True))

    def _new_connection(self) -> int:
        self._newest_connection += 1
        return self._newest_connection

    def _disconnect(self, connection: int) -> None:
        if self._uplink.is_local(connection):
            self._uplink.end_local("the coordinator ended the connection")
        else:
            self._reception.disconnect(connection)

    # The end

    def _close_when_finished(self) -> None:
        is_coordinating = self._coordinator is not None and not self._has_finished
        is_needed = is_coordinating or not self._is_released
        if self._on_closed is None or (self._is_over and is_needed):
            return
        on_closed, self._on_closed = self._on_closed, None
        self._wait_teller.stop()
        for timer in (self._member_timer, self._coordinator_timer):
            if timer is not None:
                timer.cancel()
        self._uplink.hang_up()
        self._reception.close()
        self._registry.close(is_over=self._has_finished, on_closed=on_closed)
