"""What must hold at every moment of every run, judged from outside the machines."""

from __future__ import annotations

import itertools

from elastic_harness.simulation.world import World
from pytest_elastic.events import model as events
from pytest_elastic.rendezvous.model import Assignment

__all__ = ["Watch"]


class Watch:
    """Looks at a world after everything that happens, and remembers what was promised."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.worker_failures = 0
        """How many times a worker was made to fail: each may cost one restart, nothing else may."""
        self._assignments: dict[tuple[int, int], Assignment] = {}
        self._newest: dict[str, int] = {}
        self._started_at: dict[int, float] = {}
        self._seen = 0
        world.watchers.append(self.look)

    def look(self) -> None:
        """Judge the present moment."""
        running: dict[int, list[str]] = {}
        starts = self.world.starts
        while self._seen < len(starts):
            self._judge_start(*starts[self._seen])
            self._seen += 1
        for process in self.world.every_process:
            agent = process.agent
            if agent.is_running and not agent.is_held and agent.assignment is not None:
                running.setdefault(agent.assignment.round, []).append(process.node.incarnation)
        assert len(running) <= 1, f"at {self.world.time:.3f} two worlds run at once: {running}"

    def _judge_start(self, incarnation: str, assignment: Assignment) -> None:
        """One round is one roster, one count, one store; its ranks are those of the roster."""
        roster = assignment.roster
        assert roster[assignment.group_rank].incarnation == incarnation, "a rank of somebody else"
        assert len({entry.name for entry in roster}) == len(roster), "a name has two ranks"
        config = self.world.config
        assert config.min_nodes <= len(roster) <= config.max_nodes, f"{len(roster)} nodes run"
        assert assignment.round > self._newest.get(incarnation, 0), "a round number came again"
        self._newest[incarnation] = assignment.round
        self._started_at.setdefault(assignment.round, self.world.time)
        first = self._assignments.setdefault((assignment.term, assignment.round), assignment)
        same = (
            first.roster == roster
            and first.restart_count == assignment.restart_count
            and (first.store_address, first.store_port)
            == (assignment.store_address, assignment.store_port)
        )
        assert same, f"round {assignment.round} is not the same for all: {first} / {assignment}"
        used = assignment.restart_count
        assert used <= config.max_restarts, f"{used} restarts of {config.max_restarts}"
        assert used <= self.worker_failures, f"{used} restarts for {self.worker_failures} failures"
        earlier = [
            each.restart_count
            for (term, round_), each in self._assignments.items()
            if term == assignment.term and round_ < assignment.round
        ]
        assert used >= max(earlier, default=0), "the restart count went back"

    def judge_budget(self) -> None:
        """Judge what each round cost, from rosters and losses alone (R3)."""
        rounds = sorted(self._assignments.values(), key=lambda each: (each.term, each.round))
        for ended, following in itertools.pairwise(rounds):
            if ended.term != following.term:
                continue
            old, new = ({entry.incarnation for entry in each.roster} for each in (ended, following))
            cost = following.restart_count - ended.restart_count
            if old != new:
                assert cost == 0, f"round {ended.round} cost {cost}, and its members changed"
            elif not self._has_changed(ended, following):
                assert cost == 1, f"round {ended.round} cost {cost}, and nothing had changed"

    def _has_changed(self, ended: Assignment, following: Assignment) -> bool:
        """Tell whether a member of a round went, or somebody came to end it, before the next."""
        names = {entry.name for entry in ended.roster}
        since, until = self._started_at[ended.round], self._started_at[following.round]
        for at, _, event in self.world.events:
            if not since <= at <= until:
                continue
            if isinstance(event, events.MemberLost | events.MemberLeft) and event.member in names:
                return True
            if isinstance(event, events.RoundEnded) and event.reason.endswith("came"):
                return True
        return False

    def judge_evictions(self) -> None:
        """Nobody is given up for being slow, if nobody was made slow."""
        evicted = [event for event in self.world.of(events.MemberLost) if "not gone" in str(event)]
        assert not evicted, f"given up, though every node did as told: {evicted}"

    def judge_ends(self) -> None:
        """Judge how the job ended for everybody, as far as it did."""
        ends = {
            process.node.incarnation: process.agent.over.result
            for process in self.world.every_process
            if process.agent.over is not None
        }
        decided = {result for result in ends.values() if result in {"succeeded", "failed"}}
        assert len(decided) <= 1, f"the job ended in two ways: {ends}"
        announced = self.world.of(events.JobEnding)
        assert len(announced) <= 1, f"the end was decided more than once: {announced}"
        if decided:
            assert announced, f"nobody decided the end: {ends}"
