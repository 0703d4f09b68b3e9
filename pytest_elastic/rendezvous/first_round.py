"""Whether a job may begin here at all, or may be running already (R12).

A coordinator that follows nobody cannot know whether it is the first one. Where the job has several
endpoints, a majority of them has to be its own. Where it has one, whose store this node hosts and
may have hosted before, three things are safe: that there cannot be nodes enough for a second job;
to wait until the survivors of a first one would have announced themselves; and a mark that was left
here, which tells of whom to hear. A node that was told of a round before it came here is a sign of
an old job, and not one of those who make a new one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pytest_elastic.events.model import FirstRoundDelayed
from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.founding import announced_within_s
from pytest_elastic.rendezvous.mark import KnownJob, Mark, Survivors
from pytest_elastic.rendezvous.messages import Hello
from pytest_elastic.rendezvous.model import Settings
from pytest_elastic.rendezvous.outbox import Outbox
from pytest_elastic.rendezvous.vocabulary import FoundJob, ProbeAnswered

__all__ = ["FirstRound"]


class FirstRound:
    """Asked when enough nodes are ready; `is_heir`: a round was sealed before, by somebody else.

    `mark` is what was left here by whoever hosted the endpoint before, if anything was.
    """

    def __init__(
        self,
        settings: Settings,
        out: Outbox,
        deadlines: Deadlines,
        now: float,
        *,
        is_heir: bool,
        mark: Mark | None = None,
    ) -> None:
        self._settings = settings
        self._out = out
        self._deadlines = deadlines
        self._needs_founding = bool(settings.endpoints) and not is_heir
        self._is_guarded = settings.has_succession and not settings.endpoints and not is_heir
        self._survivors: Survivors | None = None
        if mark is not None and self._is_guarded:
            self._survivors = Survivors(mark, settings, deadlines, now)
        self._began_at = now
        self._announced_by = now + announced_within_s(settings) if self._is_guarded else now
        self._waits_until = self._announced_by if settings.could_be_two else now
        self._came_with: dict[str, int] = {}
        self._has_few_new = False
        self._asked_at: float | None = None
        self._found_at = now  # when the founder is to be told (again) that nodes are ready
        self._told = ""
        self._is_survived = False

    @property
    def is_founding(self) -> bool:
        """Whether somebody else may still found the job."""
        return self._needs_founding

    def found(self) -> None:
        """Take note that a majority of the endpoints is ours."""
        self._needs_founding = False

    def meet(self, incarnation: str, newest_round: int) -> None:
        """Take note of a greeting, and of the newest round that the node has been told of.

        The first one decides: later ones may tell of what this coordinator has said.
        """
        if self._came_with.setdefault(incarnation, newest_round):
            self._waits_until = self._announced_by

    def has_met(self, incarnation: str) -> bool:
        """Tell whether a node was ever welcome here."""
        return incarnation in self._came_with

    def meet_elder(self, hello: Hello) -> bool:
        """Take note of a node that may not obey this coordinator, as it is in a job of before.

        It is waited for like those of whom a mark tells. Return whether it has not said so yet.
        """
        if self._survivors is None:
            nothing = Mark(job=KnownJob(round=0, restarts_used=0), renewed_at=self._began_at)
            self._survivors = Survivors(nothing, self._settings, self._deadlines, self._began_at)
        return self._survivors.add(hello.node, hello.newest_round, hello.restarts_used)

    def watch(self, here: Collection[str], now: float) -> None:
        """Ask those of whom a mark tells; `here` are the incarnations of this job's members."""
        if self._survivors is not None:
            for probe in self._survivors.ask(here, now):
                self._out.add(probe)

    def take_answer(self, answer: ProbeAnswered) -> None:
        """Take note of what a dial has shown."""
        if self._survivors is not None:
            self._survivors.take_answer(answer)

    def may_begin(self, ready: Iterable[str], here: Collection[str], now: float) -> bool:
        """Tell whether a round may be sealed, and do what is needed for it.

        `ready` are all who could be in it, `here` all members, by incarnation.
        """
        new = sum(self._is_new(incarnation, here) for incarnation in ready)
        self._has_few_new = self._is_guarded and new < self._settings.min_nodes
        wait = None if self._survivors is None else self._survivors.waits_for(here, now)
        self._is_survived = wait is not None
        if self._needs_founding:
            self._ask_for_founding(now)
        elif not self._deadlines.is_due(self._waits_until, now):
            self._tell_delay(self._waits_until - now)
        elif wait is not None:
            self._tell_delay(*wait)
        elif self._has_few_new:
            self._tell_delay(self._settings.join_timeout_s)
        else:
            return True
        if self._asked_at is None:
            self._asked_at = now
        return False

    def _ask_for_founding(self, now: float) -> None:
        """Say that nodes are ready, and again once a beat: a founder goes by it for two."""
        if self._deadlines.is_due(self._found_at, now):
            self._out.add(FoundJob())
            self._found_at = now + self._settings.beat_interval_s
            self._deadlines.is_due(self._found_at, now)  # to be woken for it

    def _is_new(self, incarnation: str, here: Collection[str]) -> bool:
        newest_round = self._came_with.get(incarnation, 0)
        return newest_round == 0 or (
            self._survivors is not None and self._survivors.knew_all(newest_round, here)
        )

    def _tell_delay(self, wait_s: float, why: str = "") -> None:
        """Say for how long nothing begins, and again if there is another reason for it."""
        if self._asked_at is None or (why and why != self._told):
            self._out.emit(FirstRoundDelayed(wait_s=round(wait_s, 1), reason=why))
            self._told = why

    def numbers(self, here: Collection[str]) -> tuple[int, int]:
        """Return the newest round, and the restarts used, that somebody may know."""
        if self._survivors is None:
            return 0, 0
        is_remembered = any(self._came_with.get(incarnation) for incarnation in here)
        return self._survivors.numbers(here, is_remembered=is_remembered)

    def is_given_up(self, now: float) -> bool:
        """Tell whether nobody of those who are ready should wait any longer."""
        join_timeout_s = self._settings.join_timeout_s
        return self._asked_at is not None and self._deadlines.is_due(
            self._asked_at + join_timeout_s, now
        )

    @property
    def why_lost(self) -> str:
        """Say what was missing."""
        within = f"within {self._settings.join_timeout_s:g} s"
        if self._is_survived:
            return (
                f"enough nodes were ready, but run {self._settings.run_id!r} was here before, and "
                f"{self._told}; none of them has joined, or said who decides, {within}"
            )
        if self._has_few_new:
            return (
                "enough nodes were ready, but some were told of a job that runs, and without them "
                f"fewer than {self._settings.min_nodes}; nobody who decides that job was heard of "
                f"{within}"
            )
        return (
            "enough nodes were ready, but no majority of the endpoints "
            f"{self._settings.endpoints} could be won {within}"
        )
