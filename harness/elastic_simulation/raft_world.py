"""A played world in which nodes run the Raft-shaped core (`pytest_elastic.rendezvous.core`).

What differs from `world` is what is said between nodes about leaders and votes, and how a host
begins: it bootstraps, and is elected. All else is the same world.
"""

from __future__ import annotations

import math
from typing import Any

from elastic_simulation.inquiries import Inquiries
from elastic_simulation.marks import Marks
from elastic_simulation.process import Process
from elastic_simulation.raft_endpoints import RaftEndpoints
from elastic_simulation.world import World
from pytest_elastic.events.model import CoordinatorStarted
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.core import messages as m
from pytest_elastic.rendezvous.core import vocabulary as cv
from pytest_elastic.rendezvous.core import wire
from pytest_elastic.rendezvous.core.follower import Follower
from pytest_elastic.rendezvous.core.leader import Leader
from pytest_elastic.rendezvous.core.phases import ConnectionPhase, LeaderPhase
from pytest_elastic.rendezvous.core.records import Mark, Term, founding_record
from pytest_elastic.rendezvous.model import Node, RosterEntry, Settings

__all__ = ["RaftWorld"]


class _Inquiries(Inquiries):
    """Questions, answers and announcements between nodes that run the Raft-shaped core."""

    def perform(self, process: Process, command: Any) -> None:  # noqa: ANN401 (of another core)
        match command:
            case cv.AskVote():
                self._ask(
                    process,
                    command.incarnation,
                    command.request,
                    command.answer_within_s,
                    lambda answer, _: process.feed(
                        "member",
                        cv.VoteAnswered(  # type: ignore[arg-type]
                            incarnation=command.incarnation,
                            request=command.request,
                            answer=answer,
                        ),
                    ),
                )
            case v.FindCoordinator(peers=peers):
                for entry in peers:
                    self._ask_leader(process, entry)
            case cv.Lead(recovered=recovered):
                self._begin_to_lead(process, recovered)
            case _:
                super().perform(process, command)

    def question_of(self, number: int, question: Any) -> Any:  # noqa: ANN401 (of another core)
        return cv.Asked(connection=number, question=question)

    def _ask_leader(self, process: Process, entry: RosterEntry) -> None:
        def tell(answer: Any, _: v.Outcome) -> None:  # noqa: ANN401
            if answer is None:
                return
            if answer.ended is not None:
                process.feed("member", cv.EndHeard(record=answer.ended))  # type: ignore[arg-type]
            elif answer.leader is not None:
                process.feed("member", cv.LeaderHeard(leader=answer.leader))  # type: ignore[arg-type]

        request: Any = m.LeaderRequest(run_id=self._world.config.run_id)
        self._ask(process, entry.incarnation, request, 5.0, tell)

    # --- leading -----------------------------------------------------------------------------

    def _begin_to_lead(self, process: Process, recovered: cv.Recovered) -> None:
        world = self._world
        world.end_coordinator(process)
        is_first = recovered.record.number == 0
        process.coordinator = Leader(
            settings=process.member.settings,
            node=process.node,
            recovered=recovered,
            now=process.now(),
        )
        reason = "this node bootstraps" if is_first else recovered.why_followed
        world.state(
            process,
            CoordinatorStarted(
                term=recovered.term.counter,
                address=process.node.address,
                port=process.node.port,
                quorum=process.member.settings.quorum,
                reason=reason,
            ),
        )
        process.feed("coordinator", v.TimePassed())
        process.set_alarm("coordinator")
        place: Any = leader_at(process)
        known = {entry.incarnation for entry in recovered.known}
        for target in world.every_process:
            if target is not process and target.node.incarnation in known:
                self._announce(process, target, place)
        if is_first:
            world.host = process
            self.published = place if not world.has_several_endpoints else None
        if process.agent.over is not None:  # it had left before it was elected
            process.feed("coordinator", v.HandOver(reason="has left"))
        if world.config.has_succession:
            self._watch_endpoint(process, place)

    def _announce(self, process: Process, target: Process, place: Any) -> None:  # noqa: ANN401
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

        announced: Any = m.LeaderAnnounced(run_id=world.config.run_id, leader=place)
        world.carry(process, target, announced)
        world.later(2 * world.draw_latency_s(), arrive)

    def gives_way(self, published: Any, place: Any) -> bool:  # noqa: ANN401 (of another core)
        """Tell whether a leader is published over another."""
        return not published.goes_before(place)

    def _ask(self, caller: Process, incarnation: str, *arguments: Any) -> None:  # noqa: ANN401
        """Ask a node; the host of an endpoint is whoever is there now."""
        if incarnation.startswith("host of "):
            host = self._world.processes.get(incarnation.removeprefix("host of "))
            if host is None:
                return
            incarnation = host.node.incarnation
        super()._ask(caller, incarnation, *arguments)

    def hear_of(self, process: Process, place: Any) -> None:  # noqa: ANN401 (of another core)
        """Let a node hear of a leader."""
        for which in ("coordinator", "member"):
            process.feed(which, cv.LeaderHeard(leader=place))  # type: ignore[arg-type]


class _Marks(Marks):
    """The mark of each machine, as the Raft-shaped core leaves it."""

    def mark_of(self, job: Any, renewed_at: float) -> Any:  # noqa: ANN401 (of another core)
        return Mark(job=job, renewed_at=renewed_at)

    def is_in_contact(self, process: Process) -> bool:
        return process.member.connection is ConnectionPhase.JOINED

    def part(self, process: Process) -> None:
        """Take the mark away if the job has ended."""
        if process is self._world.host and process.member.has_ended:
            self.lose(process.name)


class RaftWorld(World):
    """A world of the Raft-shaped core."""

    inquiries_class = _Inquiries
    codec = wire

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 (those of World)
        super().__init__(*arguments, **named)
        self.marks = _Marks(self)
        if self.endpoints is not None:
            self.endpoints = RaftEndpoints(self, self.endpoints.names, leader_at)

    def new_member(self, node: Node, config: Settings) -> object:
        """Return the machine of a node that takes part in rounds."""
        return Follower(node=node, settings=config)

    def start_coordinator(self, process: Process) -> None:
        """Let a process host the rendezvous."""
        self.host = process
        base, mark = founding_record((process.node.as_entry(),)), self.marks.open(process)
        process.feed("member", cv.Bootstrap(base=base, mark=mark))  # type: ignore[arg-type]

    def may_decide(self, process: Process) -> bool:
        """Tell whether a leader has a grant that is not over, and no decided end to tell."""
        leader, now = process.coordinator, process.now()
        if leader is None or leader.phase is LeaderPhase.DEPOSED:
            return False
        until: float = leader._replication.leads_until(now)  # noqa: SLF001 (only a judge asks)
        return now < until < math.inf

    def show_newer(self, process: Process, ahead: int) -> int:
        """Let a leader find a record of somebody, lost since, whose term is so much higher."""
        term = Term(process.coordinator.term.counter + ahead, "lost/0")
        lost = m.LeaderAddress(term=term, name="lost", incarnation="lost/0", address="lost", port=1)
        process.feed("coordinator", cv.LeaderHeard(leader=lost))  # type: ignore[arg-type]
        return term.counter

    def perform_member(self, process: Process, command: Any) -> None:  # noqa: ANN401
        """Do what a follower wants."""
        match command:
            case cv.Lead() | cv.AskVote():
                self.inquiries.perform(process, command)  # type: ignore[arg-type]
            case _:
                said: object = command.message if isinstance(command, v.Send) else None
                if isinstance(said, m.RecordAccepted):
                    self.marks.remember(process)
                super().perform_member(process, command)

    def _found(self, process: Process) -> None:
        if process.coordinator is not None:
            self._tell_found(process, leader_at(process))
        elif self.endpoints is not None:
            self.endpoints.find(process)
        elif self.inquiries.published is None:
            process.feed("member", v.CoordinatorNotFound(reason="nobody leads"))
        else:
            super()._found(process)

    def _tell_found(self, process: Process, place: Any) -> None:  # noqa: ANN401 (of another core)
        is_here = place.incarnation == process.node.incarnation
        process.feed("member", cv.LeaderFound(leader=place, is_here=is_here))  # type: ignore[arg-type]


def leader_at(process: Process) -> m.LeaderAddress:
    """Return where the leader of a process is."""
    assert process.coordinator is not None, f"{process.name} leads nobody"
    address: m.LeaderAddress = process.coordinator.address
    return address
