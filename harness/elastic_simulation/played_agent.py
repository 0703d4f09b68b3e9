"""An agent with its keeper and its workers, played after the contract of `rendezvous.ports`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.model import Assignment, Failure

if TYPE_CHECKING:
    from elastic_simulation.process import Process

__all__ = ["PlayedAgent"]

# A group of workers is forked, stopped, killed; a broken peer is noticed: seconds, as measured.
START_S = 0.02
STOP_S = 0.03
KILL_S = 0.02
NOTICE_S = 0.03
KEEPER_LAG_S = 0.001


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
        self.process.feed("member", request)

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
        """Tell whether somebody is in our round, and not in that of another job."""
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
