"""What one pytest process holds on to: the options, the chosen cluster, and the runs of its tests.

Made at the first elastic test; the cluster's server is started at the first run.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_elastic.errors import UsageError
from pytest_elastic.plugin.options import ElasticOptions, known_clusters, options_of

if TYPE_CHECKING:
    from elastic_harness.cluster.choose import ClusterChoice
    from elastic_harness.faults.registry import FaultRegistry
    from elastic_harness.history.checkers.registry import Registry
    from elastic_harness.history.events import ReferenceObserved
    from elastic_harness.leaks import Spared
    from elastic_harness.report.run_directory import RunDirectory
    from elastic_harness.scenario.launchers import Launcher
    from elastic_harness.scenario.planning.planner import Plan
    from elastic_harness.scenario.runner import RunResult
    from elastic_harness.session import HarnessSession, OpenRun

    from pytest_elastic.events.model import Event

__all__ = [
    "FAILED_KEY",
    "RUN_KEY",
    "SUBTEST_KEY",
    "Hub",
    "RunOfTest",
    "close_hub",
    "hub_in_use",
    "hub_of",
    "known_checkers",
    "known_faults",
    "learn_launchers",
    "take_place",
]

_KEY = pytest.StashKey["Hub"]()

# A test's turn comes when others' tests are over, and those may be long. A test that waits
# longer than this waits for something that hangs.
_TURN_LIMIT_S = 3600.0
# Between a holder's first sign and its being able to tell when it is done lies one system call.
_LOOK_AGAIN_S = 0.01


class RunOfTest:
    """A run of a test, for the report: what was asked, what came out, and where its traces are."""

    def __init__(self, plan: Plan, directory: RunDirectory) -> None:
        self.plan = plan
        self.directory = directory
        self.result: RunResult | None = None
        # The screen, where the failure itself does not show it.
        self.screen = ""
        # How it was started, so that the same job can be run once more.
        self.opened_with: dict[str, Any] = {}
        # What else is to be said about it, and whether the seed alone would not repeat it.
        self.note = ""
        self.must_replay = False


# Set when a test itself has failed.
FAILED_KEY = pytest.StashKey[bool]()
# Why the last subtest of a test has failed; None if none has.
SUBTEST_KEY = pytest.StashKey[BaseException | None]()
# The newest run of a test, for its report.
RUN_KEY = pytest.StashKey[RunOfTest]()


class Hub:
    """The harness of one pytest process; tests have it as the fixture `elastic_cluster`."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._session: HarnessSession | None = None
        self._choice: ClusterChoice | None = None
        self._replay: Plan | None = None
        self._references: dict[tuple[str, str], ReferenceObserved] = {}
        # The runs of the test at hand, until its report.
        self.opened: list[RunOfTest] = []
        # What the session's page says of them, in plain fields, until the same report.
        self.summaries: list[dict[str, object]] = []
        self.options: ElasticOptions = options_of(config)

    @property
    def kind(self) -> str:
        """What nodes are: "namespace", "process", "ssh", "command", "ray"; or your own."""
        return self.choice.kind

    def has(self, capability: str) -> bool:
        """Tell whether nodes can do something, such as "network"; UsageError for unknown names."""
        return self.choice.capabilities.has(capability)

    def skip_unless_able(self, capabilities: Sequence[str]) -> None:
        """Skip the test, with the reasons, if this cluster cannot do what it needs."""
        missing = self.choice.capabilities.missing(capabilities)
        if missing:
            reasons = "; ".join(f"{each.name}: {each.reason}" for each in missing)
            pytest.skip(f"needs what this cluster lacks: {reasons}")

    @property
    def choice(self) -> ClusterChoice:
        """The kind of cluster, found out at the first question; raises UsageError."""
        if self._choice is None:
            from elastic_harness.scenario.launchers import modules_to_preload

            try:
                kind = known_clusters(self._config.hook).find(self.options.cluster)
                preload = modules_to_preload(self.options.preload)
                self._choice = kind.choose(replace(self.options, preload=preload))
            except UsageError as error:
                raise UsageError(f"--elastic-cluster: {error.message}", hint=error.hint) from error
        return self._choice

    @property
    def session(self) -> HarnessSession:
        """The harness session; its cluster is started at the first run."""
        if self._session is None:
            from elastic_harness.session import HarnessSession

            self._session = HarnessSession(
                self.choice,
                faults=known_faults(self._config),
                checkers=known_checkers(self._config),
                patience=self.options.patience,
                toxiproxy=self.options.toxiproxy,
                preload=self.options.preload,
            )
        return self._session

    @property
    def replay(self) -> Plan | None:
        """The plan to be repeated, if one is; raises UsageError for what is none."""
        path = self.options.replay
        if path and self._replay is None:
            from elastic_harness.scenario.planning.planner import decode_plan

            try:
                with open(path, encoding="utf-8") as file:
                    self._replay = decode_plan(file.read())
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or str(error)
                raise UsageError(f"--elastic-replay={path}: cannot be read: {why}") from error
            except UsageError as error:
                raise UsageError(f"--elastic-replay={path}: {error.message}") from error
        return self._replay

    def launcher(self, name: str | None = None) -> Launcher:
        """Return the launcher under test; raises UsageError for one that is not known."""
        from elastic_harness.scenario.launchers import launcher_named

        learn_launchers(self._config)
        return launcher_named(name or self.options.launcher)

    def new_directory(self, name: str) -> RunDirectory:
        """Return a fresh directory for a run's artifacts; raises UsageError if it cannot be had."""
        from elastic_harness.report.run_directory import create_run_directory

        return create_run_directory(self.options.artifacts, name)

    def open(
        self,
        run: RunOfTest,
        launcher: Launcher,
        *,
        base_dir: str,
        shared: Sequence[str] = (),
        is_open: bool = False,
    ) -> OpenRun:
        """Write down what is planned, and start the run."""
        from elastic_harness.scenario.planning.planner import encode_plan

        run.opened_with = {"launcher": launcher, "base_dir": base_dir, "shared": shared}

        plan = run.plan
        self.opened.append(run)
        run.directory.write_plan(encode_plan(plan))
        script = plan.scenario.job.script
        return self.session.open(
            plan,
            launcher,
            directory=run.directory.path,
            base_dir=base_dir,
            # Where the test is now, as for anything else that it starts.
            cwd=os.getcwd(),
            environ=dict(os.environ),
            shared=(
                str(self._config.rootpath),
                *((os.path.dirname(os.path.join(base_dir, script)),) if script else ()),
                *shared,
            ),
            is_open=is_open,
        )

    def add_reference(self, run: RunOfTest, *, is_asked: bool = False) -> None:
        """Run a job once more without faults, if a planned clause compares the two, or if asked to.

        What it ended with, or why that is not known, is added to the run's history.
        """
        from elastic_harness.history.events import HarnessFailed, ReferenceObserved
        from elastic_harness.reference import needs_reference, read_reference, reference_plan

        assert run.result is not None, "a run is compared when it is over"
        history, checkers = run.result.history, self.session.checkers
        is_needed = is_asked or needs_reference(history, checkers)
        if not is_needed or not run.opened_with or history.last(ReferenceObserved) is not None:
            return
        plan = reference_plan(run.plan)
        key = (str(plan), str(run.opened_with))
        found: Event | None = self._references.get(key)
        if found is None:
            name = f"{os.path.basename(run.directory.path)}-uninterrupted"
            reference = RunOfTest(plan, self.new_directory(name))
            reference.result = self.open(reference, **run.opened_with).wait()
            try:
                found = self._references[key] = read_reference(reference.result)
            except UsageError as error:
                found = HarnessFailed(
                    what=f"the uninterrupted run to compare with is of no use: {error.message} "
                    f"({error.hint or reference.directory.path})"
                )
            else:
                self.discard(reference.directory)
        assert found is not None, "either it is known what it ended with, or why not"
        history.append_after_end(found)

    def discard(self, directory: RunDirectory) -> None:
        """Remove the artifacts of a run that are not needed."""
        shutil.rmtree(directory.path, ignore_errors=True)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a place among the runs of all pytest processes of this user.

        A run keeps a processor busy. With more runs than processors, beats come late and runs time
        out; so `-n 8` on two cores means two runs at a time. Raises UsageError after an hour.
        """
        with take_place(str(os.getuid()), max(1, len(os.sched_getaffinity(0)))):
            yield

    def end_of_test(self) -> None:
        """End the cluster if it is one test's only; say so if one had to be replaced."""
        if self._session is None:
            return
        for reason in self._session.replacements:
            warnings.warn(
                pytest.PytestWarning(f"elastic: the cluster was replaced: {reason}"), stacklevel=1
            )
        self._session.replacements.clear()
        if self.options.cluster_scope == "test":
            self.close()

    def pause_clock(self) -> None:
        """Stop the deadlines of the current run while a debugger is open."""
        if self._session is not None:
            self._session.pause_clock()

    def resume_clock(self) -> None:
        """Let the deadlines of the run at hand go on."""
        if self._session is not None:
            self._session.resume_clock()

    @property
    def shared(self) -> Spared:
        """What all runs of the session share, of this process and below it."""
        from elastic_harness.leaks import Spared

        if self._session is None or not self._session.is_started:
            return Spared()
        return self._session.shared

    def close(self) -> None:
        """End the cluster, and what waits for one."""
        if self._session is not None:
            self._session.close()
            self._session = None
        elif (dismiss := getattr(self._choice, "dismiss", None)) is not None:
            dismiss()


def take_place(owner: str, places: int) -> socket.socket:
    """Take one of an owner's places, for as long as the socket that is returned is open.

    The names are abstract socket addresses: the kernel gives them back when their holder ends,
    however it does, and nothing of them is ever in a file system. A waiting test is connected to
    the holders, and is woken when one lets go.
    """
    deadline = time.monotonic() + _TURN_LIMIT_S
    while (left_s := deadline - time.monotonic()) > 0:
        holders: list[socket.socket] = []
        try:
            for number in range(places):
                name = f"\0pytest-elastic-place-{owner}-{number}"
                place = socket.socket(socket.AF_UNIX)
                try:
                    place.bind(name)
                except OSError:
                    place.close()
                else:
                    place.listen(128)
                    return place
                holders += _connected(name)
            poll = select.poll()
            for holder in holders:
                poll.register(holder, select.POLLIN | select.POLLHUP)
            all_seen = len(holders) == places
            poll.poll(1000 * (left_s if all_seen else _LOOK_AGAIN_S))
        finally:
            for holder in holders:
                holder.close()
    raise UsageError(
        f"there was no place for this run within {_TURN_LIMIT_S / 60:g} minutes: {places} runs at "
        "a time, one for each processor",
        hint="A pytest of yours holds on to its place: is one stopped, or in a debugger?",
    )


def _connected(name: str) -> list[socket.socket]:
    """Return a connection to the holder of a place, or none if it has just come or gone."""
    holder = socket.socket(socket.AF_UNIX)
    holder.setblocking(False)
    try:
        holder.connect(name)
    except OSError:
        holder.close()
        return []
    return [holder]


def known_faults(config: pytest.Config) -> FaultRegistry:
    """Return the faults that come with the harness, and those of the user's conftest files.

    Made anew each time: a conftest.py may have been loaded since. Raises UsageError for a fault
    that cannot be one.
    """
    from elastic_harness.faults.registry import built_in_faults

    registry = built_in_faults()
    config.hook.pytest_elastic_register_faults(registry=registry)
    return registry


def known_checkers(config: pytest.Config) -> Registry:
    """Return the checkers that come with the harness, and those of the user's conftest files.

    Made anew each time: a conftest.py may have been loaded since. Raises UsageError for a name that
    is taken.
    """
    from elastic_harness.history.checkers.library import standard_checkers

    registry = standard_checkers()
    config.hook.pytest_elastic_register_checkers(registry=registry)
    return registry


def learn_launchers(config: pytest.Config) -> None:
    """Take in the launchers of the user's conftest files; raises UsageError for a taken name."""
    from elastic_harness.scenario.launchers import LAUNCHERS

    config.hook.pytest_elastic_register_launchers(registry=LAUNCHERS)


def hub_of(config: pytest.Config) -> Hub:
    """Return the harness of this pytest process."""
    if _KEY not in config.stash:
        config.stash[_KEY] = Hub(config)
    return config.stash[_KEY]


def hub_in_use(config: pytest.Config) -> Hub | None:
    """Return the harness of this pytest process, if it has been used."""
    return config.stash.get(_KEY, None)


def close_hub(config: pytest.Config) -> None:
    """End the harness of this process, if there is one."""
    if _KEY in config.stash:
        config.stash[_KEY].close()
