"""Places to call pytest in: one for each test, or one for a module that shares what it has run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return an empty folder with an ini file."""
    place = Place(tmp_path)
    place.add_ini()
    return place
