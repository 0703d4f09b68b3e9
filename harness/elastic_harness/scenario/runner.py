"""One run of one plan, from an empty cluster to a judged history and a clean machine.

The run performs what the engine decides: faults through the injector, holds through the observer,
time by timers. Whatever happens, it ends in one order: undo faults, look for survivors, take the
nodes away, then judge. A teardown that fails is reported beside the verdict, never instead of it.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import assert_never

from elastic_harness.cluster.cluster import Cluster, ClusterError, ClusterEvent, NetworkCounters
from elastic_harness.faults.injector import Catalog, Injector
from elastic_harness.history.checkers.library import STANDARD
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.history.events import (
    HISTORY_FORMAT,
    ClausePlanned,
    FaultPlanned,
    FileWritten,
    HarnessFailed,
    LogMatched,
    ProcessExited,
    RunClosed,
    RunEnded,
    RunStarted,
    SwitchDropped,
)
from elastic_harness.history.history import History
from elastic_harness.history.judge import Judgement, judge, judge_checks
from elastic_harness.observe.folder_watch import FolderWatch
from elastic_harness.observe.last_lines import LastLines
from elastic_harness.observe.observer import Observer
from elastic_harness.observe.stacks import ask_for_stacks
from elastic_harness.scenario.engine import messages as m
from elastic_harness.scenario.engine.engine import EngineMachine
from elastic_harness.scenario.planning.pins import PinnedTargets
from elastic_harness.scenario.planning.planned_clauses import clauses_of
from elastic_harness.scenario.planning.planner import Plan
from elastic_harness.scenario.stage.held_writers import HeldWriters
from elastic_harness.scenario.stage.link_clock import LINK_COUNTS, LinkClock
from elastic_harness.scenario.stage.log_clock import LOG_TIMES, LogClock
from elastic_harness.scenario.stage.log_watch import FoundLine, LogWatch
from elastic_harness.scenario.stage.plan import StagePlan
from elastic_harness.scenario.stage.speakers import WORKER
from elastic_harness.scenario.stage.stage import Stage
from elastic_harness.toxiproxy.remote import RemoteToxiproxy
from pytest_elastic.errors import ElasticError
from pytest_elastic.events.model import Event, Record
from pytest_elastic.loop import Loop, Timer

if TYPE_CHECKING:
    from elastic_harness.faults.registry import FaultRegistry

__all__ = ["Run", "RunResult", "RunSetup"]

# What a job saves is told file by file; one that writes more than this is not meant to be followed.
_MOST_FILES = 2000
# Undoing a fault is bounded by the fault itself; this bounds all of them together.
_HEAL_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """Everything a run is made of; `directory` exists, is empty, and is the run's own."""

    plan: Plan
    stage: StagePlan
    directory: str
    socket_path: str
    cluster_kind: str
    is_open: bool = False
    patience: float = 1.0
    checkers: Registry = STANDARD


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run went: `outcome` and `reason` as in `RunEnded`.

    `exit_codes` are the launchers', by node; negative: ended by that signal. `targets` are whom
    chance has chosen, for a replay. The verdict is in the history: `judgements` reads it there.
    """

    outcome: str
    reason: str
    exit_codes: Mapping[str, int]
    history: History
    targets: Mapping[str, PinnedTargets] = field(default_factory=dict)
    checkers: Registry = STANDARD

    @property
    def judgements(self) -> Sequence[Judgement]:
        """Every clause with its verdict: a test may have added some since."""
        return judge(self.history, self.checkers)

    @property
    def problems(self) -> Sequence[str]:
        """What went wrong in the harness itself."""
        return [entry.event.what for entry in self.history.of_kind(HarnessFailed)]


class Run:
    """One run, in the loop's thread. `on_done(result)` is called once, when all is clean again."""

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        setup: RunSetup,
        catalog: Catalog,
        actions: FaultRegistry,
        *,
        on_done: Callable[[RunResult], None],
        toxiproxy: RemoteToxiproxy | None = None,
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._setup = setup
        self._on_done = on_done
        self.history = History(os.path.join(setup.directory, "history.jsonl"))
        self.engine = EngineMachine(
            setup.plan,
            actions,
            is_open=setup.is_open,
            patience=setup.patience,
            checkers=setup.checkers,
        )
        scenario = setup.plan.scenario
        names = {clause.name for clause in clauses_of(scenario)}
        wanted = {what for name in names for what in setup.checkers.find(name).observes}
        self._observer = Observer(
            loop,
            setup.socket_path,
            self._on_record,
            hash_parameters=setup.is_open or "state" in wanted,
            observe_samples=setup.is_open or "samples" in wanted,
            observe_rate=setup.is_open or "learning_rate" in wanted,
        )
        self._stage = Stage(
            loop,
            cluster,
            setup.stage,
            orders=self._observer,
            on_fact=self._on_fact,
            on_lost=self._on_cluster_lost,
            toxiproxy=toxiproxy,
        )
        self._injector = Injector(self._stage, catalog, loop, self._tell)
        self._logs = LogWatch(
            loop, setup.stage.log_dir, self._on_log_line, speaker_of=setup.stage.speaker_of
        )
        log_times = os.path.join(setup.directory, LOG_TIMES)
        self._log_clock = LogClock(loop, setup.stage.log_dir, log_times)
        self._link_clock = LinkClock(loop, cluster, os.path.join(setup.directory, LINK_COUNTS))
        self._last_lines = LastLines(setup.stage.log_dir, setup.stage.launcher.own_lines)
        self._writers = HeldWriters(loop, self._stage, self._on_fact, self._fail)
        self._files = FolderWatch(loop, setup.stage.data_folders[0], self._on_file_written)
        self._files_told = 0
        self._holds: dict[str, tuple[int, int]] = {}
        self._inputs: list[m.EngineInput] = []
        self._timer: Timer | None = None
        self._paused_at: float | None = None
        self._end: m.EndRun | None = None
        self._listeners: list[Callable[[], None]] = []
        self._is_finished = False
        self._is_broken = False  # the engine has crashed: it is not asked any more

    # The life of a run

    def start(self) -> None:
        """Start the nodes, the launchers, and the engine's clock."""
        scenario = self._setup.plan.scenario
        log_clauses = [
            self._setup.checkers.bind(clause.name, clause.expected).parameters
            for clause in clauses_of(scenario)
            if clause.name == "log_contains"
        ]
        for clause in log_clauses:
            self._logs.watch(re.compile(clause.pattern), clause.node)
        self._log_clock.start()
        self._on_fact(
            "engine",
            "",
            RunStarted(
                scenario=scenario.id,
                seed=self._setup.plan.seed.value,
                launcher=self._setup.stage.launcher.name,
                cluster=self._setup.cluster_kind,
                nodes_initial=scenario.nodes.initial,
                nodes_min=scenario.nodes.min,
                nodes_max=scenario.nodes.max,
                nproc_per_node=scenario.job.nproc_per_node,
                max_restarts=scenario.job.max_restarts,
                limit_s=scenario.limit,
                settings={"log_patterns": [clause.pattern for clause in log_clauses]},
                format=HISTORY_FORMAT,
            ),
        )
        # The engine's clock starts here: arming holds must come before any worker can say hello.
        self._tell(m.TimePassed())
        # Links draw from the run's own seed, so that the same plan meets the same losses.
        self._cluster.reset(self._on_ready, seed=str(self._setup.plan.seed.value))

    def _on_ready(self, outcome: ClusterError | None) -> None:
        if isinstance(outcome, ClusterError):
            self._on_begun(outcome)
        elif self._end is None:
            self._link_clock.start()
            self._stage.begin(self._setup.plan.scenario.initial_nodes, self._on_begun)

    def on_cluster_event(self, event: ClusterEvent) -> None:
        """Pass on what happens on the cluster."""
        self._stage.on_cluster_event(event)

    def tell(self, given: m.EngineInput) -> None:
        """Give the engine an input of a running test (an entry, a clause, the timeline's end)."""
        self._tell(given)

    def listen(self, callback: Callable[[], None]) -> None:
        """Call back after every turn of events, until the run is over (once more then)."""
        self._listeners.append(callback)

    def stop(self, reason: str) -> None:
        """End the run now, as it stands, as its test wants; harmless when it is ending."""
        if self._end is None:
            self._tell(m.RunStopped(reason=reason))

    def _abort(self, reason: str) -> None:
        """End the run, because the harness cannot go on: it says unknown."""
        self._fail(reason)
        if self._end is None:
            self._finish(m.EndRun(outcome="aborted", reason=reason.partition("\n")[0]))

    def _fail(self, what: str) -> None:
        """Write down what went wrong in the harness itself."""
        self._on_fact("engine", "", HarnessFailed(what=what))

    def pause_clock(self) -> None:
        """Let time stand still for the engine, while somebody is in a debugger; the job runs on."""
        if self._paused_at is None:
            self._paused_at = self._loop.now()
            if self._timer is not None:
                self._timer.cancel()

    def resume_clock(self) -> None:
        """Let time go on; no deadline has come nearer. Harmless when it does."""
        if self._paused_at is not None:
            stood_still_s = self._loop.now() - self._paused_at
            self._paused_at = None
            self._tell(m.TimeStoodStill(seconds=stood_still_s))

    @property
    def is_over(self) -> bool:
        """Tell whether the result has been given."""
        return self._is_finished

    @property
    def stage(self) -> Stage:
        """The run's nodes."""
        return self._stage

    def _on_begun(self, problem: ElasticError | None) -> None:
        # A run that is ended while its launchers are being started takes their nodes away.
        if problem is not None and self._end is None:
            self._abort(f"the job could not be started: {problem}")

    def _on_cluster_lost(self, reason: str) -> None:
        if not self._is_finished:
            self._abort(f"the cluster was lost: {reason}")

    # Facts into the history, and from there into the engine

    def _on_fact(self, source: str, node: str, event: Event) -> None:
        run_id = self._setup.stage.job.run_id
        self._on_record(
            Record(at=self._loop.now(), source=source, node=node, run_id=run_id, event=event)
        )

    def _on_record(self, record: Record) -> None:
        self.history.append(record)
        self._last_lines.see(record)
        self._stage.learn(record)
        self._tell(m.RecordSeen(record=record))
        if isinstance(record.event, ProcessExited) and self.engine.run.have_all_launchers_ended:
            self._logs.catch_up()  # or the run would be over before it was read

    def _on_log_line(self, found: FoundLine) -> None:
        speaker = found.speaker
        if isinstance(speaker, int):
            worker = self.history.worlds.worker_on(found.node, speaker)
            speaker = f"rank {worker.rank}" if worker is not None else WORKER
        matched = LogMatched(
            pattern=found.pattern, line=found.line, by=speaker or "", was_there=found.was_there
        )
        self._on_fact("worker", found.node, matched)

    def _on_file_written(self, path: str, how: str) -> None:
        self._files_told += 1
        if self._files_told > _MOST_FILES or self._is_finished:
            return
        try:
            size = os.stat(os.path.join(self._setup.stage.data_folders[0], path)).st_size
        except OSError:
            size = None
        self._on_fact("cluster", "", FileWritten(path=path, how=how, size=size))

    # The engine and its orders

    def _tell(self, given: m.EngineInput) -> None:
        """Hand the engine an input, once all orders of the one before have been carried out."""
        self._inputs.append(given)
        if len(self._inputs) > 1:
            return
        try:
            if self._is_broken:
                self._inputs.clear()
            while self._inputs:
                for command in self.engine.step(self._inputs[0], self._engine_time()):
                    self._perform(command)
                self._inputs.pop(0)
        except Exception:  # noqa: BLE001 (outermost: the run is undone and says unknown)
            self._inputs.clear()
            self._is_broken = True
            self._abort(f"the harness crashed:\n{traceback.format_exc()}")
        for callback in tuple(self._listeners):
            callback()

    def _engine_time(self) -> float:
        return self._loop.now() if self._paused_at is None else self._paused_at

    def _perform(self, command: m.EngineCommand) -> None:
        match command:
            case m.ArmHold(entry_id=entry_id, step=step, rank=rank):
                self._holds[entry_id] = (step, rank)
                self._observer.arm(step, rank)
            case m.DisarmHold(entry_id=entry_id):
                step, rank = self._holds.pop(entry_id)
                if (step, rank) not in self._holds.values():
                    self._observer.disarm(step, rank)
            case m.ReleaseHold(pid=pid):
                self._observer.release(pid)
            case m.HoldWriting(entry_id=entry_id, node=node, condition=condition):
                self._writers.hold(entry_id, node, condition)
            case m.ReleaseWriting(entry_id=entry_id, node=node, condition=condition):
                self._writers.release(entry_id, node, condition)
            case m.Fire():
                self._injector.fire(command)
            case m.Heal():
                self._injector.heal(command)
            case m.Judge(entry_id=entry_id, clauses=clauses):
                bind = self._setup.checkers.bind
                judged = judge_checks(self.history, [bind(c.name, c.expected) for c in clauses])
                verdicts = tuple((each.text, each.verdict) for each in judged)
                self._tell(m.ClausesJudged(entry_id=entry_id, verdicts=verdicts))
            case m.WatchLog(pattern=pattern, node=node):
                self._logs.watch(re.compile(pattern), node)
            case m.WakeAt(at=at):
                if self._timer is not None:
                    self._timer.cancel()
                if self._paused_at is None:
                    self._timer = self._loop.call_at(at, lambda: self._tell(m.TimePassed()))
            case m.RecordEvent(source=source, node=node, event=event):
                self._on_fact(source, node, event)
            case m.EndRun():
                self._finish(command)
            case _:
                assert_never(command)

    # The end

    def _finish(self, end: m.EndRun) -> None:
        if self._end is not None:
            return
        self._end = end
        if self._timer is not None:
            self._timer.cancel()
        self._on_fact("engine", "", self._logs.output_read())
        ended = RunEnded(
            outcome=end.outcome,
            reason=end.reason,
            exit_codes={**end.exit_codes, **self._stage.exit_codes},
            ended_by_faults=end.ended_by_faults,
            planned=sum(len(self.history.of_kind(each)) for each in (ClausePlanned, FaultPlanned)),
        )
        self._on_fact("engine", "", ended)
        # Not from inside the engine's turn: what follows makes inputs of its own.
        self._loop.call_soon(self._look_why)

    def _look_why(self) -> None:
        """Take down what is gone after the teardown: last lines, and where ranks hang."""
        assert self._end is not None, "a run that looks why has ended"
        if (last := self._last_lines.of_first_failure(self.history)) is not None:
            self._on_fact("worker", *last)
        ask_for_stacks(
            self._loop,
            self._observer.stack_sources if self._end.outcome in {"limit", "unmet"} else (),
            self._stage.signal,
            lambda node, seen: self._on_fact("worker", node, seen),
            self._undo_faults,
        )

    def _undo_faults(self) -> None:
        is_past = False

        def go_on(problems: Mapping[str, str]) -> None:
            nonlocal is_past
            if is_past:
                return
            is_past = True
            limit.cancel()
            for entry_id, problem in problems.items():
                self._fail(f"fault {entry_id} could not be undone: {problem}")
            self._stage.find_survivors(self._count_packets)

        limit = self._loop.call_at(
            self._loop.now() + _HEAL_LIMIT_S,
            lambda: go_on({"all": f"no end within {_HEAL_LIMIT_S:g} s"}),
        )
        self._injector.heal_all(go_on)

    def _count_packets(self) -> None:
        self._stage.close()

        def on_counted(outcome: NetworkCounters | ClusterError) -> None:
            if isinstance(outcome, ClusterError):
                self._fail(f"whether the harness dropped packets is not known: {outcome}")
            else:
                self._link_clock.note(outcome.links)
                if lost := sum(outcome.own_drops.values()):
                    self._on_fact("cluster", "", SwitchDropped(packets=lost))
            self._link_clock.close()
            self._cluster.reset(self._on_reset)

        if self._cluster.capabilities.has("network"):
            self._cluster.counters(on_counted)
        else:
            self._cluster.reset(self._on_reset)

    def _on_reset(self, outcome: ClusterError | None) -> None:
        if isinstance(outcome, ClusterError):
            self._fail(f"the cluster is not clean: {outcome}")
        self._logs.close()
        self._log_clock.close()
        self._writers.close()
        self._files.close()
        self._observer.close()
        self._on_fact("engine", "", RunClosed(digest=self.history.digest))
        self.history.close()
        assert self._end is not None, "a run is reset when it has ended"
        end = self._end
        self._is_finished = True
        result = RunResult(
            outcome=end.outcome,
            reason=end.reason,
            exit_codes={**end.exit_codes, **self._stage.exit_codes},
            history=self.history,
            targets=self.engine.resolved,
            checkers=self._setup.checkers,
        )
        for callback in tuple(self._listeners):
            callback()
        self._on_done(result)
