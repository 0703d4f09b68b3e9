"""One start of an agent in a played world, and the connections between two of them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_elastic.agent.messages import AgentInput
from pytest_elastic.events.model import CoordinatorStarted
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.coordinator import CoordinatorMachine
from pytest_elastic.rendezvous.founding import FoundingMachine
from pytest_elastic.rendezvous.founding_vocabulary import FoundingInput
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.mandate import Mandate
from pytest_elastic.rendezvous.mark import Mark
from pytest_elastic.rendezvous.model import Node, Settings

if TYPE_CHECKING:
    from elastic_simulation.world import World

__all__ = ["Direction", "Pipe", "Process"]

# Values that say nothing else need to be made only once.
_TIME_PASSED = v.TimePassed()

_Given = v.MemberInput | v.CoordinatorInput | AgentInput | FoundingInput


@dataclass(slots=True, eq=False)
class Direction:
    """What is under way from one end of a connection to the other."""

    source: Process
    target: Process
    pipe: Pipe = field(init=False, repr=False)
    items: deque[m.Message | str] = field(default_factory=deque)  # a text is the end: its reason
    is_open: bool = True  # the receiving end still wants to hear


@dataclass(slots=True, eq=False)
class Pipe:
    """A connection between a member and a coordinator."""

    id: int
    up: Direction  # member to coordinator
    down: Direction

    def __post_init__(self) -> None:
        self.up.pipe = self.down.pipe = self


class Process:
    """One start of an agent: its machines, its keeper, its place in the world."""

    def __init__(
        self, world: World, node: Node, config: Settings, *, offset_s: float, rate: float
    ) -> None:
        self.world = world
        self.node = node
        self.name = node.name
        self._offset_s = offset_s
        self._rate = rate
        self.member: Any = world.new_member(node, config)  # of either core
        self.coordinator: Any = None  # of either core
        self.founding: FoundingMachine | None = None
        self.agent = world.agent_class(self)
        self.pipe: Pipe | None = None
        self.is_alive = True
        self.left_at: float | None = None  # of its own accord
        self.has_tombstone = False
        self.has_power = True
        self.lost_power_at = -math.inf
        self.is_frozen = False
        self.is_suspended = False  # with everything on its machine
        self.finished: str | None = None
        self.is_released = False  # its member answers nobody any more
        self._inbox: deque[tuple[str, _Given]] = deque()
        self._is_pumping = False
        self._alarms = dict.fromkeys(("member", "coordinator", "founding"), math.inf)

    def coordinate(
        self,
        term: int,
        reason: str,
        *,
        heritage: Heritage | None = None,
        mandate: Mandate | None = None,
        mark: Mark | None = None,
    ) -> None:
        """Run the coordinator of a term here, and say so, as the real driver does."""
        settings, node = self.member.settings, self.node
        self.coordinator = CoordinatorMachine(
            settings=settings,
            node=node,
            term=term,
            now=self.now(),
            mandate=mandate,
            heritage=heritage,
            mark=mark,
        )
        self.world.state(
            self,
            CoordinatorStarted(
                term=term,
                address=node.address,
                port=node.port,
                quorum=settings.quorum,
                reason=reason,
            ),
        )

    def now(self) -> float:
        """Return the time on this node's own clock."""
        return self.world.time * self._rate + self._offset_s

    def moment(self, time: float) -> float:
        """Return what this node's clock shows, or would have, at a time of the world."""
        return time * self._rate + self._offset_s

    def until(self, moment: float) -> float:
        """Return how long it is, in true seconds, until a moment of this node's clock."""
        wait = moment - (self.world.time * self._rate + self._offset_s)
        return wait / self._rate if wait > 0.0 else 0.0

    def feed(self, which: str, given: _Given) -> None:
        """Queue an input for "member", "coordinator", "founding" or "agent".

        One at a time, as in the real driver: the commands of one step are performed before the
        next input. A frozen agent does not get to its queue.
        """
        if not self.is_alive:
            return
        if self._inbox or self._is_pumping or self.is_frozen:
            self._inbox.append((which, given))
            self._pump()
            return
        self._is_pumping = True
        try:
            self._step(which, given)
        finally:
            self._is_pumping = False
        if self._inbox:
            self._pump()

    def tell_at_once(self, which: str, given: _Given) -> None:
        """Step one machine amid the commands of another, before the next of these is performed."""
        self._step(which, given)

    def resume(self) -> None:
        """Go on after the whole machine was stopped: the keeper looks at the lease first."""
        self.is_suspended = False
        self.agent.wake_up()
        self.thaw()

    def thaw(self) -> None:
        """Go on after a freeze: overdue timers first, as in the real loop."""
        if self.is_suspended:
            return
        waiting, self._inbox = self._inbox, deque()
        self.is_frozen = False
        for which in ("member", "coordinator", "founding"):
            self.feed_if_due(which)
            self.set_alarm(which)  # one that rang meanwhile, too early, was not set again
        self._inbox += waiting
        self._pump()

    def feed_if_due(self, which: str) -> None:
        """Wake a machine whose time has come, on this node's clock."""
        wake = self._wake_at(which)
        if wake is not None and not self.is_frozen and wake <= self.now() + 1e-9:
            self.feed(which, _TIME_PASSED)

    def set_alarm(self, which: str) -> None:
        """Call a machine when it wants to be woken.

        An alarm that rings too early sets itself again: most deadlines only move on.
        """
        self._set_alarm(which, self._wake_at(which))

    def _set_alarm(self, which: str, at: float | None) -> None:
        if at is None or at >= self._alarms[which] or not self.is_alive:
            return
        self._alarms[which] = at
        self.world.later(self.until(at), self._ring, which, at)

    def _ring(self, which: str, at: float) -> None:
        if self._alarms[which] != at:
            return
        self._alarms[which] = math.inf
        if self.is_frozen:
            return
        wake = self._wake_at(which)
        if wake is not None and wake <= self.now() + 1e-9:
            self.feed(which, _TIME_PASSED)
        else:
            self._set_alarm(which, wake)

    def _wake_at(self, which: str) -> float | None:
        machine: Any = self.member
        if which != "member":
            machine = self.founding if which == "founding" else self.coordinator
        wake: float | None = machine.wake_at() if machine is not None else None
        return wake

    def _pump(self) -> None:
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._inbox and self.is_alive and not self.is_frozen:
                self._step(*self._inbox.popleft())
        finally:
            self._is_pumping = False

    def _step(self, which: str, given: _Given) -> None:
        world = self.world
        now = world.time * self._rate + self._offset_s
        if given is _TIME_PASSED:
            wake = self._wake_at(which)
            if wake is not None and now < wake <= now + 1e-9:
                now = wake  # no rounding of clocks makes a timer early
        if which == "member":
            for command in self.member.step(given, now):
                world.perform_member(self, command)
            wake = self.member.wake_at()
        elif which == "agent":
            self.agent.take(given)
            return
        elif which == "founding":
            if self.founding is None or world.endpoints is None:
                return
            for each in self.founding.step(given, now):  # type: ignore[arg-type]  # by `which`
                world.endpoints.perform(self, each)
            wake = self._wake_at(which)
        else:
            coordinator = self.coordinator
            if coordinator is None:
                return
            for order in coordinator.step(given, now):
                world.perform_coordinator(self, order)
            wake = coordinator.wake_at()  # None if it has stepped down
        if wake is not None and wake < self._alarms[which]:
            self._set_alarm(which, wake)
