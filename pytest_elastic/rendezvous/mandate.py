"""Who allows a coordinator to decide, and until when (R11).

A coordinator grants no lease beyond its own mandate, so that no worker runs under a mandate that is
over: whoever follows has to wait for one thing only. Three kinds:

- `Unlimited`: under `quorum=coordinator` the coordinator needs nobody.
- `MembersMandate`: under `quorum=majority` a quorum of the last committed roster, by their echoes.
- `GrantedMandate`: somebody outside, such as an etcd lease; its driver says how long it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from pytest_elastic.rendezvous.model import Electorate, Settings
from pytest_elastic.rendezvous.quorum import agreed_since, has_quorum

__all__ = ["GrantedMandate", "Mandate", "MembersMandate", "Unlimited", "mandate_for"]


_NEVER = float("inf")


class Mandate(Protocol):
    """What a coordinator asks before it decides. All times are on its own clock."""

    @property
    def why_over(self) -> str:
        """Why it ended, once it has."""

    @property
    def electorates(self) -> Sequence[Electorate]:
        """The rosters of each of which a quorum has to be in the next round; often none."""

    def until(self, now: float) -> float:
        """Return when the mandate ends unless it is extended; infinite if it does not."""

    def allows(self, roster: Collection[str]) -> bool:
        """Tell whether a round of these incarnations may follow the last committed one."""

    def hear(self, incarnation: str, sent_at: float) -> None:
        """Take note that a member has answered what we sent at `sent_at`."""

    def excuse(self, incarnation: str, since_round: int = 0) -> None:
        """Take note that a member has renounced its voice, in electorates of that round on."""

    def rest_on(self, electorates: Sequence[Electorate]) -> None:
        """Take note that the mandate comes from these rosters from now on."""

    def conclude(self) -> None:
        """Take note that the end holds, whoever decides later: to tell it, nobody is needed."""


class Unlimited:
    """Everything is allowed, for ever."""

    electorates: Sequence[Electorate] = ()
    why_over = "its grant ran out"

    def until(self, now: float) -> float:
        """Never ends."""
        return _NEVER

    def allows(self, roster: Collection[str]) -> bool:
        """Allow every roster."""
        return True

    def hear(self, incarnation: str, sent_at: float) -> None:
        """Need no answer of members."""

    def excuse(self, incarnation: str, since_round: int = 0) -> None:
        """Need no voice of members."""

    def rest_on(self, electorates: Sequence[Electorate]) -> None:
        """Rest on nobody."""

    def conclude(self) -> None:
        """Need nobody for that, either."""


class GrantedMandate(Unlimited):
    """Holds until the moment that somebody outside has granted; `extend` when that moves on."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._is_concluded = False

    def until(self, now: float) -> float:
        """Return what was granted."""
        return _NEVER if self._is_concluded else self._until

    def allows(self, roster: Collection[str]) -> bool:
        """Allow whatever somebody has heard of: that is written down where the grant comes from."""
        return bool(roster)

    def extend(self, until: float) -> None:
        """Take note of a new grant; it may also be taken back."""
        self._until = until

    def conclude(self) -> None:
        """Need no grant any more."""
        self._is_concluded = True


class MembersMandate:
    """Holds for a lease from the sending of what a quorum has answered.

    The coordinator's own node counts like the others, by its echoes. Without an electorate (no
    round was ever committed) nothing runs that could be endangered.
    """

    why_over = "a majority of the last round has not answered for a lease"

    def __init__(self, settings: Settings) -> None:
        self.electorates: Sequence[Electorate] = ()
        self._lease_s = settings.lease_s
        self._stale_s = settings.beat_interval_s / 8
        self._heard_at: dict[str, float] = {}
        self._excused: dict[str, int] = {}
        self._since = float("-inf")
        self._looked_at = float("-inf")

    def until(self, now: float) -> float:
        """Return when it ends; looks at all members only now and then, as it only moves on."""
        if not self.electorates:
            return _NEVER
        lease_s = self._lease_s
        is_over = now >= self._since + lease_s
        if is_over or not self._looked_at <= now < self._looked_at + self._stale_s:
            self._look()
            self._looked_at = now
        return min(self._since, now) + lease_s

    def _look(self) -> None:
        since = [
            agreed_since(each, self._heard_at, self._excused_in(each)) for each in self.electorates
        ]
        self._since = max(self._since, min(since, default=self._since))

    def allows(self, roster: Collection[str]) -> bool:
        """Tell whether a quorum of each electorate is in it."""
        return all(has_quorum(each, roster, self._excused_in(each)) for each in self.electorates)

    def hear(self, incarnation: str, sent_at: float) -> None:
        """Count from here for this member."""
        if sent_at >= self._heard_at.get(incarnation, sent_at):
            self._heard_at[incarnation] = sent_at

    def excuse(self, incarnation: str, since_round: int = 0) -> None:
        """Count without this member; of whom nobody is left, nobody is needed.

        What was agreed to with its voice holds for its lease: who has renounced votes for nobody
        else, so a quorum that does has somebody else in common with that one.
        """
        self._look()
        self._excused[incarnation] = since_round
        self.electorates = tuple(each for each in self.electorates if not self._have_left(each))
        self._looked_at = float("-inf")

    def _have_left(self, electorate: Electorate) -> bool:
        excused = self._excused_in(electorate)
        return all(member.incarnation in excused for member in electorate.members)

    def _excused_in(self, electorate: Electorate) -> frozenset[str]:
        left = self._excused.items()
        return frozenset(name for name, since in left if since <= electorate.round)

    def rest_on(self, electorates: Sequence[Electorate]) -> None:
        """Count with these from now on."""
        self.electorates = tuple(electorates)
        self._since = self._looked_at = float("-inf")

    def conclude(self) -> None:
        """Rest on nobody any more."""
        self.rest_on(())


def mandate_for(settings: Settings) -> Mandate:
    """Return the mandate that `Settings.quorum` asks for."""
    return MembersMandate(settings) if settings.has_succession else Unlimited()
