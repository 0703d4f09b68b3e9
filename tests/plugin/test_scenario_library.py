"""The scenarios of this repository: what is run by default, and the table of what came out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios import outcomes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def collected() -> dict[str, str]:
    """Return each scenario with the argument under which pytest finds it."""
    found: dict[str, str] = {}
    for folder in ("scenarios/long", "scenarios"):
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", folder]
        command += ["-p", "no:hypothesispytest", "-p", "no:cacheprovider"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        for path, name in re.findall(
            r"^(\S+)/\S+\.elastic\.yaml::(\S+)$", done.stdout, re.MULTILINE
        ):
            scenario = f"{path.removeprefix('scenarios/')}/{name}"
            assert scenario not in found, f"{scenario} is found in {found[scenario]} and {folder}"
            found[scenario] = folder
    return found


def test_the_long_ones_run_only_when_they_are_named(collected: dict[str, str]) -> None:
    """`pytest scenarios` leaves `long/` out; nothing else is left out."""
    for scenario, folder in collected.items():
        assert scenario.startswith("long/") == (folder == "scenarios/long"), scenario
    files = {path.parent.name for path in (ROOT / "scenarios").glob("*/*.elastic.yaml")}
    assert {scenario.partition("/")[0] for scenario in collected} == files


def test_every_scenario_has_a_row_in_the_table(collected: dict[str, str]) -> None:
    """And what it says of our own launcher is that it is valid, as the scenarios' own run shows."""
    rows = outcomes.read_table(outcomes.README.read_text(encoding="utf-8"))
    assert sorted(rows) == sorted(collected), "run `python scenarios/outcomes.py`"
    assert {row["pytest-elastic"] for row in rows.values()} == {"valid"}
    said = {row[launcher] for row in rows.values() for launcher in outcomes.LAUNCHERS}
    assert all(re.match(r"valid|invalid: |unknown: |skipped: |error|–$", cell) for cell in said)


def test_a_table_that_was_written_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are not run again stay, and what stands around the table does too."""
    page = tmp_path / "README.md"
    page.write_text(f"before\n{outcomes.BEGIN}\n{outcomes.END}\nafter\n")
    monkeypatch.setattr(outcomes, "README", page)
    table = {"worker/b": {"torchrun": "invalid: job: succeeded"}, "agent/a": {"torchrun": "valid"}}
    outcomes.write_table(table)
    read = outcomes.read_table(page.read_text())
    assert list(read) == ["agent/a", "worker/b"]
    assert read["worker/b"]["torchrun"] == "invalid: job: succeeded"
    assert read["worker/b"]["pytest-elastic"] == outcomes.NOT_RUN
    outcomes.write_table(read)
    assert outcomes.read_table(page.read_text()) == read
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("\nafter\n")


def test_clusters_that_come_to_other_outcomes_are_named() -> None:
    """What one of them skips for what it lacks is no difference; any other skip is one."""
    lacking = f"{outcomes.LACKING}network: none here"
    here = {"a": "valid", "b": "valid", "c": "valid", "d": "valid", "e": lacking, "f": "valid"}
    there = {"a": "valid", "b": lacking, "c": "invalid: restarts: 1", "d": "skipped: no torch"}
    assert outcomes.differences(here, there) == [
        "c: valid; invalid: restarts: 1",
        "d: valid; skipped: no torch",
        "f: valid; not run",
    ]
