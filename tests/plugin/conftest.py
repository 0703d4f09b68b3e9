"""Places to call pytest in: one for each test, or one for a module that shares what it has run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return an empty folder with an ini file, so that no other one is found."""
    return make_place(tmp_path)


def make_place(folder: Path) -> Place:
    """Return a folder as a place, with an ini file of its own.

    Plugins that have nothing to do with ours are left out: they take a second of every call.
    """
    place = Place(folder)
    without = "-p no:cacheprovider -p no:hypothesispytest -p no:faker -p no:timeout"
    place.add("pytest.ini", f"[pytest]\naddopts = {without}\n")
    return place
