"""Whether a leader that has found nothing may begin a job, or one may be running already (R12).

A host that has forgotten everything is elected all the same, in the configuration of hosts. Where
it is alone in that, these are safe: that there cannot be nodes enough for a second job; to wait
until the survivors of a first one would have announced themselves; to count only nodes that know of
no job; and a **mark** that was left on this machine, which tells who voted in the job of before.
Those, and nodes that come and have promised a higher term, are its *elders*: each is dialled once a
beat, and waited for as long as it may go on with that job, for three times as long as an election
takes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pytest_elastic.events.model import FirstRoundDelayed
from pytest_elastic.rendezvous.core.messages import JoinRequest
from pytest_elastic.rendezvous.core.outbox import LeaderOutbox
from pytest_elastic.rendezvous.core.records import Mark
from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.founding import announced_within_s
from pytest_elastic.rendezvous.model import RosterEntry, Settings
from pytest_elastic.rendezvous.vocabulary import Outcome, Probe, ProbeAnswered

__all__ = ["FirstRound"]

# How long a leader may need for a look at the endpoint, at most: it has as long for an answer.
_LOOK_S = 1.0
# By how much longer those are waited for who may live: an election may have to be tried again, and
# a link that is cut for longer than it takes to notice heals as a rule. There has to be an end, as
# some nodes that have lost each other can do nothing without this host.
_PATIENCE = 3


@dataclass(slots=True)
class _Elder:
    """A node that may go on with the job of before."""

    entry: RosterEntry
    outcome: Outcome = Outcome.SILENT
    is_asked: bool = False
    has_end: bool = False


class FirstRound:
    """Asked when enough nodes are ready for the first round of a leader that has found nothing."""

    def __init__(
        self,
        settings: Settings,
        out: LeaderOutbox,
        deadlines: Deadlines,
        *,
        began_at: float,
        is_new: bool,
        mark: Mark | None,
    ) -> None:
        self._settings = settings
        self._out = out
        self._deadlines = deadlines
        self._is_guarded = is_new and settings.has_succession and not settings.endpoints
        self._job = mark.job if mark is not None and self._is_guarded else None
        self._elders: dict[str, _Elder] = {}
        self._of_before: dict[str, int] = {}  # who was told of a job before it came, and how far
        self._number = self._restarts_used = 0
        self._ask_at = began_at
        self._asked_at: float | None = None
        self._has_few_new = False
        self._told = ""
        announce_s = announced_within_s(settings)
        self._announced_by = began_at + announce_s
        self._waits_until = self._announced_by if settings.could_be_two else began_at
        self._heard_by = began_at
        self._elders_until = began_at + _PATIENCE * announce_s
        if mark is not None and self._job is not None:
            self._take_mark(mark, began_at, announce_s)

    def _take_mark(self, mark: Mark, began_at: float, announce_s: float) -> None:
        job, beat_s = mark.job, self._settings.beat_interval_s
        renewed_at = min(mark.renewed_at, began_at) + beat_s
        # Who was elected long ago looks at the endpoint all the time.
        self._heard_by = max(renewed_at + announce_s, began_at + 2 * beat_s + _LOOK_S)
        patient_until = renewed_at + _PATIENCE * announce_s
        self._elders_until = max(patient_until, self._heard_by + self._settings.lease_s)
        self._number, self._restarts_used = job.number, job.restarts_used
        for record in (job.base, job.record):
            for entry in record.roster:
                if entry.incarnation in record.configuration.voters:
                    self._elders[entry.incarnation] = _Elder(entry)

    # --- who comes, and who is dialled -------------------------------------------------------

    def meet(self, request: JoinRequest) -> None:
        """Take note of a node that is let in, and of whether it knows of a job.

        The first time decides: later ones may tell of what this leader has said.
        """
        incarnation = request.node.incarnation
        if self._is_guarded and self._of_before.setdefault(incarnation, request.number):
            self._waits_until = max(self._waits_until, self._announced_by)

    def must_wait_for(self, request: JoinRequest, now: float) -> bool:
        """Tell whether a node that has promised a higher term may still go on with its own job."""
        if not self._is_guarded or self._deadlines.is_due(self._elders_until, now):
            return False
        elder = self._elders.setdefault(request.node.incarnation, _Elder(request.node.as_entry()))
        elder.outcome = Outcome.ALIVE
        self._number = max(self._number, request.number)
        self._restarts_used = max(self._restarts_used, request.restarts_used)
        return True

    def watch(self, here: Collection[str], now: float) -> None:
        """Dial the elders that are not `here` (incarnations of members)."""
        if not self._elders or not self._deadlines.is_due(self._ask_at, now):
            return
        self._ask_at = now + self._settings.beat_interval_s
        self._deadlines.is_due(self._ask_at, now)
        for elder in self._left(here):
            if not elder.is_asked:
                elder.is_asked = True
                self._out.add(Probe.of(elder.entry, self._settings.lease_s))

    def take_answer(self, answer: ProbeAnswered) -> None:
        """Take note of what a dial has shown; a tombstone is the last word."""
        elder = self._elders.get(answer.incarnation)
        if elder is None or not elder.is_asked:
            return
        elder.is_asked = False
        if elder.outcome is not Outcome.TOMBSTONE:
            elder.outcome = answer.outcome
        elder.has_end |= answer.is_ending
        self._number = max(self._number, answer.newest_round)
        self._restarts_used = max(self._restarts_used, answer.restarts_used)

    def _left(self, here: Collection[str], *outcomes: Outcome) -> Sequence[_Elder]:
        return [
            elder
            for incarnation, elder in self._elders.items()
            if incarnation not in here and elder.outcome is not Outcome.TOMBSTONE
            if not outcomes or elder.outcome in outcomes
        ]

    def _have_ended(self, here: Collection[str]) -> bool:
        """Tell whether no elder can go on with its job, as far as they say."""
        if self._left(here, Outcome.SILENT):
            return False  # one may be in a later round, made with others who have ended since
        alive = self._left(here, Outcome.ALIVE)
        voters = {elder.entry.incarnation for elder in alive}
        job = self._job
        is_later = job is None or self._number > job.number
        can_elect = job is not None and any(
            each.configuration.has_quorum(voters) for each in (job.base, job.record)
        )
        return not (alive and (is_later or can_elect or any(each.has_end for each in alive)))

    # --- whether to begin --------------------------------------------------------------------

    def may_begin(self, ready: Iterable[str], here: Collection[str], now: float) -> bool:
        """Tell whether a round may be proposed; `ready` could be in it, `here` are all members."""
        if not self._is_guarded:
            return True
        new = sum(self._is_new(incarnation, here) for incarnation in ready)
        self._has_few_new = new < self._settings.min_nodes
        wait_s, why = self._wait(here, now)
        if wait_s <= 0 and self._has_few_new:
            wait_s = self._settings.join_timeout_s
        if wait_s <= 0:
            return True
        if self._asked_at is None or (why and why != self._told):
            self._told = why
            self._out.emit(FirstRoundDelayed(wait_s=round(wait_s, 1), reason=why))
        if self._asked_at is None:
            self._asked_at = now
        return False

    def _wait(self, here: Collection[str], now: float) -> tuple[float, str]:
        is_due = self._deadlines.is_due
        if not is_due(self._waits_until, now):
            return self._waits_until - now, ""
        if not is_due(self._heard_by, now):
            return self._heard_by - now, "its members may be going on with it"
        if self._have_ended(here) or is_due(self._elders_until, now):
            return 0.0, ""
        alive = [each.entry.name for each in self._left(here, Outcome.ALIVE)]
        silent = [each.entry.name for each in self._left(here, Outcome.SILENT)]
        why = f"{', '.join(alive)} live" if alive else f"{', '.join(silent)} may live"
        return self._elders_until - now, why

    def _is_new(self, incarnation: str, here: Collection[str]) -> bool:
        number = self._of_before.get(incarnation, 0)
        is_of_mark = self._job is not None and number <= self._job.number
        return number == 0 or (is_of_mark and self._have_ended(here))

    def numbers(self, here: Collection[str]) -> tuple[int, int]:
        """Return the highest number, and the restarts used, that somebody may know; else zeros."""
        is_left = self._left(here, Outcome.ALIVE, Outcome.SILENT)
        is_remembered = any(self._of_before.get(incarnation) for incarnation in here)
        if not is_left and not is_remembered:
            return 0, 0
        return self._number, self._restarts_used

    def is_given_up(self, now: float) -> bool:
        """Tell whether nobody of those who are ready should wait any longer."""
        timeout_s = self._settings.join_timeout_s
        return self._asked_at is not None and self._deadlines.is_due(
            self._asked_at + timeout_s, now
        )

    @property
    def why_lost(self) -> str:
        """Say what was missing."""
        within = f"within {self._settings.join_timeout_s:g} s"
        if self._has_few_new:
            return (
                "enough nodes were ready, but some were told of a job that runs, and without them "
                f"fewer than {self._settings.min_nodes}; nobody who decides that job was heard of "
                f"{within}"
            )
        return (
            f"enough nodes were ready, but run {self._settings.run_id!r} was here before, and "
            f"{self._told}; none of them has joined, or said who decides, {within}"
        )
