"""What one pytest process holds on to: the options, the chosen cluster, and the runs of its tests.

Made at the first elastic test; the cluster's server is started at the first run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_elastic.plugin.options import ElasticOptions, options_of

if TYPE_CHECKING:
    from elastic_harness.cluster.choose import Choice
    from elastic_harness.report.run_directory import RunDirectory
    from elastic_harness.scenario.launchers import Launcher
    from elastic_harness.scenario.planner import Plan
    from elastic_harness.scenario.runner import RunResult
    from elastic_harness.session import HarnessSession, OpenRun

__all__ = ["FinishedRun", "Hub", "close_hub", "hub_of"]

_KEY = pytest.StashKey["Hub"]()


class FinishedRun:
    """A run of a test, for the report: what was asked, what came out, and where its traces are."""

    def __init__(self, plan: Plan, directory: RunDirectory) -> None:
        self.plan = plan
        self.directory = directory
        self.result: RunResult | None = None


class Hub:
    """The harness of one pytest process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._session: HarnessSession | None = None
        self._choice: Choice | None = None
        self.options: ElasticOptions = options_of(config)

    @property
    def choice(self) -> Choice:
        """The kind of cluster, found out at the first question."""
        if self._choice is None:
            from elastic_harness.cluster.choose import choose_cluster

            from pytest_elastic.errors import UsageError

            try:
                self._choice = choose_cluster(self.options.cluster)
            except UsageError as error:
                raise pytest.UsageError(f"--elastic-cluster: {error}") from error
        return self._choice

    @property
    def session(self) -> HarnessSession:
        """The harness session; its cluster is started at the first run."""
        if self._session is None:
            from elastic_harness.session import HarnessSession

            self._session = HarnessSession(self.choice)
        return self._session

    def launcher(self, name: str | None = None) -> Launcher:
        """Return the launcher under test; raises UsageError for one that is not known."""
        from elastic_harness.scenario.launchers import launcher_named

        return launcher_named(name or self.options.launcher)

    def new_directory(self, name: str) -> RunDirectory:
        """Return a fresh directory for a run's artifacts; raises UsageError if it cannot be had."""
        from elastic_harness.report.run_directory import create_run_directory

        root = os.path.join(str(self._config.rootpath), self.options.artifacts)
        return create_run_directory(root, name)

    def open(
        self,
        plan: Plan,
        launcher: Launcher,
        directory: RunDirectory,
        *,
        base_dir: str,
        shared: Sequence[str] = (),
        is_open: bool = False,
    ) -> OpenRun:
        """Start a run."""
        return self.session.open(
            plan,
            launcher,
            directory=directory.path,
            base_dir=base_dir,
            cwd=str(self._config.invocation_params.dir),
            environ=dict(os.environ),
            shared=(str(self._config.rootpath), *shared),
            is_open=is_open,
        )

    def discard(self, run: FinishedRun) -> None:
        """Take away the artifacts of a run that nobody needs to look at."""
        if self.options.keep != "all":
            shutil.rmtree(run.directory.path, ignore_errors=True)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a place among the runs of all pytest processes of this user.

        A run keeps a processor busy. With more runs than processors, beats come late and runs time
        out; so `-n 8` on two cores means two runs at a time. The kernel gives a place back when its
        holder dies.
        """
        places = max(1, len(os.sched_getaffinity(0)))
        folder = os.path.join(tempfile.gettempdir(), f"pytest-elastic-{os.getuid()}")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        handle = _take_place(folder, places)
        try:
            yield
        finally:
            os.close(handle)

    def close(self) -> None:
        """End the cluster."""
        if self._session is not None:
            self._session.close()
            self._session = None


def _take_place(folder: str, places: int) -> int:
    """Lock one of `places` files, waiting for the one of our own number when all are taken."""
    mine = os.getpid() % places
    for number in (*range(mine, places), *range(mine)):
        handle = os.open(os.path.join(folder, f"place-{number}"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
        else:
            return handle
    handle = os.open(os.path.join(folder, f"place-{mine}"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def hub_of(config: pytest.Config) -> Hub:
    """Return the harness of this pytest process."""
    if _KEY not in config.stash:
        config.stash[_KEY] = Hub(config)
    return config.stash[_KEY]


def close_hub(config: pytest.Config) -> None:
    """End the harness of this process, if there is one."""
    if _KEY in config.stash:
        config.stash[_KEY].close()
