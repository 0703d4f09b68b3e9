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

from elastic_harness.cluster.cluster import ClusterEvent, LiveCluster
from elastic_harness.faults.injector import Injector
from elastic_harness.future import Future, Steps, Within, run
from elastic_harness.history.checkers.library import STANDARD
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.history.events import (
    HISTORY_FORMAT,
    ClausePlanned,
    ClockCompared,
    FaultPlanned,
    FilesUnseen,
    FileWritten,
    HarnessFailed,
    LogMatched,
    PoliciesSpread,
    ProcessExited,
    RunClosed,
    RunEnded,
    RunStarted,
    SwitchDropped,
)
from elastic_harness.history.history import History
from elastic_harness.history.judge import Judgement, judge
from elastic_harness.observe.last_lines import LastLines
from elastic_harness.observe.observer import Observer
from elastic_harness.observe.stacks import ask_for_stacks
from elastic_harness.scenario.engine import messages as m
from elastic_harness.scenario.engine.engine import EngineMachine
from elastic_harness.scenario.engine_run import EngineRun
from elastic_harness.scenario.planning.planned_clauses import clauses_in
from elastic_harness.scenario.planning.planner import PinnedTargets, Plan
from elastic_harness.scenario.stage.clocks import LINK_COUNTS, LOG_TIMES, LinkClock, LogClock
from elastic_harness.scenario.stage.held_writers import HeldWriters
from elastic_harness.scenario.stage.log_source import WORKER
from elastic_harness.scenario.stage.log_watch import FoundLine, LogWatch
from elastic_harness.scenario.stage.plan import StagePlan
from elastic_harness.scenario.stage.stage import Stage
from elastic_harness.toxiproxy.remote import RemoteToxiproxy
from pytest_elastic.errors import ElasticError
from pytest_elastic.events.model import Event, Record
from pytest_elastic.loop import Loop, Timer

if TYPE_CHECKING:
    from elastic_harness.faults.registry import FaultRegistry

__all__ = ["Run", "RunResult"]

# What a job saves is told file by file. A log that is opened and closed at each step of each rank
# makes thousands; a history of more than this is read slowly.
_MOST_FILES = 20_000
# Undoing a fault is bounded by the fault itself; this bounds all of them together.
_HEAL_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run went: `outcome` and `reason` as in `RunEnded`.

    `exit_codes` are the launchers', by node; negative: ended by that signal. `targets` are the
    targets drawn at random, for a replay. The verdict is in the history: `judgements` reads it
    there.
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


class Run(EngineRun):
    """One run, in the loop's thread; `finished` has its result once all is clean again.

    `directory` exists, is empty, and is the run's own; probes report at `socket_path`. `is_open`: a
    test goes on with the timeline while the run is under way.
    """

    def __init__(
        self,
        loop: Loop,
        cluster: LiveCluster,
        plan: Plan,
        stage: StagePlan,
        faults: FaultRegistry,
        *,
        directory: str,
        socket_path: str,
        is_open: bool = False,
        checkers: Registry = STANDARD,
        toxiproxy: RemoteToxiproxy | None = None,
    ) -> None:
        names = {clause.name for _, clause, _ in clauses_in(plan.scenario)}
        wanted = {what for name in names for what in checkers.find(name).observes}
        self._observer = Observer(
            loop,
            cluster.reporters,
            socket_path,
            self._on_record,
            hash_parameters=is_open or "state" in wanted,
            observe_samples=is_open or "samples" in wanted,
            observe_rate=is_open or "learning_rate" in wanted,
        )
        engine = EngineMachine(
            plan, faults, is_open=is_open, patience=stage.patience, checkers=checkers
        )
        history = History(os.path.join(directory, "history.jsonl"))
        super().__init__(engine, history, checkers, self._observer)
        self._loop = loop
        self._cluster = cluster
        self._plan = plan
        self._launched = stage
        self.finished: Future[RunResult] = Future()
        self._hangs = False
        self._stage = Stage(
            loop,
            cluster,
            stage,
            probes=self._observer,
            on_fact=self._on_fact,
            on_lost=self._on_cluster_lost,
            toxiproxy=toxiproxy,
        )
        self._injector = Injector(self._stage.context, faults.parse, loop, self._tell)
        self._logs = LogWatch(
            loop,
            cluster.logs,
            stage.log_dir,
            self._on_log_line,
            log_source_of=stage.log_source_of,
        )
        log_times = os.path.join(directory, LOG_TIMES)
        self._log_clock = LogClock(loop, cluster.logs, stage.log_dir, log_times)
        self._link_clock = LinkClock(loop, cluster, os.path.join(directory, LINK_COUNTS))
        self._last_lines = LastLines(cluster.logs, stage.log_dir, stage.launcher.own_lines)
        self._writers = HeldWriters(loop, self._stage.context, self._on_fact, self._fail)
        self._stop_watching_files: Callable[[], None] = lambda: None
        self._files_told = 0
        self._timer: Timer | None = None
        self._paused_at: float | None = None
        self._listeners: list[Callable[[], None]] = []
        self._is_broken = False  # the engine has crashed: it is not asked any more

    # The life of a run

    def start(self) -> None:
        """Start the nodes, the launchers, and the engine's clock."""
        scenario = self._plan.scenario
        log_clauses = [
            self._checkers.bind(clause.name, clause.expected).parameters
            for _, clause, _ in clauses_in(scenario)
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
                seed=self._plan.seed.value,
                launcher=self._launched.launcher.name,
                cluster=self._cluster.kind,
                nodes_initial=scenario.nodes.initial,
                nodes_min=scenario.nodes.min,
                nodes_max=scenario.nodes.max,
                nproc_per_node=scenario.job.nproc_per_node,
                max_restarts=scenario.job.max_restarts,
                limit_s=scenario.limit,
                settings={
                    "log_patterns": [clause.pattern for clause in log_clauses],
                    "gives_max_restarts": self._launched.launcher.gives_max_restarts,
                    "counts_by_node": self._launched.launcher.counts_by_node,
                },
                format=HISTORY_FORMAT,
            ),
        )
        self._stop_watching_files = self._cluster.files.watch(
            self._launched.data_folders[0], self._on_file_written, self._on_files_unseen
        )
        # The engine's clock starts here: arming holds must come before any worker can say hello.
        self._tell(m.TimePassed())
        run(self._loop, self._begin())

    def _begin(self) -> Steps[None]:
        try:
            # Links draw from the run's own seed, so that the same plan meets the same losses.
            yield from self._cluster.reset(seed=str(self._plan.seed.value))
            if self._end is None:
                self._link_clock.start()
                yield from self._stage.begin(self._plan.scenario.initial_nodes)
        except ElasticError as problem:
            # A run that is ended while its launchers are being started takes their nodes away.
            if self._end is None:
                self._abort(f"the job could not be started: {problem}")

    def on_cluster_event(self, event: ClusterEvent) -> None:
        """Pass on what happens on the cluster."""
        self._stage.on_cluster_event(event)

    def tell(self, given: m.EngineInput) -> None:
        """Give the engine an input of a running test (an entry, a clause, the timeline's end)."""
        self._tell(given)

    def listen(self, callback: Callable[[], None]) -> None:
        """Call back after every turn of events, until the run is over (once more then)."""
        self._listeners.append(callback)

    def stop(self, reason: str, *, hangs: bool = False) -> None:
        """End the run now, as it stands, as its test wants; harmless when it is ending.

        With `hangs` it is recorded where its workers stand, as at the limit.
        """
        if self._end is None:
            self._hangs = hangs
            self._tell(m.RunStopped(reason=reason))

    def _abort(self, reason: str) -> None:
        """End the run, because the harness cannot go on: it says unknown."""
        self._fail(reason)
        self._perform(m.EndRun(outcome="aborted", reason=reason.partition("\n")[0]))

    def _fail(self, what: str) -> None:
        """Write down what went wrong in the harness itself."""
        self._on_fact("engine", "", HarnessFailed(what=what))

    def pause_clock(self) -> None:
        """Stop the engine's clock while a debugger is open; the job runs on."""
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
        return self.finished.is_done

    @property
    def stage(self) -> Stage:
        """The run's nodes."""
        return self._stage

    def _on_cluster_lost(self, reason: str) -> None:
        if not self.is_over:
            self._abort(f"the cluster was lost: {reason}")

    # Facts into the history, and from there into the engine

    def _on_fact(self, source: str, node: str, event: Event) -> None:
        if self.is_over:  # a fault that a test asks for too late
            self.history.append_after_end(event)
            return
        run_id = self._launched.job.run_id
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
        source = found.source
        if isinstance(source, int):
            worker = self.history.worlds.worker_on(found.node, source)
            source = f"rank {worker.rank}" if worker is not None else WORKER
        matched = LogMatched(
            pattern=found.pattern, line=found.line, by=source or "", was_there=found.was_there
        )
        self._on_fact("worker", found.node, matched)

    def _on_file_written(self, path: str, how: str, size: int | None) -> None:
        if self.is_over or self._files_told > _MOST_FILES:
            return
        self._files_told += 1
        if self._files_told > _MOST_FILES:
            self._on_files_unseen(f"more than {_MOST_FILES} files were written")
            return
        self._on_fact("cluster", "", FileWritten(path=path, how=how, size=size))

    def _on_files_unseen(self, reason: str) -> None:
        if not self.is_over:
            self._on_fact("cluster", "", FilesUnseen(reason=reason))

    # The engine and its orders

    def _tell(self, given: m.EngineInput) -> None:
        is_inner = bool(self._inputs)
        try:
            if not self._is_broken:
                super()._tell(given)
        except Exception:  # noqa: BLE001 (outermost: the run is undone and says unknown)
            self._inputs.clear()
            self._is_broken = True
            self._abort(f"the harness crashed:\n{traceback.format_exc()}")
        for callback in tuple(self._listeners) if not is_inner else ():
            callback()

    def _engine_time(self) -> float:
        return self._loop.now() if self._paused_at is None else self._paused_at

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._paused_at is None:
            self._timer = self._loop.call_at(at, lambda: self._tell(m.TimePassed()))

    def _hold_writing(self, order: m.HoldWriting | m.ReleaseWriting) -> None:
        do = self._writers.hold if isinstance(order, m.HoldWriting) else self._writers.release
        do(order.entry_id, order.node, order.condition)

    def _watch_log(self, order: m.WatchLog) -> None:
        self._logs.watch(re.compile(order.pattern), order.node)

    # The end

    def _finish(self, end: m.EndRun) -> None:
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
        self._loop.call_soon(lambda: self._begin_teardown(end))

    def _begin_teardown(self, end: m.EndRun) -> None:
        run(self._loop, self._tear_down(end))

    def _tear_down(self, end: m.EndRun) -> Steps[None]:
        """Undo everything, in the order of the file's first lines, and give the result."""
        # What is gone after the teardown: last lines, and where ranks hang.
        if (last := self._last_lines.of_first_failure(self.history)) is not None:
            self._on_fact("worker", *last)
        hangs = self._hangs or end.outcome in {"limit", "unmet"}
        sources = self._observer.stack_sources if hangs else ()
        for node, seen in (yield from ask_for_stacks(self._cluster, sources)):
            self._on_fact("worker", node, seen)
        try:
            yield Within(healed := self._injector.heal_all(), _HEAL_LIMIT_S, "healing")
            problems = healed.result()
        except ElasticError:
            problems = {"all": f"no end within {_HEAL_LIMIT_S:g} s"}
        for entry_id, problem in problems.items():
            self._fail(f"fault {entry_id} could not be undone: {problem}")
        yield from self._stage.find_survivors()
        self._stage.close()
        if self._cluster.network is not None:
            try:
                counters = yield from self._cluster.network.counters()
                self._link_clock.note(counters.links)
                if lost := sum(counters.own_drops.values()):
                    self._on_fact("cluster", "", SwitchDropped(packets=lost))
                if counters.spread_s:
                    self._on_fact("cluster", "", PoliciesSpread(within_s=counters.spread_s))
            except ElasticError as problem:
                self._fail(f"whether the harness dropped packets is not known: {problem}")
        self._link_clock.close()
        for node, error_s in self._cluster.clock_errors.items():
            self._on_fact("cluster", node, ClockCompared(error_s=error_s))
        try:
            yield from self._cluster.reset()
        except ElasticError as problem:
            self._fail(f"the cluster is not clean: {problem}")
        self._logs.close()
        self._log_clock.close()
        self._writers.close()
        self._stop_watching_files()
        self._observer.close()
        self._on_fact("engine", "", RunClosed(digest=self.history.digest))
        self.history.close()
        result = RunResult(
            outcome=end.outcome,
            reason=end.reason,
            exit_codes={**end.exit_codes, **self._stage.exit_codes},
            history=self.history,
            targets=self.engine.resolved,
            checkers=self._checkers,
        )
        self.finished.settle(result)
        for callback in tuple(self._listeners):
            callback()
