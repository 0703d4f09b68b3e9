"""The tests and scenarios that README.md and docs/recipes.md show, run word for word."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.test_documents import ROOT, fences_in

LIMIT_S = 300.0
PAGES = ("README.md", "docs/recipes.md")


def shown() -> dict[str, tuple[str, str]]:
    """Return each block that is a whole test or scenario, by page and line: its file, its text."""
    found = {}
    for page in PAGES:
        for fence in fences_in((ROOT / page).read_text(encoding="utf-8")):
            where = f"{page}:{fence.line}"
            if fence.language == "python" and "def test_" in fence.text:
                found[where] = ("test_shown.py", fence.text)
            elif fence.language == "yaml" and fence.text.startswith("version: 1\n"):
                found[where] = ("shown.elastic.yaml", fence.text)
    return found


@pytest.mark.parametrize("where", shown())
def test_what_a_page_shows_passes(where: str, tmp_path: Path) -> None:
    """In a folder beside `examples/`, as the pages say; a Python test is called above it."""
    file, text = shown()[where]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / file).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", f"scenarios/{file}"]
    command += ["-c", "/dev/null", f"--rootdir={tmp_path}", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if skipped := re.search(r"^SKIPPED .*", done.stdout, re.MULTILINE):
        pytest.skip(skipped[0])  # what this machine lacks, as the scenario itself says it
    assert "PASSED" in done.stdout, done.stdout


def test_pages_show_tests_and_scenarios() -> None:
    """Or nothing is run above."""
    files = {(where.partition(":")[0], file) for where, (file, _) in shown().items()}
    assert files == {
        (page, file) for page in PAGES for file in ("test_shown.py", "shown.elastic.yaml")
    }
