"""Whether a leader that has found nothing may begin a job, or one may be running already (R12).

A host that has forgotten everything is elected all the same, in the configuration of hosts. Where it
is alone in that, three things are safe: that there cannot be nodes enough for a second job; to wait
until the survivors of a first one would have announced themselves; and to count only nodes that know
of no job. Nodes of an earlier job that find this leader are waited for three times as long, as an
election may have to be tried again; then they are new nodes like others, but for the count.
"""

from __future__ import annotations

from collections.abc import Iterable

from pytest_elastic.events.model import FirstRoundDelayed
from pytest_elastic.rendezvous.core.messages import JoinRequest
from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.founding import announced_within_s
from pytest_elastic.rendezvous.model import Settings
from pytest_elastic.rendezvous.outbox import Outbox

__all__ = ["FirstRound"]

_PATIENCE = 3


class FirstRound:
    """Asked when enough nodes are ready for the first round of a leader that has found nothing."""

    def __init__(
        self, settings: Settings, out: Outbox, deadlines: Deadlines, began_at: float, *, is_new: bool
    ) -> None:
        self._settings = settings
        self._out = out
        self._deadlines = deadlines
        self._is_guarded = is_new and settings.has_succession
        self._announced_by = began_at + announced_within_s(settings)
        self._elders_until = began_at + _PATIENCE * announced_within_s(settings)
        self._waits_until = self._announced_by if settings.could_be_two else began_at
        self._of_before: set[str] = set()  # who was told of a job before it came here
        self._asked_at: float | None = None
        self._has_few_new = False

    def meet(self, request: JoinRequest) -> None:
        """Take note of a node that is let in, and of whether it knows of a job."""
        if self._is_guarded and request.number > 0:
            self._of_before.add(request.node.incarnation)
            self._waits_until = max(self._waits_until, self._announced_by)

    def must_wait_for(self, request: JoinRequest, now: float) -> bool:
        """Tell whether a node that has promised a higher term may still go on with its own job."""
        if not self._is_guarded or self._deadlines.is_due(self._elders_until, now):
            return False
        self._waits_until = self._elders_until
        return True

    def may_begin(self, ready: Iterable[str], now: float) -> bool:
        """Tell whether a round may be proposed of those who are ready (incarnations)."""
        if not self._is_guarded:
            return True
        new = sum(incarnation not in self._of_before for incarnation in ready)
        self._has_few_new = new < self._settings.min_nodes
        wait_s = self._waits_until - now
        if not self._has_few_new and self._deadlines.is_due(self._waits_until, now):
            return True
        if self._asked_at is None:
            self._asked_at = now
            wait_s = self._settings.join_timeout_s if self._has_few_new else wait_s
            self._out.emit(FirstRoundDelayed(wait_s=round(wait_s, 1), reason=""))
        return False

    def is_given_up(self, now: float) -> bool:
        """Tell whether nobody of those who are ready should wait any longer."""
        timeout_s = self._settings.join_timeout_s
        return self._asked_at is not None and self._deadlines.is_due(self._asked_at + timeout_s, now)

    @property
    def why_lost(self) -> str:
        """Say what was missing."""
        return (
            "enough nodes were ready, but some were told of a job that runs, and without them "
            f"fewer than {self._settings.min_nodes}; nobody who decides that job was heard of "
            f"within {self._settings.join_timeout_s:g} s"
        )
