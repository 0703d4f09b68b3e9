"""The fixtures. Everything that costs is imported when one of them is used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_elastic.plugin.hub import FinishedRun, Hub, hub_of

if TYPE_CHECKING:
    from elastic_harness.history.history import History
    from elastic_harness.job import Chaos, Job

__all__ = [
    "RUN_KEY",
    "elastic_chaos",
    "elastic_cluster",
    "elastic_history",
    "elastic_job",
    "elastic_seed",
]

RUN_KEY = pytest.StashKey[FinishedRun]()
_JOBS_KEY = pytest.StashKey["TestJobs"]()


class TestJobs:
    """The jobs of one test, one after the other; faults declared before a job belong to it."""

    __test__ = False

    def __init__(self, item: pytest.Item, hub: Hub) -> None:
        self._item = item
        self._hub = hub
        self._job: Job | None = None
        self._runs: list[tuple[Job, list[FinishedRun]]] = []

    def make(self, program: str | Callable[..., Any], *args: Any, **settings: Any) -> Job:
        """Describe a job; see the fixture `elastic_job`."""
        from pytest_elastic.plugin.jobs import make_job

        runs: list[FinishedRun] = []
        job = make_job(self._item, self._hub, runs, program, args, settings)
        self._job = job
        self._runs.append((job, runs))
        return job

    @property
    def current(self) -> Job:
        """The newest job."""
        if self._job is None:
            pytest.fail("there is no job yet: call elastic_job(...) first", pytrace=False)
        return self._job

    def finish(self) -> None:
        """End what still runs, and judge every run by what holds for all of them."""
        from pytest_elastic.plugin.verdicts import RunFailed, judge_run

        failures: list[str] = []
        for job, runs in self._runs:
            result = job.finish()
            for run in runs:
                run.result = result
                self._item.stash[RUN_KEY] = run
                try:
                    judge_run(run, self._hub, self._item)
                except RunFailed as failure:
                    failures.append(str(failure))
        if failures:
            pytest.fail("\n\n".join(failures), pytrace=False)


@pytest.fixture
def elastic_seed(pytestconfig: pytest.Config) -> int:
    """The number that all chance of this session comes from (`--elastic-seed`)."""
    return hub_of(pytestconfig).options.seed


@pytest.fixture
def elastic_cluster(pytestconfig: pytest.Config) -> Hub:
    """The cluster that runs are made on; its server is started at the first run."""
    return hub_of(pytestconfig)


@pytest.fixture
def elastic_jobs(request: pytest.FixtureRequest, elastic_cluster: Hub) -> Iterator[TestJobs]:
    """The jobs of this test (what the other fixtures share)."""
    jobs = TestJobs(request.node, elastic_cluster)
    with elastic_cluster.turn():
        yield jobs
        jobs.finish()


@pytest.fixture
def elastic_job(elastic_jobs: TestJobs) -> Callable[..., Job]:
    """Describe a job: `elastic_job("train.py", "--steps=40", nodes=2, nproc=2)` or a function.

    The job starts at its first wait, or with `start()`. Settings given here beat the marker
    `elastic`, which beats the options. A function runs on every rank; `job.wait().results` has what
    it returned, by rank.
    """
    return elastic_jobs.make


@pytest.fixture
def elastic_chaos(elastic_jobs: TestJobs) -> Chaos:
    """Put faults on the job's timeline: `elastic_chaos.at(step=22, rank=1).kill("rank 1")`."""
    from elastic_harness.job import Chaos

    return Chaos(lambda: elastic_jobs.current)


@pytest.fixture
def elastic_history(elastic_jobs: TestJobs) -> Callable[[], History]:
    """Return the newest job's history: a function, as the job may not have been started yet."""
    return lambda: elastic_jobs.current.history


def marker_settings(item: pytest.Item) -> Mapping[str, Any]:
    """Return what the markers `elastic` of a test say, the closest one first."""
    settings: dict[str, Any] = {}
    for marker in item.iter_markers("elastic"):
        if marker.args:
            raise pytest.UsageError(
                f"{item.nodeid}: the marker elastic takes settings by name, as in nodes=2"
            )
        settings = {**marker.kwargs, **settings}
    return settings


def environ_of_tests() -> dict[str, str]:
    """Return what jobs of tests inherit."""
    return dict(os.environ)
