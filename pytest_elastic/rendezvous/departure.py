"""How a node leaves its job on purpose (R4), and until when it keeps its voice (R11.9).

A voice is renounced to somebody who is there: once the workers are gone, and the coordinator was
heard since. Renounced to one that is lost, it would be missing where a successor is to be elected,
as nobody was told that it does not count. So where none is heard, the node stays, without workers:
it votes, and leaves by way of whoever is elected. It stays for its grace at most, and for no longer
than an election takes.
"""

from __future__ import annotations

from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.link import CoordinatorLink
from pytest_elastic.rendezvous.model import Settings
from pytest_elastic.rendezvous.outbox import MemberOutbox
from pytest_elastic.rendezvous.part import RoundPart
from pytest_elastic.rendezvous.parting import GIVE_UP_S
from pytest_elastic.rendezvous.succession import Succession

__all__ = ["Departure", "leave_timeout_s"]

# How long a node that leaves waits to be told that it may go, where nobody needs its vote. Its
# workers are gone by then, and a coordinator that does not answer will find that out from the
# closed connection.
_LEAVE_TIMEOUT_S = 3.0


def leave_timeout_s(settings: Settings) -> float:
    """Return for how long an agent waits to be let go, once its workers are gone; then it goes."""
    voting_s = settings.lease_s + GIVE_UP_S if settings.has_succession else 0.0
    return voting_s + _LEAVE_TIMEOUT_S


class Departure:
    """One node's leaving; `request` is what it was told, None as long as it stays."""

    def __init__(
        self,
        succession: Succession,
        link: CoordinatorLink,
        part: RoundPart,
        out: MemberOutbox,
        deadlines: Deadlines,
    ) -> None:
        self.request: ports.DrainRequested | None = None
        self._succession = succession
        self._link = link
        self._part = part
        self._out = out
        self._deadlines = deadlines
        self._has_asked = False
        self._idle_since = float("inf")
        self._leaves_by = float("inf")

    @property
    def is_idle(self) -> bool:
        """Whether this node leaves, and no worker is left on it."""
        return self.request is not None and self._part.is_idle

    @property
    def has_voice(self) -> bool:
        """Whether this node leaves, and has not renounced its voice yet."""
        return self.request is not None and not self._succession.ballot.has_renounced

    def begin(self, request: ports.DrainRequested, now: float) -> None:
        """Leave; said at once where workers have to end first, so that others know."""
        self.request = request
        self._leaves_by = now + max(request.grace_s, 0.0)
        if self._part.is_idle:
            self.be_idle(now)
        elif self._link.is_joined:
            self.ask()

    def be_idle(self, now: float) -> None:
        """Take note that no worker is left: the coordinator has to be heard once more."""
        self._idle_since = now
        if self._succession.is_on:
            self._link.beat_soon(now)

    def ask(self, *, is_welcome: bool = False) -> None:
        """Ask to be let go, by a coordinator that was heard just now, or has just said welcome."""
        assert self.request is not None, "this node leaves"
        if self._part.is_idle:
            self._succession.ballot.renounce()
        if is_welcome or not self._has_asked:
            self._has_asked = True
            self._out.send(self.request)

    def watch(self) -> None:
        """Ask to be let go once the coordinator was heard since the workers are gone."""
        if not (self.has_voice and self.is_idle and self._link.is_joined):
            return
        if not self._succession.is_on or self._link.was_heard_since(self._idle_since):
            self.ask()
            self._part.say_gone()

    def must_stay(self, now: float) -> bool:
        """Tell whether its voice may be needed: nobody is there to be asked, and some may elect."""
        ballot, held_until = self._succession.ballot, self._link.held_until
        if not self._succession.is_on or held_until is None:
            return False
        if ballot.seal is None or ballot.has_renounced:
            return False
        return not self._deadlines.is_due(min(self._leaves_by, held_until + GIVE_UP_S), now)
