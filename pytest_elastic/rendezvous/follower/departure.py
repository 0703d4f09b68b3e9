"""How a node's part in the job ends: as was decided, given up, or because it leaves (R4, R10).

It keeps for how long this node looks for its leader before it gives the job up, and for how long it
stays after its last word, as others may come to ask.
"""

from __future__ import annotations

import msgspec

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import End, Record
from pytest_elastic.rendezvous.consensus.voter import Voter
from pytest_elastic.rendezvous.follower.connection import Connection, ConnectionPhase
from pytest_elastic.rendezvous.follower.elections import Elections
from pytest_elastic.rendezvous.follower.worker_group import WorkerGroup
from pytest_elastic.rendezvous.machine import Part, Shared
from pytest_elastic.rendezvous.settings import Settings

__all__ = ["Departure", "leave_timeout_s"]

# How long after the end of its lease a node looks for its leader before it gives it up. Less would
# give up nodes that a network forgets for a moment; with more, not everything would be over within
# lease + 5 s of losing a leader without a successor.
_GIVE_UP_S = 4.0
# How long a node that leaves waits to be told that it may go, where its vote is not needed. Its
# workers are gone by then, and a leader that does not answer will find that out from the closed
# connection.
_LEAVE_TIMEOUT_S = 3.0


def leave_timeout_s(settings: Settings) -> float:
    """Return for how long an agent waits to be let go, once its workers are gone; then it goes."""
    voting_s = settings.lease_s + _GIVE_UP_S if settings.has_succession else 0.0
    return voting_s + _LEAVE_TIMEOUT_S


class Departure(Part):
    """When a node goes, with which result, and when no other node needs it any more."""

    def __init__(
        self,
        shared: Shared,
        voter: Voter,
        connection: Connection,
        group: WorkerGroup,
        elections: Elections,
    ) -> None:
        super().__init__(shared)
        self.leaving: ports.DrainRequested | None = None
        """What the agent said when it was told to leave."""
        self._voter = voter
        self._connection = connection
        self._group = group
        self._elections = elections
        self._seeking_since = self._patient_until = 0.0
        self._leaves_by = float("inf")
        self._may_be_asked = False
        self._stays_until: float | None = None
        self._is_released = False

    @property
    def is_over(self) -> bool:
        """Whether the last word was said."""
        return self._connection.phase is ConnectionPhase.OVER

    @property
    def pending_end(self) -> End | None:
        """The end of the job, if this node has accepted it, decided or not."""
        return self._voter.record.end if self._voter.record is not None else None

    # --- patience ----------------------------------------------------------------------------

    def seek_from(self, now: float) -> None:
        """Count from here for how long this node has no leader."""
        self._seeking_since = now

    def be_patient(self, now: float, *, for_s: float = _GIVE_UP_S) -> None:
        """Do not give the leader up before that, whenever the lease ends."""
        self._patient_until = now + for_s

    def forgive(self, now: float) -> None:
        """Do not give the leader up yet: this node was away itself."""
        self._patient_until = max(self._patient_until, now + _GIVE_UP_S)

    def watch_contact(self, now: float) -> None:
        """Notice a silent leader, and give the job up when it stays away (R10)."""
        connection, is_due = self._connection, self._deadlines.is_due
        if connection.is_joined:
            if connection.is_silent(now):
                self._seeking_since = now
                connection.break_off(f"silent for {self._settings.lease_s:g} s", now)
            return
        if connection.phase is ConnectionPhase.UNSTARTED or self.is_over:
            return
        if connection.is_to_itself:
            return
        held_until, end = connection.held_until, self.pending_end
        if end is not None and not self._settings.is_granted and held_until is not None:
            may_follow = self._settings.outlives_coordinator
            ends_at = held_until + (_GIVE_UP_S if may_follow else 0.0)
            if connection.leader is not None and not connection.leader.is_founding:
                # It may be one that was elected without having heard of this end, and goes on.
                ends_at = max(ends_at, self._patient_until)
            if is_due(ends_at, now):
                self._may_be_asked = self._settings.has_succession
                self._voter.base = self._voter.record  # it goes by this end, and says so if asked
                self.finish(end)
        elif self._voter.number > 0 and held_until is not None:
            may_follow = self._settings.outlives_coordinator
            patience_s = self._settings.join_timeout_s if may_follow else _GIVE_UP_S
            if is_due(max(held_until + patience_s, self._patient_until), now):
                self.lose_job(connection.last_problem)
        elif is_due(self._seeking_since + self._settings.join_timeout_s, now):
            reason = (
                f"cannot join run {self._settings.run_id!r}: no leader was reached within "
                f"{self._settings.join_timeout_s:g} s ({connection.last_problem})"
            )
            self.finish(End(result="lost", reason=reason))

    # --- leaving -----------------------------------------------------------------------------

    def take_drain(self, drain: ports.DrainRequested, now: float) -> None:
        """Note that this node is to leave, and tell the leader."""
        if self.leaving is not None:
            return
        self.leaving = drain
        self._leaves_by = now + max(drain.grace_s, 0.0)
        if self._connection.is_joined:
            self._out.send(drain)

    def watch_leaving(self, now: float) -> None:
        """Go without permission, if there is no leader to ask and no vote can be needed."""
        connection = self._connection
        if self.leaving is None or not self._group.is_idle or connection.is_joined:
            return
        if connection.leads and self._settings.outlives_coordinator and not connection.is_lost:
            return  # what is here hands over, once this node has reached it
        held_until = connection.held_until
        if self._settings.has_succession and held_until is not None and self._voter.record:
            stays_until = min(self._leaves_by, held_until + _GIVE_UP_S)
            if not self._deadlines.is_due(stays_until, now):
                return
        reason = f"left without being missed: {self.leaving.reason}"
        self.finish(End(result="drained", reason=reason))

    # --- the end -----------------------------------------------------------------------------

    def take_decided(self, end: End, *, may_be_asked: bool) -> None:
        """End as the leader says is decided; other nodes may still ask."""
        self._may_be_asked = may_be_asked
        self.finish(end)

    def hear_end(self, record: Record) -> None:
        """End as a node reports that knows it is decided, unless a leader says otherwise."""
        leader, is_joined = self._connection.leader, self._connection.is_joined
        has_job = is_joined and leader is not None and not leader.is_founding
        if record.end is None or self.is_over or has_job:
            return
        # Others may have missed it as well, and may not reach the nodes that they ask.
        self._may_be_asked = self._settings.has_succession
        self._voter.base = record
        self.finish(record.end)

    def lose_job(self, detail: str) -> None:
        """Give the job up."""
        self.finish(End(result="lost", reason=self._elections.why_lost(detail)))

    def finish(self, end: End) -> None:
        """Say the last word to the agent; the result of a node that wanted to leave is "drained".

        It may end otherwise than the job: "drained", "refused", or "lost" where others go on.
        """
        if self.is_over:
            return
        if self._connection.leads_somewhere:
            self._out.add(v.Hangup())
        self._connection.become(ConnectionPhase.OVER)
        result, reason, first_failure = end.result, end.reason, end.first_failure
        if self.leaving is not None:
            result = "drained"
            self._may_be_asked = False  # it wanted to go, and others stay
        failure = msgspec.to_builtins(first_failure) if first_failure is not None else {}
        self._out.emit(events.JobEnded(result=result, reason=reason, first_failure=failure))
        over = ports.JobOver(result=result, reason=reason, first_failure=first_failure)
        self._out.notify(over)
        if self.leaving is not None and self._settings.outlives_coordinator:
            self._out.add(v.HandOver(reason=reason))

    def linger(self, now: float) -> None:
        """Release the node once no other may come to ask; after its own job is over."""
        if self._is_released:
            return
        if self._stays_until is None:
            self._stays_until = now + self._settings.linger_s if self._may_be_asked else now
        if self._deadlines.is_due(self._stays_until, now):
            self._is_released = True
            self._out.add(v.Released())
