"""`docs/rendezvous.md` says what is so: its drawings are the tables, its tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.spec.drawings import DRAWINGS, as_block

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "rendezvous.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_its_phase_table(name: str) -> None:
    """When it is not: `python -m tests.spec.drawings` prints what belongs there."""
    assert as_block(name) in DOCUMENT


def test_every_rule_names_tests_that_exist() -> None:
    """A rule without its test is a wish."""
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", DOCUMENT))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    for number in range(1, 15):
        [own] = [path for path in named if f"/test_r{number:02d}_" in path]
        section = DOCUMENT.split(f"\n### R{number}. ")[1].split("\n### ")[0]
        assert own in section, f"R{number} does not name its test"


def test_every_test_of_a_rule_is_in_the_document() -> None:
    """Nothing is specified in secret."""
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/spec").glob("test_r*.py")}
    assert files <= set(re.findall(r"`(tests/[\w/]+\.py)`", DOCUMENT))
