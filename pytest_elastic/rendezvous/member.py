"""One node's side of the rendezvous: find the coordinator, keep the lease, do what is decided.

Two things go on at once, and each has its own phases. The **link** is what stands between this node
and the coordinator; the **part** is what this node has to do with a round. News that must not get
lost with a connection (a failure, workers gone) is kept until the next round and said again after
every welcome; the coordinator knows what it has heard before.

The node's own safety needs nobody: with workers running and the lease about to end, it fences,
whatever the link is doing (R6). It greets as a newcomer only when no worker is left, so that a
greeting which resumes no round is a promise. What it does about a coordinator that is lost is in
`succession` (R11).
"""

from __future__ import annotations

import dataclasses

from typing_extensions import assert_never

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.ballot import rank_of
from pytest_elastic.rendezvous.greeting import settings_as_values
from pytest_elastic.rendezvous.liveness import HeldLease
from pytest_elastic.rendezvous.member_phases import (
    LINK_ALLOWED,
    PART_ALLOWED,
    WITH_WORKERS,
    Link,
    Part,
)
from pytest_elastic.rendezvous.model import Assignment, Failure, Node, Settings
from pytest_elastic.rendezvous.succession import Contact, Succession

__all__ = ["LINK_ALLOWED", "PART_ALLOWED", "Link", "MemberMachine", "Part"]

# Something goes on towards a coordinator.
_TOWARDS = frozenset({Link.DIALING, Link.GREETING, Link.JOINED})
# How long to wait before the next try to find or dial: not felt by a person, nothing for a network.
_RETRY_S = 0.1
# An endpoint's store may block for long; a dial is answered by a living host in one round trip.
_FIND_S = 5.0
# How long after the end of its lease a member looks for its coordinator before it gives the job up.
# Less would give up nodes that a network forgets for a moment; with more, not everything would be
# over within lease + 5 s of losing a coordinator that does not answer (R10).
_GIVE_UP_S = 4.0


class MemberMachine:
    """Decides for one agent; see `vocabulary` for how it is driven."""

    def __init__(self, *, node: Node, settings: Settings) -> None:
        self.node = node
        self.settings = settings
        self.link = Link.UNSTARTED
        self.part = Part.NONE
        self._out: list[v.MemberCommand] = []
        self._wake: float | None = None
        # the coordinator
        self._found: v.CoordinatorFound | None = None
        self._coordinator = "the coordinator"
        self._term = 0
        self._last_problem = "the endpoint has not answered yet"
        self._tried_at = 0.0
        self._rest_until = 0.0
        self._seeking_since = 0.0
        self._patient_until = 0.0
        self._lease: HeldLease | None = None
        self._next_lease: HeldLease | None = None
        self._echo = 0
        # the round
        self._seal: m.Seal | None = None
        self._is_held = False
        self._newest_round = 0
        self._restarts_used = 0
        self._reports: list[m.Report] = []
        self._drain: ports.DrainRequested | None = None
        self._ending: m.JobEnding | None = None
        self._succession = Succession(settings, node.incarnation)

    def step(self, input: v.MemberInput, now: float) -> tuple[v.MemberCommand, ...]:
        """Take one input in; return what is to be done, in order."""
        if self.link is Link.OVER and not isinstance(input, v.Asked):
            return ()
        if self._wake is not None and now > self._wake + self.settings.beat_interval_s:
            # We were away ourselves (stopped, suspended): the coordinator may be well.
            self._patient_until = max(self._patient_until, now + _GIVE_UP_S)
        if self.link is not Link.OVER:
            self._watch_lease(now)
        self._handle(input, now)
        self._advance(now)
        commands, self._out = tuple(self._out), []
        return commands

    def wake_at(self) -> float | None:
        """Return when `TimePassed` is wanted, or None."""
        return self._wake

    # --- dispatch ----------------------------------------------------------------------------

    def _handle(self, input: v.MemberInput, now: float) -> None:
        match input:
            case v.Start():
                assert self.link is Link.UNSTARTED, "a member starts once"
                self._seeking_since = now
                self._seek(now)
            case v.CoordinatorFound():
                self._on_found(input, now)
            case v.Announced(place=place):
                self._on_announced(place, now)
            case v.Asked():
                self._on_asked(input, now)
            case v.VoteAnswered():
                self._succession.candidate.take_answer(input, now)
            case v.CoordinatorNotFound(reason=reason):
                if self.link is Link.SEEKING:
                    self._rest(reason, now)
            case v.Connected():
                self._on_connected(now)
            case v.DialFailed():
                self._on_dial_failed(input, now)
            case v.ConnectionLost(reason=reason):
                self._on_connection_lost(reason, now)
            case v.MessageReceived(message=message):
                self._on_message(message, now)
            case v.TimePassed():
                pass
            case ports.DrainRequested():
                self._on_drain(input)
            case ports.WorkersGone(round=round_):
                self._on_workers_gone(round_, now)
            case ports.GroupSucceeded():
                self._on_group_succeeded(input)
            case ports.GroupFailed(round=round_):
                if self.part is Part.RUNNING and round_ == self._round:
                    self._on_group_failed(input, now)
            case ports.StoreOpened(round=round_) | ports.StoreFailed(round=round_):
                if self.part is Part.SEALED and round_ == self._round:
                    self._report(input)
            case _:
                assert_never(input)

    def _on_message(self, message: m.Message, now: float) -> None:
        if self.link is Link.GREETING:
            match message:
                case m.Welcome():
                    self._on_welcome(message, now)
                case m.Refusal():
                    self._on_refusal(message, now)
                case m.ProbeAnswer(is_tombstone=True):
                    self._on_tombstone(message, now)
            return
        if self.link is not Link.JOINED:
            return
        match message:
            case m.Beat():
                self._on_beat(message, now)
            case m.StepDown(term=self._term):
                self._on_step_down(message, now)
            case m.Seal(term=self._term):
                self._on_seal(message, now)
            case m.Commit(term=self._term):
                self._on_commit(message, now)
            case m.StopOrder(term=self._term):
                self._on_stop_order(message)
            case m.SpareNotice(term=self._term, round=round_, roster=roster):
                self._newest_round = max(self._newest_round, round_)
                self._succession.know(roster)
                self._out.append(v.Emit(event=events.NodeSpared(round=round_)))
                self._out.append(v.Notify(notice=ports.Spared(round=round_)))
            case ports.PeerDraining():
                self._out.append(v.Notify(notice=message))
            case m.LeaveGranted(term=self._term, reason=reason):
                self._finish("drained", f"left: {reason}")
            case m.Evicted(term=self._term, reason=reason):
                self._leave_round(f"evicted: {reason}", now, as_told=True)
            case m.JobEnding(term=self._term):
                self._ending = message
                self._succession.ballot.contact_at = now
                self._out.append(v.Send(message=m.EndAcknowledged(term=self._term)))
            case m.JobEnded(term=self._term):
                self._end_as_decided()
            case _:
                pass  # of another term, or not for a member: it changes nothing

    # --- the link ----------------------------------------------------------------------------

    def _become_link(self, link: Link) -> None:
        assert link in LINK_ALLOWED[self.link], f"a link cannot go from {self.link} to {link}"
        self.link = link

    def _seek(self, now: float) -> None:
        self._become_link(Link.SEEKING)
        self._tried_at = now
        peers = self._succession.peers
        self._out.append(v.FindCoordinator(answer_within_s=_FIND_S, peers=peers))

    def _dial(self, now: float) -> None:
        assert self._found is not None, "there is an address to dial"
        self._become_link(Link.DIALING)
        self._tried_at = now
        self._out.append(
            v.Dial(
                address=self._found.address,
                port=self._found.port,
                answer_within_s=self.settings.lease_s,
            )
        )

    def _rest(self, problem: str, now: float) -> None:
        """Go on without a connection for a moment."""
        self._last_problem = problem
        self._become_link(Link.RESTING)
        is_late = self._succession.is_on and self._is_lost(now)
        self._rest_until = now + (self.settings.beat_interval_s / 2 if is_late else _RETRY_S)

    def _hang_up(self, problem: str, now: float) -> None:
        self._out.append(v.Hangup())
        self._rest(problem, now)

    def _on_found(self, found: v.CoordinatorFound, now: float) -> None:
        if self.link is not Link.SEEKING:
            return
        is_obeyed = self._succession.may_obey(found.term, found.incarnation)
        is_old = not self._succession.is_on and found.term < self._term
        if is_old or not is_obeyed:
            self._rest(f"the store names a coordinator of term {found.term}, which is over", now)
            return
        known = self._found
        is_known = known is not None and found.incarnation == known.incarnation
        is_over = self._succession.is_lost and is_known and found.term == self._term
        if is_over and self._succession.peers:
            # If it is well after all, they are in contact, and say so.
            self._rest("the store names the coordinator that was lost", now)
            return
        self._found = found
        self._dial(now)

    def _on_connected(self, now: float) -> None:
        if self.link is not Link.DIALING:
            return
        self._become_link(Link.GREETING)
        self._tried_at = now
        self._next_lease = HeldLease(self.settings, now)
        self._echo = 0
        self._out.append(
            v.Send(
                message=m.Hello(
                    run_id=self.settings.run_id,
                    node=self.node,
                    settings=settings_as_values(self.settings),
                    resumes_round=self._seal.round if self._seal is not None else 0,
                    term=self._succession.term_to_tell(self._term),
                    newest_round=self._newest_round,
                    restarts_used=self._restarts_used,
                )
            )
        )

    def _on_dial_failed(self, failed: v.DialFailed, now: float) -> None:
        if self.link is not Link.DIALING:
            return
        self._rest(failed.reason, now)
        if self._succession.is_on:
            # A port that refuses proves nothing, but those who are in contact will say so.
            if failed.outcome is not v.Outcome.SILENT:
                self._succession.lose()
        elif failed.outcome is v.Outcome.TOMBSTONE:
            self._lose_ended(f"its agent has ended: {failed.reason}")

    def _on_tombstone(self, tombstone: m.ProbeAnswer, now: float) -> None:
        """Hear from a keeper at the door that the agent behind it has ended."""
        self._hang_up(f"{self._where}: the agent there has ended", now)
        is_its = self._found is not None and self._found.incarnation == tombstone.incarnation
        if is_its and self._succession.is_on:
            self._succession.lose()
        elif is_its:
            self._lose_ended("its agent has ended; its keeper said so")

    def _lose_ended(self, problem: str) -> None:
        """Go on without a coordinator that has certainly ended, where another may be named."""
        if self.settings.is_granted:
            self._succession.lose()
        elif self._belongs:
            self._lose_job(problem)

    def _on_connection_lost(self, reason: str, now: float) -> None:
        if self.link not in _TOWARDS:
            return
        if self._ending is not None and not self._succession.is_on:
            self._end_as_decided()
            return
        if self.link is not Link.JOINED:
            if self.link is Link.GREETING and self._succession.is_on:
                # Whoever was there decides nothing any more. If it does, others will say so.
                self._succession.lose()
            self._rest(reason, now)
            return
        self._last_problem = reason
        self._hold(f"contact to {self._coordinator} is lost: {reason}")
        self._seeking_since = now
        self._dial(now)

    def _hold(self, reason: str) -> None:
        """Stop the workers for a moment, until it is clear whether their round stands."""
        if self.part in WITH_WORKERS and not self._is_held:
            self._is_held = True
            held = ports.HoldWorkers(round=self._round, reason=reason)
            self._out.append(v.Notify(notice=held))

    def _on_welcome(self, welcome: m.Welcome, now: float) -> None:
        assert self._found is not None, "whoever answers was dialled"
        is_obeyed = self._succession.may_obey(welcome.term, self._found.incarnation)
        is_old = not self._succession.is_on and welcome.term < self._term
        if is_old or not is_obeyed:
            self._hang_up(f"{welcome.coordinator} decides under the old term {welcome.term}", now)
            return
        self._become_link(Link.JOINED)
        self._succession.join(welcome.term, self._found.incarnation, now)
        self._term = welcome.term
        self._coordinator = welcome.coordinator
        self._newest_round = max(self._newest_round, welcome.newest_round)
        self.node = dataclasses.replace(self.node, name=welcome.name)
        assert self._next_lease is not None, "the greeting was beat 0 of a lease"
        self._lease, self._next_lease = self._next_lease, None
        self._lease.take_echo(0, welcome.grant_s)
        self._patient_until = now
        self._tell_lease()
        if not welcome.resumed and self._seal is not None:
            self._leave_round(f"{welcome.coordinator} knows nothing of round {self._round}", now)
            return
        if self._is_held:
            self._is_held = False
            self._out.append(v.Notify(notice=ports.ReleaseWorkers(round=self._round)))
        for report in (*self._reports, *([self._drain] if self._drain is not None else ())):
            self._out.append(v.Send(message=report))

    def _on_refusal(self, refusal: m.Refusal, now: float) -> None:
        if refusal.is_final:
            self._finish("refused", refusal.reason)
        else:
            self._leave_round(refusal.reason, now, as_told=True)

    # --- the round ---------------------------------------------------------------------------

    def _become_part(self, part: Part) -> None:
        assert part in PART_ALLOWED[self.part], f"a part cannot go from {self.part} to {part}"
        self.part = part
        if part not in WITH_WORKERS:
            self._is_held = False

    @property
    def _round(self) -> int:
        assert self._seal is not None, f"a part that is {self.part} has a round"
        return self._seal.round

    def _report(self, report: m.Report) -> None:
        """Tell the coordinator, now and after every welcome until the next round."""
        self._reports.append(report)
        if self.link is Link.JOINED:
            self._out.append(v.Send(message=report))

    def _on_seal(self, seal: m.Seal, now: float) -> None:
        if self._seal is not None and rank_of(seal) <= rank_of(self._seal):
            if self.part is Part.SEALED and seal.round == self._seal.round:
                self._acknowledge(seal, now)
            return
        if self._seal is not None and seal.round == self._seal.round:
            if seal.roster == self._seal.roster:  # the same, from a successor
                self._acknowledge(seal, now)
            return
        if self.part not in {Part.NONE, Part.GONE, Part.SEALED}:
            return
        self._seal = seal
        self._newest_round = max(self._newest_round, seal.round)
        self._restarts_used = max(self._restarts_used, seal.restart_count)
        self._reports.clear()
        if self.part is not Part.SEALED:
            self._become_part(Part.SEALED)
        self._acknowledge(seal, now)
        if seal.roster[0].incarnation == self.node.incarnation:
            world_size = sum(entry.slots for entry in seal.roster)
            order = ports.OpenStore(round=seal.round, world_size=world_size)
            self._out.append(v.Notify(notice=order))

    def _acknowledge(self, seal: m.Seal, now: float) -> None:
        self._succession.ballot.acknowledge(seal)
        self._succession.ballot.contact_at = now
        acknowledgement = m.SealAcknowledged(term=self._term, round=seal.round)
        self._out.append(v.Send(message=acknowledgement))

    def _on_commit(self, commit: m.Commit, now: float) -> None:
        seal = self._seal
        if seal is not None and commit.round == seal.round:
            self._succession.ballot.see_commit(commit)
        if self.part is not Part.SEALED or seal is None or commit.round != seal.round:
            return
        if self._drain is not None:
            self._succession.ballot.renounce()
            self._become_part(Part.GONE)
            self._report(ports.WorkersGone(round=seal.round))
            return
        if self._must_fence(now):
            self._leave_round("the lease ran out before the commit came", now)
            return
        self._become_part(Part.RUNNING)
        self._tell_lease()
        incarnations = [entry.incarnation for entry in seal.roster]
        assignment = Assignment(
            round=seal.round,
            term=seal.term,
            roster=seal.roster,
            group_rank=incarnations.index(self.node.incarnation),
            restart_count=seal.restart_count,
            max_restarts=seal.max_restarts,
            store_address=commit.store_address,
            store_port=commit.store_port,
            spares=seal.spares,
        )
        self._out.append(v.Notify(notice=ports.StartWorkers(assignment=assignment)))

    def _on_stop_order(self, order: m.StopOrder) -> None:
        if self._seal is None or order.round != self._seal.round:
            # Nothing of it was ever started here.
            self._out.append(v.Send(message=ports.WorkersGone(round=order.round)))
        elif self.part is Part.SEALED:
            self._become_part(Part.GONE)
            self._report(ports.WorkersGone(round=order.round))
        elif self.part in {Part.RUNNING, Part.SUCCEEDED}:
            self._become_part(Part.STOPPING)
            stop = ports.StopWorkers(round=order.round, grace_s=order.grace_s, reason=order.reason)
            self._out.append(v.Notify(notice=stop))

    def _on_group_succeeded(self, succeeded: ports.GroupSucceeded) -> None:
        if self.part is Part.RUNNING and succeeded.round == self._round:
            self._become_part(Part.SUCCEEDED)
            self._report(succeeded)

    def _on_group_failed(self, failed: ports.GroupFailed, now: float) -> None:
        if failed.is_lease_over:
            # The keeper looks at the clock for itself, a moment earlier than this machine does.
            self._leave_round(f"the lease of {self.settings.lease_s:g} s ran out", now)
        else:
            self._report(failed)

    def _on_workers_gone(self, round_: int, now: float) -> None:
        if self._seal is None or round_ != self._seal.round:
            return
        if self.part is Part.FENCING:
            self._forget_round()
            self._patient_until = now + _GIVE_UP_S
            if self._drain is not None:
                self._finish("drained", f"left: {self._drain.reason}")
        elif self.part in WITH_WORKERS or self.part is Part.SUCCEEDED:
            self._become_part(Part.GONE)
            if self._drain is not None:
                self._succession.ballot.renounce()
            self._report(ports.WorkersGone(round=round_))
            if self._drain is not None and self.link is not Link.JOINED:
                self._finish("drained", f"left without being missed: {self._drain.reason}")

    def _leave_round(self, reason: str, now: float, *, as_told: bool = False) -> None:
        """Be a newcomer from here on; first, no worker may be left.

        `as_told`: the coordinator lives and said so: it is not lost, however long killing takes.
        """
        self._fence(reason)
        if as_told:
            is_killing = self.part is Part.FENCING
            patience_s = self.settings.join_timeout_s if is_killing else _GIVE_UP_S
            self._patient_until = now + patience_s
        if self.link in _TOWARDS:
            self._hang_up(reason, now)
        if self._drain is not None and self.part is Part.NONE:
            self._finish("drained", f"left: {self._drain.reason}")

    def _fence(self, reason: str) -> None:
        if self.part in WITH_WORKERS or self.part is Part.SUCCEEDED:
            self._become_part(Part.FENCING)
            self._reports.clear()
            self._out.append(v.Notify(notice=ports.Fence(round=self._round, reason=reason)))
        elif self.part is not Part.FENCING:
            self._forget_round()

    def _forget_round(self) -> None:
        if self.part is not Part.NONE:
            self._become_part(Part.NONE)
        self._seal = None
        self._reports.clear()

    def _on_drain(self, drain: ports.DrainRequested) -> None:
        if self._drain is not None:
            return
        self._drain = drain
        if self.part not in WITH_WORKERS and self.part is not Part.FENCING:
            self._succession.ballot.renounce()
        if self.link is Link.JOINED:
            self._out.append(v.Send(message=drain))
        elif self.part in {Part.NONE, Part.SEALED, Part.GONE}:
            self._finish("drained", f"left before taking part: {drain.reason}")

    # --- time --------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Do what time asks for; every deadline looked at and not yet over is one to wake for."""
        self._wake = None
        if self.link is not Link.OVER:
            self._watch_lease(now)
            self._watch_succession(now)
            self._watch_link(now)
            self._watch_contact(now)
        if self.link is Link.OVER:
            self._wake = None

    def _is_due(self, deadline: float, now: float) -> bool:
        if now >= deadline:
            return True
        if self._wake is None or deadline < self._wake:
            self._wake = deadline
        return False

    @property
    def _held_until(self) -> float | None:
        """When the lease ends; None: none is held, or none is needed from a coordinator here."""
        if self._lease is None or self._is_coordinated_here:
            return None
        return self._lease.held_until

    @property
    def _is_coordinated_here(self) -> bool:
        """Whether the coordinator cannot be lost, as it runs here and needs nobody."""
        is_here = self._found is not None and self._found.is_here
        return is_here and not self._succession.is_on and not self.settings.is_granted

    def _is_lost(self, now: float) -> bool:
        """Tell whether the coordinator is lost, as far as this node can know."""
        if self.link is Link.JOINED:
            return False
        held_until = self._held_until
        return self._succession.is_lost or held_until is None or now >= held_until

    @property
    def _belongs(self) -> bool:
        """Whether a job runs that this node has been told of."""
        return self._newest_round > 0

    def _must_fence(self, now: float) -> bool:
        if self._held_until is None:
            return False
        assert self._lease is not None, "a lease that ends is held"
        fence_at = self._lease.fence_at
        return fence_at is not None and self._is_due(fence_at, now)

    def _watch_lease(self, now: float) -> None:
        """Kill the workers early enough before the lease ends, whatever else is going on (R6)."""
        if self.part in WITH_WORKERS and self._must_fence(now):
            lease_s = self.settings.lease_s
            self._leave_round(f"the lease of {lease_s:g} s from {self._coordinator} ran out", now)

    def _watch_link(self, now: float) -> None:
        match self.link:
            case Link.SEEKING:
                if self._is_due(self._tried_at + _FIND_S + 1.0, now):
                    self._rest("the endpoint's store did not answer", now)
            case Link.DIALING:
                if self._is_due(self._tried_at + self.settings.lease_s + 1.0, now):
                    self._hang_up(f"{self._where} did not answer", now)
            case Link.GREETING:
                # The holder of our name may have to be waited for: until its lease has run out.
                limit_s = 2 * self.settings.lease_s + self.settings.drift_s
                if self._is_due(self._tried_at + limit_s, now):
                    self._hang_up(f"{self._where} did not answer the greeting", now)
            case Link.JOINED:
                self._beat(now)
            case _:
                pass
        may_greet = self.link is Link.RESTING and self.part is not Part.FENCING
        if may_greet and self._is_due(self._rest_until, now):
            self._try_again(now)

    def _try_again(self, now: float) -> None:
        """Dial the coordinator that is known while its lease lasts; then ask who it is."""
        is_known = self._held_until is not None and not self._is_lost(now)
        if self._found is not None and (is_known or self._succession.trusts(now)):
            self._dial(now)
        else:
            self._seek(now)

    def _beat(self, now: float) -> None:
        assert self._lease is not None, "a member that is joined has a lease"
        if self._is_due(self._lease.beat_at, now):
            count = self._lease.next_beat(now)
            self._out.append(v.Send(message=m.Beat(count=count, echo=self._echo)))
            self._is_due(self._lease.beat_at, now)

    def _on_beat(self, beat: m.Beat, now: float) -> None:
        assert self._lease is not None, "a member that is joined has a lease"
        self._succession.ballot.contact_at = now
        if beat.grant_s is not None:
            # What it grants next depends on how lately we have answered: do not wait for our beat.
            self._out.append(v.Send(message=m.Beat(count=0, echo=beat.count)))
        self._echo = max(self._echo, beat.count)
        if self._lease.take_echo(beat.echo, beat.grant_s):
            self._tell_lease()

    def _tell_lease(self) -> None:
        """Hand the deadline to the keeper while it has workers to kill."""
        if self.part not in WITH_WORKERS:
            return
        self._out.append(v.Notify(notice=ports.LeaseExtended(until=self._held_until)))

    def _watch_contact(self, now: float) -> None:
        """Notice a silent coordinator, and give the job up when it stays away (R10)."""
        if self.link in {Link.UNSTARTED, Link.OVER} or self._is_coordinated_here:
            return
        held_until = self._held_until
        if self.link is Link.JOINED:
            assert held_until is not None, "a member that is joined has a lease"
            if not self._is_due(held_until, now):
                return
            self._seeking_since = now
            self._hang_up(f"silent for {self.settings.lease_s:g} s", now)
        has_successors = self._succession.is_on and held_until is not None
        if self._ending is not None and not has_successors:
            self._end_as_decided()
        elif self._ending is not None and held_until is not None:
            if self._is_due(held_until + _GIVE_UP_S, now):
                self._end_as_decided()
        elif self._belongs and held_until is not None:
            may_follow = has_successors or self.settings.is_granted
            patience_s = self.settings.join_timeout_s if may_follow else _GIVE_UP_S
            if self._is_due(max(held_until + patience_s, self._patient_until), now):
                self._lose_job(self._last_problem)
        elif self._is_due(self._seeking_since + self.settings.join_timeout_s, now):
            self._finish(
                "lost",
                f"cannot join run {self.settings.run_id!r}: no coordinator was reached within "
                f"{self.settings.join_timeout_s:g} s ({self._last_problem})",
            )

    # --- succession --------------------------------------------------------------------------

    def _watch_succession(self, now: float) -> None:
        """Follow a coordinator that is lost, or find who does (R11)."""
        succession = self._succession
        if not succession.is_on or self.link in {Link.UNSTARTED, Link.JOINED, Link.OVER}:
            return
        if self._held_until is None or (
            not self._is_lost(now) and not self._is_due(self._held_until, now)
        ):
            return
        if succession.ballot.has_renounced and self.part in {Part.NONE, Part.SEALED, Part.GONE}:
            self._finish("drained", "left without being missed")
            return
        place = succession.take_place()
        if place is not None:
            self._on_announced(place, now)
            return
        self._ending = self._ending or succession.candidate.ending
        lost = self._found.incarnation if self._found is not None else ""
        self._out += succession.watch(
            now, lost=lost, name=self._coordinator, problem=self._last_problem, ending=self._ending
        )
        wake_at = succession.wake_at(now)
        if wake_at is not None:
            self._is_due(wake_at, now)

    def _on_announced(self, place: m.Place, now: float) -> None:
        """Join whoever decides now; or tell it that this node may not obey its term any more."""
        found = self._found
        if self.link is Link.JOINED and place.term <= self._term:
            return
        if not self._succession.is_on or self.link in {Link.UNSTARTED, Link.OVER}:
            return
        is_obeyed = self._succession.may_obey(place.term, place.incarnation)
        if not is_obeyed and not self._succession.must_tell(place.term):
            return
        is_same = found is not None and found.incarnation == place.incarnation
        is_known = is_same and found is not None and place.term == found.term
        # A dial that began while a link was cut would take long to notice that it is not any more.
        is_fresh = now < self._tried_at + self.settings.beat_interval_s / 2
        if is_known and (self.link is not Link.DIALING or is_fresh) and self.link in _TOWARDS:
            return
        self._succession.trust(now)
        self._found = v.CoordinatorFound(
            address=place.address,
            port=place.port,
            term=place.term,
            is_here=place.incarnation == self.node.incarnation,
            incarnation=place.incarnation,
        )
        self._leave_link(f"{place.name} decides now, under term {place.term}", now)

    def _on_step_down(self, order: m.StepDown, now: float) -> None:
        """Look for somebody else: the coordinator itself said that it decides no more."""
        if order.left == self.node.incarnation:
            self._finish("drained", f"left: {order.reason}")
            return
        self._succession.lose()
        if order.left:
            self._succession.candidate.excuse(order.left)
        self._seeking_since = now
        self._leave_link(order.reason, now)
        is_named = order.successor == self.node.incarnation and self._succession.is_on
        if is_named and self._found is not None:
            self._succession.candidate.stand(now, self._found.incarnation, is_named=True)

    def _leave_link(self, reason: str, now: float) -> None:
        """End whatever is going on towards a coordinator, and try the next one at once."""
        self._hold(reason)
        if self.link in _TOWARDS:
            self._hang_up(reason, now)
        elif self.link is Link.SEEKING:
            self._rest(reason, now)
        self._rest_until = now

    def _on_asked(self, asked: v.Asked, now: float) -> None:
        """Answer who asks for a vote, or for who decides."""
        commands = self._succession.answer(asked, self._contact(now), now)
        self._out += commands
        if len(commands) > 1 and self.link in {Link.DIALING, Link.GREETING}:
            self._hang_up("this node has voted for a successor", now)

    def _contact(self, now: float) -> Contact:
        place, patience_s, held_until = None, 0.0, self._held_until
        if self.link is Link.JOINED and self._found is not None:
            if held_until is None or now < held_until:
                place = m.Place(
                    term=self._term,
                    name=self._coordinator,
                    incarnation=self._found.incarnation,
                    address=self._found.address,
                    port=self._found.port,
                )
        elif held_until is not None and not self._is_lost(now):
            patience_s = held_until - now
        return Contact(place=place, patience_s=patience_s, ending=self._ending)

    # --- the end -----------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        if self._found is None:
            return self._coordinator
        return f"{self._coordinator} ({self._found.address}:{self._found.port})"

    def _lose_job(self, detail: str) -> None:
        reason = (
            f"lost {self._where}, which coordinates run {self.settings.run_id!r}: {detail}. "
            "Without succession the job ends with it."
        )
        reached = self._succession.candidate.reached
        if self._succession.is_on:
            seen = (
                f"reached {reached[0]} of its {reached[1]} members" if reached else "no successor"
            )
            reason = (
                f"lost {self._where} and was cut off from a majority of run "
                f"{self.settings.run_id!r} for {self.settings.join_timeout_s:g} s ({seen}): "
                f"{detail}"
            )
        self._finish("lost", reason)

    def _end_as_decided(self) -> None:
        assert self._ending is not None, "the end was announced"
        ending = self._ending
        self._finish(ending.result, ending.reason, ending.first_failure)

    def _finish(self, result: str, reason: str, first_failure: Failure | None = None) -> None:
        """Say the last word to the agent; `result` of a node that wanted to leave is "drained"."""
        if self.link is Link.OVER:
            return
        if self._drain is not None:
            result = "drained"
        if self.link in _TOWARDS:
            self._out.append(v.Hangup())
        self._become_link(Link.OVER)
        failure = dataclasses.asdict(first_failure) if first_failure is not None else {}
        ended = events.JobEnded(result=result, reason=reason, first_failure=failure)
        self._out.append(v.Emit(event=ended))
        over = ports.JobOver(result=result, reason=reason, first_failure=first_failure)
        self._out.append(v.Notify(notice=over))
