"""`docs/torchrun-failures.md` names tests and scenarios that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "torchrun-failures.md"


def missing_in(text: str) -> list[str]:
    """Return the references that lead nowhere."""
    missing = []
    for reference in sorted(set(re.findall(r"`((?:tests|scenarios)/[^`]+)`", text))):
        path, _, name = reference.partition("::")
        file = ROOT / path
        if not file.exists():
            missing.append(reference)
        elif name:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            known = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            missing += [reference] if name not in known else []
    return missing


def rows_without_a_test(text: str) -> list[str]:
    """Return the rows of the page's tables whose last column names nothing that is run."""
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    named = ("`tests/", "`scenarios/", "the same")
    return [
        row
        for row in rows
        if not row.endswith("| here |") and not row.split(" | ")[-1].startswith(named)
    ]


def test_every_failure_has_a_test_that_exists() -> None:
    """A renamed test is missed here, and a failure without one is not listed as stood."""
    text = PAGE.read_text(encoding="utf-8")
    assert missing_in(text) == []
    assert rows_without_a_test(text) == []


def test_a_reference_that_leads_nowhere_is_found() -> None:
    """One planted fault of each kind."""
    here = "tests/house/test_failures_page.py"
    planted = f"`tests/gone.py::test_x` `{here}::test_gone` `scenarios/gone.elastic.yaml`"
    assert set(missing_in(planted)) == {
        "scenarios/gone.elastic.yaml",
        "tests/gone.py::test_x",
        f"{here}::test_gone",
    }
    assert missing_in(f"`{here}::test_every_failure_has_a_test_that_exists`") == []
    assert rows_without_a_test("| a | b | it is fine |\n") == ["| a | b | it is fine |"]
