"""How a round is made: numbered, sealed, acknowledged by its roster, given a store, committed.

It keeps what goes on from round to round: the number, the budget (R3), and the **gate**: the time
before which no worker may start, as one of a lost member may still run (R5, R6).
"""

from __future__ import annotations

import dataclasses

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.ballot import electorate_of
from pytest_elastic.rendezvous.budget import Budget, Verdict, judge
from pytest_elastic.rendezvous.desk import Desk
from pytest_elastic.rendezvous.gathering import Enough
from pytest_elastic.rendezvous.peer import Peer, Standing
from pytest_elastic.rendezvous.round import CommittedRound, SealedRound

__all__ = ["Sealing"]


class Sealing:
    """Seals one round at a time; `newest` is the number of the last one that anybody sealed."""

    def __init__(self, desk: Desk, now: float) -> None:
        self.newest = 0
        self.budget = Budget(max_restarts=desk.settings.max_restarts)
        self.seal: SealedRound | None = None
        """The round that is on its way, if one is."""
        self._settings = desk.settings
        self._term = desk.term
        self._sealed_by = desk.node.incarnation
        self._out = desk.out
        self._members = desk.members
        self._mandate = desk.mandate
        self._deadlines = desk.deadlines
        self._gate = now

    # --- what goes on from round to round ----------------------------------------------------

    def go_on(self, newest: int, *, restarts_used: int, idle_rounds: int) -> None:
        """Begin where another coordinator was lost."""
        self.newest = self._members.newest_round = newest
        self.budget = dataclasses.replace(self.budget, used=restarts_used, idle_rounds=idle_rounds)

    def take_over(self, newest: int, restarts_used: int) -> None:
        """Use no number again, and count on, as a mark tells of a job (R12)."""
        self.newest = max(self.newest, newest)
        used = max(self.budget.used, restarts_used)
        self.budget = dataclasses.replace(self.budget, used=used)

    def close_gate(self, until: float | None) -> None:
        """Start no worker before that; None changes nothing."""
        if until is not None:
            self._gate = max(self._gate, until)

    def skip_numbers(self) -> bool:
        """Use no number again that any member has told of; tell whether there was one."""
        is_new = self._members.newest_round > self.newest
        self.newest = max(self.newest, self._members.newest_round)
        return is_new

    def take_over_restarts(self) -> None:
        """Count the restarts that members have told of, where nobody else has."""
        used = max(self.budget.used, self._members.restarts_used)
        self.budget = dataclasses.replace(self.budget, used=used)

    def count_idle(self, *, has_run: bool) -> None:
        """Take note of a round that is over: whether it has run long enough for progress."""
        idle_rounds = 0 if has_run else self.budget.idle_rounds + 1
        self.budget = dataclasses.replace(self.budget, idle_rounds=idle_rounds)

    def emit_ended(self, round_: int, reason: str, *, charged: bool) -> None:
        """Say that a round has ended, and what it cost."""
        self._out.emit(
            events.RoundEnded(
                round=round_, reason=reason, charged=charged, restarts_used=self.budget.used
            )
        )

    # --- a seal ------------------------------------------------------------------------------

    def begin(self, enough: Enough, last: CommittedRound | None, now: float) -> str | None:
        """Seal a round of those who are enough, to follow `last`; or say why the job fails (R3)."""
        ready, roster, endorsers = self._members.ready, enough.roster, enough.endorsers
        incarnations = tuple(peer.node.incarnation for peer in roster)
        ended = last.as_ended() if last is not None else None
        in_it = set(incarnations)
        verdict, why = judge(self.budget, ended, incarnations)
        if verdict is Verdict.JOB_FAILS:
            return why
        self.newest += 1
        self._members.newest_round = self.newest
        spares = tuple(
            peer.node.name for incarnation, peer in ready.items() if incarnation not in in_it
        )
        message = m.Seal(
            term=self._term,
            round=self.newest,
            roster=tuple(peer.as_entry() for peer in roster),
            spares=spares,
            restart_count=self.budget.used + (verdict is Verdict.CHARGED),
            max_restarts=self._settings.max_restarts,
            sealed_by=self._sealed_by,
            electorates=self._mandate.electorates,
            endorsers=tuple(peer.node.incarnation for peer in endorsers),
            idle_rounds=self.budget.idle_rounds,
        )
        self.seal = SealedRound(
            message=message,
            roster=roster,
            endorsers=endorsers,
            sealed_at=now,
            verdict=verdict,
            missing=in_it.union(message.endorsers),
        )
        for peer in roster:
            peer.round = self.newest
            self._members.update(peer, Standing.SEALED)
        for peer in (*roster, *endorsers):
            self._out.send(peer, message)
        if endorsers:
            names = ", ".join(peer.node.name for peer in endorsers)
            why += f"; {names} must agree without being in it"
        self._out.emit(
            events.RoundSealed(
                round=self.newest,
                term=self._term,
                roster=tuple(peer.node.name for peer in roster),
                spares=spares,
                restart_count=message.restart_count,
                reason=f"{enough.reason}; {why}",
            )
        )
        return None

    def take_acknowledgement(self, peer: Peer, round_: int) -> None:
        """Take note that a member holds the seal."""
        if self.seal is not None and round_ == self.seal.number:
            self.seal.missing.discard(peer.node.incarnation)
            self._mandate.hear(peer.node.incarnation, self.seal.sealed_at)

    def take_store(
        self, peer: Peer, answer: ports.StoreOpened | ports.StoreFailed, now: float
    ) -> None:
        """Take note of the worker store that the member of group rank 0 has opened, or not (R8)."""
        seal = self.seal
        if seal is None or answer.round != seal.number or peer is not seal.store_host:
            return
        if isinstance(answer, ports.StoreOpened):
            seal.store = (answer.address, answer.port)
        else:
            self._members.evict(peer, f"it could not open a worker store: {answer.reason}", now)

    def suspect(self, peer: Peer) -> None:
        """Have a member acknowledge again that the commit could not reach."""
        if self.seal is not None and peer.standing is Standing.SEALED:
            self.seal.missing.add(peer.node.incarnation)

    def lose(self, peer: Peer, reason: str) -> None:
        """Give the seal up if a member is lost that is in it, or has yet to endorse it."""
        if self.awaits(peer):
            self.break_off(reason)

    def awaits(self, peer: Peer) -> bool:
        """Tell whether a member is in the seal, or has yet to endorse it."""
        is_missing = self.seal is not None and peer.node.incarnation in self.seal.missing
        return is_missing or peer.standing is Standing.SEALED

    def break_off(self, reason: str) -> None:
        """Give the seal up, if there is one, at the next look."""
        if self.seal is not None:
            self.seal.broken_by = reason

    def look(self, now: float) -> tuple[str, int] | None:
        """Go on with the seal; return the address of its store when it is to be committed."""
        seal = self.seal
        assert seal is not None, "there is a seal while sealing"
        if seal.broken_by is not None:
            self._abandon(seal, seal.broken_by)
            return None
        is_due = self._deadlines.is_due
        limit_s = self._settings.store_timeout_s
        if seal.store is None and is_due(seal.sealed_at + limit_s, now):
            self._members.evict(
                seal.store_host, f"it opened no worker store within {limit_s:g} s", now
            )
            return None
        if seal.missing:
            # A member that is there answers at once; one that is not is lost by its lease anyway.
            if is_due(seal.sealed_at + self._settings.lease_s, now):
                for peer in (*seal.roster, *seal.endorsers):
                    if peer.node.incarnation in seal.missing:
                        self._members.evict(peer, "it did not acknowledge the round", now)
            return None
        if seal.store is not None and is_due(self._gate, now):
            return seal.store
        return None

    def _abandon(self, seal: SealedRound, reason: str) -> None:
        """Give a sealed round up that nobody has started; its number is not used again."""
        for peer in seal.roster:
            if peer.node.incarnation in self._members.peers:
                self._members.update(peer, Standing.WAITING)
        self.seal = None
        self.count_idle(has_run=False)
        self.emit_ended(seal.number, f"given up before it was committed: {reason}", charged=False)

    def commit(
        self, last: CommittedRound | None, store: tuple[str, int], now: float
    ) -> CommittedRound:
        """Commit the seal: `last` is paid for, and the workers start."""
        seal, self.seal = self.seal, None
        assert seal is not None, "there is a seal to commit"
        if last is not None:
            charged = seal.verdict is Verdict.CHARGED
            if charged:
                self.budget = dataclasses.replace(self.budget, used=self.budget.used + 1)
            self.emit_ended(last.number, last.why_ended(), charged=charged)
        commit = m.Commit(
            term=self._term, round=seal.number, store_address=store[0], store_port=store[1]
        )
        self._mandate.rest_on([electorate_of(seal.message)])
        committed = seal.as_committed(commit, now)
        for peer in seal.roster:
            self._members.update(peer, Standing.RUNNING)
            self._out.send(peer, commit)
        return committed
