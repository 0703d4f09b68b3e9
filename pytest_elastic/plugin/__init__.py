"""The pytest plugin: loaded by every pytest run, so nothing here imports what costs.

`-p no:elastic` turns it off. What is used is imported when the first elastic test is collected.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_elastic.plugin.fixtures import (
    elastic_chaos,
    elastic_cluster,
    elastic_history,
    elastic_job,
    elastic_seed,
)
from pytest_elastic.plugin.options import add_options, is_asked_for, options_of

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "elastic_chaos",
    "elastic_cluster",
    "elastic_history",
    "elastic_job",
    "elastic_seed",
]

_SUFFIX = ".elastic.yaml"
_FIXTURES = frozenset(__all__)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini settings."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker; read the options if somebody gave one, so that mistakes show early."""
    config.addinivalue_line(
        "markers",
        "elastic(nodes='2:4', nproc=2, max_restarts=3, limit='60s', requires=[...], conf={...}): "
        "the job of a test that uses elastic_job",
    )
    if is_asked_for(config):
        options_of(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # xdist's WorkerController; xdist need not be there
    """Give every xdist worker the seed of this session."""
    node.workerinput["elastic_seed"] = options_of(node.config).seed


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what kind of cluster runs are made on, when it is known that there will be some."""
    if not is_asked_for(config):
        return []
    from pytest_elastic.plugin.reporting import header_lines

    return header_lines(config)


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Say the same once it has turned out that there are elastic tests."""
    if is_asked_for(config) or not any(_is_elastic(item) for item in items):
        return []
    from pytest_elastic.plugin.reporting import header_lines

    return header_lines(config)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect scenario files."""
    if not file_path.name.endswith(_SUFFIX):
        return None
    from pytest_elastic.plugin.scenario_items import ScenarioFile

    return ScenarioFile.from_parent(parent, path=file_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what an elastic test's run has left, where it failed."""
    report = yield
    if _is_elastic(item):
        from pytest_elastic.plugin.reporting import complete_report

        complete_report(item, call, report)
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the cluster."""
    from pytest_elastic.plugin.hub import close_hub

    close_hub(config)


def _is_elastic(item: pytest.Item) -> bool:
    return not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
