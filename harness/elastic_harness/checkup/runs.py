"""Runs a check-up: two undisturbed runs, then the battery, several at a time."""

from __future__ import annotations

import os
import queue
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field

from elastic_harness.checkup.battery import (
    BATTERY,
    UNDISTURBED,
    Checkup,
    FaultTest,
    NotKnown,
    Unfit,
    reference_scenario,
    scenario_text,
)
from elastic_harness.checkup.card import (
    Row,
    judge_undisturbed,
    row_of,
    row_without_run,
    what_is_wrong_without_a_fault,
)
from elastic_harness.checkup.checkpoint_reader import CheckpointReader
from elastic_harness.checkup.measured import (
    Measured,
    measure,
    pattern_of,
    why_not_comparable,
    without_unseeded,
    without_what_differs,
)
from elastic_harness.checkup.saved_state import (
    Part,
    Saved,
    is_lost,
    last_saved,
    of_another_step,
    other_numbers,
    what_differs,
    why_not_compared,
)
from elastic_harness.cluster.choose import ClusterChoice
from elastic_harness.history.judge import Judgement, judge
from elastic_harness.history.verdict import Verdict, invalid, unknown
from elastic_harness.report.cause import node_of_first_failure
from elastic_harness.report.last_words import last_words
from elastic_harness.report.run_directory import RunDirectory, create_run_directory
from elastic_harness.scenario.checks.scenario_checks import needed_capabilities
from elastic_harness.scenario.launchers import Launcher
from elastic_harness.scenario.planning.planner import encode_plan, make_plan
from elastic_harness.scenario.reading.loader import SUFFIX, LoadedScenario, load_file
from elastic_harness.scenario.runner import RunResult
from elastic_harness.session import HarnessSession, OpenRun
from pytest_elastic.errors import UsageError

__all__ = ["Runs", "Settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where and how a check-up runs; `folder` gets the scenario files, `artifacts` the runs."""

    choice: ClusterChoice
    launcher: Launcher
    folder: str
    artifacts: str
    seed: int
    jobs: int
    environ: Mapping[str, str]
    command: str
    patience: float = 1.0


@dataclass(slots=True)
class Runs:
    """The runs of one check-up. `close` ends everything that was started."""

    settings: Settings
    checkup: Checkup
    program: str
    notes: list[str] = field(default_factory=list)
    _idle: queue.SimpleQueue[HarnessSession] = field(default_factory=queue.SimpleQueue)
    _sessions: list[HarnessSession] = field(default_factory=list)
    _open: set[OpenRun] = field(default_factory=set)
    _under_way: dict[str, float] = field(default_factory=dict)  # since when, by directory
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_stopped: bool = False
    _reader: CheckpointReader | None = None
    _undisturbed: Sequence[Mapping[str, Part] | None] = ()  # what the two runs saved last
    _saved: Saved | None = None  # by the first of them
    _other_numbers: dict[str, list[str]] = field(default_factory=dict)  # tests, by name
    _not_compared: list[str] = field(default_factory=list)  # tests whose last checkpoint was not

    def measure(self) -> tuple[Measured, Row]:
        """Run the job twice without a fault; return what that shows, and its row of the card.

        Raises UsageError for a script that no fault can be tried on.
        """
        loaded = self._load(UNDISTURBED, reference_scenario(self.checkup))
        self._reader = CheckpointReader()
        with self._several(2) as pool:
            runs = [pool.submit(self._run, loaded) for _ in range(2)]
            found = [each.result() for each in runs]
        found.sort(key=lambda each: each[0].outcome == "succeeded")  # what failed says more
        one, other = (
            measure(
                result.history,
                result.outcome,
                result.reason,
                self.program,
                said=_said_where_it_failed(result, directory),
            )
            for result, directory in found
        )
        first = self._saved = last_saved(found[0][0].history, one)
        saved = [first, last_saved(found[1][0].history, one, first)]
        self._undisturbed = [
            self._read(directory, last) for (_, directory), last in zip(found, saved, strict=True)
        ]
        for _, directory in found:
            self._forget_work(directory)
        why = why_not_comparable(one, other)
        if why:
            self.notes.append(
                "two runs without any fault were not alike, so that no run is compared with them: "
                f"{why}"
            )
            one = without_what_differs(one, other)
        elif not all(self._undisturbed) and one.checkpoints is not None and one.state is not None:
            self.notes.append(why_not_compared(one.checkpoints.named, saved))
        one = without_unseeded(one, other)
        self._load(UNDISTURBED, reference_scenario(self.checkup, one))
        result, directory = found[0]
        if wrong := what_is_wrong_without_a_fault(result.history):
            self.notes.append(wrong)
        judgements = judge_undisturbed(result.history)
        directory.write_reports(result.history, judgements, command=self.settings.command)
        return one, self._row(UNDISTURBED, "Without any fault", found[0], judgements, one)

    def battery(self, seen: Measured, names: Sequence[str]) -> Iterator[Row]:
        """Run the tests that are named, all if none is; yields each row when it is known."""
        tests = [test for test in BATTERY if not names or test.name in names]
        with self._several(len(tests)) as pool:
            pending = [pool.submit(self._test, test, seen) for test in tests]
            for each in as_completed(pending):
                yield each.result()
        if self._not_compared:
            self.notes.append(of_another_step(sorted(self._not_compared)))
        if self._other_numbers:
            self.notes.append(other_numbers(self._other_numbers))

    def under_way(self) -> str:
        """Say which runs are under way, and for how long; empty between them."""
        with self._lock:
            started = dict(self._under_way)
        now = time.monotonic()
        told = ", ".join(f"{os.path.basename(d)} {now - at:.0f} s" for d, at in started.items())
        return f"  under way: {told}" if told else ""

    def close(self) -> None:
        """End the runs that are under way, and the clusters."""
        self._is_stopped = True
        with self._lock:
            opened = list(self._open)
        for each in opened:
            each.stop("the check-up was interrupted")
        for session in self._sessions:
            session.close()
        if self._reader is not None:
            self._reader.close()

    @contextmanager
    def _several(self, at_most: int) -> Iterator[ThreadPoolExecutor]:
        """Give as many threads as there may be runs at a time, and a cluster for each."""
        jobs = max(1, min(self.settings.jobs, at_most))
        while len(self._sessions) < jobs:
            session = HarnessSession(self.settings.choice, patience=self.settings.patience)
            self._sessions.append(session)
            self._idle.put(session)
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            try:
                yield pool
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.close()
                raise

    def _test(self, test: FaultTest, seen: Measured) -> Row:
        try:
            loaded = self._load(test.name, scenario_text(test, self.checkup, seen))
        except Unfit as reason:
            return row_without_run(test.name, test.title, str(reason))
        except NotKnown as reason:
            return row_without_run(test.name, test.title, str(reason), "unknown")
        session = self._sessions[0]
        needed = needed_capabilities(loaded.scenario, session.faults)
        missing = self.settings.choice.capabilities.missing(needed)
        if missing:
            reasons = "; ".join(f"{each.name}: {each.reason}" for each in missing)
            return row_without_run(
                test.name, test.title, f"needs what this machine lacks: {reasons}"
            )
        result, directory = self._run(loaded)
        if seen.state is not None:
            result.history.append_after_end(seen.state)
        judgements = list(judge(result.history))
        if test.allows is not None and test.allows(self.checkup, seen) is None:
            judgements.append(_judged("steps_lost", unknown(seen.unseen["checkpoints"])))
        if test.is_fixed and seen.state is not None and result.outcome == "succeeded":
            judgements += self._judge_saved(test.name, result, directory, seen, judgements)
        directory.write_reports(result.history, judgements, command=self.settings.command)
        row = self._row(test.name, test.title, (result, directory), judgements, seen)
        if row.outcome == "valid":
            self._forget_work(directory)
        return row

    def _judge_saved(
        self,
        test: str,
        result: RunResult,
        directory: RunDirectory,
        seen: Measured,
        judgements: Sequence[Judgement],
    ) -> list[Judgement]:
        """Compare what a run saved last with what the undisturbed runs did."""
        one, other = self._undisturbed
        if not one or not other:
            return []
        of_parameters = [each.verdict for each in judgements if each.name == "parameters"]
        is_as_it_was = any(verdict.is_valid for verdict in of_parameters)
        saved = last_saved(result.history, seen, self._saved)
        found = self._read(directory, saved)
        if saved is None or found is None:
            self._not_compared += [test] if is_as_it_was else []
            return []
        if not found:
            wrong = f"the last checkpoint, {saved.path}, cannot be read"
            return [_judged("checkpoint", invalid(wrong))]
        # Before the last step it may be of another one: they are seen late, by a step or two.
        is_same_step = seen.is_global and saved.step == seen.steps
        differ = what_differs(
            one,
            other,
            found,
            # What is averaged, or has small numbers, has a larger share of errors of rounding.
            tolerance=10 * self.checkup.tolerance,
            is_same_step=is_same_step and is_as_it_was,
        )
        if differ is None and is_as_it_was:  # else it holds other parameters, as is said already
            self._not_compared.append(test)
        lost = []
        for name, said in (differ or {}).items():
            if is_lost(name, one[name]):
                lost.append(said)
            else:
                self._other_numbers.setdefault(name, []).append(test)
        if not lost:
            return []
        said = f"beside that of a run without a fault, the last checkpoint has {' and '.join(lost)}"
        return [_judged("checkpoint", invalid(said))]

    def _read(self, directory: RunDirectory, saved: Saved | None) -> Mapping[str, Part] | None:
        """Return the parts of a checkpoint, none if it cannot be read; None if it was not tried."""
        if self._reader is None or saved is None:
            return None
        work = os.path.join(directory.path, "work")
        parts = self._reader.read(os.path.join(work, saved.path))
        if not parts:
            return parts
        beside = {
            # A file without parts of its own has one that is named after it.
            f"{pattern_of(path)} {name}".removesuffix(f" {os.path.basename(path)}"): part
            for path in saved.others
            for name, part in (self._reader.read(os.path.join(work, path)) or {}).items()
        }
        return {**parts, **beside}

    def _row(
        self,
        name: str,
        title: str,
        run: tuple[RunResult, RunDirectory],
        judgements: Sequence[Judgement],
        seen: Measured,
    ) -> Row:
        result, directory = run
        return row_of(
            name,
            title,
            result.history,
            judgements,
            seen,
            tolerance=self.checkup.tolerance,
            directory=os.path.relpath(directory.path),
        )

    @staticmethod
    def _forget_work(directory: RunDirectory) -> None:
        """Remove the copy of the working folder, and what was written there."""
        shutil.rmtree(os.path.join(directory.path, "work"), ignore_errors=True)

    def _load(self, name: str, text: str) -> LoadedScenario:
        path = os.path.join(self.settings.folder, f"{name}{SUFFIX}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        session = self._sessions[0] if self._sessions else HarnessSession(self.settings.choice)
        (loaded,) = load_file(path, session.faults)
        return loaded

    def _run(self, loaded: LoadedScenario) -> tuple[RunResult, RunDirectory]:
        plan = make_plan(loaded.scenario, self.settings.seed)
        directory = create_run_directory(self.settings.artifacts, loaded.scenario.id)
        directory.write_scenario("\n".join(loaded.tree.lines) + "\n")
        directory.write_plan(encode_plan(plan))
        session = self._idle.get()
        try:
            if self._is_stopped:
                raise UsageError("the check-up was interrupted")
            opened = session.open(
                plan,
                self.settings.launcher,
                directory=directory.path,
                base_dir=self.settings.folder,
                cwd=os.getcwd(),
                environ=self.settings.environ,
            )
            with self._lock:
                self._open.add(opened)
                self._under_way[directory.path] = time.monotonic()
            try:
                result = opened.wait()
            finally:
                with self._lock:
                    self._open.discard(opened)
                    self._under_way.pop(directory.path, None)
        finally:
            self._idle.put(session)
        return result, directory


def _said_where_it_failed(result: RunResult, directory: RunDirectory) -> str:
    node = node_of_first_failure(result.history)
    return last_words(directory.end_of_log(node)) if node else ""


def _judged(name: str, verdict: Verdict) -> Judgement:
    """Return a judgement that no clause of the run's scenario asks for."""
    return Judgement(key=name, bucket="asked", name=name, text=name, verdict=verdict)
