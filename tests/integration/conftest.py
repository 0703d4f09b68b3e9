"""What several files of real processes begin with: launchers of a test, a cluster of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster_bench import Bench, namespace_bench
from tests.conformance.launchers import Running


@pytest.fixture(scope="session", autouse=True)
def _launchers_are_forked(launch_server: None) -> None:
    """Fork the launchers that tests here start, but for those that are to be executed."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Return what starts launchers in a folder of the test, and ends them with it."""
    started: list[Running] = []

    def begin(*words: str, **environ: str) -> Running:
        started.append(Running(tmp_path, *words, environ=environ))
        return started[-1]

    yield begin
    for running in started:
        running.end()


@pytest.fixture(scope="module")
def cluster_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One server for all tests of a file, with nothing preloaded."""
    yield from namespace_bench(tmp_path_factory.mktemp("cluster"))
