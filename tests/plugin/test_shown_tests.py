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
            name = f"{Path(page).stem}_{fence.line}"
            if fence.language == "python" and "def test_" in fence.text:
                found[where] = (f"test_{name}.py", fence.text)
            elif fence.language == "yaml" and fence.text.startswith("version: 1\n"):
                found[where] = (f"{name}.elastic.yaml", fence.text)
    return found


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what pytest says of them all, in a folder beside `examples/`, called above it."""
    folder = tmp_path_factory.mktemp("shown")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "scenarios").mkdir()
    for file, text in shown().values():
        (folder / "scenarios" / file).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "scenarios"]
    command += ["-c", "/dev/null", f"--rootdir={folder}", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("where", shown())
def test_what_a_page_shows_passes(where: str, said: str) -> None:
    """Word for word, as the pages say."""
    file, _ = shown()[where]
    outcome = re.search(rf"^(PASSED|SKIPPED .*) scenarios/{re.escape(file)}:.*", said, re.MULTILINE)
    assert outcome is not None, said
    if outcome[1] != "PASSED":
        pytest.skip(outcome[0])  # what this machine lacks, as the scenario itself says it
    assert not re.search(rf"^(FAILED|ERROR) scenarios/{re.escape(file)}:", said, re.MULTILINE), said


def test_pages_show_tests_and_scenarios() -> None:
    """Or nothing is run above."""
    kinds = {(where.partition(":")[0], Path(file).suffix) for where, (file, _) in shown().items()}
    assert kinds == {(page, kind) for page in PAGES for kind in (".py", ".yaml")}
