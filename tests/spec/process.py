"""One start of an agent in a played world, and the connections between two of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.coordinator import CoordinatorMachine
from pytest_elastic.rendezvous.member import MemberMachine
from pytest_elastic.rendezvous.model import Node, Settings
from tests.spec.played_agent import PlayedAgent

if TYPE_CHECKING:
    from tests.spec.world import World

__all__ = ["Direction", "Pipe", "Process"]


@dataclass(slots=True, eq=False)
class Direction:
    """What is under way from one end of a connection to the other."""

    source: Process
    target: Process
    items: deque[m.Message | str] = field(default_factory=deque)  # a text is the end: its reason
    is_open: bool = True  # the receiving end still wants to hear


@dataclass(slots=True, eq=False)
class Pipe:
    """A connection between a member and a coordinator."""

    id: int
    up: Direction  # member to coordinator
    down: Direction


class Process:
    """One start of an agent: its machines, its keeper, its place in the world."""

    def __init__(
        self, world: World, node: Node, config: Settings, *, offset_s: float, rate: float
    ) -> None:
        self.world = world
        self.node = node
        self._offset_s = offset_s
        self._rate = rate
        self.member = MemberMachine(node=node, settings=config)
        self.coordinator: CoordinatorMachine | None = None
        self.agent = PlayedAgent(self)
        self.pipe: Pipe | None = None
        self.is_alive = True
        self.has_tombstone = False
        self.has_power = True
        self.is_frozen = False
        self.finished: str | None = None
        self._inbox: deque[tuple[str, v.MemberInput | v.CoordinatorInput]] = deque()

    @property
    def name(self) -> str:
        return self.node.name

    def now(self) -> float:
        """Return the time on this node's own clock."""
        return self.world.time * self._rate + self._offset_s

    def until(self, moment: float) -> float:
        """Return how long it is, in true seconds, until a moment of this node's clock."""
        return max(moment - self.now(), 0.0) / self._rate

    def feed(self, which: str, given: v.MemberInput | v.CoordinatorInput) -> None:
        """Hand an input to "member" or "coordinator", or keep it while the agent is frozen."""
        if not self.is_alive:
            return
        if self.is_frozen:
            self._inbox.append((which, given))
            return
        self._step(which, given, self.now())

    def thaw(self) -> None:
        """Go on after a freeze: overdue timers first, as in the real loop."""
        self.is_frozen = False
        for which in ("member", "coordinator"):
            self.feed_if_due(which)
        while self._inbox and not self.is_frozen:
            self.feed(*self._inbox.popleft())

    def feed_if_due(self, which: str) -> None:
        """Wake a machine whose time has come, on this node's clock."""
        machine = self.member if which == "member" else self.coordinator
        wake = machine.wake_at() if machine is not None else None
        if wake is None or not self.is_alive or self.is_frozen:
            return
        if wake <= self.now() + 1e-9:
            self._step(which, v.TimePassed(), max(self.now(), wake))

    def _step(self, which: str, given: v.MemberInput | v.CoordinatorInput, now: float) -> None:
        if which == "member":
            for command in self.member.step(given, now):  # type: ignore[arg-type]  # by `which`
                self.world.perform_member(self, command)
            self.world.wake(self, which, self.member.wake_at())
        elif self.coordinator is not None:
            for order in self.coordinator.step(given, now):  # type: ignore[arg-type]  # by `which`
                self.world.perform_coordinator(self, order)
            self.world.wake(self, which, self.coordinator.wake_at())
