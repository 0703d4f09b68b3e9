"""Frameworks run unchanged, warm and exec'ed: `tox -e frameworks`.

Not part of the default run, which would have to install all of them; pytest is given this file by
name. See docs/frameworks.md and docs/warm-workers.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.jobs import PROGRAMS, run_job

STARTS = {"auto": "warm", "exec": "exec"}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    "name",
    [
        *("fabric_ddp", "lightning_ddp", "transformers_trainer"),
        *("distributed_checkpoint", "data_loaders"),
    ],
)
def test_a_framework_runs_unchanged(name: str, start: str, tmp_path: Path) -> None:
    """Two ranks of one job, which agree on the result, started as they were asked to be."""
    ran = run_job(tmp_path, str(PROGRAMS / f"{name}.py"), start=start)
    assert ran.exit_code == 0, ran.output
    results = ran.results
    assert sorted(results) == ["0", "1"], ran.output
    assert results["0"] == results["1"], ran.output
    assert ran.starts == (STARTS[start],)
    assert "Traceback" not in ran.output


@pytest.mark.parametrize("start", STARTS)
def test_accelerates_own_test_passes(start: str, tmp_path: Path) -> None:
    """`accelerate test` starts this very script, with a launcher of its own choice."""
    ran = run_job(
        tmp_path,
        *("-m", "accelerate.test_utils.scripts.test_script"),
        start=start,
        environ={"ACCELERATE_USE_CPU": "true"},
    )
    assert ran.exit_code == 0, ran.output
    assert "Num processes: 2" in ran.output
    assert "**Test reinstantiated state**" in ran.output, "not the end of the script"
    assert ran.starts == (STARTS[start],)
