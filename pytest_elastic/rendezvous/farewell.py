"""The end of a job: decided once, told to everybody, acknowledged, and told to late comers (R10).

From the first day it keeps the list of who may still come to ask: whoever is lost today may ask at
the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import Enum

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.changes import Went
from pytest_elastic.rendezvous.desk import Desk
from pytest_elastic.rendezvous.model import Failure, RosterEntry
from pytest_elastic.rendezvous.peer import Peer
from pytest_elastic.rendezvous.vocabulary import Finished, Probe

__all__ = ["Farewell", "Heard"]

# How long after its lease a member that was lost may still come and ask what has become of the
# job: without succession it gives up four seconds after its lease, and goes for good. With it, it
# looks on for the join timeout; nobody stays for one that has been away for longer than this.
_MAY_RETURN_S = 5.0
# Stands for nodes that waited with a coordinator before this one: no seal names them all.
_STRANGERS = "whoever waited with the coordinator before"


class Heard(Enum):
    """Who knows of the end."""

    NOT_YET = "not yet everybody who can be reached"
    BY_TOO_FEW = "by fewer than would make it hold"
    BY_ALL = "by everybody who can be reached"


class Farewell:
    """How the job ends, who has heard of it, and who may come to ask."""

    def __init__(self, desk: Desk) -> None:
        self.ending: m.JobEnding | None = None
        """How the job ends, once that is decided."""
        self.heard: m.JobEnding | None = None
        """How it has ended, as somebody knows to whom another coordinator has told it."""
        self._settings = desk.settings
        self._term = desk.term
        self._out = desk.out
        self._members = desk.members
        self._mandate = desk.mandate
        self._deadlines = desk.deadlines
        self._ask_at = 0.0
        self._decided_at = 0.0
        self._over_at: float | None = None
        self._is_finished = False
        self._unaware: dict[str, RosterEntry] = {}
        self._aware: set[str] = set()
        self._may_return: dict[str, float] = {}
        self._parted: dict[str, RosterEntry] = {}

    # --- the list ----------------------------------------------------------------------------

    def part_from(self, gone: Went, now: float) -> None:
        """Note that a node is a member no more; it needs a word only if it may come back."""
        if gone.may_return:
            self._miss(gone.peer.as_entry(), now)
        else:
            self._unaware.pop(gone.peer.node.incarnation, None)

    def _miss(self, entry: RosterEntry, now: float) -> None:
        self._unaware.pop(entry.incarnation, None)
        self._may_return[entry.incarnation] = now
        self._parted[entry.incarnation] = entry

    def expect_strangers(self, now: float) -> None:
        """Note that some may come and ask whom only an earlier coordinator knew."""
        self._may_return[_STRANGERS] = now

    def lose(self, peer: Peer, now: float) -> None:
        """Note that a node that was being told is out of reach; one that knows may well go."""
        if peer.node.incarnation in self._unaware:
            self._miss(peer.as_entry(), now)

    def meet(self, peer: Peer, now: float) -> bool:
        """Note that a node is here (again); tell whether it was told how the job ends."""
        if self._over_at is not None:
            self._may_return[peer.node.incarnation] = now  # until it says that it knows
            return True  # with its welcome
        self._return(peer)
        if self.ending is not None:
            self._tell(peer, self.ending)
        return self.ending is not None

    def _return(self, peer: Peer) -> None:
        self._may_return.pop(peer.node.incarnation, None)
        self._parted.pop(peer.node.incarnation, None)

    # --- the end -----------------------------------------------------------------------------

    def hear(self, ended: m.JobEnding | None) -> bool:
        """Take note of how the job has ended, as a node says; tell whether that is news.

        It holds: nobody is needed any more for it to be told. One that differs from what was
        decided here does not make that hold.
        """
        if ended is None:
            return False
        if self.ending is not None:
            if (ended.result, ended.reason) == (self.ending.result, self.ending.reason):
                self._mandate.conclude()
            return False
        self._mandate.conclude()
        self.heard = ended
        return True

    def ask(self, roster: Sequence[RosterEntry], now: float) -> None:
        """Ask those of a round who are not here whether it has ended, once a beat.

        Whom we know is at the address that we know, and says so itself.
        """
        if now < self._ask_at:
            return
        self._ask_at = now + self._settings.beat_interval_s
        for entry in roster:
            if entry.incarnation not in self._members.peers and entry.port:
                self._out.add(Probe.of(entry, self._settings.lease_s))

    def decide(self, result: str, reason: str, failure: Failure | None, now: float) -> None:
        """Decide how the job ends, and tell everybody."""
        ending = m.JobEnding(term=self._term, result=result, reason=reason, first_failure=failure)
        self._out.emit(events.JobEnding(result=result, reason=reason))
        self.go_on(ending, now)

    def go_on(self, ending: m.JobEnding, now: float) -> None:
        """Tell everybody how the job ends, whoever has decided it."""
        for entry in ending.members:
            if entry.incarnation not in self._members.peers:
                self._miss(entry, now)  # only the coordinator before this one knew it
        members = self._everybody(now) if self._settings.has_succession else ()
        self.ending = dataclasses.replace(ending, term=self._term, members=members)
        self._decided_at = now
        self._members.close(now)
        for peer in self._members.peers.values():
            if peer.is_suspect:
                self._miss(peer.as_entry(), now)
            else:
                self._tell(peer, self.ending)

    def _everybody(self, now: float) -> Sequence[RosterEntry]:
        """Return whom the end concerns: who is here, and who may still come and ask."""
        awaited = self._awaited(now)
        known = {each: entry for each, entry in self._parted.items() if each in awaited}
        known |= {each: peer.as_entry() for each, peer in self._members.peers.items()}
        return tuple(known.values())

    def _tell(self, peer: Peer, ending: m.JobEnding) -> None:
        """Tell a node that is here how the job ends."""
        self._out.send(peer, ending)
        self._unaware[peer.node.incarnation] = peer.as_entry()

    def take_acknowledgement(self, peer: Peer) -> None:
        """Note that a node knows the end."""
        self._aware.add(peer.node.incarnation)
        self._unaware.pop(peer.node.incarnation, None)
        self._return(peer)

    def look(self, now: float) -> Heard:
        """Wait for the acknowledgements, for at most a lease; then say the last word."""
        deadline = self._decided_at + self._settings.lease_s
        if self._unaware and not self._deadlines.is_due(deadline, now):
            return Heard.NOT_YET
        if not self._mandate.allows(self._aware):
            is_late = self._deadlines.is_due(deadline, now)
            return Heard.BY_TOO_FEW if is_late else Heard.NOT_YET
        for _, entry in sorted(self._unaware.items()):
            self._miss(entry, now)  # it may still ask
        last_word = m.JobEnded(term=self._term, unaware=self._awaited(now))
        for peer in self._members.peers.values():
            self._out.send(peer, last_word)
        self._over_at = now
        self._members.ended = self.ending
        return Heard.BY_ALL

    def has_others(self, now: float) -> bool:
        """Tell whether somebody else is in this job, or was lost so lately that it may return."""
        return len(self._members.peers) > 1 or bool(self._awaited(now))

    def _awaited(self, now: float) -> Sequence[str]:
        """Return who may still come and ask."""
        return tuple(
            incarnation
            for incarnation, parted_at in sorted(self._may_return.items())
            if parted_at + self._patience_s > now
        )

    @property
    def _patience_s(self) -> float:
        return self._settings.lease_s + _MAY_RETURN_S

    def linger(self, now: float) -> None:
        """Stay for those who may come to ask; say so once when there are none any more.

        The agent may have to stay for longer, for its own member: who comes then is told, too.
        """
        if self._is_finished:
            return
        assert self.ending is not None, "the end is decided"
        assert self._over_at is not None, "the last word was said"
        last = max(self._may_return.values(), default=self._over_at - self._patience_s)
        until = min(last + self._patience_s, self._over_at + self._settings.linger_s)
        if self._deadlines.is_due(until, now):
            self._is_finished = True
            self._out.add(Finished(result=self.ending.result))
