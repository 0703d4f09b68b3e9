"""The fixtures. Everything that costs is imported when one of them is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_elastic.plugin.hub import Hub, hub_of, known_faults
from pytest_elastic.plugin.ranks import chaos_of_rank

if TYPE_CHECKING:
    from elastic_harness.history.history import History
    from elastic_harness.job import Chaos, Job
    from elastic_harness.ranks.chaos import RankChaos
    from faker import Faker

    from pytest_elastic.plugin.jobs import JobsOfTest

__all__ = [
    "JOBS_KEY",
    "elastic_chaos",
    "elastic_cluster",
    "elastic_history",
    "elastic_job",
    "elastic_jobs",
    "elastic_leak_check",
    "elastic_seed",
    "teach_faults",
]

JOBS_KEY = pytest.StashKey["JobsOfTest"]()


@pytest.fixture(scope="session")
def elastic_seed(pytestconfig: pytest.Config) -> int:
    """The number that all chance of this session comes from: `random.Random(elastic_seed)`.

    `--elastic-seed=N` sets it; else it is a new one, which the header of the session says.
    """
    return hub_of(pytestconfig).options.seed


@pytest.fixture(scope="session")
def elastic_cluster(pytestconfig: pytest.Config) -> Hub:
    """The cluster of this session: `if not elastic_cluster.has("network"): pytest.skip(...)`.

    `kind` is "namespace" or "process", and `has("network")` tells whether links can be broken. Its
    server is started at the first run.
    """
    return hub_of(pytestconfig)


@pytest.fixture
def elastic_jobs(
    request: pytest.FixtureRequest,
    elastic_cluster: Hub,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[JobsOfTest]:
    """The jobs of this test, which the other fixtures share; a test asks for `elastic_job`."""
    from pytest_elastic.plugin.jobs import JobsOfTest

    jobs = JobsOfTest(request.node, elastic_cluster, str(tmp_path_factory.getbasetemp()))
    with elastic_cluster.turn():
        # The plugin's hook judges the jobs when the test has ended: what is wrong with them is a
        # failure of the test, not an error of its teardown.
        request.node.stash[JOBS_KEY] = jobs
        yield jobs
        jobs.end()
        elastic_cluster.end_of_test()


@pytest.fixture
def elastic_job(elastic_jobs: JobsOfTest) -> Callable[..., Job]:
    """Run a job to its end: `elastic_job("train.py", "--steps=40", nodes=2).wait().succeeded`.

    It takes a script, a module (`module=True`), a command (`command=True`) or a function, and what
    is handed to it. A function runs on every rank, and `job.wait().results` has what it returned,
    by rank. The job starts at its first wait, or with `start()`.

    Settings: nodes (2, "2:4", or {"initial": 2, "min": 2, "max": 4}: only two start, and others may
    join), initial_nodes (how many start, for "2:4"), nproc, max_restarts, limit ("120s"), launcher,
    env, working_copy (True: the job works in a copy of the current folder; {"leave_out":
    ["checkpoints"]}: without these), options (more words for the launcher), conf (of the
    rendezvous), store_host ("n3") or endpoints (["n1", "n2", "n3"]), observe, proxies, requires
    (capabilities), resources and labels (of the machines of a Ray), without (invariants),
    no_workers (True: the job is to end before any is started) and seed. Given here they beat those
    of the marker `elastic`, which beat the command line, which beats the ini file.
    What holds for every job (ranks agree, no two worlds, nothing is left over ...) is judged when
    the test ends, as part of the test. Raises UsageError for a setting or a program that is none.
    """
    return elastic_jobs.make


@pytest.fixture
def elastic_chaos(request: pytest.FixtureRequest) -> Chaos | RankChaos:
    """Disturb the newest job: `elastic_chaos.at(step=22, rank=1).kill("rank 1")`.

    `at(step=..., rank=...)` holds the rank there until the fault has fired, `at("3s")` is a time,
    `when(stable={...})` a condition, `after(other, "1s")` and `now()` say what they mean.

    In a test that is marked `ranks(4)`: `elastic_chaos.here().kill("rank 3")` on every rank, or
    `now()` on one of them, and `pause("rank 3", lasting="2s")`.
    """
    if (of_rank := chaos_of_rank()) is not None:
        return of_rank
    from elastic_harness.job import Chaos

    jobs: JobsOfTest = request.getfixturevalue("elastic_jobs")
    return Chaos(lambda: jobs.current)


def teach_faults(faker: Faker, config: pytest.Config) -> None:
    """Give a `faker` our provider, with the user's recipes, once; it draws nothing by that."""
    from elastic_harness.faker_provider import ElasticProvider

    class Provider(ElasticProvider):
        recipes = known_faults(config).recipes

    if not hasattr(faker, "elastic_fault"):
        faker.add_provider(Provider)


@pytest.fixture
def elastic_leak_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process, a thread or a file: `usefixtures("elastic_leak_check")`.

    It looks at namespaces, mounts, sockets, shared memory and descriptors too. What was there when
    the test began does not count; `--elastic-leak-check=on` has it for all.
    """
    from pytest_elastic.plugin.leak_check import watch_for_leaks

    is_elastic = "elastic_cluster" in request.fixturenames
    yield from watch_for_leaks(request.node, hub_of(request.config), is_elastic=is_elastic)


@pytest.fixture
def elastic_history(elastic_jobs: JobsOfTest) -> Callable[[], History]:
    """Read what the newest job did: `elastic_history().worlds.rounds[-1].world_size == 2`.

    A function, as the job may not have been started yet when the test begins.
    """
    return lambda: elastic_jobs.current.history
