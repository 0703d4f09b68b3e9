"""What workers of a simulated job do: say hello, form a group, make steps, checkpoint, end.

A model of a data-parallel script such as `examples/train.py`: all ranks of a round make a step
together, or none does. A step waits while a worker is stopped, held at a step, or cannot reach
another one. The checkpoint is shared; rank 0 writes it every so many steps, and when a rank was
told to leave (SIGTERM), after the step at which all ranks have heard of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from elastic_harness.history import events

from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous.model import Assignment

__all__ = ["Host", "Round", "Script", "Training", "Worker"]

_HELLO_S = 0.03
_FORM_S = 0.04
# What a script gives a step that does not end, when it was told to leave: `examples/train.py`.
_LEAVE_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How long a script trains, and how often it checkpoints."""

    steps: int = 200
    checkpoint_every: int = 10
    step_s: float = 0.02


class Host(Protocol):
    """The node of a worker: what ends its processes, and whether they can run."""

    @property
    def name(self) -> str:
        """The node's name."""

    @property
    def can_run(self) -> bool:
        """Whether its processes get any processor time."""

    def end_worker(self, pid: int, exit_code: int, message: str = "") -> None:
        """Let one worker end."""

    def end_group(self, round_: int, exit_code: int) -> None:
        """Let all workers of a round end, by their own doing."""


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    """One worker process."""

    pid: int
    rank: int
    local_rank: int
    host: Host
    count: int = 0
    is_alive: bool = True
    is_stopped: bool = False
    held_at: int | None = None
    has_said_hello: bool = False
    orders: list[Mapping[str, Any]] = field(default_factory=list)
    answer: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Round:
    """The workers of one round, by rank, and how far they are."""

    assignment: Assignment
    workers: dict[int, Worker] = field(default_factory=dict)
    is_formed: bool = False
    resumed_at: int = 0
    step: int = 0
    stepped_at: float = 0.0
    leavers: set[str] = field(default_factory=set)
    is_settled: bool = False  # it has ended in order: the workers that are left wait to be stopped
    held_once: set[tuple[int, int, int]] = field(default_factory=set)

    @property
    def world_size(self) -> int:
        """How many workers it has when all are there."""
        return sum(entry.slots for entry in self.assignment.roster)


class Training:
    """All rounds of one job. `tell(node, event)` gets what probes would say."""

    def __init__(
        self,
        script: Script,
        *,
        now: Callable[[], float],
        later: Callable[[float, Callable[[], None]], None],
        are_apart: Callable[[str, str], bool],
        crossing_s: Callable[[str, str], float],
        tell: Callable[[str, Event], None],
    ) -> None:
        self.script = script
        self.checkpoint = 0
        self.workers: dict[int, Worker] = {}
        self._now = now
        self._later = later
        self._are_apart = are_apart
        self._crossing_s = crossing_s
        self._tell = tell
        self._rounds: dict[tuple[int, int], Round] = {}
        self._holds: list[tuple[int, int | None]] = []

    # --- processes ---------------------------------------------------------------------------

    def begin(self, host: Host, assignment: Assignment, pids: Mapping[int, int]) -> None:
        """Start the workers of a round on one node; `pids` are by local rank."""
        key = (assignment.term, assignment.round)
        round_ = self._rounds.setdefault(key, Round(assignment=assignment))
        first = sum(entry.slots for entry in assignment.roster[: assignment.group_rank])
        for local_rank, pid in pids.items():
            worker = Worker(pid=pid, rank=first + local_rank, local_rank=local_rank, host=host)
            round_.workers[worker.rank] = worker
            self.workers[pid] = worker
            self._later(_HELLO_S, partial(self._hello, round_, assignment, worker))

    def _hello(self, round_: Round, assignment: Assignment, worker: Worker) -> None:
        if not worker.is_alive:
            return
        worker.has_said_hello = True
        older = sorted(
            pid
            for pid, other in self.workers.items()
            if other.is_alive and other.host is worker.host and other not in round_.workers.values()
        )
        self._tell(
            worker.host.name,
            events.WorkerHello(
                pid=worker.pid,
                start_time=0,
                rank=worker.rank,
                local_rank=worker.local_rank,
                group_rank=assignment.group_rank,
                world_size=round_.world_size,
                restart_count=assignment.restart_count,
                max_restarts=assignment.max_restarts,
                master_addr=assignment.store_address,
                master_port=assignment.store_port,
                run_id="job",
                round=assignment.round,
                alive_before=tuple(older),
            ),
        )
        said = [each.has_said_hello and each.is_alive for each in round_.workers.values()]
        if len(said) == round_.world_size and all(said):
            self._later(_FORM_S, lambda: self._form(round_))

    def _form(self, round_: Round) -> None:
        if not self._are_all_well(round_):
            if all(worker.is_alive for worker in round_.workers.values()):
                self._later(_FORM_S, lambda: self._form(round_))
            return
        round_.is_formed = True
        round_.step = round_.resumed_at = self.checkpoint
        round_.stepped_at = self._now()
        nonce = f"{round_.assignment.term}.{round_.assignment.round}"
        for worker in self._in_order(round_):
            self._tell(
                worker.host.name,
                events.GroupFormed(
                    pid=worker.pid, rank=worker.rank, world_size=round_.world_size, nonce=nonce
                ),
            )
        self._later(self.script.step_s, lambda: self._go_on(round_))

    def gone(self, pid: int, exit_code: int = -9) -> None:
        """Note that a worker is dead, and how it ended."""
        worker = self.workers.get(pid)
        if worker is None or not worker.is_alive:
            return
        worker.is_alive = False
        worker.exit_code = exit_code
        worker.held_at = None
        if worker.has_said_hello:
            self._tell(worker.host.name, events.WorkerGone(pid=pid, rank=worker.rank))

    def ask_to_leave(self, host: Host, term: int, number: int) -> None:
        """Give the workers of a node SIGTERM: they leave after the next step, or soon."""
        round_ = self._rounds.get((term, number))
        if round_ is None or not round_.is_formed or round_.is_settled:
            host.end_group(number, -15)
            return
        round_.leavers.add(host.name)
        self._later(_LEAVE_PATIENCE_S, lambda: host.end_group(number, 143))

    def is_settled(self, term: int, number: int) -> bool:
        """Tell whether the workers of a round have ended it in order."""
        round_ = self._rounds.get((term, number))
        return round_ is not None and round_.is_settled

    # --- steps -------------------------------------------------------------------------------

    def _in_order(self, round_: Round) -> list[Worker]:
        return [round_.workers[rank] for rank in sorted(round_.workers)]

    def _are_all_well(self, round_: Round) -> bool:
        """Tell whether all ranks can make a step together now."""
        hosts = list({id(w.host): w.host for w in round_.workers.values()}.values())
        apart = [
            (one, other)
            for one in hosts
            for other in hosts
            if one is not other and self._are_apart(one.name, other.name)
        ]
        return not apart and all(
            w.is_alive and not w.is_stopped and w.held_at is None and w.host.can_run
            for w in round_.workers.values()
        )

    def _go_on(self, round_: Round) -> None:
        if round_.is_settled or not all(w.is_alive for w in round_.workers.values()):
            return
        if self._are_all_well(round_):
            self._step(round_)
        if not round_.is_settled:
            self._later(self.script.step_s + self._talking_s(round_), lambda: self._go_on(round_))

    def _talking_s(self, round_: Round) -> float:
        """Return how long the ranks of a step wait for each other's parts."""
        names = list(dict.fromkeys(worker.host.name for worker in self._in_order(round_)))
        return max(
            (self._crossing_s(one, other) for one in names for other in names if one != other),
            default=0.0,
        )

    def _step(self, round_: Round) -> None:
        began_at, round_.stepped_at = round_.stepped_at, self._now()
        round_.step += 1
        is_last = round_.step >= self.script.steps
        if is_last or round_.leavers or round_.step % self.script.checkpoint_every == 0:
            self.checkpoint = round_.step
        for worker in self._in_order(round_):
            self._tell_step(round_, worker, began_at)
        for worker in self._in_order(round_):
            self._obey(worker)
        if is_last or round_.leavers:
            self._settle(round_, is_last=is_last)
            return
        for worker in self._in_order(round_):
            self._hold_if_armed(round_, worker)

    def _tell_step(self, round_: Round, worker: Worker, began_at: float) -> None:
        worker.count += 1
        node = worker.host.name
        if worker.count == 1:
            resumed = events.ResumeObserved(
                pid=worker.pid, rank=worker.rank, step=round_.resumed_at
            )
            self._tell(node, resumed)
        self._tell(
            node,
            events.StepCompleted(
                pid=worker.pid,
                rank=worker.rank,
                count=worker.count,
                step=round_.step,
                step_source="state",
                began_at=began_at,
            ),
        )

    def _settle(self, round_: Round, *, is_last: bool) -> None:
        round_.is_settled = True
        hosts = {id(w.host): w.host for w in self._in_order(round_)}
        number = round_.assignment.round
        if not is_last:
            for host in hosts.values():
                if host.name in round_.leavers:
                    host.end_group(number, 143)
            return
        for worker in self._in_order(round_):
            if worker.is_alive:
                digest = events.ParametersHashed(
                    pid=worker.pid, rank=worker.rank, step=round_.step, digest=f"step {round_.step}"
                )
                self._tell(worker.host.name, digest)
                finished = events.WorkerFinished(pid=worker.pid, rank=worker.rank)
                self._tell(worker.host.name, finished)
        for host in hosts.values():
            host.end_group(number, 0)

    # --- holds and orders --------------------------------------------------------------------

    def arm(self, step: int, rank: int | None) -> None:
        """Hold a rank once it has completed a step, as the observer of real runs does."""
        if (step, rank) not in self._holds:
            self._holds.append((step, rank))

    def disarm(self, step: int, rank: int | None) -> None:
        """Take that back."""
        if (step, rank) in self._holds:
            self._holds.remove((step, rank))

    def _hold_if_armed(self, round_: Round, worker: Worker) -> None:
        for step, rank in self._holds:
            once = (worker.pid, step, -1 if rank is None else rank)
            if rank not in (None, worker.rank) or round_.step < step or once in round_.held_once:
                continue
            round_.held_once.add(once)
            if worker.held_at is None and worker.is_alive:
                worker.held_at = round_.step
                held = events.RankHeld(pid=worker.pid, rank=worker.rank, step=round_.step)
                self._tell(worker.host.name, held)

    def release(self, pid: int) -> None:
        """Let a held worker go on."""
        worker = self.workers.get(pid)
        if worker is None or worker.held_at is None:
            return
        step, worker.held_at = worker.held_at, None
        released = events.RankReleased(pid=pid, rank=worker.rank, step=step)
        self._tell(worker.host.name, released)

    def order(self, pid: int, order: Mapping[str, Any]) -> bool:
        """Have a worker exit or raise in its step hook; one that is held obeys at once."""
        worker = self.workers.get(pid)
        if worker is None or not worker.is_alive or order["do"] not in {"exit", "raise"}:
            return False
        worker.orders.append(order)
        if worker.held_at is not None:
            self._later(0.001, lambda: self._obey(worker))
        return True

    def _obey(self, worker: Worker) -> None:
        orders, worker.orders = worker.orders, []
        if orders and worker.is_alive:
            order = orders[0]
            worker.answer = {"act": order["do"], "phase": "ended", "by": order.get("by", "")}
            message = f"{order['error']}: {order['message']}" if order["do"] == "raise" else ""
            worker.host.end_worker(worker.pid, int(order.get("code", 1)), message)
