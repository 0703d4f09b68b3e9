"""A round that was committed: what its members report, why it has to stop, and its stopping.

The records are in `round`; which phase the job is in, the coordinator knows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.changes import Went
from pytest_elastic.rendezvous.desk import Desk
from pytest_elastic.rendezvous.model import RosterEntry
from pytest_elastic.rendezvous.peer import Peer, Standing
from pytest_elastic.rendezvous.round import Cause, CommittedRound

__all__ = ["Running"]

# What an order and its answer may take on their way.
_REPORT_S = 1.0


class Running:
    """The newest committed round, until the next one is committed."""

    def __init__(self, desk: Desk) -> None:
        self.round: CommittedRound | None = None
        """None before the first commit."""
        self._settings = desk.settings
        self._term = desk.term
        self._out = desk.out
        self._members = desk.members
        self._deadlines = desk.deadlines
        self._reach = desk.reach

    @property
    def _round(self) -> CommittedRound:
        assert self.round is not None, "there is a committed round while it runs, or is stopped"
        return self.round

    @property
    def roster(self) -> Sequence[Peer]:
        """Who is in it; nobody before the first commit."""
        return self.round.roster if self.round is not None else ()

    def _concerns(self, round_: int) -> CommittedRound | None:
        """Return the round if it has that number."""
        return self.round if self.round is not None and self.round.number == round_ else None

    # --- what members report -----------------------------------------------------------------

    def take_success(self, peer: Peer, round_: int) -> None:
        """Take note that all workers of a member ended with status 0."""
        committed = self._concerns(round_)
        if committed is None or peer.round != round_ or peer.standing is not Standing.RUNNING:
            return
        committed.unfinished.discard(peer.node.incarnation)
        committed.has_success = True
        self._members.update(peer, Standing.SUCCEEDED)

    def take_failure(self, peer: Peer, failed: ports.GroupFailed) -> None:
        """Take note that a worker failed: the round is over."""
        committed = self._concerns(failed.round)
        if committed is None or peer.standing is not Standing.RUNNING:
            return
        if not failed.failures:
            committed.stop_because(f"workers of {peer.node.name} failed", Cause.FAILURE)
            return
        first = failed.failures[0]
        if committed.first_failure is None:
            committed.first_failure = dataclasses.replace(first, node=peer.node.name)
        how = first.describe_end()
        reason = f"rank {first.rank} on {peer.node.name} failed ({how})"
        committed.stop_because(reason, Cause.FAILURE)

    def take_gone(self, peer: Peer, round_: int) -> bool:
        """Take note that no worker of a member is left; tell whether that was news."""
        committed = self._concerns(round_)
        if committed is None or peer.round != round_:
            return False
        if peer.standing not in {Standing.RUNNING, Standing.SUCCEEDED}:
            return False
        committed.holding.discard(peer.node.incarnation)
        self._members.update(peer, Standing.WAITING)
        return True

    def end_without(self, peer: Peer, *, is_running: bool) -> None:
        """End the round, as workers of a member are gone that does not leave."""
        reason = f"the workers of {peer.node.name} are gone"
        self._round.stop_because(reason, Cause.LOSS)
        if self._round.is_inherited and is_running:
            # The coordinator of before had stopped it; why, went with it, unless somebody says so.
            self._round.unexplained = reason

    def explain(self, peer: Peer, failed: ports.GroupFailed) -> None:
        """Take note why a round was stopped that another coordinator had stopped: it is charged."""
        committed = self._concerns(failed.round)
        if committed is None or peer.standing is not Standing.RUNNING:
            return
        if committed.unexplained is not None:
            committed.unexplained = committed.stop_reason = committed.stop_cause = None
            self.take_failure(peer, failed)

    def miss(self, gone: Went) -> None:
        """Go on without a member, or stop for it."""
        incarnation = gone.peer.node.incarnation
        committed = self.round
        if committed is None or incarnation not in committed.incarnation_set:
            return
        committed.absent.add(incarnation)
        committed.holding.discard(incarnation)
        if gone.how == "evicted":
            committed.evicted.add(incarnation)
        if gone.how != "evicted" or committed.stop_cause is not Cause.FAILURE:
            committed.lost_or_gained = committed.lost_or_gained or gone.reason
        if gone.peer.standing is not Standing.SUCCEEDED:
            committed.unfinished.discard(incarnation)
            cause = Cause.CHANGE if gone.how == "left" else Cause.LOSS
            committed.stop_because(gone.reason, cause)

    # --- what members are told ---------------------------------------------------------------

    def tell_again(self, peer: Peer, *, is_stopping: bool) -> None:
        """Tell a member that was away how the round stands."""
        if is_stopping:
            self._out.send(peer, self._stop_order())
        else:
            self._out.send(peer, self._round.seal)
            self._out.send(peer, self._round.commit)

    def tell_spare(self, peer: Peer, newest_round: int) -> None:
        """Tell a node that it is a spare, if it is one; and whom to ask, should we be lost."""
        gaps = self._reach.described(self._members.peers, peer.node.incarnation)
        if not self._is_full and not gaps:
            return
        reason = gaps or f"round {newest_round} is full"
        roster: Sequence[RosterEntry] = ()
        if self._settings.has_succession:
            roster = self._round.seal.roster
        notice = m.SpareNotice(
            term=self._term,
            round=newest_round,
            reason=reason,
            restarts_used=self._round.seal.restart_count,
            roster=roster,
        )
        self._out.send(peer, notice)

    def tell_spares(self, newest_round: int) -> None:
        """Tell all who are ready, as the round has begun without them."""
        for peer in self._members.ready.values():
            self.tell_spare(peer, newest_round)

    @property
    def _is_full(self) -> bool:
        return self.round is not None and self.round.is_full(self._settings.max_nodes)

    # --- going on, and stopping --------------------------------------------------------------

    def look_for_newcomers(
        self, may_join: Callable[[CommittedRound], Sequence[Peer]], now: float
    ) -> None:
        """End the round for nodes that wait, if there is room for them and nobody is done (R7)."""
        committed = self._round
        if committed.stop_reason is not None or not committed.unfinished:
            return
        if committed.has_success or self._is_full or not self._members.ready:
            return
        first = next(iter(self._members.ready.values()))
        gathered_at = first.came_at + self._settings.newcomer_window_s
        earliest = max(gathered_at, committed.committed_at + self._settings.min_round_s)
        newcomers = may_join(committed) if self._deadlines.is_due(earliest, now) else ()
        if newcomers:
            names = ", ".join(peer.node.name for peer in newcomers)
            committed.stop_because(f"{names} came", Cause.CHANGE)
            committed.lost_or_gained = committed.lost_or_gained or f"{names} came"

    def stop(self, now: float) -> bool:
        """Order the members to stop; tell whether the round has run long enough for progress."""
        committed = self._round
        committed.stopped_at = now
        order = self._stop_order()
        for peer in committed.roster:
            if peer.node.incarnation in committed.holding:
                self._out.send(peer, order)
        return now >= committed.committed_at + self._settings.min_round_s

    def _stop_order(self) -> m.StopOrder:
        return m.StopOrder(
            term=self._term,
            round=self._round.number,
            grace_s=self._grace_s,
            reason=self._round.stop_reason or "",
        )

    @property
    def _grace_s(self) -> float:
        if self._round.stop_cause in {Cause.FAILURE, Cause.LOSS}:
            return self._settings.failure_grace_s
        return self._settings.shutdown_timeout_s

    def watch_stop(self, now: float) -> bool:
        """Wait until every worker is gone, or its node lost; tell whether that is so (R2)."""
        committed = self._round
        if not committed.holding:
            return True
        patience_s = self._settings.kill_timeout_s + _REPORT_S
        limit_s = self._grace_s + patience_s
        if not self._deadlines.is_due(committed.stopped_at + limit_s, now):
            return False
        for peer in committed.roster:
            if peer.node.incarnation not in committed.holding:
                continue
            drained_at = (peer.leaves_by or 0.0) + patience_s
            if self._deadlines.is_due(drained_at, now):
                reason = f"its workers were not gone {limit_s:g} s after the stop order"
                self._members.evict(peer, reason, now)
        return False
