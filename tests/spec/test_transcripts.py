"""The transcripts are what happens, line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spec.transcript import FOLDER, replay


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: str(path.stem))
def test_a_transcript_is_what_happens(path: Path) -> None:
    """See `tests/spec/transcript.py` for how to read one and when to write it again."""
    lines = path.read_text(encoding="utf-8").splitlines()
    assert replay(lines) == lines
