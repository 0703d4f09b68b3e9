"""Where the kernel does not say which files are written, nothing is said to be not written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster_bench import ROOT
from tests.few_watches import needs_a_user_namespace, with_few_watches
from tests.integration.test_checkup import LIMIT_S, rows_of

SCENARIO = """\
version: 1
id: files
title: What is written
job: {script: train.py, args: [--steps=10]}
nodes: {initial: 1, min: 1, max: 1}
timeline:
  - {when: {event: file_written}, id: late, pause: rank 0, for: 1s}
limit: 60s
expect:
  never: [{event: file_written, path: newest.pt}]
  sometimes: [{event: file_written}]
  eventually: [{event: file_written, within: 0.1s}]
"""


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command where no folder can be watched."""
    return subprocess.run(
        [*with_few_watches(0), sys.executable, "-m", "pytest_elastic", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=cwd,
        check=False,
    )


@needs_a_user_namespace
def test_a_check_up_that_cannot_see_files_does_not_say_that_none_was_saved(tmp_path: Path) -> None:
    """What rests on when the script saves is unknown, with the reason; the rest is judged."""
    shutil.copy(ROOT / "examples" / "minimal.py", tmp_path / "train.py")
    only = "--only=worker-killed,killed-while-saving,slow-link"
    done = run("chaos", "--nodes=2", only, "train.py", "--steps=60", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    rows = rows_of(done.stdout)
    assert rows["uninterrupted"][0] == rows["slow-link"][0] == "yes", done.stdout
    assert rows["worker-killed"][0] == "yes (unknown)"
    assert rows["killed-while-saving"][0] == "unknown"
    said = " ".join(done.stdout.split())
    assert "whether the script saves checkpoints, and how often, is not known" in said
    assert "no more inotify watches (fs.inotify.max_user_watches)" in said
    assert "no checkpoint was seen" not in said


@needs_a_user_namespace
def test_clauses_about_files_that_nobody_could_see_are_unknown(tmp_path: Path) -> None:
    """In each bucket; and a fault that waits for a file says why that was not seen."""
    shutil.copy(ROOT / "examples" / "minimal.py", tmp_path / "train.py")
    (tmp_path / "files.elastic.yaml").write_text(SCENARIO)
    done = run("chaos", "files.elastic.yaml", "-vv", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "1 run: 1 unknown" in said
    for clause in ("faults_effective", "never:", "sometimes:", "eventually:"):
        assert f"UNKNOWN: {clause} " in said, said
    assert "INVALID" not in said
    assert "last seen: 0 of 1 such events; files may have been written unseen: " in said
