"""Performs what the machines of one node decide: sockets, timers, and a registry to be found in.

Every agent listens on one port. The first message of a connection says what it wants: a follower
asks to join the leader (if it runs here), any peer may ask for a vote or for what this node knows.
The leader's own follower talks to it in memory, over a connection with an id like any other.

Inputs are queued and handed to the machines one at a time, so that the commands of one step are
performed before the next input, whatever those commands cause.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import assert_never

from pytest_elastic.credentials import Credentials
from pytest_elastic.events.model import CoordinatorStarted, Event, StrangerTurnedAway
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import KnownJob
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.driver.connections import Reception, Uplink
from pytest_elastic.rendezvous.driver.own_place import OwnPlace
from pytest_elastic.rendezvous.driver.questions import Questions
from pytest_elastic.rendezvous.driver.waiting import WaitTeller
from pytest_elastic.rendezvous.follower.follower import Follower
from pytest_elastic.rendezvous.leader.leader import Leader
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.registries.registry import Registry
from pytest_elastic.rendezvous.settings import Settings

__all__ = ["NodeRendezvous"]


class NodeRendezvous:
    """One node's rendezvous (see `ports.Rendezvous`), over any registry.

    `make_registry` is given what asks other agents. `where` is how to say, to a person, where the
    registry is. `place` is where the node listens, if that may change until it has joined.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        node: Node,
        settings: Settings,
        make_registry: Callable[[Questions], Registry],
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
        self._on_notice = on_notice
        self._on_event = on_event
        self.follower = Follower(node=node, settings=settings)
        self._leader: Leader | None = None
        self._queue: deque[Callable[[], None]] = deque()
        self._is_pumping = False
        self._timers: dict[str, Timer] = {}
        self._uplink = Uplink(
            loop,
            credentials=credentials,
            patience_s=settings.lease_s,
            tell_follower=self.tell_follower,
            tell_leader=self.tell_leader,
            new_connection=self._new_connection,
            decode=self._decode,
        )
        self._reception = Reception(
            loop,
            listener,
            credentials=credentials,
            patience_s=settings.lease_s,
            new_connection=self._new_connection,
            is_leading=lambda: self._leader is not None,
            tell_leader=self.tell_leader,
            on_question=self._on_question,
            on_stranger=lambda host, why: on_event(StrangerTurnedAway(address=host, reason=why)),
            decode=self._decode,
        )
        self._questions = Questions(
            loop,
            settings,
            decode=self._decode,
            credentials=credentials,
            tell_follower=self.tell_follower,
        )
        self._registry = make_registry(self._questions)
        self._wait_teller = WaitTeller(loop, settings, where, on_event)
        self._newest_connection = 0
        self._why_bootstrapped = ""
        self._on_closed: Callable[[], None] | None = None
        self._has_finished = False
        self._is_over = False
        self._is_released = False

    def open(self) -> None:
        """Begin to look for the job: host it if this is the place, and join it."""
        self._reception.open()
        self._registry.open(self)

    def request(self, request: ports.Request) -> None:
        """Pass on what the agent says."""
        self.tell_follower(request)

    def close(self, on_closed: Callable[[], None]) -> None:
        """Take no further part; calls back when no other node needs this one any more.

        A leader whose job is not over is of no use without its agent: it ends at once, and the
        others find it gone.
        """
        self._on_closed = on_closed
        self._close_when_finished()

    # --- what a registry may ask (`registry.NodeSide`) -------------------------------------------

    @property
    def node(self) -> Node:
        """The node, under the name that it was given last, and where the others reach it."""
        return self.follower.node

    @property
    def known_job(self) -> KnownJob | None:
        """What the follower knows of the job that it is in."""
        return self.follower.known_job

    @property
    def leader(self) -> m.LeaderAddress | None:
        """Where the leader is, if it runs here."""
        return None if self._leader is None else self._leader.address

    def look_at_place(self, then: Callable[[], None]) -> None:
        """Find out where this node is for the others, unless it has joined; then go on."""
        if self._place is not None and self._may_move:
            self._place.look_again(lambda address: self._move(address, then))
        else:
            then()

    @property
    def _may_move(self) -> bool:
        return self._leader is None and self.follower.may_move

    def _move(self, address: str, then: Callable[[], None]) -> None:
        place = self._place
        assert place is not None, "it was looked at"
        if self._may_move and (before := place.move(address)) is not None:
            self._reception.move(place.listener)
            before.close()
            self.tell_follower(v.Moved(address=place.address, port=place.port))
        self._queue.append(then)  # when the follower knows
        self._pump()

    def notify(self, notice: ports.Notice) -> None:
        """Tell the agent what the follower did not decide."""
        self._on_notice(notice)

    def bootstrap(self, given: v.Bootstrap, reason: str) -> None:
        """Let the follower stand for election as a host."""
        self._why_bootstrapped = reason
        self.tell_follower(given)

    def lead(self, recovered: Recovered, reason: str) -> None:
        """Run the leader of a term here."""
        self._end_leader()
        self._leader = Leader(
            settings=self._settings, node=self.node, recovered=recovered, now=self._loop.now()
        )
        self._on_event(
            CoordinatorStarted(
                term=recovered.term.counter,
                address=self.node.address,
                port=self.node.port,
                quorum=self._settings.quorum,
                reason=reason,
            )
        )
        if self._is_over:  # it had left before it was elected
            self.tell_leader(v.HandOver(reason="has left"))
        self.tell_leader(v.TimePassed())
        self._registry.announce(recovered.known)

    def hear_of(self, leader: m.LeaderAddress, *, otherwise: Callable[[], None]) -> None:
        """Check an address that is said to be the leader's."""
        if not (self._settings.has_succession or self._settings.endpoints):
            return

        def on_asked(leads: bool) -> None:  # noqa: FBT001 (a callback)
            if leads:
                # The follower first: one that hears of it last would stand for the leader here.
                self.tell_follower(v.LeaderHeard(leader=leader))
                self.tell_leader(v.LeaderHeard(leader=leader))
            else:
                otherwise()

        self._questions.ask_whether_leads(leader, on_asked)

    # --- the machines and their queue ------------------------------------------------------------

    def tell_follower(self, given: v.FollowerInput) -> None:
        """Hand the follower an input, after those that wait."""
        self._queue.append(lambda: self._step_follower(given))
        self._pump()

    def tell_leader(self, given: v.LeaderInput) -> None:
        """Hand the leader an input, after those that wait, if one is here then."""
        self._queue.append(lambda: self._step_leader(given))
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

    def _step_follower(self, given: v.FollowerInput) -> None:
        self._wait_teller.hear(given)
        for command in self.follower.step(given, self._loop.now()):
            self._perform_for_follower(command)
        self._wait_teller.look_at(self.follower, self._leader)
        self._wake("follower", self.follower.wake_at(), self.tell_follower)

    def _step_leader(self, given: v.LeaderInput) -> None:
        leader = self._leader
        if leader is None:
            return
        for command in leader.step(given, self._loop.now()):
            self._perform_for_leader(command)
        if self._leader is leader:  # it has not stepped down
            self._wait_teller.look_at(self.follower, leader)
            self._wake("leader", leader.wake_at(), self.tell_leader)

    def _wake(
        self, which: str, wake_at: float | None, tell: Callable[[v.TimePassed], None]
    ) -> None:
        if (timer := self._timers.pop(which, None)) is not None:
            timer.cancel()
        if wake_at is not None:
            self._timers[which] = self._loop.call_at(wake_at, lambda: tell(v.TimePassed()))

    def _perform_for_follower(self, command: v.FollowerCommand) -> None:
        match command:
            case v.Notify(notice=notice):
                if isinstance(notice, ports.JobOver):
                    self._is_over = True
                    if self._leader is not None and self._leader.address.is_founding:
                        self.tell_leader(v.HandOver(reason="has ended with another leader's job"))
                self._on_notice(notice)
            case v.FindLeader(peers=peers):
                self._find_leader()
                self._questions.ask_who_leads(peers)
            case v.Dial(address=address, port=port):
                self._wait_teller.dialling(command)
                is_own = (address, port) == (self.node.address, self.node.port)
                self._uplink.dial(command, is_here=is_own and self._leader is not None)
            case v.Send():
                if isinstance(command.message, m.RecordAccepted):
                    self._registry.remember()
                self._uplink.send(command.message)
            case v.Hangup():
                self._uplink.hang_up()
            case v.Ask():
                self._questions.ask(command, self.tell_follower)
            case v.Emit(event=event):
                self._on_event(event)
            case v.SendTo(connection=connection, message=answer):
                self._reception.send(connection, answer)
            case v.HandOver():
                self.tell_leader(command)
            case v.Released():
                self._is_released = True
                self._close_when_finished()
            case v.Lead(recovered=recovered):
                self._lead_as_elected(recovered)
            case _:
                assert_never(command)

    def _perform_for_leader(self, command: v.LeaderCommand) -> None:
        match command:
            case v.SendTo(connection=connection, message=message):
                if self._uplink.is_local(connection):
                    self.tell_follower(v.MessageReceived(message=message))
                else:
                    self._reception.send(connection, message)
            case v.Disconnect(connection=connection):
                if self._uplink.is_local(connection):
                    self._uplink.end_local("the leader ended the connection")
                else:
                    self._reception.disconnect(connection)
            case v.Ask():
                self._questions.ask(command, self.tell_leader)
            case v.Emit(event=event):
                self._on_event(event)
            case v.Finished():
                self._has_finished = True
                self._close_when_finished()
            case v.SteppedDown():
                self._end_leader()
            case v.WriteRecord():
                self._registry.write(command)
            case _:
                assert_never(command)

    # --- the leader ------------------------------------------------------------------------------

    def _lead_as_elected(self, recovered: Recovered) -> None:
        is_first = recovered.record.number == 0
        reason = self._why_bootstrapped
        if not is_first:
            reason = f"{recovered.why_followed}; this node was elected"
        self.lead(recovered, reason)

    def _end_leader(self) -> None:
        """Lead no more, if a leader is here: members were told."""
        if self._leader is None:
            return
        self._leader = None
        self._wake("leader", None, self.tell_leader)
        self._reception.dismiss_members()
        self._uplink.end_local("the leader stepped down")
        self._close_when_finished()
        self._registry.end()

    def _find_leader(self) -> None:
        if self._leader is None:
            self._registry.find(v.FIND_S)
        else:
            self.tell_follower(v.LeaderFound(leader=self._leader.address))

    # --- what others say -------------------------------------------------------------------------

    def _decode(self, fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 (any message)
        """Return a message; raises BadMessage for one that tells what cannot be (R15)."""
        message = m.decode(fields)
        problem = m.what_is_unbelievable(message, self._known)
        if problem is not None:
            raise m.BadMessage(problem)
        return message

    @property
    def _known(self) -> m.Known:
        voter = self.follower.voter
        return m.Known(
            counter=voter.term.counter,
            round=voter.number,
            max_restarts=self._settings.max_restarts,
        )

    def _on_question(self, connection: int, question: m.Question) -> None:
        if question.leader is not None and question.run_id == self._settings.run_id:
            self._hear_from_stranger(question.leader)
        self.tell_follower(v.Asked(connection=connection, question=question))

    def _hear_from_stranger(self, leader: m.LeaderAddress) -> None:
        """Dial a leader named by an unauthenticated peer, unless this node is in a led job (R15).

        A follower does so if it is in no contact with the leader of one.
        """
        if self._leader is None:
            self.tell_follower(v.LeaderHeard(leader=leader))
        elif self._leader.address.is_founding:
            self.hear_of(leader, otherwise=lambda: None)

    def _new_connection(self) -> int:
        self._newest_connection += 1
        return self._newest_connection

    # --- the end ---------------------------------------------------------------------------------

    def _close_when_finished(self) -> None:
        is_leading = self._leader is not None and not self._has_finished
        is_needed = is_leading or not self._is_released
        if self._on_closed is None or (self._is_over and is_needed):
            return
        on_closed, self._on_closed = self._on_closed, None
        self._wait_teller.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._uplink.hang_up()
        self._reception.close()
        self._registry.close(on_closed)
