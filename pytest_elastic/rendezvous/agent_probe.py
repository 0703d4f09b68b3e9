"""Asks what lives behind a suspect's port: its agent, its tombstone, or nobody (R5)."""

from __future__ import annotations

import socket
from collections.abc import Callable

from pytest_elastic.channel import Channel, JsonObject, connect
from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous.messages import ProbeAnswer, ProbeRequest
from pytest_elastic.rendezvous.vocabulary import Outcome, Probe
from pytest_elastic.rendezvous.wire import BadMessage, decode, encode

__all__ = ["probe_agent"]

# Between two dials to a port that hung up on us without a word: long enough for what is dying there
# to be dead, so that the next dial is refused.
_REDIAL_S = 0.02


def probe_agent(loop: Loop, run_id: str, order: Probe, tell: Callable[[Outcome], None]) -> None:
    """Dial an agent until it answers, refuses, or the time is over; `tell` is called once."""
    _AgentProbe(loop, run_id, order, tell).dial()


class _AgentProbe:
    """One question. A keeper that is still killing lets us wait in its agent's place."""

    def __init__(
        self, loop: Loop, run_id: str, order: Probe, tell: Callable[[Outcome], None]
    ) -> None:
        self._loop = loop
        self._run_id = run_id
        self._order = order
        self._tell = tell
        self._is_answered = False
        self._channel: Channel | None = None
        self._deadline = loop.now() + order.answer_within_s
        self._timer = loop.call_at(self._deadline, lambda: self._answer(Outcome.SILENT))

    def dial(self) -> None:
        """Connect, for as long as there is time."""
        left_s = self._deadline - self._loop.now()
        if self._is_answered or left_s <= 0:
            return
        connect(
            self._loop,
            self._order.address,
            self._order.port,
            timeout_s=left_s,
            on_connected=self._on_connected,
            on_failed=self._on_failed,
        )

    def _on_connected(self, sock: socket.socket) -> None:
        if self._is_answered:
            sock.close()
            return
        self._channel = Channel(
            self._loop, sock, on_message=self._on_message, on_closed=self._on_closed
        )
        request = ProbeRequest(run_id=self._run_id, incarnation=self._order.incarnation)
        self._channel.send(encode(request))

    def _on_failed(self, error: OSError) -> None:
        is_refused = isinstance(error, ConnectionRefusedError)
        self._answer(Outcome.REFUSED if is_refused else Outcome.SILENT)

    def _on_message(self, fields: JsonObject, _: list[int]) -> None:
        try:
            message = decode(fields)
        except BadMessage:
            self._answer(Outcome.REFUSED)
            return
        if not isinstance(message, ProbeAnswer) or message.incarnation != self._order.incarnation:
            self._answer(Outcome.REFUSED)
        else:
            self._answer(Outcome.TOMBSTONE if message.is_tombstone else Outcome.ALIVE)

    def _on_closed(self, _: str) -> None:
        """Try again: whoever took the connection died before it could answer."""
        self._channel = None
        self._loop.call_at(self._loop.now() + _REDIAL_S, self.dial)

    def _answer(self, outcome: Outcome) -> None:
        if self._is_answered:
            return
        self._is_answered = True
        self._timer.cancel()
        if self._channel is not None:
            self._channel.close()
        self._tell(outcome)
