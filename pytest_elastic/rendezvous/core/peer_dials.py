"""A follower's part in finding out who reaches whom: dial, and say whom it did not reach (R13)."""

from __future__ import annotations

from pytest_elastic.rendezvous.core.messages import DialPeers, PeersDialled
from pytest_elastic.rendezvous.vocabulary import Outcome, Probe, ProbeAnswered

__all__ = ["PeerDials"]


class PeerDials:
    """The order that is being carried out, if there is one."""

    def __init__(self) -> None:
        self._order: DialPeers | None = None
        self._waits_for: set[str] = set()
        self._unreached: dict[str, str] = {}

    def begin(self, order: DialPeers) -> tuple[Probe, ...]:
        """Return the dials that an order asks for; whatever went on before is given up."""
        if order == self._order:
            return ()  # said again, as the leader could not know that it was heard
        self._order = order
        self._unreached.clear()
        self._waits_for = {entry.incarnation for entry in order.peers}
        return tuple(Probe.of(entry, order.answer_within_s) for entry in order.peers)

    def take(self, answer: ProbeAnswered) -> PeersDialled | None:
        """Take in how a dial ended; return the answer to the order, if that was the last one."""
        if self._order is None or answer.incarnation not in self._waits_for:
            return None
        self._waits_for.discard(answer.incarnation)
        if answer.outcome is not Outcome.ALIVE:
            self._unreached[answer.incarnation] = answer.outcome.value
        return None if self._waits_for else self.answer()

    def answer(self) -> PeersDialled | None:
        """Return what is known, once everybody was dialled: to say it again after joining."""
        if self._order is None or self._waits_for:
            return None
        return PeersDialled(
            term=self._order.term, number=self._order.number, unreached=dict(self._unreached)
        )
