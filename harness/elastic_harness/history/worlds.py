"""Worlds: which workers made up which round, whatever the launcher.

A *world* is the set of workers that one round of a launcher started. The scenario engine's triggers
and the checkers both ask "which round are we in, which workers are in it, how far is it": this
reduction answers them, one record at a time.

**How worlds are told apart.** Our launcher names the round in each worker's environment, and that
is that; only when a rank of a round is already taken by another worker is there a second world of
the same number (two coordinators, or ranks given twice: both for the checkers to find), or where a
job begins anew after all launchers of the one before are dead (`jobs.py`). Other
launchers name no round. Then a worker that says hello joins the newest world which it *fits*:

- same run id, master address, master port and world size;
- its rank, and its local rank on its node, are still free there;
- workers of its own node there have its restart count (it is per node under torchrun) and its group
  rank;
- not all of that world's workers are gone.

If it fits none, it opens a new world. This is a guess while workers start, and it becomes knowledge
when they form their process group: the nonce in the group's store is one for each world. A worker
that turns out to have another nonce than its world is moved to where its nonce is. A nonce alone
would not do: torchrun as shipped keeps one store for all rounds of a job, in which an old nonce can
still be read (torch #135712), so it never puts a worker in a place that is taken.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Final

from elastic_harness.history.events import (
    GroupFormed,
    ParametersHashed,
    ResumeObserved,
    StepCompleted,
    WorkerEnded,
    WorkerFinished,
    WorkerGone,
    WorkerHello,
    WorkerRaised,
)
from elastic_harness.history.jobs import Jobs
from pytest_elastic.events.model import Record

__all__ = ["Step", "WorkerView", "World", "Worlds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One completed step of one worker; `step` is None where the global step is not known."""

    count: int
    step: int | None
    source: str
    began_at: float
    at: float
    seq: int


# Exit codes of a worker that came to its end, or was told to end (or killed) by its launcher: by
# those signals, or as scripts report them that handle one.
_TOLD: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
_WELL_OR_TOLD: Final = frozenset({0, *(-each for each in _TOLD), *(128 + each for each in _TOLD)})


@dataclass(slots=True, kw_only=True)
class WorkerView:
    """One worker of one world, as far as it is known; `pid` is the global one.

    `first_step` and `last_step` are the global steps it completed, falling back to its own count.
    `began_with` is a digest of its parameters, where they tell the step that it resumed at.
    `resumed_seq` and `digest_seq` are the records that say `resumed_at_step` and `digest`; its
    hello, while there is none. `exit_code` (negative: a signal) is None where nothing tells it.
    """

    rank: int
    local_rank: int
    node: str
    pid: int
    hello: WorkerHello
    hello_at: float
    hello_seq: int
    resumed_seq: int
    digest_seq: int
    gone_at: float | None = None
    gone_seq: int | None = None
    exit_code: int | None = None
    finished: bool = False
    raised: bool = False
    dropped: int = 0
    nonce: str | None = None
    resumed_at_step: int | None = None
    began_with: str | None = None
    digest: ParametersHashed | None = None
    steps: list[Step] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        """Tell whether it has not been seen dead."""
        return self.gone_at is None

    @property
    def has_failed(self) -> bool:
        """Tell whether it has failed: it raised, or ended badly and not as who is told to end."""
        return self.raised or (self.exit_code or 0) not in _WELL_OR_TOLD

    @property
    def first_step(self) -> int | None:
        """The first step it completed."""
        return _number(self.steps[0]) if self.steps else None

    @property
    def last_step(self) -> int | None:
        """The last step it completed."""
        return _number(self.steps[-1]) if self.steps else None

    @property
    def steps_done(self) -> int:
        """How many steps this process completed."""
        return self.steps[-1].count if self.steps else 0


@dataclass(slots=True, kw_only=True)
class World:
    """One round's workers.

    `ordinal` counts worlds from 1 in the order of their first hello; `round` is the launcher's own
    number, None under launchers that name none. `job` counts jobs of its run id (`jobs.py`).
    """

    ordinal: int
    round: int | None
    run_id: str
    master_addr: str
    master_port: int
    world_size: int
    job: int = 1
    workers: dict[int, WorkerView] = field(default_factory=dict)
    nonce: str | None = None
    formed_at: float | None = None
    progressed_at: float | None = None

    @property
    def number(self) -> int:
        """What it is called: the launcher's own number, its ordinal where there is none."""
        return self.ordinal if self.round is None else self.round

    @property
    def name(self) -> str:
        """Its number for people, with the job's where that is not the first."""
        return f"{self.number} of job {self.job}" if self.job > 1 else str(self.number)

    @property
    def restart_count(self) -> int | None:
        """The restart count its workers were told; the highest where they disagree."""
        counts = [each.hello.restart_count for each in self.workers.values()]
        return max((count for count in counts if count is not None), default=None)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its nodes in rank order."""
        ranked = sorted(self.workers.values(), key=lambda worker: worker.rank)
        return tuple(dict.fromkeys(worker.node for worker in ranked))

    @property
    def started_at(self) -> float:
        """When its first worker said hello."""
        return min((worker.hello_at for worker in self.workers.values()), default=0.0)

    @property
    def ended_at(self) -> float | None:
        """When its last worker was seen dead; None while one lives."""
        ends = [worker.gone_at for worker in self.workers.values()]
        if None in ends:
            return None
        return max((end for end in ends if end is not None), default=None)

    @property
    def is_alive(self) -> bool:
        """Tell whether any of its workers has not been seen dead."""
        return any(worker.is_alive for worker in self.workers.values())

    @property
    def is_finished(self) -> bool:
        """Tell whether all of its ranks have come to the end of their script."""
        workers = self.workers.values()
        are_done = all(each.finished and not each.raised for each in workers)
        return are_done and len(workers) == self.world_size

    @property
    def first_step(self) -> int | None:
        """The first step that any of its ranks completed."""
        return min((step for step in self._each("first_step")), default=None)

    @property
    def last_step(self) -> int | None:
        """The furthest step that any of its ranks completed."""
        return max((step for step in self._each("last_step")), default=None)

    @property
    def steps_done(self) -> int:
        """How many steps every one of its ranks has completed."""
        if len(self.workers) < self.world_size:
            return 0
        return min((worker.steps_done for worker in self.workers.values()), default=0)

    def _each(self, name: str) -> list[int]:
        found = [getattr(worker, name) for worker in self.workers.values()]
        return [step for step in found if step is not None]


class Worlds:
    """The reduction.

    Feed it every record of a history, in order: it counts them, so the `seq` numbers in its views
    are the history's.
    """

    def __init__(self) -> None:
        self.rounds: list[World] = []
        self._by_pid: dict[int, tuple[World, WorkerView]] = {}
        self._jobs = Jobs()
        self._seq = 0

    @property
    def current(self) -> World | None:
        """The newest world; None before the first hello."""
        return self.rounds[-1] if self.rounds else None

    def find(self, ordinal: int) -> World | None:
        """Return the world with an ordinal, if there is one."""
        return self.rounds[ordinal - 1] if 1 <= ordinal <= len(self.rounds) else None

    def worker_of(self, pid: int) -> tuple[World, WorkerView] | None:
        """Return the newest worker that had a pid, and its world."""
        return self._by_pid.get(pid)

    def worker_on(self, node: str, local_rank: int) -> WorkerView | None:
        """Return the worker with a local rank of a node in the newest round that it is in."""
        for world in reversed(self.rounds):
            for worker in world.workers.values():
                if (worker.node, worker.local_rank) == (node, local_rank):
                    return worker
        return None

    def job_of(self, seq: int) -> int:
        """Return the number of the job that a record belongs to, from 1 for each run id."""
        return self._jobs.of(seq)

    def observe(self, record: Record) -> None:
        """Take the next record into account."""
        self._seq += 1
        job = self._jobs.observe(record)
        match record.event:
            case WorkerHello() as hello:
                self._on_hello(record, hello, job)
            case (
                GroupFormed(pid=pid)
                | StepCompleted(pid=pid)
                | ResumeObserved(pid=pid)
                | ParametersHashed(pid=pid)
                | WorkerEnded(pid=pid)
                | WorkerFinished(pid=pid)
                | WorkerRaised(pid=pid)
                | WorkerGone(pid=pid)
            ):
                if (found := self._by_pid.get(pid)) is not None:
                    self._on_worker(record, *found)
            case _:
                pass

    def _on_hello(self, record: Record, hello: WorkerHello, job: int) -> None:
        world = self._world_for(record.node, hello, job)
        if world is None:
            world = self._open(hello, hello.round, job)
        worker = WorkerView(
            rank=hello.rank,
            local_rank=hello.local_rank,
            node=record.node,
            pid=hello.pid,
            hello=hello,
            hello_at=record.at,
            hello_seq=self._seq,
            resumed_seq=self._seq,
            digest_seq=self._seq,
        )
        self._place(world, worker)

    def _on_worker(self, record: Record, world: World, worker: WorkerView) -> None:
        match record.event:
            case StepCompleted() as step:
                self._on_step(record, step, world, worker)
            case GroupFormed(nonce=nonce):
                self._on_nonce(nonce, world, worker)
            case ResumeObserved(step=step_number, parameters=parameters):
                worker.resumed_at_step, worker.resumed_seq = step_number, self._seq
                worker.began_with = parameters
            case ParametersHashed() as digest:
                worker.digest, worker.digest_seq = digest, self._seq
            case WorkerFinished(dropped=dropped):
                worker.finished, worker.dropped = True, dropped
            case WorkerRaised(thread=""):
                worker.raised = True
            case WorkerGone():
                worker.gone_at, worker.gone_seq = record.at, self._seq
            case WorkerEnded(exit_code=exit_code):
                worker.exit_code = exit_code
            case _:
                pass

    def _on_step(
        self, record: Record, event: StepCompleted, world: World, worker: WorkerView
    ) -> None:
        step = Step(
            count=event.count,
            step=event.step,
            source=event.step_source,
            began_at=event.began_at,
            at=record.at,
            seq=self._seq,
        )
        if worker.steps and worker.steps[-1].count == step.count:
            worker.steps[-1] = step  # the same step again, better known (the script reported it)
        else:
            worker.steps.append(step)
        if world.progressed_at is None or len(worker.steps) == 1:
            self._refresh(world)

    def _on_nonce(self, nonce: str, world: World, worker: WorkerView) -> None:
        worker.nonce = nonce
        if world.round is not None or world.nonce == nonce:
            world.nonce = world.nonce or nonce
            return
        home = self._same_nonce(nonce, world, worker)
        if home is None and world.nonce is None:
            world.nonce = nonce
            return
        if home is None:
            home = self._open(worker.hello, None, world.job)
            home.nonce = nonce
        self._move(worker, world, home)

    def _same_nonce(self, nonce: str, world: World, worker: WorkerView) -> World | None:
        """Return another world of this nonce with a free place for the worker."""
        for other in reversed(self.rounds):
            is_free = worker.rank not in other.workers and other.world_size == world.world_size
            if other is not world and other.nonce == nonce and is_free:
                return other
        return None

    def _move(self, worker: WorkerView, old: World, new: World) -> None:
        del old.workers[worker.rank]
        if not old.workers:
            self.rounds.remove(old)
            for ordinal, world in enumerate(self.rounds, start=1):
                world.ordinal = ordinal
        else:
            if all(each.nonce is None for each in old.workers.values()):
                old.nonce = None
            self._refresh(old)
        self._place(new, worker)

    def _place(self, world: World, worker: WorkerView) -> None:
        world.workers[worker.rank] = worker
        self._by_pid[worker.pid] = (world, worker)
        self._refresh(world)

    def _open(self, hello: WorkerHello, round_number: int | None, job: int) -> World:
        world = World(
            ordinal=len(self.rounds) + 1,
            round=round_number,
            run_id=hello.run_id,
            master_addr=hello.master_addr,
            master_port=hello.master_port,
            world_size=hello.world_size,
            job=job,
        )
        self.rounds.append(world)
        return world

    def _world_for(self, node: str, hello: WorkerHello, job: int) -> World | None:
        """Return the newest world that a worker saying hello belongs to (see the file's head)."""
        candidates = [
            world
            for world in reversed(self.rounds)
            if (world.run_id, world.job) == (hello.run_id, job)
        ]
        if hello.round is not None:
            same = [
                world
                for world in candidates
                if world.round == hello.round and hello.rank not in world.workers
            ]
            # Two worlds of one number differ in their store: prefer the one with ours.
            same.sort(key=lambda world: (world.master_addr, world.master_port) != _store_of(hello))
            return same[0] if same else None
        for world in candidates:
            if world.round is None and _fits(world, node, hello):
                return world
        return None

    def _refresh(self, world: World) -> None:
        """Date the moments at which all ranks had said hello, and had completed a step."""
        workers = world.workers.values()
        world.formed_at = world.progressed_at = None
        if len(workers) < world.world_size:
            return
        world.formed_at = max(worker.hello_at for worker in workers)
        if all(worker.steps for worker in workers):
            world.progressed_at = max(worker.steps[0].at for worker in workers)


def _number(step: Step) -> int:
    return step.count if step.step is None else step.step


def _store_of(hello: WorkerHello) -> tuple[str, int]:
    return hello.master_addr, hello.master_port


def _fits(world: World, node: str, hello: WorkerHello) -> bool:
    if (world.master_addr, world.master_port) != _store_of(hello):
        return False
    if world.world_size != hello.world_size or hello.rank in world.workers or not world.is_alive:
        return False
    for worker in world.workers.values():
        is_here = worker.node == node
        if is_here and worker.local_rank == hello.local_rank:
            return False
        if is_here and worker.hello.restart_count != hello.restart_count:
            return False
        ranks = worker.hello.group_rank, hello.group_rank
        if None not in ranks and is_here != (ranks[0] == ranks[1]):
            return False
    return True
