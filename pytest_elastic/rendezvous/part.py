"""What a node has to do with a round: its seal, its commit, its workers, and what it reports.

News that must not get lost with a connection (a failure, workers gone) is kept until the next round
and said again after every welcome; the coordinator knows what it has heard before.
"""

from __future__ import annotations

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.ballot import Ballot, rank_of
from pytest_elastic.rendezvous.link import CoordinatorLink
from pytest_elastic.rendezvous.member_phases import PART_ALLOWED, WITH_WORKERS, Part
from pytest_elastic.rendezvous.model import Assignment
from pytest_elastic.rendezvous.outbox import MemberOutbox

__all__ = ["RoundPart"]


class RoundPart:
    """One node's part in a round; `phase` is what it is in the middle of."""

    def __init__(
        self, incarnation: str, ballot: Ballot, link: CoordinatorLink, out: MemberOutbox
    ) -> None:
        self.phase = Part.NONE
        self.has_workers = False
        """Whether workers run, or are being stopped."""
        self.seal: m.Seal | None = None
        self.newest_round = 0
        """The newest round that this node was told of."""
        self.restarts_used = 0
        """How many restarts the newest round says were used that this node saw committed."""
        self.is_held = False
        """Whether the workers are stopped for a moment."""
        self._incarnation = incarnation
        self._ballot = ballot
        self._link = link
        self._out = out
        self._reports: list[m.Report] = []

    def become(self, phase: Part) -> None:
        """Go from one phase to another, as the table has it."""
        assert phase in PART_ALLOWED[self.phase], f"a part cannot go from {self.phase} to {phase}"
        self.phase = phase
        self.has_workers = phase in WITH_WORKERS
        if not self.has_workers:
            self.is_held = False

    @property
    def is_free(self) -> bool:
        """Whether there is nothing to wait for before the next round: no worker, no success."""
        return self.phase in {Part.NONE, Part.SEALED, Part.GONE}

    @property
    def is_idle(self) -> bool:
        """Whether no worker is left here."""
        return not self.has_workers and self.phase is not Part.FENCING

    @property
    def round(self) -> int:
        """The number of the round."""
        assert self.seal is not None, f"a part that is {self.phase} has a round"
        return self.seal.round

    def hear_of(self, round_: int, *, restarts_used: int = 0) -> None:
        """Take note that there is, or was, a round of that number, and what was used by then."""
        self.newest_round = max(self.newest_round, round_)
        self.restarts_used = max(self.restarts_used, restarts_used)

    # --- reports -----------------------------------------------------------------------------

    def report(self, report: m.Report) -> None:
        """Tell the coordinator, now and after every welcome until the next round."""
        self._reports.append(report)
        if self._link.is_joined:
            self._out.send(report)

    def report_again(self) -> None:
        """Tell a coordinator that has just welcomed this node what it may not have heard."""
        for report in self._reports:
            self._out.send(report)

    # --- orders ------------------------------------------------------------------------------

    def take_seal(self, seal: m.Seal, now: float) -> None:
        """Be in a round that is to come, and acknowledge it; or merely acknowledge it (R11.3)."""
        if self._incarnation in seal.endorsers:
            self.hear_of(seal.round)
            self._acknowledge(seal, now)
            return
        if self.seal is not None and rank_of(seal) <= rank_of(self.seal):
            if self.phase is Part.SEALED and seal.round == self.seal.round:
                self._acknowledge(seal, now)
            return
        if self.seal is not None and seal.round == self.seal.round:
            if seal.roster == self.seal.roster:  # the same, from a successor
                self._acknowledge(seal, now)
            return
        if not self.is_free:
            return
        self.seal = seal
        self.hear_of(seal.round)
        self._reports.clear()
        if self.phase is not Part.SEALED:
            self.become(Part.SEALED)
        self._acknowledge(seal, now)
        if seal.roster[0].incarnation == self._incarnation:
            world_size = sum(entry.slots for entry in seal.roster)
            self._out.notify(ports.OpenStore(round=seal.round, world_size=world_size))

    def _acknowledge(self, seal: m.Seal, now: float) -> None:
        self._ballot.acknowledge(seal)
        self._ballot.contact_at = now
        self._out.send(m.SealAcknowledged(term=self._link.term, round=seal.round))

    def is_to_start(self, commit: m.Commit) -> bool:
        """Take note of a commit; tell whether workers are to start, which `start` does."""
        if self.seal is None or commit.round != self.seal.round:
            return False
        self._ballot.see_commit(commit)
        self.restarts_used = max(self.restarts_used, self.seal.restart_count)
        return self.phase is Part.SEALED

    def start(self, commit: m.Commit) -> None:
        """Start the workers of the round."""
        seal = self.seal
        assert seal is not None, "what is committed was sealed"
        self.become(Part.RUNNING)
        self.tell_lease()
        own, roster = self._incarnation, enumerate(seal.roster)
        assignment = Assignment(
            round=seal.round,
            term=seal.term,
            roster=seal.roster,
            group_rank=next(rank for rank, entry in roster if entry.incarnation == own),
            restart_count=seal.restart_count,
            max_restarts=seal.max_restarts,
            store_address=commit.store_address,
            store_port=commit.store_port,
            spares=seal.spares,
        )
        self._out.notify(ports.StartWorkers(assignment=assignment))

    def report_gone(self, *, is_said: bool = True) -> None:
        """Report that no worker of the round is left here, or that none was ever started.

        If it is not said at once, `say_gone` does, or `report_again`.
        """
        gone = ports.WorkersGone(round=self.round)
        self.become(Part.GONE)
        if is_said:
            self.report(gone)
        else:
            self._reports.append(gone)

    def say_gone(self) -> None:
        """Say that no worker of the round is left here, if that is so."""
        if self.phase is Part.GONE:
            self._out.send(ports.WorkersGone(round=self.round))

    def take_stop_order(self, order: m.StopOrder) -> None:
        """Stop the workers as ordered."""
        if self.seal is None or order.round != self.seal.round:
            # Nothing of it was ever started here.
            self._out.send(ports.WorkersGone(round=order.round))
        elif self.phase is Part.SEALED:
            self.report_gone()
        elif self.phase in {Part.RUNNING, Part.SUCCEEDED}:
            self.become(Part.STOPPING)
            stop = ports.StopWorkers(round=order.round, grace_s=order.grace_s, reason=order.reason)
            self._out.notify(stop)

    # --- what the agent says -----------------------------------------------------------------

    def take_success(self, succeeded: ports.GroupSucceeded) -> None:
        """Report that all workers ended well."""
        if self.phase is Part.RUNNING and succeeded.round == self.round:
            self.become(Part.SUCCEEDED)
            self.report(succeeded)

    def take_store(self, answer: ports.StoreOpened | ports.StoreFailed) -> None:
        """Report where the worker store of the round is, or that there is none."""
        if self.phase is Part.SEALED and answer.round == self.round:
            self.report(answer)

    # --- holding and fencing -----------------------------------------------------------------

    def hold(self, reason: str) -> None:
        """Stop the workers for a moment, until it is clear whether their round stands."""
        if self.has_workers and not self.is_held:
            self.is_held = True
            self._out.notify(ports.HoldWorkers(round=self.round, reason=reason))

    def release(self) -> None:
        """Let workers go on that are held: their round stands."""
        if self.is_held:
            self.is_held = False
            self._out.notify(ports.ReleaseWorkers(round=self.round))

    def tell_lease(self) -> None:
        """Hand the deadline to the keeper while it has workers to kill."""
        if self.has_workers:
            self._out.notify(ports.LeaseExtended(until=self._link.held_until))

    def fence(self, reason: str) -> None:
        """Have nothing to do with the round any more; workers that are left are killed."""
        if self.has_workers or self.phase is Part.SUCCEEDED:
            self.become(Part.FENCING)
            self._reports.clear()
            self._out.notify(ports.Fence(round=self.round, reason=reason))
        elif self.phase is not Part.FENCING:
            self.forget()

    def forget(self) -> None:
        """Be in no round."""
        if self.phase is not Part.NONE:
            self.become(Part.NONE)
        self.seal = None
        self._reports.clear()
