"""How the job ends for one member: what it was told, its last word, and who may still come to ask.

A node that was told of an end that holds, and that somebody has not heard of it, stays for
`linger_s` after its last word and answers questions at its port: the coordinator alone might be out
of reach for just those who ask (R10). So does one that ends by what it was told, because it has
lost its coordinator.
"""

from __future__ import annotations

import dataclasses

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.model import Failure, Settings
from pytest_elastic.rendezvous.outbox import MemberOutbox
from pytest_elastic.rendezvous.vocabulary import Released

__all__ = ["Parting", "reached_of", "why_lost"]


def reached_of(reached: tuple[int, int] | None) -> str:
    """Say how many of how many agreed to a successor."""
    return f"reached {reached[0]} of its {reached[1]} members" if reached else "no successor"


def why_lost(where: str, settings: Settings, detail: str, seen: str | None) -> str:
    """Say why a member gives the job up; `seen`: what it found instead of a coordinator."""
    if seen is None:
        return (
            f"lost {where}, which coordinates run {settings.run_id!r}: {detail}. "
            "Without succession the job ends with it."
        )
    return (
        f"lost {where} and was cut off from a majority of run {settings.run_id!r} for "
        f"{settings.join_timeout_s:g} s ({seen}): {detail}"
    )


class Parting:
    """The end of the job, as one member knows it."""

    def __init__(self, settings: Settings, out: MemberOutbox, deadlines: Deadlines) -> None:
        self.ending: m.JobEnding | None = None
        """How the job ends, if that was announced."""
        self.ended: m.JobEnding | None = None
        """The same, once it is known to hold."""
        self._settings = settings
        self._out = out
        self._deadlines = deadlines
        self._may_be_asked = False
        self._stays_until: float | None = None
        self._is_released = False

    def forget_older(self, term: int) -> None:
        """Hold no announcement of a coordinator before that of `term`, which says how it is."""
        if self.ending is not None and self.ending.term < term:
            self.ending = None

    def hold(self, ending: m.JobEnding, *, is_known_to_all: bool) -> None:
        """Take note that the end holds, and whether somebody may still ask about it."""
        self.ending = self.ended = ending
        self._may_be_asked = not is_known_to_all

    def presume(self) -> None:
        """Go by the announcement, as whoever made it is lost."""
        self._may_be_asked = self._settings.has_succession

    def say(self, result: str, reason: str, first_failure: Failure | None) -> None:
        """Say the last word to the agent."""
        failure = dataclasses.asdict(first_failure) if first_failure is not None else {}
        self._out.emit(events.JobEnded(result=result, reason=reason, first_failure=failure))
        over = ports.JobOver(result=result, reason=reason, first_failure=first_failure)
        self._out.notify(over)
        if result == "drained":
            self._may_be_asked = False  # it wanted to go, and others stay

    def linger(self, now: float) -> None:
        """Release the node once nobody may come to ask; after the last word."""
        if self._is_released:
            return
        if self._stays_until is None:
            self._stays_until = now + self._settings.linger_s if self._may_be_asked else now
        if self._deadlines.is_due(self._stays_until, now):
            self._is_released = True
            self._out.add(Released())
