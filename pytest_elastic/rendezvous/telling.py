"""A node that knows how the job has ended dials those who may not, and tells them (R10).

Whoever asks asks those whom it knows: they may all be lost, or out of its reach alone, and a spare
is known to nobody but the coordinator. So an end carries the addresses of all whom it concerns, and
who stays for those who may ask does not wait to be asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.messages import JobEnding
from pytest_elastic.rendezvous.model import RosterEntry, Settings
from pytest_elastic.rendezvous.vocabulary import Outcome, Probe, ProbeAnswered

__all__ = ["Telling"]


class Telling:
    """Whom one node tells how the job has ended; each is dialled once a beat until it knows."""

    def __init__(self, settings: Settings, deadlines: Deadlines, own_incarnation: str) -> None:
        self._settings = settings
        self._deadlines = deadlines
        self._own_incarnation = own_incarnation
        self._ending: JobEnding | None = None
        self._left: dict[str, RosterEntry] = {}
        self._asked: set[str] = set()
        self._dial_at = 0.0

    def begin(self, ending: JobEnding, unaware: Sequence[str] | None) -> None:
        """Tell those of an end's members whose incarnations are given; None: all of them."""
        self._ending = ending
        self._left = {
            entry.incarnation: entry
            for entry in ending.members
            if entry.incarnation != self._own_incarnation and entry.port
            if unaware is None or entry.incarnation in unaware
        }

    def dials(self, now: float) -> Sequence[Probe]:
        """Return whom to dial now; answered by `take_answer`."""
        if not self._left or not self._deadlines.is_due(self._dial_at, now):
            return ()
        self._dial_at = now + self._settings.beat_interval_s
        self._deadlines.is_due(self._dial_at, now)
        to_ask = [each for each in self._left.values() if each.incarnation not in self._asked]
        self._asked |= {entry.incarnation for entry in to_ask}
        within_s = self._settings.lease_s
        return [Probe.of(entry, within_s, ended=self._ending) for entry in to_ask]

    def take_answer(self, answer: ProbeAnswered) -> None:
        """Leave alone who knows by now, or has ended; a port that refuses proves nothing."""
        self._asked.discard(answer.incarnation)
        if answer.ended is not None or answer.outcome is Outcome.TOMBSTONE:
            self._left.pop(answer.incarnation, None)
