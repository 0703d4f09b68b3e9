"""Whether a job may begin here at all, or may be running already (R12).

A coordinator that follows nobody cannot know whether it is the first one. Where the job has several
endpoints, a majority of them has to be its own. Where it has one, whose store this node hosts and
may have hosted before, two things are safe: that there cannot be nodes enough for a second job, or
to wait until the survivors of a first one would have announced themselves.
"""

from __future__ import annotations

from pytest_elastic.events.model import FirstRoundDelayed
from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.founding import announced_within_s
from pytest_elastic.rendezvous.model import Settings
from pytest_elastic.rendezvous.outbox import Outbox
from pytest_elastic.rendezvous.vocabulary import FoundJob

__all__ = ["FirstRound"]


class FirstRound:
    """Asked when enough nodes are ready; `is_heir`: a round was sealed before, by somebody else."""

    def __init__(
        self, settings: Settings, out: Outbox, deadlines: Deadlines, now: float, *, is_heir: bool
    ) -> None:
        self._settings = settings
        self._out = out
        self._deadlines = deadlines
        self._needs_founding = bool(settings.endpoints) and not is_heir
        could_be_two = settings.has_succession and settings.could_be_two
        waits = could_be_two and not settings.endpoints and not is_heir
        self._waits_until = now + announced_within_s(settings) if waits else now
        self._asked_at: float | None = None

    @property
    def is_founding(self) -> bool:
        """Whether somebody else may still found the job."""
        return self._needs_founding

    def found(self) -> None:
        """Take note that a majority of the endpoints is ours."""
        self._needs_founding = False

    def may_begin(self, now: float) -> bool:
        """Tell whether a round may be sealed, and do what is needed for it."""
        if self._needs_founding and self._asked_at is None:
            self._out.add(FoundJob())
        elif not self._needs_founding and not self._deadlines.is_due(self._waits_until, now):
            if self._asked_at is None:
                wait_s = round(self._waits_until - now, 1)
                self._out.emit(FirstRoundDelayed(wait_s=wait_s))
        elif not self._needs_founding:
            return True
        if self._asked_at is None:
            self._asked_at = now
        return False

    def is_given_up(self, now: float) -> bool:
        """Tell whether nobody of those who are ready should wait any longer."""
        join_timeout_s = self._settings.join_timeout_s
        return self._asked_at is not None and self._deadlines.is_due(
            self._asked_at + join_timeout_s, now
        )

    @property
    def why_lost(self) -> str:
        """Say what was missing."""
        return (
            "enough nodes were ready, but no majority of the endpoints "
            f"{self._settings.endpoints} could be won within {self._settings.join_timeout_s:g} s"
        )
