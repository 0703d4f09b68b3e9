"""Places to call pytest in: one for each test, or one for a module that shares what it has run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.cluster.server.server_process import sharing_one_interpreter
from elastic_harness.scenario.launchers import modules_to_preload

from tests import launch_server
from tests.plugin.place import Place


@pytest.fixture(scope="package", autouse=True)
def one_interpreter() -> Iterator[None]:
    """Import torch once for the clusters of all places."""
    with sharing_one_interpreter(modules_to_preload()):
        yield


@pytest.fixture(scope="module")
def forked_pytests() -> Iterator[None]:
    """Fork the pytests of a file: for tests on ranks, each would import torch by itself."""
    with launch_server.serving([launch_server.PYTEST], preload=["torch"]):
        yield


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return an empty folder with an ini file."""
    place = Place(tmp_path)
    place.add_ini()
    return place
