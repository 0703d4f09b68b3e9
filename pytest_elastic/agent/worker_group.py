"""The workers of one round on one node: how far their ending has come, and what is due next.

An ending has steps, each with its moment: leaders are told at once, whole groups shortly before
the grace is over, and at its end everything is killed. Here is when; the machine gives the orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_elastic.rendezvous.model import Assignment

__all__ = ["GROUP_GRACE_S", "LEFTOVER_GRACE_S", "WorkerGroup"]

# After its leader has ended, a group has this long to end by SIGTERM before it is killed: long
# enough for a DataLoader worker to notice, short enough that a stuck one delays no one.
GROUP_GRACE_S = 1.0
# What workers leave that have ended by themselves is told to end after this. The standard library's
# own helpers (fork server, resource tracker) end by themselves in milliseconds, and are no strays.
LEFTOVER_GRACE_S = 0.5
# What groups get of a grace that is short itself.
_GROUPS_SHARE = 0.2


@dataclass(slots=True)
class WorkerGroup:
    """The workers of one round on this node, from the order to start until none is left."""

    assignment: Assignment
    exit_codes: dict[int, int] = field(default_factory=dict)
    is_gone: bool = False
    is_given_up: bool = False  # it has outlived SIGKILL
    is_held: bool = False
    is_ending: bool = False  # exits from here on are our doing
    is_lease_lost: bool = False  # which is told once, though two may notice it
    is_order_seen: bool = False  # the rendezvous knows that the round is over here
    _stop_began_at: float = field(default=0.0, init=False)
    _groups_at: float | None = field(default=None, init=False)  # when whole groups are told
    _kill_at: float | None = field(default=None, init=False)
    _gone_by: float | None = field(default=None, init=False)  # once SIGKILL was ordered
    pids: Sequence[int] = ()  # by local rank

    @property
    def round(self) -> int:
        return self.assignment.round

    @property
    def slots(self) -> int:
        return self.assignment.roster[self.assignment.group_rank].slots

    @property
    def has_ended(self) -> bool:
        return len(self.exit_codes) == self.slots

    def end_within(self, grace_s: float, now: float) -> bool:
        """Begin to end within `grace_s`, or hurry an ending; return whether it has only begun."""
        kill_at = now + grace_s
        if self.is_ending:
            if self._kill_at is not None:
                self._kill_at = min(self._kill_at, kill_at)
            return False
        self.is_ending = True
        self._stop_began_at = now
        self._kill_at = kill_at
        self._groups_at = kill_at - min(GROUP_GRACE_S, _GROUPS_SHARE * grace_s)
        return True

    def end_leftovers(self, now: float) -> None:
        """All leaders have ended: give their descendants a moment, unless the keeper saw none."""
        if not self.is_ending:
            self.is_ending = True
            self._stop_began_at = now
            self._groups_at = now + LEFTOVER_GRACE_S
        else:
            self._groups_at = now
        latest = self._groups_at + GROUP_GRACE_S
        self._kill_at = latest if self._kill_at is None else min(self._kill_at, latest)

    def ended_for_s(self, now: float) -> float:
        """Return how long the ending took that is over now; 0 if it was never begun."""
        return now - (self._stop_began_at or now)

    def are_groups_due(self, now: float) -> bool:
        """Return whether whole groups, and no longer leaders alone, are to be told."""
        return self._groups_at is not None and now >= self._groups_at

    def is_kill_due(self, now: float) -> bool:
        """Return whether the grace is over."""
        return self._kill_at is not None and now >= self._kill_at

    def groups_were_told(self) -> None:
        """Note that this step was done."""
        self._groups_at = None

    def was_killed(self, now: float, *, within_s: float) -> None:
        """Note that all were killed: they have to be gone `within_s` seconds from now."""
        self.is_ending = True
        self._groups_at = self._kill_at = None
        if self._gone_by is None or now + within_s < self._gone_by:
            self._gone_by = now + within_s

    @property
    def is_killed(self) -> bool:
        """Whether SIGKILL was ordered for all."""
        return self._gone_by is not None

    def was_given_up(self) -> None:
        """Note that it is not waited for any more."""
        self._groups_at = self._kill_at = self._gone_by = None
        self.is_given_up = True

    def is_stuck(self, now: float) -> bool:
        """Return whether something has outlived SIGKILL for longer than it may."""
        return self._gone_by is not None and now >= self._gone_by

    @property
    def pids_left(self) -> tuple[int, ...]:
        """The processes of workers that have not ended; what those have started is not known."""
        return tuple(pid for rank, pid in enumerate(self.pids) if rank not in self.exit_codes)

    def wake_at(self) -> float | None:
        """Return when the next step is due, or None."""
        if self.is_gone:
            return None
        moments = (self._groups_at, self._kill_at, self._gone_by)
        return min((at for at in moments if at is not None), default=None)
