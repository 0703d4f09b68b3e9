"""What is said at the listening ports of a played world, and at its endpoint's store (R11).

A question is one connection: it is asked if the port can be reached then, and answered if the way
back is open then. A frozen agent answers when it goes on, and whoever asked may have given up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elastic_simulation.endpoints import place_under
from elastic_simulation.process import Process, Surroundings
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.model import RosterEntry

__all__ = ["Inquiries", "place_of"]


@dataclass(slots=True)
class _Call:
    """One question on its way, or being thought about."""

    caller: Process
    target: Process
    tell: Callable[[m.Answer | None, v.Outcome], None]


class Inquiries:
    """Questions, answers and announcements between the processes of one world."""

    def __init__(self, world: Surroundings, keeper_s: float) -> None:
        self.published: m.Place | None = None
        """What the endpoint's store holds, while its host lives."""
        self._world = world
        self._keeper_s = keeper_s
        self._calls: dict[int, _Call] = {}
        self._elders: dict[str, Process] = {}  # published before a successor, not reached by it yet

    # --- what a member's machine wants -------------------------------------------------------

    def perform(self, process: Process, command: v.MemberCommand) -> None:
        """Do what is not a matter of the member's one connection."""
        match command:
            case v.AskVote():
                self._ask_vote(process, command)
            case v.FindCoordinator(peers=peers):
                for entry in peers:
                    self._ask_place(process, entry)
            case v.AnswerTo(connection=connection, message=message):
                self._answer(process, connection, message)
            case v.Supersede(term=term):
                process.feed("coordinator", v.Superseded(term=term))
            case v.HandOver():
                process.feed("coordinator", command)
            case v.Lead(heritage=heritage):
                self._lead(process, heritage)
            case _:
                raise AssertionError(f"nobody performs {command}")

    def _ask_vote(self, process: Process, ask: v.AskVote) -> None:
        def tell(answer: m.Answer | None, outcome: v.Outcome) -> None:
            vote = answer if isinstance(answer, m.VoteAnswer) else None
            process.feed(
                "member",
                v.VoteAnswered(
                    incarnation=ask.incarnation,
                    request=ask.request,
                    answer=vote,
                    outcome=outcome,
                ),
            )

        self._ask(process, ask.incarnation, ask.request, ask.answer_within_s, tell)

    def _ask_place(self, process: Process, entry: RosterEntry) -> None:
        def tell(answer: m.Answer | None, _: v.Outcome) -> None:
            if isinstance(answer, m.PlaceAnswer) and answer.ended is not None:
                process.feed("member", v.EndHeard(ending=answer.ended))
            elif isinstance(answer, m.PlaceAnswer) and answer.place is not None:
                process.feed("member", v.Announced(place=answer.place))
            elif isinstance(answer, m.PlaceAnswer) and answer.ending is not None:
                process.feed("member", v.EndHeard(ending=answer.ending, holds=False))

        run_id, ending = self._world.config.run_id, process.member.ending
        request = m.PlaceRequest(run_id=run_id, ending=ending)
        self._ask(process, entry.incarnation, request, 5.0, tell)

    # --- questions ---------------------------------------------------------------------------

    def _ask(
        self,
        caller: Process,
        incarnation: str,
        question: m.VoteRequest | m.PlaceRequest,
        within_s: float,
        tell: Callable[[m.Answer | None, v.Outcome], None],
    ) -> None:
        world = self._world
        target = world.by_incarnation[incarnation]
        number = world.next_id()
        self._calls[number] = _Call(caller=caller, target=target, tell=tell)
        question = world.carry(caller, target, question)
        world.later(2 * world.draw_latency_s(), self._arrive, number, question, self._keeper_s)
        world.later(within_s, self._end, number, None, v.Outcome.SILENT)

    def _arrive(
        self, number: int, question: m.VoteRequest | m.PlaceRequest, patience_s: float
    ) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        world, target = self._world, call.target
        outcome = world.outcome(call.caller, target)
        if outcome is v.Outcome.REFUSED and target.agent.keeper_alive and patience_s:
            # The keeper holds the port and answers once it is done.
            world.later(patience_s, self._arrive, number, question, 0.0)
        elif outcome is v.Outcome.ALIVE or (target.is_alive and target.is_frozen):
            if outcome is v.Outcome.ALIVE or not world.is_apart(call.caller, target):
                target.feed("member", self.question_of(number, question))
        elif outcome is not v.Outcome.SILENT:
            self._end(number, None, outcome)

    def question_of(self, number: int, question: m.VoteRequest | m.PlaceRequest) -> v.MemberInput:
        """Return a question as the machine of a node is asked it."""
        return v.Asked(connection=number, question=question)

    def _answer(self, process: Process, number: int, message: m.Answer) -> None:
        call = self._calls.get(number)
        if call is None:
            return
        world = self._world
        answer = world.carry(process, call.caller, message)
        world.later(world.draw_latency_s(), self._return, number, answer)

    def _return(self, number: int, answer: m.Answer) -> None:
        call = self._calls.get(number)
        if call is not None and not self._world.is_cut(call.target, call.caller):
            self._end(number, answer, v.Outcome.ALIVE)

    def _end(self, number: int, answer: m.Answer | None, outcome: v.Outcome) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            call.tell(answer, outcome)

    # --- leading -----------------------------------------------------------------------------

    def _lead(self, process: Process, heritage: Heritage) -> None:
        world = self._world
        world.end_coordinator(process)
        reason = f"{heritage.why_followed}; this node was elected"
        process.coordinate(heritage.term, reason, heritage=heritage)
        process.feed("coordinator", v.TimePassed())
        place = place_of(process)
        process.feed("member", v.Announced(place=place))
        members = {entry.incarnation for entry in heritage.known}
        for target in world.every_process:
            if target is not process and target.node.incarnation in members:
                self._announce(process, target, place)
        self._watch_endpoint(process, place)

    def publish_first(self, process: Process) -> None:
        """Publish a first coordinator, and let it look there for one that knows better."""
        place = self.published = place_of(process)
        if self._world.config.has_succession:
            beat_s = self._world.config.beat_interval_s
            self._world.later(beat_s, self._watch_endpoint, process, place)

    def watch_endpoint_of(self, process: Process) -> None:
        """Let a first coordinator announce itself at several endpoints, from now on."""
        self._watch_endpoint(process, place_of(process))

    def hear_of(self, process: Process, place: m.Place) -> None:
        """Let a coordinator hear of a newer one, to which it gives way if that one says so."""
        if self.decides_at(process, place):
            process.feed("coordinator", v.JobFound(place=place))
        process.feed("member", v.Announced(place=place))

    def decides_at(self, asker: Process, place: m.Place) -> bool:
        """Tell whether an agent is where a place says, and would say that it decides."""
        there = self._world.by_incarnation.get(place.incarnation)
        is_there = there is not None and self._world.outcome(asker, there) is v.Outcome.ALIVE
        return is_there and there is not None and there.coordinator is not None

    def announce_to(self, process: Process, incarnation: str, place: m.Place) -> None:
        """Tell an agent who decides."""
        self._announce(process, self._world.by_incarnation[incarnation], place)

    def _announce(self, process: Process, target: Process, place: m.Place) -> None:
        world, own = self._world, process.node.incarnation

        def arrive() -> None:
            can_hear = target.is_alive and world.outcome(process, target) in {
                v.Outcome.ALIVE,
                v.Outcome.SILENT,
            }
            if can_hear and not world.is_apart(process, target):
                if self._elders.get(own) is target:
                    del self._elders[own]
                self.hear_of(target, place)

        world.carry(process, target, m.Announcement(run_id=world.config.run_id, place=place))
        world.later(2 * world.draw_latency_s(), arrive)

    def gives_way(self, published: m.Place, place: m.Place) -> bool:
        """Tell whether a place is published over another: under one term, too, as it really is."""
        return published.term <= place.term

    def _watch_endpoint(self, process: Process, place: m.Place) -> None:
        """Publish a successor's place once a beat, and tell whoever was published before."""
        world = self._world
        is_ours = process.coordinator is not None and process.coordinator.term == place.term
        if not process.is_alive or not is_ours:
            return
        world.later(world.config.beat_interval_s, self._watch_endpoint, process, place)
        if world.has_several_endpoints:
            if not process.is_frozen:
                world.announce_at_endpoints(process, place)
            return
        host = world.host
        is_served = host is not None and host.is_alive and not world.is_endpoint_down
        if is_served and host is not None and not process.is_frozen:
            found = self.published
            is_older = found is None or self.gives_way(found, place)
            if found is not None and found.term > place.term:
                self.hear_of(process, found)
                is_older = not self.decides_at(process, found)
            if is_older and (host is process or not world.is_apart(process, host)):
                self.published = place
                if found is not None and found.incarnation != place.incarnation:
                    for old in world.every_process:  # words of a stranger are nobody's
                        if old.node.incarnation == found.incarnation:
                            self._elders[process.node.incarnation] = old
        elder = self._elders.get(process.node.incarnation)
        if elder is not None and not process.is_frozen:
            self._announce(process, elder, place)


def place_of(process: Process) -> m.Place:
    """Return where the coordinator of a process is."""
    assert process.coordinator is not None, f"{process.name} decides nothing"
    return place_under(process.node, process.coordinator.term)
