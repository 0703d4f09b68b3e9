"""Tools that look into workers: debuggers, coverage of their processes, a sampler from outside.

Run by `tox -e frameworks`, with the frameworks.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.launchers import OURS, TORCHRUN, Running, address
from tests.frameworks.debugger import Debugger
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
# Line 6 is where debuggers are to stop.
_DEBUGGED = """\
import os
import torch

def step(rank):
    total = torch.ones(3).sum() + rank
    return total

os.write(1, f"result {float(step(int(os.environ['RANK'])))}\\n".encode())
"""
_LISTENS = """\
import os, sys
import debugpy
debugpy.listen((sys.argv[1], 5678 + int(os.environ["LOCAL_RANK"])))
debugpy.wait_for_client()
import work
"""


@pytest.mark.parametrize("start", ["auto", "exec"])
@pytest.mark.parametrize("way", ["by the command line", "by the script"])
def test_a_debugger_attaches_to_each_worker(way: str, start: str, tmp_path: Path) -> None:
    """Each waits for its own client, stops at the line, tells what is there, and goes on."""
    host = address(96)
    file = tmp_path / "work.py"
    file.write_text(_DEBUGGED)
    (tmp_path / "listens.py").write_text(_LISTENS)
    if way == "by the script":
        program = ["listens.py", host]
    else:
        listen = f"{host}:567${{local_rank}}"
        program = ["-m", "debugpy", "--listen", listen, "--wait-for-client", "work.py"]
    first_port = 5678 if way == "by the script" else 5670
    events = tmp_path / "events"
    job = Running(
        tmp_path,
        *(*OURS, f"--worker-start={start}", "--standalone", "--nproc-per-node=2", *program),
        environ={"PYTEST_ELASTIC_EVENTS": f"file:{events}"},
    )
    try:
        debuggers = [Debugger(host, first_port + rank) for rank in (0, 1)]
        for debugger in debuggers:
            debugger.attach({str(file): 6})
        for rank, debugger in enumerate(debuggers):
            thread, frame = debugger.stop()
            assert debugger.frames(thread)[:2] == [("step", 6), ("<module>", 8)]
            assert debugger.evaluate("(float(total), rank)", frame) == f"({3.0 + rank}, {rank})"
            debugger.go_on(thread)
        assert job.wait() == 0, job.printed
        for debugger in debuggers:
            debugger.close()
    finally:
        job.end()
    assert sorted(line for line in job.printed.splitlines() if line.startswith("result")) == [
        "result 3.0",
        "result 4.0",
    ]
    assert f'"start":"{"warm" if start == "auto" else "exec"}"' in events.read_text()


_LOGS = """\
import logging, os, sys
import torch
logging.getLogger("torch._dynamo").debug("a line for %s", os.environ["RANK"])
"""


@pytest.mark.parametrize("where", ["on stderr", "in a file"])
def test_torch_logs_what_torch_logs_says(where: str, tmp_path: Path) -> None:
    """As under torchrun: torch reads TORCH_LOGS, and opens TORCH_LOGS_OUT, when it is imported."""
    (tmp_path / "script.py").write_text(_LOGS)
    log = tmp_path / "log"
    environ = {"TORCH_LOGS": "+dynamo"}
    if where == "in a file":
        environ["TORCH_LOGS_OUT"] = str(log)
    said = []
    for launcher in (OURS, TORCHRUN):
        job = Running(tmp_path, *launcher, "--standalone", "script.py", environ=environ)
        try:
            assert job.wait() == 0, job.printed
        finally:
            job.end()
        text = log.read_text() if where == "in a file" else job.printed
        # The level and the file stay; the moment and the pid do not.
        said.append(
            re.findall(r"^(\w)\d+ .* (\S*script\.py:\d+\] a line for 0)$", text, re.MULTILINE)
        )
        log.unlink(missing_ok=True)
    assert said[0] == said[1] != []


def test_coverage_run_in_a_worker_measures_what_it_runs(tmp_path: Path) -> None:
    """`-m coverage run` observes a program, its imports too: such workers are fresh ones."""
    (tmp_path / "script.py").write_text(_BRANCHES)
    ran = run_job(tmp_path, "-m", "coverage", "run", "--parallel-mode", "script.py")
    assert (ran.exit_code, ran.starts) == (0, ("exec",)), ran.output
    assert len(list(tmp_path.glob(".coverage.*"))) == 2


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
