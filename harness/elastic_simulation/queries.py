"""What a played world shows to tests: which workers run, and what was said of rounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from elastic_simulation.process import PlayedAgent, Surroundings
from pytest_elastic.events.model import Event, MemberLost, RoundEnded, RoundSealed
from pytest_elastic.rendezvous import ports

__all__ = ["WorldQueries"]


class WorldQueries(Surroundings):
    """What can be seen of a world from outside its machines, by the names of nodes."""

    events: list[tuple[float, str, Event]]

    @abstractmethod
    def run_until(self, condition: Callable[[], bool], within_s: float) -> float:
        """Let time pass until something holds; return how long it took, or fail."""

    def agent(self, name: str) -> PlayedAgent:
        """Return the played agent of a node's newest start."""
        return self.processes[name].agent

    def over(self, name: str) -> ports.JobOver | None:
        """Return the last word to a node's agent, if it came."""
        return self.agent(name).over

    def fail(self, name: str, exit_code: int = 1) -> None:
        """Let a worker of a node fail."""
        self.agent(name).fail(exit_code)

    def all_run(self, *names: str) -> bool:
        """Tell whether the workers of one and the same round run on these nodes, and no others."""
        assignments = [self.agent(name).assignment for name in names]
        first = assignments[0]
        return (
            first is not None
            and all(self.agent(name).is_running for name in names)
            and all(each is not None and each.round == first.round for each in assignments)
            and {entry.name for entry in first.roster} == set(names)
        )

    def reform(self, *names: str, within_s: float = 3.0) -> float:
        """Wait for a round not sealed yet to run on these nodes; return how long it took."""
        sealed = max((seal.round for seal in self.seals()), default=0)
        return self.run_until(
            lambda: self.all_run(*names) and self.round_of(names[0]) > sealed, within_s
        )

    def of(self, kind: type[Event]) -> list[Event]:
        """Return the events of one kind."""
        return [event for _, _, event in self.events if isinstance(event, kind)]

    def notices(self, name: str, kind: type[ports.Notice]) -> list[ports.Notice]:
        """Return what a node's agent was told, of one kind."""
        return [notice for notice in self.agent(name).notices if isinstance(notice, kind)]

    def round_of(self, name: str) -> int:
        """Return the round whose workers run on a node, 0 for none."""
        agent = self.agent(name)
        return agent.assignment.round if agent.is_running and agent.assignment else 0

    def ranks(self, name: str) -> tuple[str, ...]:
        """Return the roster that a node was last started with, in rank order."""
        assignment = self.agent(name).assignment
        assert assignment is not None, f"{name} was never started"
        return tuple(entry.name for entry in assignment.roster)

    def restarts(self, name: str) -> int:
        """Return the restart count that a node was last started with."""
        assignment = self.agent(name).assignment
        assert assignment is not None, f"{name} was never started"
        return assignment.restart_count

    def seals(self) -> list[RoundSealed]:
        """Return the rounds that were sealed, in order."""
        return [event for _, _, event in self.events if isinstance(event, RoundSealed)]

    def ended(self) -> list[RoundEnded]:
        """Return the rounds that ended, in order."""
        return [event for _, _, event in self.events if isinstance(event, RoundEnded)]

    def lost(self) -> list[tuple[str, str]]:
        """Return the members that were given up, and the causes."""
        return [
            (event.member, event.cause)
            for _, _, event in self.events
            if isinstance(event, MemberLost)
        ]
