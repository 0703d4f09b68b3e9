"""One start of an agent in a played world: its machines, its keeper, its workers, its connections.

The agent with its workers is played after the contract of `rendezvous.ports`. `Surroundings` is
what processes, and the parts of a world, may ask of the world that they are in.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pytest_elastic.agent.messages import AgentInput
from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.follower.follower import Follower
from pytest_elastic.rendezvous.leader.leader import Leader
from pytest_elastic.rendezvous.messages import LeaderAddress
from pytest_elastic.rendezvous.model import Assignment, Failure, Node
from pytest_elastic.rendezvous.settings import Settings
from pytest_elastic.wire import Message

__all__ = ["Direction", "Pipe", "PlayedAgent", "Process", "Surroundings"]

M = TypeVar("M", bound=Message)

# A group of workers is forked, stopped, killed; a broken peer is noticed: seconds, as measured.
START_S = 0.02
STOP_S = 0.03
KILL_S = 0.02
NOTICE_S = 0.03
KEEPER_LAG_S = 0.001

# Values that say nothing else need to be made only once.
_TIME_PASSED = v.TimePassed()

_Given = v.FollowerInput | v.LeaderInput | AgentInput


@dataclass(slots=True, eq=False)
class Direction:
    """What is under way from one end of a connection to the other."""

    source: Process
    target: Process
    pipe: Pipe = field(init=False, repr=False)
    items: deque[Any] = field(default_factory=deque)  # messages; a text is the end: its reason
    is_open: bool = True  # the receiving end still wants to hear


@dataclass(slots=True, eq=False)
class Pipe:
    """A connection between a follower and a leader."""

    id: int
    up: Direction  # follower to leader
    down: Direction

    def __post_init__(self) -> None:
        self.up.pipe = self.down.pipe = self


class Surroundings(ABC):
    """The world around a process: what there is in it, and what it does for those in it."""

    config: Settings
    agent_class: type[PlayedAgent]
    time: float
    processes: dict[str, Process]
    every_process: list[Process]
    by_incarnation: dict[str, Process]
    pipes: dict[int, Pipe]
    cut_links: set[tuple[str, str]]
    starts: list[tuple[str, Assignment]]
    host: Process | None
    is_changed: bool
    is_endpoint_down: bool
    has_several_endpoints: bool

    @abstractmethod
    def later(self, delay_s: float, act: Callable[..., None], *arguments: object) -> None:
        """Do something after a while: `act(*arguments)`."""

    @abstractmethod
    def next_id(self) -> int:
        """Return a number that nothing else has."""

    # --- the network

    @abstractmethod
    def draw_latency_s(self) -> float:
        """Return how long a message takes."""

    @abstractmethod
    def is_cut(self, source: Process, target: Process) -> bool:
        """Tell whether nothing passes in one direction."""

    @abstractmethod
    def is_apart(self, one: Process, other: Process) -> bool:
        """Tell whether nothing passes in one direction at least."""

    @abstractmethod
    def outcome(self, caller: Process, target: Process) -> v.Outcome:
        """Tell what dialling a process shows, if neither is frozen."""

    @abstractmethod
    def at_port_of(self, dial: v.Dial) -> Process:
        """Return the process that is, or was last, behind an address."""

    @abstractmethod
    def carry(self, source: Process, target: Process, message: M) -> M:
        """Write down what one process says to another, and return what the other one hears."""

    @abstractmethod
    def close(self, outward: Direction, inward: Direction, reason: str) -> None:
        """End a connection from the sending end of `outward`."""

    # --- what processes do

    @abstractmethod
    def perform_follower(self, process: Process, command: v.FollowerCommand) -> None:
        """Do what a follower wants."""

    @abstractmethod
    def perform_leader(self, process: Process, command: v.LeaderCommand) -> None:
        """Do what a leader wants."""

    @abstractmethod
    def end_leader(self, process: Process) -> None:
        """Let a process lead no more."""

    @abstractmethod
    def leave(self, process: Process) -> None:
        """End an agent whose work is done."""

    @abstractmethod
    def go(self, process: Process) -> None:
        """End an agent that is released, or that cannot be waited for."""

    # --- what processes hear

    @abstractmethod
    def state(self, process: Process, event: Event) -> None:
        """Note a fact that a node states."""

    @abstractmethod
    def hear(self, process: Process, said: Event | ports.StartWorkers) -> None:
        """Tell listeners what a node states, or that its workers are to start."""

    @abstractmethod
    def announce_at_endpoints(self, process: Process, leader: LeaderAddress) -> None:
        """Publish the leader at all endpoints, if there are several."""

    @abstractmethod
    def announce_to(self, process: Process, incarnation: str, leader: LeaderAddress) -> None:
        """Announce the leader to an agent."""

    @abstractmethod
    def hear_of(self, process: Process, leader: LeaderAddress) -> bool:
        """Let a node hear of a leader that was published, if it leads; return whether it does."""


class PlayedAgent:
    """What runs on a node, as far as a rendezvous can know.

    A worker that dies makes its peers fail a moment later, if they can hear of it: that is what
    makes the loss of a node look like many failures.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.timed_notices: list[tuple[float, ports.Notice]] = []
        self.assignment: Assignment | None = None
        self._is_running = False
        self._is_held = False
        self.is_stopping = False  # exits from here on are the agent's doing
        self.is_ordered = False  # the rendezvous knows that the round is over here
        self.keeper_alive = True  # it will report how the agent ended
        self.over: ports.JobOver | None = None
        self.lease_until: float | None = None
        self._is_lease_watched = False
        self.succeeded: Assignment | None = None  # whose workers ended with status 0 last
        self.belongs_since: float | None = None  # when it was first told of a round
        self.is_hung = False  # the workers neither go on nor heed SIGTERM
        self._put_off: list[Callable[[], None]] = []  # until the machine is awake again
        self.stop_s = STOP_S
        self.kill_s = KILL_S
        self.opens_stores = True
        self.store_problem = ""
        self.stop_orders: list[ports.StopWorkers] = []
        self.drain_grace_s: float | None = None
        self.failures: list[Failure] = []

    @property
    def is_running(self) -> bool:
        """Whether a worker lives here."""
        return self._is_running

    @is_running.setter
    def is_running(self, is_so: bool) -> None:
        self._is_running = is_so
        self.process.world.is_changed = True

    @property
    def is_held(self) -> bool:
        """Whether the workers are stopped by SIGSTOP."""
        return self._is_held

    @is_held.setter
    def is_held(self, is_so: bool) -> None:
        self._is_held = is_so
        self.process.world.is_changed = True

    @property
    def belongs(self) -> bool:
        """Whether the agent was told of a round, and not yet that all is over."""
        return self.belongs_since is not None and self.over is None

    @property
    def progresses(self) -> bool:
        """Whether the workers here do their part of each step."""
        return self._is_running and not (
            self._is_held or self.is_hung or self.is_stopping or self.process.is_suspended
        )

    @property
    def notices(self) -> list[ports.Notice]:
        """What the agent was told, in order."""
        return [notice for _, notice in self.timed_notices]

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self.process.world.later(delay_s, self._act, act)

    def _act(self, act: Callable[[], None]) -> None:
        if self.process.is_suspended:
            self._put_off.append(act)
        else:
            act()

    def wake_up(self) -> None:
        """Do what came due while the machine was suspended, a lease that has ended first."""
        if self.lease_until is not None:
            self._look_at_lease()
        acts, self._put_off = self._put_off, []
        for act in acts:
            act()

    def _ask(self, request: ports.Request) -> None:
        self.process.feed("follower", request)

    # --- notices -----------------------------------------------------------------------------

    def notice(self, notice: ports.Notice) -> None:
        """Do what the rendezvous asks for."""
        self.note(notice)
        match notice:
            case ports.LeaseExtended(until=until):  # most often
                self._set_lease(until)
            case ports.OpenStore(round=round_):
                self._open_store(round_)
            case ports.StartWorkers(assignment=assignment):
                self._start(assignment)
            case ports.StopWorkers():
                self.stop_orders.append(notice)
                self._stop(notice.round, notice.grace_s)
            case ports.HoldWorkers():
                self.is_held = self.is_running
            case ports.ReleaseWorkers():
                self.is_held = False
            case ports.Fence(round=round_):
                self._later(self.kill_s, lambda: self._fenced(round_))
            case ports.JobOver():
                self.over = notice
                self._later(KILL_S, self._leave)
            case ports.Spared() | ports.PeerDraining():
                pass

    def note(self, notice: ports.Notice) -> None:
        """Write down what the rendezvous asks for."""
        assert self.over is None, f"after JobOver came {notice}"
        world = self.process.world
        if isinstance(notice, ports.StartWorkers):
            world.starts.append((self.process.node.incarnation, notice.assignment))
            world.is_changed = True
            world.hear(self.process, notice)
        if self.belongs_since is None and isinstance(notice, ports.StartWorkers | ports.Spared):
            self.belongs_since = world.time
        self.timed_notices.append((world.time, notice))

    def take(self, given: object) -> None:
        """Take an input of the agent's own machine: there is none here."""
        raise AssertionError(f"a played agent got {given}")

    def _open_store(self, round_: int) -> None:
        answer: ports.Request = ports.StoreOpened(
            round=round_, address=self.process.name, port=20000 + round_
        )
        if self.store_problem:
            answer = ports.StoreFailed(round=round_, reason=self.store_problem)
        if self.opens_stores:
            self._later(0.005, lambda: self._ask(answer))

    def _start(self, assignment: Assignment) -> None:
        assert not self.is_running, f"{self.process.name} starts workers beside those of a round"
        self.assignment = assignment
        self.is_running = True
        self.is_held = False
        self.is_hung = False
        self.is_stopping = False
        self.is_ordered = False
        if self.drain_grace_s is not None:
            self.is_ordered = True
            self._later(KILL_S, lambda: self._gone(assignment.round))

    def _stop(self, round_: int, grace_s: float) -> None:
        if self.assignment is None or self.assignment.round != round_ or not self.is_running:
            self._ask(ports.WorkersGone(round=round_))
            return
        self.is_ordered = True
        self._end_group(round_, grace_s)

    def _end_group(self, round_: int, grace_s: float) -> None:
        if not self.is_stopping:
            self.is_stopping = True
            self.is_held = False
            takes_s = grace_s + self.kill_s if self.is_hung else self.stop_s
            self._later(takes_s, lambda: self._gone(round_))

    def _gone(self, round_: int) -> None:
        if self.assignment is not None and self.assignment.round == round_ and self.is_running:
            self.is_running = False
            if self.is_ordered:
                self._ask(ports.WorkersGone(round=round_))

    def _fenced(self, round_: int) -> None:
        assert self.assignment is not None, "only workers are fenced"
        if self.assignment.round == round_:
            if self.is_running:
                self._end("was fenced")
            self._ask(ports.WorkersGone(round=round_))

    # --- the keeper --------------------------------------------------------------------------

    def _set_lease(self, until: float | None) -> None:
        """Kill at the deadline, whatever the agent does (its clock is this node's)."""
        self.lease_until = until
        if until is not None and not self._is_lease_watched:
            self._is_lease_watched = True
            # Agent and keeper wake for one and the same moment; the agent is given precedence.
            self._later(self.process.until(until) + KEEPER_LAG_S, self._look_at_lease)

    def _look_at_lease(self) -> None:
        self._is_lease_watched = False
        if self.lease_until is None:
            return
        if self.process.now() < self.lease_until - 1e-9:
            self._set_lease(self.lease_until)
        elif self.is_running:
            self._lose_lease()

    def _lose_lease(self) -> None:
        self._end("lost its lease")

    # --- the workers -------------------------------------------------------------------------

    def _end(self, how: str | None) -> None:
        """End the workers at once; their peers notice unless nothing is said (None)."""
        self.is_running = False
        self.is_held = False
        if how is None or self.assignment is None:
            return
        self._tell_peers(self.assignment.round)

    def _tell_peers(self, round_: int) -> None:
        def tell() -> None:
            for other in self.process.world.every_process:
                if other is not self.process:
                    other.agent.peer_died(self, round_)

        self._later(NOTICE_S, tell)

    def peer_died(self, peer: PlayedAgent, round_: int) -> None:
        """Let our workers raise because one elsewhere is gone, if the news can reach them."""
        if (peer.process.name, self.process.name) in self.process.world.cut_links or self.is_held:
            return
        if self._is_with(peer, round_) and not self.is_hung:
            self._act(lambda: self._fail_in(round_))

    def _is_with(self, peer: PlayedAgent, round_: int) -> bool:
        """Tell whether a peer is in our round, and not in that of another job."""
        given, incarnation = self.assignment, peer.process.node.incarnation
        if given is None or given.round != round_:
            return False
        return any(entry.incarnation == incarnation for entry in given.roster)

    def _fail_in(self, round_: int) -> None:
        if self.assignment is not None and self.assignment.round == round_ and not self.is_held:
            self._report_failure(1)

    def _report_failure(self, exit_code: int) -> None:
        if self.assignment is None or not self.is_running or self.is_stopping:
            return
        rank = sum(entry.slots for entry in self.assignment.roster[: self.assignment.group_rank])
        failed = Failure(
            node=self.process.name,
            rank=rank,
            local_rank=0,
            pid=4000 + rank,
            exit_code=exit_code,
            round=self.assignment.round,
        )
        self.failures.append(failed)
        round_ = self.assignment.round
        self._ask(ports.GroupFailed(round=round_, failures=(failed,)))
        self._end_group(round_, self.process.world.config.failure_grace_s)
        self._tell_peers(round_)

    def fail(self, exit_code: int = 1) -> None:
        """Let a worker fail on its own account."""
        self._report_failure(exit_code)

    def hang(self, patience_s: float) -> None:
        """Let the workers hang; those of another node, or a watchdog here, fail of it."""
        if not self.is_running or self.is_stopping or self.assignment is None:
            return
        self.is_hung = True
        self._wait_for_the_hung(self.assignment.round, patience_s)

    def _wait_for_the_hung(self, round_: int, patience_s: float) -> None:
        self.process.world.later(patience_s, lambda: self._lose_patience(round_, patience_s))

    def _lose_patience(self, round_: int, patience_s: float) -> None:
        if not self.is_hung or not self.is_running or self.is_stopping:
            return
        if self.is_held:  # what is stopped by SIGSTOP cannot fail
            self._wait_for_the_hung(round_, patience_s)
            return
        agents = [process.agent for process in self.process.world.every_process]
        for agent in [*(each for each in agents if each.progresses), self]:
            if agent._is_with(self, round_):  # noqa: SLF001 (same class)
                agent._act(partial(agent._fail_in, round_))  # noqa: SLF001 (same class)
                return

    def succeed(self) -> None:
        """Let all workers end with status 0."""
        if self.progresses and self.assignment is not None:
            self.succeeded = self.assignment
            self.is_running = False
            self._ask(ports.GroupSucceeded(round=self.assignment.round))

    def succeed_in(self, round_: int) -> None:
        """Let all workers end with status 0 if they are those of a round."""
        if self.assignment is not None and self.assignment.round == round_:
            self.succeed()

    def drain(self, grace_s: float, takes_s: float = 0.1) -> None:
        """Leave on purpose; the workers need `takes_s` to end."""
        self.drain_grace_s = grace_s
        self._ask(ports.DrainRequested(reason="SIGTERM", grace_s=grace_s))
        if self.is_running and self.assignment is not None:
            round_ = self.assignment.round
            self._later(takes_s, lambda: self._drained(round_))

    def _drained(self, round_: int) -> None:
        if self.is_running:
            self._end("drained")
            self._ask(ports.WorkersGone(round=round_))

    def _leave(self) -> None:
        self.die("the job is over")
        self.process.world.leave(self.process)

    def die(self, how: str | None) -> None:
        """Everything on the node is gone."""
        if how != "its agent was killed":
            self.keeper_alive = False
        if self.is_running:
            self._end(how)


class Process:
    """One start of an agent: its machines, its keeper, its place in the world."""

    def __init__(
        self, world: Surroundings, node: Node, config: Settings, *, offset_s: float, rate: float
    ) -> None:
        self.world = world
        self.node = node
        self.name = node.name
        self._offset_s = offset_s
        self._rate = rate
        self.follower = Follower(node=node, settings=config)
        self.leader: Leader | None = None
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
        self.is_released = False  # its follower answers no questions any more
        self._inbox: deque[tuple[str, _Given]] = deque()
        self._is_pumping = False
        self._alarms = dict.fromkeys(("follower", "leader"), math.inf)

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
        """Queue an input for "follower", "leader" or "agent".

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
        for which in ("follower", "leader"):
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
        if which == "follower":
            return self.follower.wake_at()
        return None if self.leader is None else self.leader.wake_at()

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
        step: Any  # what is given is of the machine that `which` names
        if which == "follower":
            step = self.follower.step
            for command in step(given, now):
                world.perform_follower(self, command)
            wake = self.follower.wake_at()
        elif which == "agent":
            self.agent.take(given)
            return
        else:
            leader = self.leader
            if leader is None:
                return
            step = leader.step
            for order in step(given, now):
                world.perform_leader(self, order)
            wake = leader.wake_at()  # None if it has stepped down
        if wake is not None and wake < self._alarms[which]:
            self._set_alarm(which, wake)
