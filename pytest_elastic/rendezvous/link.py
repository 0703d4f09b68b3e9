"""What stands between a member and the coordinator: finding it, dialling it, beats, the lease.

Every try has a deadline, and after one that came to nothing the link rests for a moment. It knows
nothing of rounds: whether workers are to be held when it is lost, or killed when its lease ends, is
the member's business.
"""

from __future__ import annotations

import dataclasses

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.ballot import rank_of
from pytest_elastic.rendezvous.deadlines import Deadlines
from pytest_elastic.rendezvous.greeting import settings_as_values
from pytest_elastic.rendezvous.liveness import HeldLease
from pytest_elastic.rendezvous.member_phases import LINK_ALLOWED, Link
from pytest_elastic.rendezvous.model import Node, Settings
from pytest_elastic.rendezvous.outbox import MemberOutbox
from pytest_elastic.rendezvous.succession import Contact, Succession

__all__ = ["CoordinatorLink"]

# Something goes on towards a coordinator.
_TOWARDS = frozenset({Link.DIALING, Link.GREETING, Link.JOINED})
# How long to wait before the next try to find or dial: not felt by a person, nothing for a network.
_RETRY_S = 0.1
# An endpoint's store may block for long; a dial is answered by a living host in one round trip.
_FIND_S = 5.0


class CoordinatorLink:
    """One member's link; `phase` is what goes on now."""

    def __init__(
        self, settings: Settings, succession: Succession, out: MemberOutbox, deadlines: Deadlines
    ) -> None:
        self.phase = Link.UNSTARTED
        self.found: v.CoordinatorFound | None = None
        """Where the coordinator is, as far as this node was told; see `_aim`."""
        self.is_to_ourselves = False
        """Whether the coordinator cannot be lost, as it runs here and needs nobody."""
        self.coordinator = "the coordinator"
        """What the last one that welcomed this node is called."""
        self.term = 0
        self.last_problem = "the endpoint has not answered yet"
        self._settings = settings
        self._succession = succession
        self._incarnation = succession.ballot.incarnation
        self._out = out
        self._deadlines = deadlines
        self._tried_at = self._dialled_at = 0.0
        self._rest_until = 0.0
        self._lease: HeldLease | None = None
        self._next_lease: HeldLease | None = None
        self._echo = 0
        self._told = ""  # the incarnation of who was last told that it may not be obeyed
        self._told_at = 0.0
        self._needs_others = succession.is_on or settings.is_granted

    def become(self, phase: Link) -> None:
        """Go from one phase to another, as the table has it."""
        assert phase in LINK_ALLOWED[self.phase], f"a link cannot go from {self.phase} to {phase}"
        self.phase = phase

    @property
    def was_welcome(self) -> bool:
        """Whether a coordinator has ever taken this node in."""
        return self._lease is not None

    @property
    def is_joined(self) -> bool:
        """Whether beats run, and orders hold."""
        return self.phase is Link.JOINED

    @property
    def leads_somewhere(self) -> bool:
        """Whether something goes on towards a coordinator."""
        return self.phase in _TOWARDS

    @property
    def must_hand_over(self) -> bool:
        """Whether this node decides: it leaves by way of its coordinator, which others need."""
        is_here = self.found is not None and self.found.incarnation == self._incarnation
        return is_here and self._settings.outlives_coordinator

    @property
    def where(self) -> str:
        """The coordinator and its address, for a sentence."""
        if self.found is None:
            return self.coordinator
        is_own = self.found.incarnation == self._incarnation
        whose = ", this node itself" if is_own else ""
        return f"{self.coordinator} ({self.found.address}:{self.found.port}{whose})"

    # --- towards a coordinator ---------------------------------------------------------------

    def seek(self, now: float) -> None:
        """Ask who coordinates."""
        self.become(Link.SEEKING)
        self._tried_at = now
        peers = self._succession.peers
        self._out.add(v.FindCoordinator(answer_within_s=_FIND_S, peers=peers))

    def dial(self, now: float) -> None:
        """Connect to the coordinator that was found."""
        assert self.found is not None, "there is an address to dial"
        self.become(Link.DIALING)
        self._tried_at = self._dialled_at = now
        self._out.add(
            v.Dial(
                address=self.found.address,
                port=self.found.port,
                answer_within_s=self._settings.lease_s,
            )
        )

    def rest(self, problem: str, now: float) -> None:
        """Go on without a connection for a moment."""
        self.last_problem = problem
        self.become(Link.RESTING)
        is_late = self._succession.is_on and self.is_lost(now)
        self._rest_until = now + (self._settings.beat_interval_s / 2 if is_late else _RETRY_S)

    def hang_up(self, problem: str, now: float) -> None:
        """End a connection, or a try to make one."""
        self._out.add(v.Hangup())
        self.rest(problem, now)

    def break_off(self, reason: str, now: float) -> None:
        """End whatever goes on, a search for the coordinator too, and rest."""
        if self.leads_somewhere:
            self.hang_up(reason, now)
        elif self.phase is Link.SEEKING:
            self.rest(reason, now)

    def let_go(self, reason: str, now: float) -> None:
        """End whatever goes on, and try the next coordinator at once; none is here any more."""
        self.is_to_ourselves = False
        self.break_off(reason, now)
        self._rest_until = now

    def take_found(self, found: v.CoordinatorFound, now: float) -> None:
        """Dial whom the store names, unless that one is known to be over."""
        if self.phase is not Link.SEEKING:
            return
        succession, known = self._succession, self.found
        if found.incarnation != self._incarnation:
            self._miss_own()
        succession.refuse_second(found.term, found.incarnation)
        is_known = known is not None and found.incarnation == known.incarnation
        # If it is well after all, they are in contact, and say so.
        is_told_of = is_known and bool(succession.peers)
        is_obeyed = self._may_obey(found.term, found.incarnation)
        if not is_obeyed and not self._must_tell(found, now):
            self.rest(f"the store names a coordinator of term {found.term}, which is over", now)
            return
        is_lost = is_obeyed and succession.is_lost and is_told_of and found.term == self.term
        if is_lost and not self._may_be_well(now):
            self.rest("the store names the coordinator that was lost", now)
            return
        self._aim(found)
        self.dial(now)

    def _may_be_well(self, now: float) -> bool:
        """Tell whether to dial one that is lost again: those who would know better may be gone."""
        return not self.must_hand_over and now >= self._dialled_at + self._settings.lease_s

    def _must_tell(self, found: v.CoordinatorFound, now: float) -> bool:
        """Tell whether a coordinator that may not be obeyed is to hear of this node's job (R12.10).

        It may be about to begin another one, as nobody else is left who knows. Once a lease: what
        is said may be lost.
        """
        if not self._succession.must_tell(found.term):
            return False
        is_told = self._told == found.incarnation
        if is_told and now < self._told_at + self._settings.lease_s:
            return False
        self._told, self._told_at = found.incarnation, now
        return True

    def take_not_found(self, reason: str, now: float) -> None:
        """Ask again later."""
        if self.phase is Link.SEEKING:
            self._miss_own()
            self.rest(reason, now)

    def _miss_own(self) -> None:
        """Take note that no coordinator is here, as that is whom this node would find first."""
        if self._succession.is_on and self.must_hand_over:
            self._succession.lose()

    def is_known(self, place: m.Place, now: float) -> bool:
        """Tell whether this node is on its way there already, or there."""
        found = self.found
        is_it = found is not None and found.incarnation == place.incarnation
        if not is_it or found is None or found.term != place.term:
            return False
        # A dial that began while a link was cut would take long to notice that it is not any more.
        is_fresh = now < self._tried_at + self._settings.beat_interval_s / 2
        return self.leads_somewhere and (self.phase is not Link.DIALING or is_fresh)

    def aim_at(self, place: m.Place, *, is_here: bool) -> None:
        """Have somebody who was announced dialled next."""
        found = v.CoordinatorFound(
            address=place.address,
            port=place.port,
            term=place.term,
            is_here=is_here,
            incarnation=place.incarnation,
        )
        self._aim(found)

    def _aim(self, found: v.CoordinatorFound) -> None:
        self.found = found
        self.is_to_ourselves = found.is_here and not self._needs_others

    def greet(
        self, node: Node, now: float, *, resumes_round: int, newest_round: int, restarts_used: int
    ) -> None:
        """Say the first words: they are beat 0 of a lease."""
        self.become(Link.GREETING)
        self._tried_at = now
        self._next_lease = HeldLease(self._settings, now)
        self._echo = 0
        sealed_term, sealed_round = rank_of(self._succession.ballot.seal)
        hello = m.Hello(
            run_id=self._settings.run_id,
            node=node,
            settings=settings_as_values(self._settings),
            resumes_round=resumes_round,
            term=self._succession.term_to_tell(self.term),
            newest_round=newest_round,
            restarts_used=restarts_used,
            meant_for=self.found.incarnation if self.found is not None else "",
            sealed_term=sealed_term,
            sealed_round=sealed_round,
        )
        self._out.send(hello)

    def take_welcome(self, welcome: m.Welcome, now: float) -> bool:
        """Join, and tell so; a coordinator of an old term is left again.

        So is one that has come to the address of another one, and begins anew: a term has one only.
        """
        assert self.found is not None, "whoever answers was dialled"
        incarnation = welcome.incarnation
        if not self._may_obey(welcome.term, incarnation):
            if self._succession.is_on and incarnation != self.found.incarnation:
                self._succession.lose()
            self.hang_up(f"{welcome.coordinator} decides under the old term {welcome.term}", now)
            return False
        if (incarnation, welcome.term) != (self.found.incarnation, self.found.term):
            self.found = dataclasses.replace(self.found, incarnation=incarnation, term=welcome.term)
        self.become(Link.JOINED)
        self._succession.join(welcome.term, incarnation, now)
        self.term = welcome.term
        self.coordinator = welcome.coordinator
        assert self._next_lease is not None, "the greeting was beat 0 of a lease"
        self._lease, self._next_lease = self._next_lease, None
        self._lease.take_echo(0, welcome.grant_s)
        return True

    def _may_obey(self, term: int, incarnation: str) -> bool:
        is_old = not self._succession.is_on and term < self.term
        return not is_old and self._succession.may_obey(term, incarnation)

    # --- beats and the lease -----------------------------------------------------------------

    @property
    def held_until(self) -> float | None:
        """When the lease ends; None: none is held, or none is needed from a coordinator here."""
        lease = self._lease
        return None if lease is None or self.is_to_ourselves else lease.held_until

    def is_lost(self, now: float) -> bool:
        """Tell whether the coordinator is lost, as far as this node can know."""
        if self.phase is Link.JOINED:
            return False
        held_until = self.held_until
        return self._succession.is_lost or held_until is None or now >= held_until

    def must_fence(self, now: float) -> bool:
        """Tell whether killing has to begin, so that all is dead when the lease ends (R6)."""
        lease = self._lease
        if lease is None or self.is_to_ourselves:
            return False
        fence_at = lease.fence_at
        return fence_at is not None and self._deadlines.is_due(fence_at, now)

    def is_silent(self, now: float) -> bool:
        """Tell whether the lease of a coordinator that this node has joined is over."""
        assert self._lease is not None, "a member that is joined has a lease"
        held_until = self._lease.held_until
        assert held_until is not None, "it was welcomed"
        return not self.is_to_ourselves and self._deadlines.is_due(held_until, now)

    def take_beat(self, beat: m.Beat, now: float) -> bool:
        """Take in a beat of the coordinator; tell whether the lease was extended."""
        assert self._lease is not None, "a member that is joined has a lease"
        self._succession.ballot.contact_at = now
        if beat.grant_s is not None:
            # What it grants next depends on how lately we have answered: do not wait for our beat.
            self._out.send(m.Beat(count=0, echo=beat.count))
        self._echo = max(self._echo, beat.count)
        is_extended = self._lease.take_echo(beat.echo, beat.grant_s)
        if beat.grant_s is not None:
            self._lease.hurry(now, beat.grant_s)
        return is_extended

    def beat_soon(self, now: float) -> None:
        """Ask the coordinator, if this node has joined one, whether it is there."""
        if self._lease is not None:
            self._lease.beat_soon(now)

    def was_heard_since(self, moment: float) -> bool:
        """Tell whether the coordinator has answered something that was said then, or later."""
        return self.is_to_ourselves or (
            self._lease is not None and self._lease.was_heard_since(moment)
        )

    def _beat(self, now: float) -> None:
        assert self._lease is not None, "a member that is joined has a lease"
        if self._deadlines.is_due(self._lease.beat_at, now):
            count = self._lease.next_beat(now)
            self._out.send(m.Beat(count=count, echo=self._echo))
            self._deadlines.is_due(self._lease.beat_at, now)

    def contact(self, now: float, ending: m.JobEnding | None, ended: m.JobEnding | None) -> Contact:
        """Say how this node stands with its coordinator, and with the end of the job."""
        place, patience_s, held_until = None, 0.0, self.held_until
        if self.phase is Link.JOINED and self.found is not None:
            if held_until is None or now < held_until:
                place = m.Place(
                    term=self.term,
                    name=self.coordinator,
                    incarnation=self.found.incarnation,
                    address=self.found.address,
                    port=self.found.port,
                )
        elif held_until is not None and not self.is_lost(now):
            patience_s = held_until - now
        return Contact(place=place, patience_s=patience_s, ending=ending, ended=ended)

    # --- time --------------------------------------------------------------------------------

    def watch(self, now: float, *, may_greet: bool) -> None:
        """Beat, give up what takes too long, try again; `may_greet`: nothing is being killed."""
        if self.phase is Link.JOINED:
            self._beat(now)
            return
        is_due = self._deadlines.is_due
        match self.phase:
            case Link.SEEKING:
                if is_due(self._tried_at + _FIND_S + 1.0, now):
                    self.rest("the endpoint's store did not answer", now)
            case Link.DIALING:
                if is_due(self._tried_at + self._settings.lease_s + 1.0, now):
                    self.hang_up(f"{self.where} did not answer", now)
            case Link.GREETING:
                # The holder of our name may have to be waited for: until its lease has run out.
                limit_s = 2 * self._settings.lease_s + self._settings.drift_s
                if is_due(self._tried_at + limit_s, now):
                    self.hang_up(f"{self.where} did not answer the greeting", now)
            case _:
                pass
        if self.phase is Link.RESTING and may_greet and is_due(self._rest_until, now):
            self._try_again(now)

    def _try_again(self, now: float) -> None:
        """Dial the coordinator that is known while its lease lasts; then ask who it is."""
        is_known = self.held_until is not None and not self.is_lost(now)
        if self.found is not None and (is_known or self._succession.trusts(now)):
            self.dial(now)
        else:
            self.seek(now)
