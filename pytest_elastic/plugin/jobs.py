"""From what a test asks for to jobs, and from their runs to what is said about the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from elastic_harness.faults.recipe import needs_of
from elastic_harness.faults.registry import FaultRegistry
from elastic_harness.finding import did_you_mean
from elastic_harness.function_worker import pack, read_results, round_key
from elastic_harness.history.history import History
from elastic_harness.job import Job
from elastic_harness.report.run_directory import RunDirectory
from elastic_harness.scenario.actions import CheckedScenario, PlannedAction
from elastic_harness.scenario.checks.launcher_options import check_options
from elastic_harness.scenario.checks.scenario_checks import check_scenario, needed_capabilities
from elastic_harness.scenario.model import Clause, Entry, Scenario, Storm, storm_id, storm_of
from elastic_harness.scenario.planning.planned_clauses import NO_WORKERS
from elastic_harness.scenario.planning.planner import make_plan
from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.scenario.planning.storm import draw_entries
from elastic_harness.scenario.validation import explain
from elastic_harness.session import OpenRun
from pydantic import ValidationError

from pytest_elastic.config import parse_nnodes
from pytest_elastic.errors import UsageError
from pytest_elastic.plugin.hub import RUN_KEY, Hub, RunOfTest
from pytest_elastic.plugin.settings import flag_of, settings_of_markers, text_of, words_of
from pytest_elastic.plugin.verdicts import explain_failure, judge_job

__all__ = ["JobsOfTest"]

# A test's job may run as long as the test's own patience; this is for tests that have none.
_LIMIT = "120s"

_JOB_KEYS = ("max_restarts", "env", "observe", "options", "working_copy")
_KNOWN = (
    "command",
    "conf",
    "endpoints",
    "initial_nodes",
    "labels",
    "launcher",
    "limit",
    "module",
    "no_workers",
    "nodes",
    "nproc",
    "proxies",
    "requires",
    "resources",
    "seed",
    "store_host",
    "without",
    *_JOB_KEYS,
)
# What a scenario calls the settings that are called otherwise here.
_SETTING_OF = {"nproc_per_node": "nproc"}

# What a script, a module or a function may be given.
Program = str | os.PathLike[str] | Callable[..., Any]


class JobOfTest:
    """A job, its directory, and its run once it has been started."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.job: Job | None = None
        self.was_started = False
        self.run: RunOfTest | None = None


class JobsOfTest:
    """The jobs of one test, one after the other."""

    def __init__(self, item: pytest.Item, hub: Hub, temporary_folder: str) -> None:
        self._item = item
        self._hub = hub
        self._temporary_folder = temporary_folder
        self._all: list[JobOfTest] = []

    # What the test asks for

    def make(self, program: Program, *args: object, **settings: object) -> Job:
        """Describe a job; see the fixture `elastic_job`. Raises UsageError."""
        item, hub = self._item, self._hub
        merged = {**settings_of_markers(item), **settings}
        for name in merged:
            if name not in _KNOWN:
                raise UsageError(f"a job has no setting {name!r}: {did_you_mean(name, _KNOWN)}")
        hub.skip_unless_able(words_of(merged, "requires"))
        checkers = hub.session.checkers
        checkers.default_checks(without=words_of(merged, "without"))  # are they known?
        launcher = hub.launcher(text_of(merged, "launcher"))
        made = JobOfTest(hub.new_directory(item.nodeid))
        functions = os.path.join(made.directory.path, "function")
        try:
            named = _program(program, args, merged, item, functions)
            scenario = _scenario(item, hub, merged, named)
        except BaseException:
            hub.discard(made.directory)
            raise
        self._all.append(made)

        base_dir = os.path.dirname(os.path.abspath(item.path))
        drawn: list[str] = []  # the entries of storms

        def check(entries: Sequence[Entry]) -> Scenario:
            folders = (os.getcwd(), str(item.config.rootpath), self._temporary_folder, base_dir)
            complete = _with_timeline(scenario, entries)
            _check_timeline(complete, hub, folders=folders, drawn=drawn)
            return complete

        def start(entries: Sequence[Entry]) -> OpenRun:
            made.was_started = True
            timeline = _with_timeline(scenario, entries)
            hub.skip_unless_able(needed_capabilities(timeline, hub.session.faults))
            complete = check(entries)
            seed = hub.replay.seed.value if hub.replay is not None else hub.options.seed
            plan = make_plan(complete, seed)
            if hub.replay is not None:
                plan = replace(plan, targets=hub.replay.targets)
            run = RunOfTest(plan, made.directory)
            opened = hub.open(
                run,
                launcher,
                base_dir=base_dir,
                shared=(self._temporary_folder,),
                is_open=True,
            )
            made.run = item.stash[RUN_KEY] = run
            return opened

        def results(history: History) -> Mapping[int, Any]:
            return _results(history, functions) if callable(program) else {}

        def draw(storm: Storm, name: str) -> Sequence[Entry]:
            entries = _draw(storm, name, scenario, hub)
            drawn.extend(str(each.id) for each in entries)
            return entries

        def add_reference() -> None:
            if made.run is not None and made.job is not None:
                made.run.result = made.job.result
                hub.add_reference(made.run, is_asked=True)

        made.job = Job(
            start,
            _AbleFaults(hub),
            draw=draw,
            read_results=results,
            name=_name_of(program),
            checkers=checkers,
            says_how_it_ends=flag_of(merged, NO_WORKERS),
            add_reference=add_reference,
            check=check,
        )
        return made.job

    @property
    def current(self) -> Job:
        """The newest job."""
        if not self._all or self._all[-1].job is None:
            pytest.fail("there is no job yet: call elastic_job(...) first", pytrace=False)
        return self._all[-1].job

    # What is said about it

    def judge(self) -> None:
        """The test has passed: judge its jobs by what holds for every job."""
        self._end_runs()
        for made in self._all:
            if not made.was_started:
                pytest.fail(
                    "elastic_job(...) was described and never started, so nothing was tested: "
                    "call wait() or start()",
                    pytrace=False,
                )
            if made.run is not None and made.job is not None:
                judge_job(made.run, self._hub, self._item, made.job.asked)

    def explain(self, error: BaseException) -> None:
        """The test has failed: end what still runs, and keep its traces."""
        self._end_runs()
        for made in self._all:
            if isinstance(error, pytest.skip.Exception):
                self._hub.discard(made.directory)
            elif made.run is not None and made.run.result is not None:
                explain_failure(made.run, self._hub, self._item, error)

    def end(self) -> None:
        """End what still runs, and take away what belongs to no run."""
        self._end_runs()
        for made in self._all:
            if made.run is None:
                self._hub.discard(made.directory)

    def _end_runs(self) -> None:
        for made in self._all:
            if made.job is not None and made.run is not None and made.run.result is None:
                made.run.result = made.job.finish()


class _AbleFaults(FaultRegistry):
    """The faults there are; a test that asks for one which this cluster cannot do is skipped."""

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._hub = hub
        self._known = {each.name: each for each in hub.session.faults}
        self.recipes = hub.session.faults.recipes

    def read(self, name: str, value: object) -> PlannedAction:
        action = super().read(name, value)
        if action.needs is not None:
            self._hub.skip_unless_able([action.needs])
        return action


def _name_of(program: Program) -> str:
    """Return what a job is called where it is shown: a function's name, a path as it was given."""
    return program.__name__ if callable(program) else os.fspath(program)


def _program(
    program: Program,
    args: Sequence[object],
    merged: Mapping[str, object],
    item: pytest.Item,
    functions: str,
) -> dict[str, object]:
    """Return what the job runs, in a scenario's words."""
    is_module, is_command = bool(merged.get("module")), bool(merged.get("command"))
    if is_module and is_command:
        raise UsageError("a job is a module or a command: leave one of them out")
    if callable(program):
        if is_module or is_command:
            raise UsageError("a function is neither a module nor a command: leave that out")
        pack(functions, program, args)
        return {"module": "elastic_harness.function_worker", "args": [functions]}
    name = os.fspath(program)
    words = [os.fspath(arg) if isinstance(arg, os.PathLike) else str(arg) for arg in args]
    if is_module:
        return {"module": name, "args": words}
    if is_command:
        return {"command": [name, *words]}
    return {"script": _script(name, item), "args": words}


def _scenario(
    item: pytest.Item, hub: Hub, merged: Mapping[str, object], program: Mapping[str, object]
) -> Scenario:
    rdzv = {key: merged[key] for key in ("conf", "endpoints", "store_host") if key in merged}
    job = {
        **program,
        "nproc_per_node": merged.get("nproc", hub.options.nproc),
        **{key: merged[key] for key in _JOB_KEYS if key in merged},
        **({"rdzv": rdzv} if rdzv else {}),
    }
    try:
        return Scenario.model_validate(
            {
                "version": 1,
                "id": scenario_id(item.name),
                "title": item.nodeid,
                "job": job,
                "nodes": {
                    **_nodes(merged.get("nodes", hub.options.nodes)),
                    **({"initial": merged["initial_nodes"]} if "initial_nodes" in merged else {}),
                    **{key: merged[key] for key in ("resources", "labels") if key in merged},
                },
                "limit": merged.get("limit", _LIMIT),
                "expect": {
                    "always": [{name: "off"} for name in words_of(merged, "without")],
                    "finally": [NO_WORKERS] if flag_of(merged, NO_WORKERS) else [],
                },
                **{key: merged[key] for key in ("proxies", "seed") if key in merged},
            }
        )
    except ValidationError as error:
        raise UsageError(_said_wrong(error)) from error


def _nodes(given: object) -> Mapping[str, object]:
    """Return the nodes of a job in a scenario's words."""
    if isinstance(given, Mapping):
        return given
    try:
        low, high = parse_nnodes(str(given))
    except UsageError as error:
        raise UsageError(str(error).replace("--nnodes", "nodes")) from error
    return {"initial": high, "min": low, "max": high}


def _check_timeline(
    scenario: Scenario, hub: Hub, *, folders: Sequence[str], drawn: Collection[str]
) -> None:
    """Raise UsageError for what can never be: a rank that no run has, an option of no launcher."""
    faults = hub.session.faults
    actions = [faults.read(each.action.name, each.action.value) for each in scenario.timeline]
    checked = CheckedScenario(spec=scenario, actions=actions, folders=folders)
    checkers = hub.session.checkers
    found = check_scenario(checked, faults.recipes, drawn=drawn, checkers=checkers, may_grow=True)
    for finding in (*found, *check_options(scenario)):
        if finding.path[0] == "timeline":
            entry = scenario.timeline[int(finding.path[1])]
            raise UsageError(f"{entry.id}: {finding.message}", hint=finding.suggestion)
        if finding.path[0] == "expect":  # the user wrote no such path: the message names what it is
            raise UsageError(finding.message, hint=finding.suggestion)
        setting = _setting_at(finding.path)
        raise UsageError(f"{setting}: {finding.message}", hint=finding.suggestion)


def _with_timeline(scenario: Scenario, entries: Sequence[Entry]) -> Scenario:
    """Return the scenario of a job that starts; after a storm it has to get on again."""
    update: dict[str, object] = {"timeline": tuple(entries)}
    if any(storm_of(str(entry.id)) == entry.id for entry in entries):
        clauses = (*scenario.expect.finally_, Clause(name="recovered"))
        update["expect"] = scenario.expect.model_copy(update={"finally_": clauses})
    return scenario.model_copy(update=update)


def _draw(storm: Storm, name: str, scenario: Scenario, hub: Hub) -> Sequence[Entry]:
    """Draw a storm for a job; raises UsageError for one that it cannot survive."""
    recipes = hub.session.faults.recipes
    if scenario.job.max_restarts < storm.max:
        raise UsageError(
            f"a storm of up to {storm.max} faults can use up the {scenario.job.max_restarts} "
            f"restarts of this job: give it max_restarts={storm.max} or more"
        )
    hub.skip_unless_able(needs_of(recipes, storm.faults))
    if hub.replay is not None:
        # What was drawn then, whatever would be drawn today.
        mine = storm_id(name)
        if found := [each.entry for each in hub.replay.entries if storm_of(each.id) == mine]:
            return found
    seed = hub.replay.seed.value if hub.replay is not None else hub.options.seed
    chosen = Seed(value=seed if scenario.seed is None else scenario.seed)
    return draw_entries(storm, scenario, chosen, name=name, recipes=recipes)


def scenario_id(name: str) -> str:
    """Return a test's name as a scenario may be called."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)
    return plain.lstrip("._-") or "test"


def _setting_at(path: Sequence[int | str]) -> str:
    """Return what a place of a scenario is called here."""
    # What a scenario has below `rdzv` is a setting by itself here.
    parts = [str(part) for part in path if part not in ("job", "rdzv")]
    parts[:1] = [_SETTING_OF.get(part, part) for part in parts[:1]]
    return ".".join(parts) or "settings"


def _said_wrong(error: ValidationError) -> str:
    first = error.errors()[0]
    setting = _setting_at(first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{setting}: a job has no such setting"
    message, hint = explain(first["type"], first["msg"], first["input"])
    return f"{setting}={first['input']!r}: {message}{f' ({hint})' if hint else ''}"


def _results(history: History, functions: str) -> Mapping[int, Any]:
    """Return what a function returned on each rank of the last round."""
    world = history.worlds.current
    if world is None or not world.workers:
        return {}
    hello = next(iter(world.workers.values())).hello
    key = round_key(
        {
            "MASTER_PORT": str(hello.master_port),
            "TORCHELASTIC_RESTART_COUNT": str(hello.restart_count),
            **({} if hello.round is None else {"PYTEST_ELASTIC_ROUND": str(hello.round)}),
        }
    )
    return read_results(functions, key)


def _script(program: str, item: pytest.Item) -> str:
    """Return a script's absolute path: as pytest's caller, or as the test's own folder sees it."""
    folders = (
        os.getcwd(),
        str(item.config.invocation_params.dir),
        os.path.dirname(os.path.abspath(item.path)),
        str(item.config.rootpath),
    )
    for folder in folders:
        path = os.path.normpath(os.path.join(folder, program))
        if os.path.isfile(path):
            return path
    where = "" if os.path.isabs(program) else f": looked in {', '.join(dict.fromkeys(folders))}"
    raise UsageError(f"there is no script {program!r}{where}")
