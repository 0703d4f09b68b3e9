"""A bench for the scenario engine: hand-made records, virtual time, and what it answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from elastic_harness.faults.registry import built_in_faults
from elastic_harness.history import verdict as verdicts
from elastic_harness.history.events import (
    NodeStarted,
    NodeStopped,
    ProcessExited,
    ProcessStarted,
    RankHeld,
    ResumeObserved,
    StepCompleted,
    WorkerGone,
    WorkerHello,
)
from elastic_harness.scenario.engine.engine import EngineMachine
from elastic_harness.scenario.engine.messages import (
    ClauseAdded,
    ClausesJudged,
    EndRun,
    EngineCommand,
    EngineInput,
    EntryAdded,
    FaultFailed,
    FaultInForce,
    FaultProved,
    FaultUndone,
    Fire,
    Heal,
    Judge,
    LaunchersExited,
    RecordEvent,
    RecordSeen,
    ReleaseHold,
    TimelineClosed,
    TimePassed,
    WakeAt,
)
from elastic_harness.scenario.model import Scenario
from elastic_harness.scenario.planning.planner import Plan, make_plan
from elastic_harness.scenario.reading.loader import read_clause, read_entry

from pytest_elastic.events.model import Event, Record

__all__ = ["CRASH", "CUT", "KILL", "Bench", "running", "scenario"]

# Faults as most tests here have them.
CRASH: Mapping[str, Any] = {"at": {"step": 3, "rank": 1}, "id": "crash", "kill": "rank 1"}
KILL: Mapping[str, Any] = {"at": "1s", "id": "x", "kill": "rank 1"}
CUT: Mapping[str, Any] = {"at": "1s", "id": "cut", "partition": "n2"}

C = TypeVar("C", bound=EngineCommand)
E = TypeVar("E", bound=Event)


def scenario(
    *timeline: Mapping[str, Any],
    expect: object = None,
    nodes: object = 2,
    nproc: object = 1,
    **more: object,
) -> Scenario:
    """Return a scenario with this timeline."""
    return Scenario.model_validate(
        {
            "version": 1,
            "id": "bench",
            "title": "A scenario on the bench",
            "job": {"command": ["true"], "nproc_per_node": nproc, "max_restarts": 3},
            "nodes": nodes,
            "timeline": [dict(entry) for entry in timeline],
            "expect": expect or {},
            **more,
        }
    )


class Bench:
    """One engine, its clock and everything it has answered."""

    def __init__(
        self,
        given: Scenario,
        *,
        seed: int = 1,
        plan: Plan | None = None,
        is_open: bool = False,
        patience: float = 1.0,
    ) -> None:
        self.catalog = built_in_faults()
        plan = plan or make_plan(given, seed)
        self.engine = EngineMachine(plan, self.catalog, is_open=is_open, patience=patience)
        self.now = 1000.0
        self.answers: list[EngineCommand] = []
        self._pid = 4000
        self._pids: dict[int, int] = {}
        self._launchers: dict[str, int] = {}
        self._counts: dict[int, int] = {}
        self._round = 0
        self.give(TimePassed())

    # --- giving --------------------------------------------------------------------------------

    def give(self, given: EngineInput) -> None:
        """Give one input now."""
        self.answers += self.engine.step(given, self.now)

    def see(self, event: Event, *, node: str = "", at: float | None = None) -> None:
        """Let the engine see an event."""
        source = "cluster"
        at = self.now if at is None else at
        self.give(
            RecordSeen(record=Record(at=at, source=source, node=node, run_id="job", event=event))
        )

    def pass_time(self, seconds: float) -> None:
        """Let time pass, waking the engine whenever it asks for it."""
        end = self.now + seconds
        for _ in range(1000):
            asked = [answer.at for answer in self.answers if isinstance(answer, WakeAt)]
            if not asked or asked[-1] > end or self.is_over:
                break
            self.now = max(asked[-1], self.now)
            self.give(TimePassed())
        self.now = end
        self.give(TimePassed())

    def start_nodes(self, *names: str) -> None:
        """Start nodes and their launchers."""
        for name in names:
            number = int(name[1:])
            self._pid += 1
            self._launchers[name] = self._pid
            self.see(NodeStarted(address=f"10.77.0.{number}", incarnation=1), node=name)
            self.see(ProcessStarted(pid=self._pid, role="launcher", argv=("run",)), node=name)

    def form(self, *nodes: str, nproc: int = 1, round: int | None = None) -> None:
        """Form the next world, with ranks in the order of the nodes given."""
        self._round = self._round + 1 if round is None else round
        size = len(nodes) * nproc
        self._counts = {}
        for rank in range(size):
            self._pid += 1
            self._pids[rank] = self._pid
            node = nodes[rank // nproc]
            self.see(
                WorkerHello(
                    pid=self._pid,
                    start_time=self._pid * 10,
                    rank=rank,
                    local_rank=rank % nproc,
                    group_rank=rank // nproc,
                    world_size=size,
                    restart_count=0,
                    max_restarts=3,
                    master_addr="10.77.0.1",
                    master_port=29500 + self._round,
                    run_id="job",
                    round=self._round,
                ),
                node=node,
            )

    def steps(self, count: int, *, ranks: int | None = None) -> None:
        """Let every rank (or the first so many) complete steps, a tenth of a second each."""
        for _ in range(count):
            began_at = self.now
            self.pass_time(0.1)
            for rank in range(len(self._pids) if ranks is None else ranks):
                self._counts[rank] = self._counts.get(rank, 0) + 1
                self.see(
                    StepCompleted(
                        pid=self._pids[rank],
                        rank=rank,
                        count=self._counts[rank],
                        step=self._counts[rank],
                        step_source="state",
                        began_at=began_at,
                    )
                )

    def step(self, rank: int, step: int) -> None:
        """Let one rank say that it has completed a step."""
        self._counts[rank] = self._counts.get(rank, 0) + 1
        done = StepCompleted(
            pid=self._pids[rank],
            rank=rank,
            count=self._counts[rank],
            step=step,
            step_source="script",
            began_at=self.now,
        )
        self.see(done)

    def resume(self, rank: int, step: int) -> None:
        """Let a rank say how many steps were done before it."""
        self.see(ResumeObserved(pid=self._pids[rank], rank=rank, step=step))

    def hold(self, rank: int, step: int) -> None:
        """Let a rank report that it is held."""
        self.see(RankHeld(pid=self._pids[rank], rank=rank, step=step))

    def lose(self, *ranks: int) -> None:
        """Let workers be seen dead."""
        for rank in ranks:
            self.see(WorkerGone(pid=self._pids[rank], rank=rank))

    def stop_node(self, name: str, cause: str = "crash") -> None:
        """Let a node be seen dead, launcher included."""
        self.exit_launcher(name, -9)
        self.see(NodeStopped(cause=cause), node=name)

    def exit_launcher(self, name: str, exit_code: int) -> None:
        """Let a launcher end."""
        self.see(
            ProcessExited(pid=self._launchers[name], role="launcher", exit_code=exit_code),
            node=name,
        )

    def end_job(self, exit_code: int = 0) -> None:
        """Let every launcher end, and say so."""
        for name in self._launchers:
            self.exit_launcher(name, exit_code)
        self.give(LaunchersExited(exit_codes=dict.fromkeys(self._launchers, exit_code)))

    def in_force(self, entry_id: str, *, proof_needs_job: bool = False) -> None:
        self.give(FaultInForce(entry_id=entry_id, proof_needs_job=proof_needs_job))

    def prove(self, entry_id: str) -> None:
        self.give(FaultProved(entry_id=entry_id, evidence="seen"))

    def disprove(self, entry_id: str, reason: str = "nothing happened") -> None:
        self.give(FaultFailed(entry_id=entry_id, reason=reason))

    def crash(self, entry_id: str, reason: str) -> None:
        self.give(FaultFailed(entry_id=entry_id, reason=reason, is_crash=True))

    def undo(self, entry_id: str) -> None:
        self.give(FaultUndone(entry_id=entry_id))

    def give_verdicts(self, entry_id: str, *, valid: bool) -> None:
        """Judge the clauses of a check, all alike."""
        order = next(each for each in self.all_of(Judge) if each.entry_id == entry_id)
        verdict = verdicts.valid("so it is") if valid else verdicts.invalid("not at all")
        given = tuple((str(clause), verdict) for clause in order.clauses)
        self.give(ClausesJudged(entry_id=entry_id, verdicts=given))

    def add(self, **entry: object) -> None:
        """Add an entry as a Python test does; `for_` stands for `for`."""
        data = {key.rstrip("_"): value for key, value in entry.items()}
        self.give(EntryAdded(entry=read_entry(data, self.catalog)))

    def wait_for(self, key: str, **clause: object) -> None:
        """Add a clause as a Python test does."""
        self.give(ClauseAdded(key=key, clause=read_clause(clause)))

    def close(self) -> None:
        self.give(TimelineClosed())

    # --- looking -------------------------------------------------------------------------------

    def all_of(self, kind: type[C]) -> list[C]:
        """Return all commands of a kind, in order."""
        return [answer for answer in self.answers if isinstance(answer, kind)]

    def facts(self, kind: type[E]) -> list[E]:
        """Return all events of a kind that the engine wanted recorded."""
        return [each.event for each in self.all_of(RecordEvent) if isinstance(each.event, kind)]

    @property
    def fired(self) -> list[str]:
        return [order.entry_id for order in self.all_of(Fire)]

    @property
    def healed(self) -> list[str]:
        return [order.entry_id for order in self.all_of(Heal)]

    @property
    def released(self) -> list[int]:
        return [order.rank for order in self.all_of(ReleaseHold)]

    @property
    def end(self) -> EndRun | None:
        ends = self.all_of(EndRun)
        assert len(ends) <= 1, "a run ends once"
        return ends[0] if ends else None

    @property
    def is_over(self) -> bool:
        return self.end is not None

    def targets(self, entry_id: str) -> tuple[str, ...]:
        """Return whom an entry was aimed at."""
        return next(o for o in self.all_of(Fire) if o.entry_id == entry_id).targets.describe()

    def verdict(self, key: str) -> str:
        """Return how a clause was decided: valid, invalid, unknown, or open."""
        clause = next(each for each in self.engine.clauses if each.key == key)
        return clause.verdict.outcome.value if clause.verdict else "open"

    def reason(self, key: str) -> str:
        clause = next(each for each in self.engine.clauses if each.key == key)
        assert clause.verdict is not None, f"{key} is open"
        return clause.verdict.reason


def running(
    *timeline: Mapping[str, Any], patience: float = 1.0, is_open: bool = False, **more: object
) -> Bench:
    """Return a bench with two nodes of one worker each, in their first world."""
    bench = Bench(scenario(*timeline, **more), patience=patience, is_open=is_open)
    bench.start_nodes("n1", "n2")
    bench.form("n1", "n2")
    return bench
