"""What several unit tests of drivers need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_elastic.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Return a loop of this process, which is closed at the end."""
    made = Loop()
    yield made
    made.close()
