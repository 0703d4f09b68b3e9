"""Tools that look into workers: coverage of their processes, and a sampler from outside.

Run by `tox -e frameworks`, with the frameworks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.frameworks.jobs import run_job

LIMIT_S = 60.0

_BRANCHES = """\
import os
if os.environ["RANK"] == "1":
    print("one branch")
else:
    print("the other")
"""
_SAMPLED = """\
import os, subprocess, sys
def here():
    sampler = os.path.join(os.path.dirname(sys.executable), "py-spy")
    subprocess.run([sampler, "dump", "--pid", str(os.getpid())], check=True)
if os.environ["RANK"] == "0":
    here()
"""


def test_coverage_of_processes_sees_every_worker(tmp_path: Path) -> None:
    """COVERAGE_PROCESS_START means a fresh start, and a data file for each worker."""
    config = tmp_path / "coveragerc"
    data = tmp_path / "data"
    config.write_text(f"[run]\nparallel = true\ndata_file = {data}\ninclude = */script.py\n")
    (tmp_path / "script.py").write_text(_BRANCHES)
    ran = run_job(tmp_path, "script.py", environ={"COVERAGE_PROCESS_START": str(config)})
    assert (ran.exit_code, ran.starts) == (0, ("exec",)), ran.output
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run(
        [*coverage, "combine", f"--rcfile={config}"], cwd=tmp_path, timeout=LIMIT_S, check=True
    )
    report = subprocess.run(
        [*coverage, "report", f"--rcfile={config}"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    # Each rank ran its own branch: only together have they run all lines.
    assert "script.py" in report.stdout
    assert "100%" in report.stdout, report.stdout


def test_a_sampler_reads_the_stack_of_a_warm_worker(tmp_path: Path) -> None:
    """py-spy finds Python in a forked worker, and the line of the script that it is at."""
    (tmp_path / "script.py").write_text(_SAMPLED)
    ran = run_job(tmp_path, "script.py")
    assert (ran.exit_code, ran.starts) == (0, ("warm",)), ran.output
    assert "here (script.py:4)" in ran.output
