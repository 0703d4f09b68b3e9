"""Places to call pytest in: one for each test, or one for a module that shares what it has run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.cluster.server.server_process import sharing_one_interpreter
from elastic_harness.scenario.launchers import modules_to_preload

from tests.plugin.place import Place


@pytest.fixture(scope="package", autouse=True)
def one_interpreter() -> Iterator[None]:
    """Import torch once for the clusters of all places."""
    with sharing_one_interpreter(modules_to_preload()):
        yield


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return an empty folder with an ini file."""
    place = Place(tmp_path)
    place.add_ini()
    return place
