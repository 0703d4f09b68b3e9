"""The transcripts are what happens, line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec.transcript import FOLDER, replay

_PATHS = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", _PATHS, ids=lambda path: str(path.stem))
def test_a_transcript_is_what_happens(path: Path) -> None:
    """When it is not: `python -m tests.spec.transcript` writes what is, to be read."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert replay(lines) == lines
