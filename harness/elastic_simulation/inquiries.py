"""What is said at the listening ports of a played world, and at its endpoint's store (R11).

A question is one connection: it is asked if the port can be reached then, and answered if the way
back is open then. A frozen agent answers when it goes on, and the one that asked may have given up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic_simulation.process import Process, Surroundings
from pytest_elastic.events.model import CoordinatorStarted
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import is_seat, seat_of
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.leader.leader import Leader

__all__ = ["Inquiries", "leader_at"]


@dataclass(slots=True)
class _Call:
    """One question on its way, or being thought about."""

    caller: Process
    target: Process
    tell: Callable[[m.Answer | None, v.Outcome], None]


class Inquiries:
    """Questions, answers and announcements between the processes of one world."""

    def __init__(self, world: Surroundings, keeper_s: float) -> None:
        self.published: m.LeaderAddress | None = None
        """What the endpoint's store holds, while its host lives."""
        self._world = world
        self._keeper_s = keeper_s
        self._calls: dict[int, _Call] = {}
        self._elders: dict[str, Process] = {}  # published before a leader, not reached by it yet

    # --- what a follower's machine wants -----------------------------------------------------

    def ask_vote(self, process: Process, ask: v.Ask) -> None:
        """Ask a node for its vote."""
        asked, term, is_pre_vote = ask.node.incarnation, ask.term, ask.is_pre_vote
        config = self._world.config

        def tell(answer: m.Answer | None, outcome: v.Outcome) -> None:
            answered = v.Answered(
                incarnation=asked,
                outcome=outcome,
                answer=answer,
                term=term,
                is_pre_vote=is_pre_vote,
            )
            process.feed("follower", answered)

        question = m.Question(run_id=config.run_id, term=term, is_pre_vote=is_pre_vote)
        within_s = config.lease_s if ask.within_s is None else ask.within_s
        self._ask(process, asked, question, within_s, tell)

    def ask_who_leads(self, process: Process, peers: Sequence[m.Agent]) -> None:
        """Ask nodes for the leader, and whether the job has ended."""

        def tell(answer: m.Answer | None, _: v.Outcome) -> None:
            if answer is None:
                return
            if answer.base is not None:
                process.feed("follower", v.EndHeard(record=answer.base))
            elif answer.leader is not None:
                process.feed("follower", v.LeaderHeard(leader=answer.leader))

        request = m.Question(run_id=self._world.config.run_id)
        for entry in peers:
            self._ask(process, entry.incarnation, request, v.FIND_S, tell)

    # --- questions ---------------------------------------------------------------------------

    def _ask(
        self,
        caller: Process,
        incarnation: str,
        question: m.Question,
        within_s: float,
        tell: Callable[[m.Answer | None, v.Outcome], None],
    ) -> None:
        world = self._world
        if is_seat(incarnation):  # the host of an endpoint is the agent that is there now
            host = world.processes.get(incarnation.removeprefix(seat_of("")))
            if host is None:
                return
            incarnation = host.node.incarnation
        target = world.by_incarnation[incarnation]
        number = world.next_id()
        self._calls[number] = _Call(caller=caller, target=target, tell=tell)
        question = world.carry(caller, target, question)
        world.later(2 * world.draw_latency_s(), self._arrive, number, question, self._keeper_s)
        world.later(within_s, self._end, number, None, v.Outcome.SILENT)

    def _arrive(self, number: int, question: m.Question, patience_s: float) -> None:
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
                if question.leader is not None:
                    self._hear_from_stranger(target, question.leader)
                target.feed("follower", v.Asked(connection=number, question=question))
        elif outcome is not v.Outcome.SILENT:
            self._end(number, None, outcome)

    def answer(self, process: Process, number: int, message: m.Answer) -> None:
        """Carry an answer back, if it is still waited for."""
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

    def begin_to_lead(self, process: Process, recovered: Recovered) -> None:
        """Let a process lead, and announce it."""
        world = self._world
        world.end_leader(process)
        is_first = recovered.record.number == 0
        settings = process.follower.settings
        elected = f"{recovered.why_followed}; this node was elected"
        process.leader = Leader(
            settings=settings, node=process.node, recovered=recovered, now=process.now()
        )
        world.state(
            process,
            CoordinatorStarted(
                term=recovered.term.counter,
                address=process.node.address,
                port=process.node.port,
                quorum=settings.quorum,
                reason="this node bootstraps" if is_first else elected,
            ),
        )
        process.feed("leader", v.TimePassed())
        process.set_alarm("leader")
        leader = leader_at(process)
        known = {entry.incarnation for entry in recovered.known}
        for target in world.every_process:
            if target is not process and target.node.incarnation in known:
                self._announce(process, target, leader)
        if is_first:
            world.host = process
            self.published = leader if not world.has_several_endpoints else None
        if process.agent.over is not None:  # it had left before it was elected
            process.feed("leader", v.HandOver(reason="has left"))
        if world.config.has_succession or world.has_several_endpoints:
            self._watch_endpoint(process, leader)

    def hear_of(self, process: Process, leader: m.LeaderAddress) -> bool:
        """Let a node hear of a leader if that says itself that it leads; return whether it does."""
        there = self._world.by_incarnation.get(leader.incarnation)
        if there is None or self._world.outcome(process, there) is not v.Outcome.ALIVE:
            return False
        if there.leader is None or leader_at(there).term != leader.term:
            return False
        for which in ("follower", "leader"):
            process.feed(which, v.LeaderHeard(leader=leader))
        return True

    def _hear_from_stranger(self, process: Process, leader: m.LeaderAddress) -> None:
        if process.leader is None:
            process.feed("follower", v.LeaderHeard(leader=leader))
        elif leader_at(process).is_founding:
            self.hear_of(process, leader)

    def announce_to(self, process: Process, incarnation: str, leader: m.LeaderAddress) -> None:
        """Announce the leader to an agent."""
        self._announce(process, self._world.by_incarnation[incarnation], leader)

    def _announce(self, process: Process, target: Process, leader: m.LeaderAddress) -> None:
        config, own = self._world.config, process.node.incarnation

        def tell(answer: m.Answer | None, _: v.Outcome) -> None:
            if answer is not None and self._elders.get(own) is target:
                del self._elders[own]

        announced = m.Question(run_id=config.run_id, leader=leader)
        self._ask(process, target.node.incarnation, announced, config.lease_s, tell)

    def _watch_endpoint(self, process: Process, leader: m.LeaderAddress) -> None:
        """Publish a leader once a beat, and tell the one that was published before."""
        world = self._world
        is_ours = process.leader is not None and process.leader.term == leader.term
        if not process.is_alive or not is_ours:
            return
        world.later(world.config.beat_interval_s, self._watch_endpoint, process, leader)
        if world.has_several_endpoints:
            if not process.is_frozen:
                world.announce_at_endpoints(process, leader)
            return
        host, own = world.host, leader_at(process)
        is_served = host is not None and host.is_alive and not world.is_endpoint_down
        if is_served and host is not None and not process.is_frozen:
            found = self.published
            gives_way = (
                found is not None and found.goes_before(own) and self.hear_of(process, found)
            )
            if not gives_way and (host is process or not world.is_apart(process, host)):
                self.published = own
                if found is not None and found.incarnation != own.incarnation:
                    for old in world.every_process:  # a stranger's word is ignored
                        if old.node.incarnation == found.incarnation:
                            self._elders[process.node.incarnation] = old
        elder = self._elders.get(process.node.incarnation)
        if elder is not None and not process.is_frozen:
            self._announce(process, elder, own)


def leader_at(process: Process) -> m.LeaderAddress:
    """Return where the leader of a process is."""
    assert process.leader is not None, f"{process.name} does not lead"
    return process.leader.address
