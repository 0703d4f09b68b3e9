"""docs/scenarios.md names everything that a scenario can say, and pages show what can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.history.checkers import STANDARD
from elastic_harness.scenario.model import Scenario
from elastic_harness.scenario.reading.loader import load_text
from elastic_harness.scenario.triggers import CONDITION_KEYS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
NAMES = sorted({*built_in_faults().names, *STANDARD.names, *CONDITION_KEYS})


@pytest.mark.parametrize("name", NAMES)
def test_what_can_be_said_is_described(name: str) -> None:
    """Every fault, checker and condition stands in the page as code."""
    assert re.search(rf"`[^`]*\b{name}\b[^`]*`", TEXT), f"docs/scenarios.md does not name {name}"


# What a part of a scenario needs to be one; a page shows what it is about.
REST = {
    "version": "1",
    "id": "shown",
    "title": "Shown",
    "job": "{script: ../examples/train.py}",
    "nodes": "4",
}


def shown() -> dict[str, str]:
    """Return the scenarios that pages show, by page and line, each with what it leaves out."""
    found = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for block in re.finditer(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            keys = re.findall(r"^(\w+):", block[1], re.MULTILINE)
            if set(keys) <= set(Scenario.model_fields) | {"expect"}:
                rest = [f"{key}: {value}\n" for key, value in REST.items() if key not in keys]
                line = text.count("\n", 0, block.start()) + 1
                found[f"{page.name}:{line}"] = "".join(rest) + block[1]
    return found


@pytest.mark.parametrize("where", shown())
def test_what_a_page_shows_can_be_read(where: str) -> None:
    """No key that has gone is documented, and no fault under another name."""
    path = str(ROOT / "scenarios" / "shown.elastic.yaml")
    loaded = load_text(
        shown()[where],
        path,
        built_in_faults(),
    )
    assert len(loaded) == 1


def test_every_page_with_scenarios_is_looked_at() -> None:
    """Or the pattern looks at none of them."""
    pages = {where.partition(":")[0] for where in shown()}
    assert pages >= {"README.md", "faults.md", "network.md", "scenarios.md", "toxiproxy.md"}
