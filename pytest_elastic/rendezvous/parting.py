"""The end of the job, as one member knows it: what it was told, how long it stays, whom it tells.

An end is *announced* first, by a coordinator or by a node that was told, and *holds* once enough
have acknowledged it (R10). A member goes by one that holds at once, and by an announcement when
its coordinator has been away for long enough.

A node that was told of an end that holds, and that somebody has not heard of it, stays for
`linger_s` after its last word, answers questions at its port, and tells those who may not know
(`telling`): the coordinator alone might be out of reach for just those who ask. So does one that
ends by an announcement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.link import CoordinatorLink
from pytest_elastic.rendezvous.member_phases import Link, Part
from pytest_elastic.rendezvous.model import Failure, Settings
from pytest_elastic.rendezvous.outbox import MemberOutbox
from pytest_elastic.rendezvous.succession import Succession
from pytest_elastic.rendezvous.telling import Telling
from pytest_elastic.rendezvous.vocabulary import ProbeAnswered, Released

__all__ = ["GIVE_UP_S", "Parting", "reached_of", "why_lost"]

GIVE_UP_S = 4.0
"""How long after the end of its lease a member looks for its coordinator before it gives it up.

Less would give up nodes that a network forgets for a moment; with more, not everything would be
over within lease + 5 s of losing a coordinator that does not answer.
"""


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
        f"{settings.join_timeout_s:g} s ({seen}): {detail}. "
        "If others go on with it, start this node again when it can reach them."
    )


class Parting:
    """The end of the job, as one member knows it; `link` is its link to the coordinator."""

    def __init__(
        self,
        settings: Settings,
        succession: Succession,
        link: CoordinatorLink,
        out: MemberOutbox,
        deadlines: Deadlines,
    ) -> None:
        self.ending: m.JobEnding | None = None
        """How the job ends, if that was announced."""
        self.ended: m.JobEnding | None = None
        """The same, once it is known to hold."""
        self._settings = settings
        self._succession = succession
        self._link = link
        self._out = out
        self._deadlines = deadlines
        self._telling = Telling(settings, deadlines, succession.ballot.incarnation)
        self._announced_until = 0.0  # when an end that was heard of may be gone by
        self._may_be_asked = False
        self._stays_until: float | None = None
        self._is_released = False

    # --- what is told ------------------------------------------------------------------------

    def take_announcement(self, ending: m.JobEnding, now: float) -> None:
        """Hold what the coordinator announces, and say so."""
        self._announce(ending)
        self._succession.ballot.contact_at = now
        self._out.send(m.EndAcknowledged(term=ending.term))

    def hear(self, ending: m.JobEnding, now: float, *, part: Part, holds: bool) -> bool:
        """Hear from another node how the job ends; tell whether that holds for this one.

        Nobody does who is in contact with a coordinator, but for a spare that has come to a host
        which is back, and begins anew under the term of that end. Where somebody outside says who
        decides, it is written down there, and that is where it was heard of.
        """
        link, is_on = self._link, self._succession.is_on
        is_lost = link.phase not in {Link.UNSTARTED, Link.JOINED, Link.OVER}
        if self._settings.is_granted:
            return is_lost and holds
        is_news = self.ending is None and ending.term >= link.term
        is_waiting = link.phase is Link.JOINED and part is Part.NONE and is_news
        if is_on and holds and (is_lost or is_waiting):
            return True
        if is_on and is_lost and is_news and link.was_welcome:
            self._announce(ending)
            self._announced_until = now + GIVE_UP_S
        return False

    def _announce(self, ending: m.JobEnding) -> None:
        self.ending = ending
        self._succession.ballot.hear_of_end(ending.term)

    def must_presume(self, held_until: float | None, now: float) -> bool:
        """Tell whether to go by the announcement: its coordinator is lost, and nobody follows it.

        `held_until`: when the lease of a coordinator ends, or has ended.
        """
        if not self._succession.is_on or held_until is None:
            return True
        return self._deadlines.is_due(max(held_until + GIVE_UP_S, self._announced_until), now)

    def forget_older(self, term: int) -> None:
        """Hold no announcement of a coordinator before that of `term`, which says how it is."""
        if self.ending is not None and self.ending.term < term:
            self.ending = None

    def hold(self, ending: m.JobEnding, *, unaware: Sequence[str] | None) -> m.JobEnding:
        """Take note that the end holds, and who may still ask (None: anybody); return it."""
        self.ending = self.ended = ending
        self._may_be_asked = unaware is None or bool(unaware)
        self._telling.begin(ending, unaware)
        return ending

    def presume(self) -> m.JobEnding:
        """Go by the announcement, as whoever made it is lost; return it."""
        assert self.ending is not None, "the end was announced"
        self._may_be_asked = self._settings.has_succession
        self._telling.begin(self.ending, None)
        return self.ending

    # --- the last word, and after it ---------------------------------------------------------

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
        else:
            self._out.add(*self._telling.dials(now))

    def take_answer(self, answer: ProbeAnswered) -> None:
        """Take note of what somebody said who was told how the job has ended."""
        self._telling.take_answer(answer)
