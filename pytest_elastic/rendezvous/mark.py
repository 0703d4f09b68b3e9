"""What the host of a job's only endpoint leaves behind, and what follows from finding it (R12).

A coordinator that follows nobody cannot know from others whether it is the first one: with the
processes of a host its store is gone, and the nodes that it meets when it comes back may all be
new. But what it has written down on its machine is still there. So whoever hosts the endpoint keeps
a *mark* of the job that it is in; and whoever finds one there begins nothing before

- survivors would have announced themselves at the endpoint, and
- of those who had a voice, each has ended, or says that it knows no later round and of no end, and
  these are too few to elect somebody. One that does not answer may be in a later round with others,
  one that was told of the end goes by that when it finds nobody.

Each of them is asked, once a beat, whether its agent lives. A refused port counts as its end by
then. Those who may go on are waited for three times as long.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.founding import announced_within_s
from pytest_elastic.rendezvous.model import Electorate, Node, RosterEntry, Settings
from pytest_elastic.rendezvous.quorum import has_quorum
from pytest_elastic.rendezvous.vocabulary import Outcome, Probe, ProbeAnswered

__all__ = ["KnownJob", "Mark", "Survivors"]

# How long an announcer may need for a look at the endpoint, at most: it has as long for an answer.
_LOOK_S = 1.0
# By how much longer those are waited for who may live: an election may have to be tried again, and
# a link that is cut for longer than it takes to notice heals as a rule. There has to be an end, as
# some nodes that have lost each other can do nothing without this host.
_PATIENCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """What a node knows of the job that it is in.

    `electorates`: who has a voice, as a successor needs a quorum of one of them at least. `left`:
    incarnations that have renounced their voice.
    """

    round: int
    restarts_used: int
    electorates: Sequence[Electorate] = ()
    left: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What was left behind; `renewed_at` is when its writer was last in contact, on our clock."""

    job: KnownJob
    renewed_at: float


class Survivors:
    """Those of a job that a mark tells of: whether they may still go on with it."""

    def __init__(self, mark: Mark, settings: Settings, deadlines: Deadlines, now: float) -> None:
        self._job = mark.job
        self._began_at = now
        self._settings = settings
        self._deadlines = deadlines
        wait_s = announced_within_s(settings)
        renewed_at = min(mark.renewed_at, now) + settings.beat_interval_s
        # Who was elected long ago looks at the endpoint all the time.
        look_s = 2 * settings.beat_interval_s + _LOOK_S
        self._heard_by = max(renewed_at + wait_s, now + look_s)
        self._waits_until = max(renewed_at + _PATIENCE * wait_s, self._heard_by + settings.lease_s)
        self._entries = {
            entry.incarnation: entry
            for electorate in mark.job.electorates
            for entry in electorate.members
            if entry.incarnation not in mark.job.left
        }
        self._outcomes = dict.fromkeys(self._entries, Outcome.SILENT)
        self._told_of_end: set[str] = set()
        self._asked: set[str] = set()
        self._round, self._restarts_used = mark.job.round, mark.job.restarts_used
        self._ask_at = now

    def add(self, node: Node, newest_round: int, restarts_used: int) -> bool:
        """Take note of a node that says that it stands by this job; tell if it is new.

        It may have gone on without anybody of whom the mark tells.
        """
        incarnation = node.incarnation
        is_new = incarnation not in self._entries
        self._entries[incarnation] = node.as_entry()
        self._outcomes[incarnation] = Outcome.ALIVE
        self._round = max(self._round, newest_round)
        self._restarts_used = max(self._restarts_used, restarts_used)
        patience_s = _PATIENCE * announced_within_s(self._settings)
        self._waits_until = max(self._waits_until, self._began_at + patience_s)
        return is_new

    def ask(self, here: Collection[str], now: float) -> Sequence[Probe]:
        """Return whom to dial; `here` are the incarnations that have joined this coordinator."""
        if not self._deadlines.is_due(self._ask_at, now):
            return ()
        self._ask_at = now + self._settings.beat_interval_s
        self._deadlines.is_due(self._ask_at, now)
        probes = []
        for entry in self._left(here):
            if entry.incarnation in self._asked:
                continue
            self._asked.add(entry.incarnation)
            probes.append(Probe.of(entry, self._settings.lease_s))
        return probes

    def take_answer(self, answer: ProbeAnswered) -> None:
        """Take note of what a dial has shown; a tombstone is the last word."""
        incarnation = answer.incarnation
        if incarnation not in self._asked:
            return
        self._asked.discard(incarnation)
        if self._outcomes[incarnation] is not Outcome.TOMBSTONE:
            self._outcomes[incarnation] = answer.outcome
        if answer.is_ending:
            self._told_of_end.add(incarnation)
        self._round = max(self._round, answer.newest_round)
        self._restarts_used = max(self._restarts_used, answer.restarts_used)

    def waits_for(self, here: Collection[str], now: float) -> tuple[float, str] | None:
        """Return for how long to wait at most, and why; None: nobody is waited for any more."""
        if not self._deadlines.is_due(self._heard_by, now):
            return self._heard_by - now, "its members may be going on with it"
        if self._have_ended(here) or self._deadlines.is_due(self._waits_until, now):
            return None
        alive = self._of(Outcome.ALIVE, here)
        silent = self._of(Outcome.SILENT, here)
        why = f"{_names(alive)} live" if alive else f"{_names(silent)} may live"
        return self._waits_until - now, why

    def knew_all(self, newest_round: int, here: Collection[str]) -> bool:
        """Tell whether a node that was told of a round comes from this job, and that has ended."""
        return newest_round <= self._job.round and self._have_ended(here)

    def numbers(self, here: Collection[str], *, is_remembered: bool) -> tuple[int, int]:
        """Return the newest round and the restarts used that somebody may remember; else zeros.

        `is_remembered`: one of those `here` was told of a round.
        """
        is_left = self._of(Outcome.ALIVE, here) or self._of(Outcome.SILENT, here)
        if self._entries and not is_left and not is_remembered:
            return 0, 0
        return self._round, self._restarts_used

    def _have_ended(self, here: Collection[str]) -> bool:
        if self._of(Outcome.SILENT, here):
            return False  # one may be in a later round, made with others who have ended since
        alive = {entry.incarnation for entry in self._of(Outcome.ALIVE, here)}
        can_elect = any(
            has_quorum(electorate, alive, self._job.left) for electorate in self._job.electorates
        )
        may_go_on = can_elect or bool(alive & self._told_of_end) or self._round > self._job.round
        return not (alive and may_go_on)

    def _left(self, here: Collection[str]) -> Sequence[RosterEntry]:
        return [
            entry
            for incarnation, entry in self._entries.items()
            if incarnation not in here and self._outcomes[incarnation] is not Outcome.TOMBSTONE
        ]

    def _of(self, outcome: Outcome, here: Collection[str]) -> Sequence[RosterEntry]:
        return [e for e in self._left(here) if self._outcomes[e.incarnation] is outcome]


def _names(entries: Sequence[RosterEntry]) -> str:
    return ", ".join(entry.name for entry in entries)
