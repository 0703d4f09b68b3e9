"""A scenario's run in virtual time: the same engine, faults and checkers, over simulated nodes."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from elastic_harness.cluster.process import ProcessRef
from elastic_harness.faults.injector import Injector
from elastic_harness.future import Future, run
from elastic_harness.history.checkers.library import STANDARD
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.history.events import (
    HISTORY_FORMAT,
    HarnessFailed,
    RunClosed,
    RunEnded,
    RunStarted,
)
from elastic_harness.history.history import History
from elastic_harness.scenario.engine import messages as m
from elastic_harness.scenario.engine.engine import EngineMachine
from elastic_harness.scenario.engine_run import EngineRun
from elastic_harness.scenario.launchers import JobPlan, launcher_named
from elastic_harness.scenario.model import Scenario
from elastic_harness.scenario.planning.planned_clauses import clauses_in
from elastic_harness.scenario.planning.planner import Plan
from elastic_harness.scenario.runner import RunResult
from elastic_harness.scenario.stage.plan import StagePlan
from elastic_harness.scenario.stage.stage import Stage
from elastic_harness.scenario.triggers import LogCondition, WritingCondition

from elastic_simulation.process import Process
from elastic_simulation.scenarios.cluster import SimulatedCluster
from elastic_simulation.scenarios.job_world import JobWorld
from elastic_simulation.scenarios.training import Script, Training
from pytest_elastic.config import DEFAULT_FAILURE_GRACE_S, DEFAULT_SHUTDOWN_TIMEOUT_S
from pytest_elastic.errors import UsageError
from pytest_elastic.events.model import Event, Record
from pytest_elastic.loop import Timer
from pytest_elastic.rdzv_conf import parse_rdzv_conf
from pytest_elastic.rendezvous.settings import Settings, settings_of

if TYPE_CHECKING:
    from elastic_harness.cluster.cluster import ClusterEvent
    from elastic_harness.faults.registry import FaultRegistry

    from pytest_elastic.loop import Loop

__all__ = ["SimulatedProbes", "SimulatedRun", "why_not"]

T = TypeVar("T")

_LAUNCHER = "pytest-elastic"
_RUN_ID = "job"
_PORT = 1000  # where simulated agents are
# Faults of the control plane, and of what its machines can see.
_FAULTS = frozenset(
    {
        "check",
        "crash",
        "degrade",
        "exit",
        "heal",
        "join",
        "kill",
        "kill_agent",
        "leave",
        "partition",
        "pause",
        "power_cut",
        "preempt",
        "raise",
        "reboot",
        "replace",
    }
)
_PRINT_NOTHING = "simulated processes print nothing"
_CLAUSES = {
    "samples": "simulated workers read no data",
    "epochs": "simulated workers read no data",
    "optimizer": "simulated workers have no optimizer",
    "log_contains": _PRINT_NOTHING,
}
_SCRIPT = "train.py"
# Settings of the rendezvous that the simulated machines have, as launchers are told them.
_CONF = {
    *("beat_interval", "lease", "drift", "last_call_timeout", "join_timeout", "min_round"),
    *("newcomer_window", "linger", "store_timeout", "quorum"),
}
_TEARDOWN_S = 60.0


def why_not(plan: Plan) -> str | None:
    """Say why a plan cannot be simulated; None if it can."""
    scenario = plan.scenario
    job = scenario.job
    if job.launcher not in {None, _LAUNCHER}:
        return f"only {_LAUNCHER} is simulated, not {job.launcher!r}"
    if job.script is None or os.path.basename(job.script) != _SCRIPT:
        return f"simulated workers play {_SCRIPT}, and no other program"
    if job.rdzv.backend != "c10d" or scenario.proxies:
        return "the only rendezvous that is simulated is c10d, without proxies"
    unknown = sorted(set(job.rdzv.conf) - _CONF)
    if unknown:
        return f"the setting {unknown[0]!r} of the rendezvous is not simulated"
    for planned in plan.entries:
        action = planned.entry.action
        if action.name not in _FAULTS:
            return f"{planned.id}: {action.name} is no fault of the control plane"
        if isinstance(action.value, Mapping) and action.value.get("traffic"):
            return f"{planned.id}: simulated links do not tell classes of traffic apart"
        if isinstance(planned.entry.when, WritingCondition):
            return f"{planned.id}: simulated workers write no files"
        if isinstance(planned.entry.when, LogCondition) or isinstance(
            planned.entry.until, LogCondition
        ):
            return f"{planned.id}: {_PRINT_NOTHING}"
    expect = scenario.expect
    conditions = [*expect.never, *expect.sometimes, *(each.condition for each in expect.eventually)]
    for condition in conditions:
        if isinstance(condition, LogCondition):
            return f"{condition}: {_PRINT_NOTHING}"
    for _, clause, _ in clauses_in(scenario):
        if clause.name in _CLAUSES:
            return f"{clause.name}: {_CLAUSES[clause.name]}"
    return None


def _script_of(args: Sequence[str]) -> Script:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--step-time", type=float, default=0.01)
    known, _ = parser.parse_known_args(list(args))
    return Script(
        steps=known.steps,
        checkpoint_every=known.checkpoint_every,
        step_s=max(known.step_time, 0.005),
    )


def _settings_of(scenario: Scenario) -> Settings:
    conf = {**launcher_named(_LAUNCHER).conf, **scenario.job.rdzv.conf}
    known = parse_rdzv_conf(",".join(f"{name}={conf[name]}" for name in sorted(_CONF & set(conf))))
    options = " ".join(scenario.job.options)
    shutdown_timeout_s = _seconds_of("--shutdown-timeout", options, DEFAULT_SHUTDOWN_TIMEOUT_S)
    grace_s = min(DEFAULT_FAILURE_GRACE_S, shutdown_timeout_s)
    return settings_of(
        known,
        run_id=_RUN_ID,
        min_nodes=scenario.nodes.min,
        max_nodes=scenario.nodes.max,
        max_restarts=scenario.job.max_restarts,
        shutdown_timeout_s=shutdown_timeout_s,
        failure_grace_s=_seconds_of("--failure-grace", options, grace_s),
        endpoints=scenario.endpoint_hosts,
    )


def _seconds_of(option: str, options: str, default: float) -> float:
    given = re.search(rf"{option}[= ](\d+(?:\.\d+)?)", options)
    return float(given.group(1)) if given else default


def _stage_plan(plan: Plan, directory: str) -> StagePlan:
    """Return what is launched: the same command as on real nodes, but for what is not simulated."""
    scenario = plan.scenario
    job = scenario.job
    return StagePlan(
        launcher=launcher_named(_LAUNCHER),
        job=JobPlan(
            run_id=_RUN_ID,
            program=(_SCRIPT, *job.args),
            nproc_per_node=job.nproc_per_node,
            min_nodes=scenario.nodes.min,
            max_nodes=scenario.nodes.max,
            max_restarts=job.max_restarts,
            endpoint_port=_PORT,
            conf=job.rdzv.conf,
            options=job.options,
        ),
        environ={},
        cwd="/",
        log_dir=os.path.join(directory, "logs"),
        shared=(),
        endpoints=scenario.endpoint_hosts,
        seed=plan.seed.value,
    )


class SimulatedProbes:
    """What faults ask of a worker's probe (`Probes`), answered by a `Training`."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def enter_again(self, node: str) -> None:
        """Do nothing: simulated workers have no working folder."""

    def order(self, process: ProcessRef, order: Mapping[str, Any]) -> bool:
        return self._training.order(process.pid, order)

    def answer_of(self, process: ProcessRef, by: str) -> Mapping[str, Any]:
        worker = self._training.workers.get(process.pid)
        is_that = worker is not None and worker.answer.get("by") == by
        return worker.answer if worker is not None and is_that else {}

    def steps_of(self, process: ProcessRef) -> int:
        worker = self._training.workers.get(process.pid)
        return worker.count if worker is not None else 0


class SimulatedRun(EngineRun):
    """One run; `run` returns when it is over, a moment later in real time."""

    def __init__(
        self,
        plan: Plan,
        faults: FaultRegistry,
        *,
        directory: str | None = None,
        checkers: Registry = STANDARD,
    ) -> None:
        problem = why_not(plan)
        if problem is not None:
            raise UsageError(f"cannot simulate scenario {plan.scenario.id!r}: {problem}")
        self._plan = plan
        scenario = plan.scenario
        path = os.path.join(directory, "history.jsonl") if directory is not None else None
        # The stage makes folders for what launchers say, and simulated ones say nothing.
        self._folder = tempfile.TemporaryDirectory() if directory is None else None
        self.world = JobWorld(
            _settings_of(scenario),
            _script_of(scenario.job.args),
            on_event=self._on_fact,
            on_exit=self._on_exit,
        )
        engine = EngineMachine(plan, faults, checkers=checkers)
        super().__init__(engine, History(path), checkers, self.world.training)
        self.cluster = SimulatedCluster(self.world, on_event=self._on_cluster_event)
        self._stage = Stage(
            cast("Loop", self),
            self.cluster,
            _stage_plan(plan, directory or self._folder_name),
            probes=SimulatedProbes(self.world.training),
            on_fact=self._on_fact,
            on_lost=lambda what: self._on_fact("engine", "", HarnessFailed(what=what)),
        )
        self._injector = Injector(self._stage.context, faults.parse, self, self._tell)
        self._alarm: Timer | None = None

    @property
    def _folder_name(self) -> str:
        return self._folder.name if self._folder is not None else ""

    # --- a scheduler, for faults -------------------------------------------------------------

    def now(self) -> float:
        """Return the time in the world."""
        return self.world.time

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back once."""
        timer = Timer(when, callback)
        self.world.later(max(when - self.world.time, 0.0), timer.fire)
        return timer

    # --- the life of a run -------------------------------------------------------------------

    def run(self) -> RunResult:
        """Run the scenario to its end and judge it."""
        scenario = self._plan.scenario
        self._on_fact(
            "engine",
            "",
            RunStarted(
                scenario=scenario.id,
                seed=self._plan.seed.value,
                launcher=_LAUNCHER,
                cluster="simulated",
                nodes_initial=scenario.nodes.initial,
                nodes_min=scenario.nodes.min,
                nodes_max=scenario.nodes.max,
                nproc_per_node=scenario.job.nproc_per_node,
                max_restarts=scenario.job.max_restarts,
                limit_s=scenario.limit,
                format=HISTORY_FORMAT,
            ),
        )
        self._tell(m.TimePassed())
        # The first node that begins hosts the rendezvous.
        names = sorted(scenario.initial_nodes, key=lambda name: name != scenario.store_host)
        begun = run(self, self._stage.begin(names))
        self.world.run_until(lambda: self._end is not None, within_s=scenario.limit + 1.0)
        assert begun.error is None, f"simulated nodes begin at once: {begun.error}"
        self._undo()
        self._wait_for(run(self, self._stage.find_survivors()))
        return self._result()

    def _undo(self) -> None:
        for name, why in self._wait_for(self._injector.heal_all()).items():
            failed = HarnessFailed(what=f"fault {name} could not be undone: {why}")
            self._on_fact("engine", "", failed)

    def _wait_for(self, future: Future[T]) -> T:
        """Let time pass until something of the teardown is done."""
        if not future.is_done:
            self.world.run_until(lambda: future.is_done, within_s=_TEARDOWN_S)
        return future.result()

    def _result(self) -> RunResult:
        assert self._end is not None, "a run is judged when it has ended"
        self._on_fact("engine", "", RunClosed(digest=self.history.digest))
        self.history.close()
        if self._folder is not None:
            self._folder.cleanup()
        return RunResult(
            outcome=self._end.outcome,
            reason=self._end.reason,
            exit_codes={**self._end.exit_codes, **self._stage.exit_codes},
            history=self.history,
            checkers=self._checkers,
        )

    # --- facts and orders --------------------------------------------------------------------

    def _on_exit(self, process: Process) -> None:
        self.cluster.on_exit(process)

    def _on_cluster_event(self, event: ClusterEvent) -> None:
        self._stage.on_cluster_event(event)

    def _on_fact(self, source: str, node: str, event: Event) -> None:
        record = Record(at=self.world.time, source=source, node=node, run_id=_RUN_ID, event=event)
        self.history.append(record)
        self._tell(m.RecordSeen(record=record))

    def _engine_time(self) -> float:
        return self.world.time

    def _wake_at(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.call_at(at, lambda: self._tell(m.TimePassed()))

    def _hold_writing(self, order: m.HoldWriting | m.ReleaseWriting) -> None:
        raise AssertionError("simulated workers write no files, as `why_not` says")

    def _watch_log(self, order: m.WatchLog) -> None:
        raise AssertionError(f"{_PRINT_NOTHING}, and `why_not` has refused what asks")

    def _finish(self, end: m.EndRun) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        ended = RunEnded(
            outcome=end.outcome,
            reason=end.reason,
            exit_codes={**end.exit_codes, **self._stage.exit_codes},
            ended_by_faults=end.ended_by_faults,
        )
        self._on_fact("engine", "", ended)
