"""Asks at an agent's port: whether it lives (R5), for its vote, who decides now (R11).

Behind the port is an agent, the keeper that outlived it and answers with a tombstone, or nobody.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from pytest_elastic.agent_channel import AgentChannel
from pytest_elastic.channel import JsonObject, connect
from pytest_elastic.credentials import Credentials
from pytest_elastic.loop import Loop, Timer
from pytest_elastic.rendezvous.messages import (
    Answer,
    Message,
    PlaceAnswer,
    ProbeAnswer,
    Question,
    VoteAnswer,
)
from pytest_elastic.rendezvous.vocabulary import Outcome
from pytest_elastic.rendezvous.wire import BadMessage, decode, encode

__all__ = ["Call", "ask_agent", "tell_agent"]

# Between two dials to a port that hung up on us without a word: long enough for what is dying there
# to be dead, so that the next dial is refused.
_REDIAL_S = 0.02
# How often somebody who does not answer is dialled within the time that there is: a packet that is
# lost is sent again by the kernel only after a second, and a link may have healed meanwhile.
_DIALS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Whom to ask what: the agent of `incarnation`, if it is still the one behind the port."""

    incarnation: str
    address: str
    port: int
    question: Question
    within_s: float
    credentials: Credentials | None


def ask_agent(loop: Loop, call: Call, tell: Callable[[Answer | None, Outcome], None]) -> None:
    """Dial an agent until it answers, refuses, or the time is over; `tell` is called once.

    The answer is None unless the outcome is ALIVE.
    """
    _Questioner(loop, call, tell).dial()


def tell_agent(loop: Loop, call: Call, on_said: Callable[[], None] = lambda: None) -> None:
    """Say something that needs no answer; `on_said` is not called if it could not be said."""

    def on_connected(sock: socket.socket) -> None:
        channel = AgentChannel(
            loop,
            sock,
            credentials=call.credentials,
            is_caller=True,
            on_message=lambda _: None,
            on_closed=lambda _: None,
        )
        channel.send(encode(call.question))
        channel.close_when_flushed()
        on_said()

    connect(
        loop,
        call.address,
        call.port,
        timeout_s=call.within_s,
        on_connected=on_connected,
        on_failed=lambda _: None,
    )


class _Questioner:
    """One question. A keeper that is still killing lets us wait in its agent's place."""

    def __init__(
        self, loop: Loop, call: Call, tell: Callable[[Answer | None, Outcome], None]
    ) -> None:
        self._loop = loop
        self._call = call
        self._tell = tell
        self._is_answered = False
        self._channel: AgentChannel | None = None
        self._dials: list[Callable[[], None]] = []  # each gives one up
        self._deadline = loop.now() + call.within_s
        self._timer = loop.call_at(self._deadline, lambda: self._answer(Outcome.SILENT))
        self._redial: Timer | None = None

    def dial(self) -> None:
        """Connect, for as long as there is time; besides those dials that were not answered yet."""
        now = self._loop.now()
        if self._is_answered or now >= self._deadline:
            return

        def on_connected(sock: socket.socket) -> None:
            self._dials.remove(give_up)
            self._stop_dialling()
            self._ask(sock)

        give_up = connect(
            self._loop,
            self._call.address,
            self._call.port,
            timeout_s=self._deadline - now,
            on_connected=on_connected,
            on_failed=self._on_failed,
        )
        self._dials.append(give_up)
        self._redial = self._loop.call_at(now + self._call.within_s / _DIALS, self.dial)

    def _stop_dialling(self) -> None:
        if self._redial is not None:
            self._redial.cancel()
        for give_up in self._dials:
            give_up()
        self._dials.clear()

    def _ask(self, sock: socket.socket) -> None:
        self._channel = AgentChannel(
            self._loop,
            sock,
            credentials=self._call.credentials,
            is_caller=True,
            on_message=self._on_message,
            on_closed=self._on_closed,
        )
        self._channel.send(encode(self._call.question))

    def _on_failed(self, error: OSError) -> None:
        is_refused = isinstance(error, ConnectionRefusedError)
        self._answer(Outcome.REFUSED if is_refused else Outcome.SILENT)

    def _on_message(self, fields: JsonObject) -> None:
        try:
            message: Message | None = decode(fields)
        except BadMessage:
            message = None
        asked = self._call.incarnation
        match message:
            case ProbeAnswer(incarnation=incarnation) if incarnation == asked:
                is_alive = not message.is_tombstone
                self._answer(Outcome.ALIVE if is_alive else Outcome.TOMBSTONE, message)
            case VoteAnswer(voter=voter) if voter == asked:
                self._answer(Outcome.ALIVE, message)
            case PlaceAnswer():
                self._answer(Outcome.ALIVE, message)
            case _:
                self._answer(Outcome.REFUSED)

    def _on_closed(self, _: str) -> None:
        """Try again: whoever took the connection died before it could answer."""
        channel, self._channel = self._channel, None
        if channel is not None and channel.unwelcome is not None:
            self._answer(Outcome.SILENT)  # nobody signed that, so it proves nothing
            return
        self._loop.call_at(self._loop.now() + _REDIAL_S, self.dial)

    def _answer(self, outcome: Outcome, answer: Answer | None = None) -> None:
        if self._is_answered:
            return
        self._is_answered = True
        self._timer.cancel()
        self._stop_dialling()
        if self._channel is not None:
            self._channel.close()
        self._tell(answer if outcome is Outcome.ALIVE else None, outcome)
