"""One node's side of the rendezvous: find the coordinator, keep the lease, do what is decided.

Two things go on at once, and each has its own phases. The **link** (`link.py`) is what stands
between this node and the coordinator; the **part** (`part.py`) is what this node has to do with a
round. Here is what passes between them, how a node leaves, and when it gives the job up.

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
from pytest_elastic.rendezvous.belief import is_believable
from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.departure import Departure
from pytest_elastic.rendezvous.link import CoordinatorLink
from pytest_elastic.rendezvous.mark import KnownJob
from pytest_elastic.rendezvous.member_phases import LINK_ALLOWED, PART_ALLOWED, Link, Part
from pytest_elastic.rendezvous.model import Failure, Node, Settings
from pytest_elastic.rendezvous.outbox import MemberOutbox
from pytest_elastic.rendezvous.part import RoundPart
from pytest_elastic.rendezvous.parting import GIVE_UP_S, Parting, reached_of, why_lost
from pytest_elastic.rendezvous.peer_check import PeerCheck
from pytest_elastic.rendezvous.succession import Succession

__all__ = ["LINK_ALLOWED", "PART_ALLOWED", "Link", "MemberMachine", "Part"]

_NO_NEED = frozenset({Link.UNSTARTED, Link.JOINED, Link.OVER})
_WHEN_OVER = v.Asked | v.ProbeAnswered | v.TimePassed


class MemberMachine:
    """Decides for one agent; see `vocabulary` for how it is driven."""

    def __init__(self, *, node: Node, settings: Settings) -> None:
        self.node = node
        self.settings = settings
        self._out = MemberOutbox()
        self._deadlines = Deadlines()
        self._succession = Succession(settings, node.incarnation)
        self._link = CoordinatorLink(settings, self._succession, self._out, self._deadlines)
        self._part = RoundPart(node.incarnation, self._succession.ballot, self._link, self._out)
        self._parting = Parting(settings, self._succession, self._link, self._out, self._deadlines)
        self._seeking_since = 0.0
        self._patient_until = 0.0
        self._departure = Departure(
            self._succession, self._link, self._part, self._out, self._deadlines
        )
        self._peer_check = PeerCheck()

    @property
    def link(self) -> Link:
        """What stands between this node and the coordinator."""
        return self._link.phase

    @property
    def part(self) -> Part:
        """What this node has to do with a round."""
        return self._part.phase

    @property
    def may_move(self) -> bool:
        """Whether no coordinator was ever told where this node is."""
        return not self._link.was_welcome and self.link is not Link.GREETING

    @property
    def known_job(self) -> KnownJob | None:
        """What is known of the job that this node is in, if it was told of one (R12)."""
        if not self._belongs:
            return None
        round_, restarts_used = self.known_numbers
        return self._succession.known_job(round_, restarts_used=restarts_used)

    @property
    def known_numbers(self) -> tuple[int, int]:
        """The newest round of the job that this node is in, and the restarts used; 0 for none."""
        if not self._belongs:
            return (0, 0)
        return self._succession.known_numbers(self._part.newest_round, self._part.restarts_used)

    @property
    def has_ended(self) -> bool:
        """Whether this node was told how the job ends, and has ended that way."""
        return self._link.phase is Link.OVER and self._parting.ending is not None

    @property
    def ending(self) -> m.JobEnding | None:
        """How the job ends, if this node was told."""
        return self._parting.ending

    @property
    def ended(self) -> m.JobEnding | None:
        """How the job has ended, if this node knows that it has, or has ended that way."""
        return self._parting.ending if self.has_ended else self._parting.ended

    def step(self, input: v.MemberInput, now: float) -> tuple[v.MemberCommand, ...]:
        """Take one input in; return what is to be done, in order."""
        if self._link.phase is Link.OVER and not isinstance(input, _WHEN_OVER):
            return ()
        wake_at = self._deadlines.wake_at
        if wake_at is not None and now >= wake_at:
            if now > wake_at + self.settings.beat_interval_s:
                # We were away ourselves (stopped, suspended): the coordinator may be well.
                self._patient_until = max(self._patient_until, now + GIVE_UP_S)
            if self._link.phase is not Link.OVER:
                self._watch_lease(now)
        self._handle(input, now)
        is_passing = isinstance(input, v.ProbeAnswered) and self._link.is_joined
        if not (is_passing and self._deadlines.are_ahead(now)):  # no deadline hangs on an answer
            self._advance(now)
        return self._out.take()

    def wake_at(self) -> float | None:
        """Return when `TimePassed` is wanted, or None."""
        return self._deadlines.wake_at

    # --- dispatch ----------------------------------------------------------------------------

    def _handle(self, input: v.MemberInput, now: float) -> None:
        match input:
            case v.MessageReceived(message=message):  # most often
                self._on_message(message, now)
            case v.TimePassed():
                pass
            case v.ProbeAnswered() if self._link.phase is Link.OVER:
                self._parting.take_answer(input)
            case v.ProbeAnswered():
                self._tell_checked(self._peer_check.take(input))
            case v.Start():
                assert self.link is Link.UNSTARTED, "a member starts once"
                self._seeking_since = now
                self._link.seek(now)
            case v.Moved(address=address, port=port):
                self.node = dataclasses.replace(self.node, address=address, port=port)
            case v.CoordinatorFound():
                self._link.take_found(input, now)
            case v.Announced(place=place):
                self._on_announced(place, now)
            case v.Asked():
                self._on_asked(input, now)
            case v.EndHeard(ending=ending, holds=holds):
                self._on_end_heard(ending, now, holds=holds)
            case v.VoteAnswered(answer=answer):
                self._succession.candidate.take_answer(input, now)
                if answer is not None and answer.ended is not None:
                    self._on_end_heard(answer.ended, now, holds=True)
            case v.CoordinatorNotFound(reason=reason):
                self._link.take_not_found(reason, now)
            case v.Connected():
                self._on_connected(now)
            case v.DialFailed():
                self._on_dial_failed(input, now)
            case v.ConnectionLost(reason=reason):
                self._on_connection_lost(reason, now)
            case ports.DrainRequested():
                self._on_drain(input, now)
            case ports.WorkersGone(round=round_):
                self._on_workers_gone(round_, now)
            case ports.GroupSucceeded():
                self._part.take_success(input)
            case ports.GroupFailed():
                self._on_group_failed(input, now)
            case ports.StoreOpened() | ports.StoreFailed():
                self._part.take_store(input)
            case _:
                assert_never(input)

    def _on_message(self, message: m.Message, now: float) -> None:
        link = self._link.phase
        if link is Link.GREETING:
            match message:
                case m.Welcome():
                    self._on_welcome(message, now)
                case m.Refusal():
                    self._on_refusal(message, now)
                case m.ProbeAnswer(is_tombstone=True):
                    self._on_tombstone(message, now)
            return
        if link is not Link.JOINED:
            return
        term = self._link.term
        match message:
            case m.Beat():
                if self._link.take_beat(message, now):
                    self._part.tell_lease()
            case m.StepDown() if message.term == term:
                self._on_step_down(message, now)
            case m.Seal() if message.term == term:
                self._part.take_seal(message, now)
            case m.Commit() if message.term == term:
                self._on_commit(message, now)
            case m.StopOrder() if message.term == term:
                self._part.take_stop_order(message)
            case m.CheckPeers() if message.term == term:
                self._out.add(*self._peer_check.begin(message))
                self._tell_checked(self._peer_check.answer())
            case m.SpareNotice(round=round_) if message.term == term:
                self._part.hear_of(round_, restarts_used=message.restarts_used)
                self._succession.know(round_, message.roster)
                self._out.emit(events.NodeSpared(round=round_, reason=message.reason))
                self._out.notify(ports.Spared(round=round_))
            case ports.PeerDraining():
                self._out.notify(message)
            case m.LeaveGranted(reason=reason) if message.term == term:
                self._finish("drained", f"left: {reason}")
            case m.Evicted(reason=reason) if message.term == term:
                self._leave_round(f"evicted: {reason}", now, as_told=True)
            case m.JobEnding() if message.term == term:
                self._parting.take_announcement(message, now)
            case m.JobEnded(unaware=unaware) if message.term == term:
                if self._parting.ending is not None:  # or it comes from no coordinator of ours
                    self._end_by(self._parting.hold(self._parting.ending, unaware=unaware))
            case _:
                pass  # of another term, or not for a member: it changes nothing

    def _tell_checked(self, report: m.PeersChecked | None) -> None:
        """Say whom this node does not reach; asked again after a welcome, if it was lost (R13)."""
        if report is not None and self._link.is_joined and report.term == self._link.term:
            self._out.send(report)

    # --- coming and going --------------------------------------------------------------------

    def _on_connected(self, now: float) -> None:
        if self.link is Link.DIALING:
            part = self._part
            self._link.greet(
                self.node,
                now,
                resumes_round=part.round if part.seal is not None else 0,
                newest_round=part.newest_round,
                restarts_used=part.restarts_used,
            )

    def _on_dial_failed(self, failed: v.DialFailed, now: float) -> None:
        if self.link is not Link.DIALING:
            return
        self._link.rest(failed.reason, now)
        if self._succession.is_on:
            # A port that refuses proves nothing, but those who are in contact will say so.
            if failed.outcome is not v.Outcome.SILENT:
                self._succession.lose()
        elif failed.outcome is v.Outcome.TOMBSTONE:
            self._lose_ended(f"its agent has ended: {failed.reason}")

    def _on_tombstone(self, tombstone: m.ProbeAnswer, now: float) -> None:
        """Hear from a keeper at the door that the agent behind it has ended."""
        self._link.hang_up(f"{self._link.where}: the agent there has ended", now)
        found = self._link.found
        is_its = found is not None and found.incarnation == tombstone.incarnation
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
        if not self._link.leads_somewhere:
            return
        if self._parting.ending is not None and not self._succession.is_on:
            self._end_by(self._parting.presume())
            return
        if self.link is not Link.JOINED:
            if self.link is Link.GREETING and self._succession.is_on:
                # Whoever was there decides nothing any more. If it does, others will say so.
                self._succession.lose()
            self._link.rest(reason, now)
            return
        self._link.last_problem = reason
        self._part.hold(f"contact to {self._link.coordinator} is lost: {reason}")
        self._seeking_since = now
        self._link.dial(now)

    def _on_welcome(self, welcome: m.Welcome, now: float) -> None:
        if not self._link.take_welcome(welcome, now):
            return
        self.node = self.node.named(welcome.name)
        self._parting.forget_older(welcome.term)
        self._patient_until = now
        if welcome.ended is not None:
            self._out.send(m.EndAcknowledged(term=welcome.term))
            self._end_by(self._parting.hold(welcome.ended, unaware=()))
            return
        part = self._part
        part.hear_of(welcome.newest_round)
        part.tell_lease()
        if not welcome.resumed and part.seal is not None:
            self._leave_round(f"{welcome.coordinator} knows nothing of round {part.round}", now)
            return
        part.release()
        if self._departure.request is not None:
            self._departure.ask(is_welcome=True)
        part.report_again()

    def _on_refusal(self, refusal: m.Refusal, now: float) -> None:
        if refusal.is_final:
            self._finish("refused", refusal.reason)
            return
        self._succession.hear_of_term(refusal.term, now)
        self._leave_round(refusal.reason, now, as_told=True)

    # --- the round ---------------------------------------------------------------------------

    def _on_commit(self, commit: m.Commit, now: float) -> None:
        if not self._part.is_to_start(commit):
            return
        if self._departure.request is not None:
            self._departure.ask()  # it was heard just now
            self._part.report_gone()
        elif self._link.must_fence(now):
            self._leave_round("the lease ran out before the commit came", now)
        else:
            self._part.start(commit)

    def _on_group_failed(self, failed: ports.GroupFailed, now: float) -> None:
        if self.part is not Part.RUNNING or failed.round != self._part.round:
            return
        if failed.is_lease_over:
            # The keeper looks at the clock for itself, a moment earlier than this machine does.
            self._leave_round(f"the lease of {self.settings.lease_s:g} s ran out", now)
        else:
            self._part.report(failed)

    def _on_workers_gone(self, round_: int, now: float) -> None:
        part = self._part
        if part.seal is None or round_ != part.round:
            return
        if part.phase is Part.FENCING:
            part.forget()
            self._patient_until = now + GIVE_UP_S
            self._leave_if_idle("left", now)
        elif part.has_workers or part.phase is Part.SUCCEEDED:
            part.report_gone(is_said=not self._departure.has_voice)
            if self._departure.has_voice:
                self._departure.be_idle(now)
            if not self._link.is_joined:
                self._leave_if_idle("left without being missed", now)

    def _leave_round(self, reason: str, now: float, *, as_told: bool = False) -> None:
        """Be a newcomer from here on; first, no worker may be left.

        `as_told`: the coordinator lives and said so: it is not lost, however long killing takes.
        """
        self._part.fence(reason)
        if as_told:
            is_killing = self.part is Part.FENCING
            patience_s = self.settings.join_timeout_s if is_killing else GIVE_UP_S
            self._patient_until = now + patience_s
        self._link.break_off(reason, now)
        if self.part is Part.NONE:
            self._leave_if_idle("left", now)

    def _on_drain(self, drain: ports.DrainRequested, now: float) -> None:
        if self._departure.request is not None:
            return
        self._departure.begin(drain, now)
        if not self._link.is_joined and self._part.is_free:
            self._leave_if_idle("left before taking part", now)

    def _leave_if_idle(self, how: str, now: float) -> None:
        """Leave a job of which nobody is there to be asked, unless others may need this node."""
        drain = self._departure.request
        if drain is None or not self._part.is_idle or self._link.must_hand_over:
            return
        if not self._departure.must_stay(now):
            self._finish("drained", f"{how}: {drain.reason}")

    # --- time --------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Do what time asks for; every deadline looked at and not yet over is one to wake for."""
        self._deadlines.clear()
        link = self._link
        if link.phase is not Link.OVER:
            if self._part.has_workers:
                self._watch_lease(now)
            if self._succession.is_on and link.phase not in _NO_NEED:
                self._watch_succession(now)
            link.watch(now, may_greet=self._part.phase is not Part.FENCING)
            self._departure.watch()
            self._watch_contact(now)
        if link.phase is Link.OVER:
            self._deadlines.clear()
            self._parting.linger(now)

    @property
    def _belongs(self) -> bool:
        """Whether a job runs that this node has been told of."""
        return self._part.newest_round > 0

    def _watch_lease(self, now: float) -> None:
        """Kill the workers early enough before the lease ends, whatever else is going on (R6)."""
        if self._part.has_workers and self._link.must_fence(now):
            lease_s, coordinator = self.settings.lease_s, self._link.coordinator
            self._leave_round(f"the lease of {lease_s:g} s from {coordinator} ran out", now)

    def _watch_contact(self, now: float) -> None:
        """Notice a silent coordinator, and give the job up when it stays away (R10)."""
        link = self._link
        if link.phase is Link.JOINED:
            if not link.is_silent(now):
                return
            self._seeking_since = now
            link.hang_up(f"silent for {self.settings.lease_s:g} s", now)
        elif link.phase is Link.UNSTARTED or link.phase is Link.OVER or link.is_to_ourselves:
            return
        held_until, is_due = link.held_until, self._deadlines.is_due
        has_successors = self._succession.is_on and held_until is not None
        if self._parting.ending is not None:
            if self._parting.must_presume(held_until, now):
                self._end_by(self._parting.presume())
        elif self._belongs and held_until is not None:
            may_follow = has_successors or self.settings.is_granted
            patience_s = self.settings.join_timeout_s if may_follow else GIVE_UP_S
            if is_due(max(held_until + patience_s, self._patient_until), now):
                self._lose_job(link.last_problem)
        elif is_due(self._seeking_since + self.settings.join_timeout_s, now):
            self._finish(
                "lost",
                f"cannot join run {self.settings.run_id!r}: no coordinator was reached within "
                f"{self.settings.join_timeout_s:g} s ({link.last_problem})",
            )

    # --- succession --------------------------------------------------------------------------

    def _watch_succession(self, now: float) -> None:
        """Follow a coordinator that is lost, or find who does (R11)."""
        succession, link = self._succession, self._link
        held_until = link.held_until
        if held_until is None or (
            not link.is_lost(now) and not self._deadlines.is_due(held_until, now)
        ):
            return
        is_leaving = self._departure.is_idle
        must_stay = self._departure.must_stay(now)
        if link.must_hand_over and not succession.is_lost:
            must_stay = True
        if is_leaving and not must_stay:
            self._finish("drained", "left without being missed")
            return
        place = succession.take_place()
        if place is not None:
            self._on_announced(place, now)
            return
        self._parting.ending = self._parting.ending or succession.candidate.ending
        commands = succession.watch(
            now,
            lost=link.found.incarnation if link.found is not None else "",
            name=link.coordinator,
            problem=link.last_problem,
            ending=self._parting.ending,
            may_stand=not is_leaving,
        )
        self._out.add(*commands)
        wake_at = succession.wake_at(now)
        if wake_at is not None:
            self._deadlines.is_due(wake_at, now)

    def _on_announced(self, place: m.Place, now: float) -> None:
        """Join whoever decides now; or tell it that this node may not obey its term any more."""
        is_second = self._succession.is_second(place.term, place.incarnation)
        if self.link is Link.JOINED and not is_second:
            return  # anybody may say so; if it is true, this node's coordinator steps down
        if not self._succession.is_on or self.link in {Link.UNSTARTED, Link.OVER}:
            return
        if not is_believable(place.term, self._succession.ballot.promised):
            return
        self._succession.refuse_second(place.term, place.incarnation)
        is_obeyed = self._succession.may_obey(place.term, place.incarnation)
        if not is_obeyed and not self._succession.must_tell(place.term):
            return
        if self._link.is_known(place, now):
            return
        if is_obeyed:
            self._parting.forget_older(place.term)  # whom a quorum elected knew of no end
        self._succession.trust(now)
        self._link.aim_at(place, is_here=place.incarnation == self.node.incarnation)
        self._leave_link(f"{place.name} decides now, under term {place.term}", now)

    def _on_step_down(self, order: m.StepDown, now: float) -> None:
        """Look for somebody else: the coordinator itself said that it decides no more."""
        if order.left == self.node.incarnation:
            self._finish("drained", f"left: {order.reason}")
            return
        self._succession.lose()
        self._succession.candidate.hear_of_term(order.promised)
        self._part.hear_of(order.newest_round)
        self._succession.ballot.hear_of(order.newest_round)
        if order.left:
            self._succession.excuse(order.left, order.left_after, now)
        self._seeking_since = now
        self._leave_link(order.reason, now)
        is_named = order.successor == self.node.incarnation and self._succession.is_on
        if is_named and self._link.found is not None:
            self._succession.candidate.stand(now, self._link.found.incarnation, is_named=True)

    def _leave_link(self, reason: str, now: float) -> None:
        """End whatever is going on towards a coordinator, and try the next one at once."""
        self._part.hold(reason)
        self._link.let_go(reason, now)

    def _on_asked(self, asked: v.Asked, now: float) -> None:
        """Answer who asks for a vote, or for who decides."""
        commands = self._succession.answer(
            asked, self._link.contact(now, self._parting.ending, self._parting.ended), now
        )
        self._out.add(*commands)
        match asked.question:
            case m.PlaceRequest(run_id=self.settings.run_id, ending=m.JobEnding() as ending):
                self._on_end_heard(ending, now, holds=False)
        if len(commands) > 1 and self.link in {Link.DIALING, Link.GREETING}:
            self._link.hang_up("this node has voted for a successor", now)

    # --- the end -----------------------------------------------------------------------------

    def _lose_job(self, detail: str) -> None:
        seen = reached_of(self._succession.candidate.reached) if self._succession.is_on else None
        self._finish("lost", why_lost(self._link.where, self.settings, detail, seen))

    def _on_end_heard(self, ending: m.JobEnding, now: float, *, holds: bool) -> None:
        """End as a node says that knows it, if no coordinator says otherwise (R10)."""
        if self._parting.hear(ending, now, part=self.part, holds=holds):
            unaware = () if self.settings.is_granted else None
            self._end_by(self._parting.hold(ending, unaware=unaware))

    def _end_by(self, ending: m.JobEnding) -> None:
        """End as was decided, or announced by a coordinator that is lost; for good."""
        self._finish(ending.result, ending.reason, ending.first_failure)

    def _finish(self, result: str, reason: str, first_failure: Failure | None = None) -> None:
        """Say the last word to the agent; `result` of a node that wanted to leave is "drained"."""
        if self.link is Link.OVER:
            return
        if self._link.leads_somewhere:
            self._out.add(v.Hangup())
        self._link.become(Link.OVER)
        is_leaving = self._departure.request is not None
        self._parting.say("drained" if is_leaving else result, reason, first_failure)
        if not is_leaving:
            return
        self._succession.ballot.renounce()  # others are told that it has left
        if self.settings.outlives_coordinator:
            self._out.add(v.HandOver(reason=reason))
