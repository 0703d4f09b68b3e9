"""What a node asks other agents at their ports: whether they live, for votes, for the leader.

Behind a port is an agent, the keeper that outlived it and answers with a tombstone, or nothing. An
answer is believed of the incarnation that was asked, and of no other agent behind its port.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_elastic.agent_channel import AgentChannel
from pytest_elastic.channel import JsonObject, connect
from pytest_elastic.credentials import Credentials
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import is_seat
from pytest_elastic.rendezvous.settings import Settings

__all__ = ["Questions", "outcome_of"]

# Between two dials to a port that hung up on us without a word: long enough for what is dying there
# to be dead, so that the next dial is refused.
_REDIAL_S = 0.02
# How often a silent peer is dialled within the time that there is: a packet that is
# lost is sent again by the kernel only after a second, and a link may have healed meanwhile.
_DIALS = 4

_Tell = Callable[[m.Answer | None, v.Outcome], None]


class Questions:
    """Turns commands of the machines into calls, and what comes of these into inputs."""

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        *,
        decode: Callable[[Mapping[str, Any]], Any],
        credentials: Credentials | None,
        tell_follower: Callable[[v.FollowerInput], None],
    ) -> None:
        self.loop = loop
        self.decode = decode
        self._run_id, self._lease_s = settings.run_id, settings.lease_s
        self._credentials = credentials
        self._tell_follower = tell_follower

    def _ask_status(
        self,
        target: m.Agent,
        within_s: float,
        tell: _Tell,
        *,
        announced: m.LeaderAddress | None = None,
    ) -> None:
        question = m.Question(run_id=self._run_id, leader=announced)
        _Call(self, target, question, within_s, tell).dial()

    def ask(self, ask: v.Ask, pass_on: Callable[[v.Answered], None]) -> None:
        """Ask an agent what a machine wants to know."""

        def tell(said: m.Answer | None, outcome: v.Outcome) -> None:
            pass_on(
                v.Answered(
                    incarnation=ask.node.incarnation,
                    outcome=outcome,
                    answer=said,
                    term=ask.term,
                    is_pre_vote=ask.is_pre_vote,
                )
            )

        within_s = self._lease_s if ask.within_s is None else ask.within_s
        question = m.Question(run_id=self._run_id, term=ask.term, is_pre_vote=ask.is_pre_vote)
        _Call(self, ask.node, question, within_s, tell).dial()

    def ask_who_leads(self, peers: Sequence[m.Agent]) -> None:
        """Ask all of them for the leader, and whether the job has ended."""

        def tell(said: m.Answer | None, _: v.Outcome) -> None:
            if said is not None and said.base is not None:
                self._tell_follower(v.EndHeard(record=said.base))
            elif said is not None and said.leader is not None:
                self._tell_follower(v.LeaderHeard(leader=said.leader))

        for peer in peers:
            self._ask_status(peer, v.FIND_S, tell)

    def ask_whether_leads(self, leader: m.LeaderAddress, tell: Callable[[bool], None]) -> None:
        """Dial an address, and tell whether the agent there says that it leads."""

        def on_answer(said: m.Answer | None, _: v.Outcome) -> None:
            found = None if said is None else said.leader
            tell(
                found is not None
                and (found.incarnation, found.term) == (leader.incarnation, leader.term)
            )

        self._ask_status(leader, self._lease_s, on_answer)

    def announce(
        self,
        leader: m.LeaderAddress,
        to: m.Agent,
        on_said: Callable[[], None] = lambda: None,
    ) -> None:
        """Announce the leader to an agent; `on_said` is not called if it could not be told."""
        if (to.address, to.port) == (leader.address, leader.port):
            return

        def tell(said: m.Answer | None, _: v.Outcome) -> None:
            if said is not None:
                on_said()

        self._ask_status(to, self._lease_s, tell, announced=leader)

    def channel(
        self,
        sock: socket.socket,
        on_message: Callable[[JsonObject], None],
        on_closed: Callable[[str], None],
    ) -> AgentChannel:
        """Return the channel of a connection that this node has made."""
        return AgentChannel(
            self.loop,
            sock,
            credentials=self._credentials,
            is_caller=True,
            on_message=on_message,
            on_closed=on_closed,
        )


def outcome_of(message: object, incarnation: str) -> v.Outcome:
    """Tell what an answer shows; incarnation "" asks any agent."""
    match message:
        case m.Answer(incarnation=own) if incarnation in {"", own}:
            return v.Outcome.TOMBSTONE if message.is_tombstone else v.Outcome.ALIVE
        case _:
            return v.Outcome.REFUSED


class _Call:
    """One question on its way: an agent is dialled until it answers, refuses, or the time is over.

    `tell` is called once; the answer is None unless the outcome is ALIVE. A keeper that is still
    killing lets us wait in its agent's place.
    """

    def __init__(
        self,
        questions: Questions,
        target: m.Agent,
        question: m.Question,
        within_s: float,
        tell: _Tell,
    ) -> None:
        self._questions = questions
        self._loop = questions.loop
        self._target = target
        self._question = question
        self._within_s = within_s
        self._tell = tell
        self._is_answered = False
        self._channel: AgentChannel | None = None
        self._dials: list[Callable[[], None]] = []  # each gives one up
        self._deadline = self._loop.now() + within_s
        self._timer = self._loop.call_at(self._deadline, lambda: self._answer(v.Outcome.SILENT))
        self._redial: Timer | None = None

    def dial(self) -> None:
        """Connect, for as long as there is time; besides those dials that were not answered yet."""
        now = self._loop.now()
        if self._is_answered or now >= self._deadline:
            return

        def on_connected(sock: socket.socket) -> None:
            self._dials.remove(give_up)
            self._stop_dialling()
            self._channel = self._questions.channel(sock, self._on_message, self._on_closed)
            self._channel.send(m.encode(self._question))

        give_up = connect(
            self._loop,
            self._target.address,
            self._target.port,
            timeout_s=self._deadline - now,
            on_connected=on_connected,
            on_failed=self._on_failed,
        )
        self._dials.append(give_up)
        self._redial = self._loop.call_at(now + self._within_s / _DIALS, self.dial)

    def _stop_dialling(self) -> None:
        if self._redial is not None:
            self._redial.cancel()
        for give_up in self._dials:
            give_up()
        self._dials.clear()

    def _on_failed(self, error: OSError) -> None:
        is_refused = isinstance(error, ConnectionRefusedError)
        self._answer(v.Outcome.REFUSED if is_refused else v.Outcome.SILENT)

    def _on_message(self, fields: JsonObject) -> None:
        try:
            message: object = self._questions.decode(fields)
        except m.BadMessage:
            message = None
        asked = self._target.incarnation
        self._answer(outcome_of(message, "" if is_seat(asked) else asked), message)

    def _on_closed(self, _: str) -> None:
        """Try again: the agent that took the connection died before it could answer."""
        channel, self._channel = self._channel, None
        if channel is not None and channel.unwelcome is not None:
            self._answer(v.Outcome.SILENT)  # unsigned, so it proves nothing
            return
        self._loop.call_at(self._loop.now() + _REDIAL_S, self.dial)

    def _answer(self, outcome: v.Outcome, answer: Any = None) -> None:  # noqa: ANN401 (a message)
        if self._is_answered:
            return
        self._is_answered = True
        self._timer.cancel()
        self._stop_dialling()
        if self._channel is not None:
            self._channel.close()
        self._tell(answer if outcome is v.Outcome.ALIVE else None, outcome)
