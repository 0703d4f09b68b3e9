"""Hooks that a conftest.py or another plugin may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest
    from elastic_harness.cluster.registry import ClusterRegistry
    from elastic_harness.faults.registry import FaultRegistry
    from elastic_harness.history.checkers.registry import Registry
    from elastic_harness.history.history import History
    from elastic_harness.history.judge import Judgement
    from elastic_harness.scenario.launchers import LauncherRegistry

__all__ = [
    "pytest_elastic_register_checkers",
    "pytest_elastic_register_clusters",
    "pytest_elastic_register_faults",
    "pytest_elastic_register_launchers",
    "pytest_elastic_run_judged",
]


def pytest_elastic_register_faults(registry: FaultRegistry) -> None:
    """Make faults of your own known, by `registry.add(Class)`, to scenario files and tests alike.

    Called when scenario files are collected and again before the first run; each time with a
    registry that knows the built-in faults only. `docs/faults.md` shows how a fault is written.
    """


def pytest_elastic_register_checkers(registry: Registry) -> None:
    """Make checkers of your own known, by `registry.add(checker)`, for clauses and `job.check`.

    Called as often as `pytest_elastic_register_faults`. `docs/verdicts.md` shows how one is
    written: a function from a `History` and typed parameters to a `Verdict`.
    """


def pytest_elastic_register_clusters(registry: ClusterRegistry) -> None:
    """Give a kind of cluster of your own a name, by `registry.add(ClusterKind(...))`.

    Then `--elastic-cluster=NAME` runs tests and scenarios on it. Called when the option is read and
    again before the first run; each time with a registry that knows the built-in kinds only.
    `docs/cluster.md` shows how one is written.
    """


def pytest_elastic_register_launchers(registry: LauncherRegistry) -> None:
    """Give launchers of your own a name, by `registry.add(Launcher(name=..., command=[...]))`.

    Then `--elastic-launcher=NAME` and `launcher: NAME` in scenario files run jobs under it. Adding
    the same launcher twice is harmless.
    """


def pytest_elastic_run_judged(
    item: pytest.Item, history: History, judgements: Sequence[Judgement], directory: str
) -> None:
    """Report a run that was judged, where and how you like.

    `directory` has the run's artifacts; unless the test fails, or `--elastic-keep=all`, it is
    removed afterwards.
    """
