"""The GitHub action: its shell steps, run as a runner runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster_bench import ROOT
from tests.integration.test_checkup import WITHOUT_TORCH

LIMIT_S = 240.0
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())


def step_of(variable: str) -> str:
    """Return the script of the step that is given an input by this variable."""
    steps = [each for each in ACTION["runs"]["steps"] if variable in each.get("env", {})]
    (step,) = steps
    assert step["env"][variable].startswith("${{ inputs.")
    assert step["shell"] == "bash"
    return str(step["run"])


def run_step(script: str, folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run a step as a runner does: bash stops at the first error, and a pipe fails as a whole."""
    python = str(Path(sys.executable).parent)
    environ = {**os.environ, **inputs, "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=folder,
        env={**environ, "PATH": f"{python}:{os.environ['PATH']}"},
        check=False,
    )


def test_every_input_is_used_by_a_step() -> None:
    """One that is only declared would be ignored."""
    text = (ROOT / "action.yml").read_text()
    for name in ACTION["inputs"]:
        assert f"inputs.{name}" in text


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param((ROOT / "examples" / "minimal.py").read_text(), 0, marks=pytest.mark.slow),
        (WITHOUT_TORCH, 1),
    ],
    ids=["valid", "invalid"],
)
def test_a_check_up_ends_with_its_own_exit_code_and_its_card_is_in_the_summary(
    tmp_path: Path, script: str, code: int
) -> None:
    """An invalid one fails the job, though its output goes through a pipe."""
    (tmp_path / "train.py").write_text(script)
    words = "--nodes=1 --only=worker-exits train.py --steps=60"
    done = run_step(step_of("CHECK_UP"), tmp_path, CHECK_UP=words)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Check-up of train.py: " in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "elastic-runs").is_dir()


TEST = """\
def test_one(request):
    print(request.config.args)
"""


def test_tests_are_run_with_the_words_of_the_input(tmp_path: Path) -> None:
    """The step is pytest's, options and all."""
    (tmp_path / "test_one.py").write_text(TEST)
    done = run_step(step_of("TESTS"), tmp_path, TESTS="test_one.py -q -s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "['test_one.py']" in done.stdout
