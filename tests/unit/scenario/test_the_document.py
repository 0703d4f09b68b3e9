"""docs/scenarios.md names everything that a scenario can say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.history.checkers import STANDARD
from elastic_harness.scenario.triggers import CONDITION_KEYS

TEXT = (Path(__file__).parents[3] / "docs" / "scenarios.md").read_text(encoding="utf-8")
NAMES = sorted({*built_in_faults().names(), *STANDARD.names, *CONDITION_KEYS})


@pytest.mark.parametrize("name", NAMES)
def test_what_can_be_said_is_described(name: str) -> None:
    """Every fault, checker and condition stands in the page as code."""
    assert re.search(rf"`[^`]*\b{name}\b[^`]*`", TEXT), f"docs/scenarios.md does not name {name}"
