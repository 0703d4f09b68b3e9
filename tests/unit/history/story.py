"""Histories made by hand: a story tells what happens, second by second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elastic_harness.history.events import (
    HISTORY_FORMAT,
    FaultEffective,
    FaultFired,
    FaultHealed,
    FaultPlanned,
    GroupFormed,
    OutputRead,
    ParametersHashed,
    ProcessExited,
    ProcessStarted,
    ResumeObserved,
    RunEnded,
    RunStarted,
    SamplesDrawn,
    SamplesUnseen,
    StepCompleted,
    SurvivorsSought,
    WorkerFinished,
    WorkerGone,
    WorkerHello,
)
from elastic_harness.history.history import History

from pytest_elastic.events.model import Event, Record

__all__ = ["Story"]


# What is told beside something else takes no time of its own.
_TICK_S = 0.01


class Story:
    """Collects records. `at` is the time of the next one; every method moves it a little."""

    def __init__(
        self,
        *,
        nodes: int = 2,
        nproc: int = 1,
        min_nodes: int = 1,
        max_restarts: int = 3,
        settings: Mapping[str, Any] | None = None,
        format: int = HISTORY_FORMAT,
    ) -> None:
        self.at = 100.0
        self.records: list[Record] = []
        self.nproc = nproc
        self._pid = 1000
        self.pids: dict[tuple[int, int], int] = {}
        self._nodes: dict[int, str] = {}
        self._began: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._resumed: set[int] = set()
        self.tell(
            "engine",
            "",
            RunStarted(
                scenario="story",
                seed=7,
                launcher="pytest-elastic",
                cluster="namespace",
                nodes_initial=nodes,
                nodes_min=min_nodes,
                nodes_max=nodes,
                nproc_per_node=nproc,
                max_restarts=max_restarts,
                limit_s=60.0,
                settings=settings or {},
                format=format,
            ),
        )

    @property
    def history(self) -> History:
        """The history so far."""
        return History.of(self.records)

    def tell(self, source: str, node: str, event: Event) -> Story:
        """Add any event."""
        self.records.append(Record(at=self.at, source=source, node=node, run_id="job", event=event))
        self.at += _TICK_S
        return self

    def wait(self, seconds: float) -> Story:
        """Let time pass."""
        self.at += seconds
        return self

    def hello(self, number: int, node: str, rank: int, world_size: int, /, **more: object) -> Story:
        """Let one worker say hello; `more` replaces what it was told."""
        self._pid += 1
        self.pids[number, rank] = self._pid
        self._nodes[self._pid] = node
        told: dict[str, Any] = {
            "rank": rank,
            "local_rank": rank % self.nproc,
            "group_rank": rank // self.nproc,
            "world_size": world_size,
            "restart_count": number - 1,
            "max_restarts": 3,
            "master_addr": "10.77.0.1",
            "master_port": 30000 + number,
            "run_id": "job",
            "round": number,
            **more,
        }
        self._began[self._pid] = self.at
        return self.tell("worker", node, WorkerHello(pid=self._pid, start_time=self._pid, **told))

    def round(self, number: int, nodes: Sequence[str], /, **more: object) -> Story:
        """Let all workers of a round say hello."""
        size = len(nodes) * self.nproc
        for rank in range(size):
            self.hello(number, nodes[rank // self.nproc], rank, size, **more)
        return self

    def group(self, round: int, nonce: str) -> Story:
        """Let all workers of a round find a nonce."""
        for key, pid in sorted(self.pids.items()):
            if key[0] == round:
                size = sum(other[0] == round for other in self.pids)
                event = GroupFormed(pid=pid, rank=key[1], world_size=size, nonce=nonce)
                self._of(pid, event)
        return self

    def step(self, round: int, rank: int, step: int | None, **more: object) -> Story:
        """Let one worker complete a step."""
        pid = self.pids[round, rank]
        self._counts[pid] = self._counts.get(pid, 0) + 1
        source = "process" if step is None else "state"
        values: dict[str, Any] = {
            "count": self._counts[pid],
            "step": step,
            "step_source": source,
            "began_at": self._began[pid],
            **more,
        }
        if values["step_source"] == "state" and pid not in self._resumed and step is not None:
            self._resumed.add(pid)
            self._of(pid, ResumeObserved(pid=pid, rank=rank, step=step - 1))
            self.at -= _TICK_S
        self._of(pid, StepCompleted(pid=pid, rank=rank, **values))
        self._began[pid] = self.at
        return self

    def steps(self, round: int, first: int, last: int) -> Story:
        """Let every rank of a round complete steps, resuming where the first one says."""
        ranks = sorted(rank for number, rank in self.pids if number == round)
        for rank in ranks:
            pid = self.pids[round, rank]
            if pid not in self._resumed:
                self._of(pid, ResumeObserved(pid=pid, rank=rank, step=first - 1))
            self._resumed.add(pid)
        for step in range(first, last + 1):
            for rank in ranks:
                self.step(round, rank, step)
        return self

    def drawn(
        self,
        round: int,
        rank: int,
        step: int | None,
        *indices: int,
        epoch: int | None = 0,
        **more: object,
    ) -> Story:
        """Say which samples the next step uses; `more` replaces what is said of them."""
        pid = self.pids[round, rank]
        values: dict[str, Any] = {
            "count": self._counts.get(pid, 0) + 1,
            "step": step,
            "loader": "Data[8] by DistributedSampler",
            "size": 8,
            "epoch": epoch,
            "batches": (indices,),
            **more,
        }
        return self._of(
            pid,
            SamplesDrawn(pid=pid, rank=rank, **values),
        )

    def hashed(self, round: int, rank: int, digest: str | None, **more: object) -> Story:
        """Let a worker say what its parameters are."""
        pid = self.pids[round, rank]
        values: dict[str, Any] = {"step": None, **more}
        return self._of(pid, ParametersHashed(pid=pid, rank=rank, digest=digest, **values))

    def resume(
        self, round: int, rank: int, step: int | None, parameters: str | None = None
    ) -> Story:
        """Let a worker say where it resumes; by its `parameters`, or as its optimizer counts."""
        pid = self.pids[round, rank]
        self._resumed.add(pid)
        event = ResumeObserved(pid=pid, rank=rank, step=step, parameters=parameters)
        return self._of(pid, event)

    def unseen(self, round: int, rank: int, loader: str, reason: str) -> Story:
        """Let a worker say that it cannot see the samples of a loader."""
        pid = self.pids[round, rank]
        return self._of(pid, SamplesUnseen(pid=pid, rank=rank, loader=loader, reason=reason))

    def finish(self, round: int, *, dropped: int = 0) -> Story:
        """Let all workers of a round end by themselves."""
        for (number, rank), pid in sorted(self.pids.items()):
            if number == round:
                self._of(pid, WorkerFinished(pid=pid, rank=rank, dropped=dropped))
                self._of(pid, WorkerGone(pid=pid, rank=rank))
        return self

    def gone(self, round: int, *ranks: int) -> Story:
        """Let workers of a round die; all of them when none is named."""
        for (number, rank), pid in sorted(self.pids.items()):
            if number == round and (not ranks or rank in ranks):
                self._of(pid, WorkerGone(pid=pid, rank=rank))
        return self

    def fault(
        self,
        id: str,
        fault: str = "kill",
        target: str = "n2",
        *,
        works: bool = True,
        **facts: Any,  # noqa: ANN401 (fields of the event)
    ) -> Story:
        """Plan and inject a fault; it takes effect unless told otherwise."""
        self.tell("engine", "", FaultPlanned(id=id, fault=fault))
        self.at -= _TICK_S
        self.tell("fault", "", FaultFired(id=id, fault=fault, targets=(target,), **facts))
        if works:
            self.tell("fault", "", FaultEffective(id=id, evidence="seen"))
        return self

    def heal(self, id: str) -> Story:
        """Undo a fault."""
        return self.tell("fault", "", FaultHealed(id=id, by="schedule"))

    def launcher_exits(self, codes: Mapping[str, int]) -> Story:
        """Let launchers end."""
        for node, code in codes.items():
            pid = self._launcher(node) or 1
            self.tell("cluster", node, ProcessExited(pid=pid, role="launcher", exit_code=code))
        return self

    def _launcher(self, node: str) -> int | None:
        """Return the newest launcher of a node, if it runs; 0 where nobody has told of any."""
        pid: int | None = 0
        for record in self.records:
            if record.node == node and isinstance(record.event, ProcessStarted):
                pid = record.event.pid
            elif record.node == node and isinstance(record.event, ProcessExited):
                pid = None
        return pid

    def end(
        self,
        outcome: str = "succeeded",
        *,
        launchers: Sequence[str] = ("n1", "n2"),
        exempt: tuple[str, ...] = (),
    ) -> Story:
        """Let launchers end, if they have not, and the run; look at what they left."""
        codes = {"succeeded": 0, "failed": 1, "drained": 143}
        if outcome in codes:
            self.launcher_exits(
                {n: codes[outcome] for n in launchers if self._launcher(n) is not None}
            )
            exempt = exempt or (tuple(launchers) if outcome == "drained" else ())
        exits = {r.node: r.event for r in self.records if isinstance(r.event, ProcessExited)}
        found = {node: event.exit_code for node, event in exits.items()}
        self.tell("engine", "", RunEnded(outcome=outcome, exit_codes=found, ended_by_faults=exempt))
        self.at -= _TICK_S
        self.tell("engine", "", OutputRead(unread=()))
        over = set(exits)
        return self.tell("cluster", "", SurvivorsSought(nodes=tuple(sorted(over))))

    def _of(self, pid: int, event: Event) -> Story:
        return self.tell("worker", self._nodes[pid], event)
