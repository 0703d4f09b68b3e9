"""NCCL under our launcher: a worker is lost on a GPU, and the job recovers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_S = 180.0  # several starts with CUDA and NCCL, each of them seconds


class Launched:
    """The example under `pytest-elastic run`, its lines as they come, and a deadline."""

    def __init__(self, directory: Path, nproc: int, arguments: Sequence[str]) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest_elastic", "run", "--standalone"),
                *(f"--nproc-per-node={nproc}", "--max-restarts=2"),
                *(str(ROOT / "examples" / "train.py"), f"--checkpoint-dir={directory}"),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        self._deadline = threading.Timer(DEADLINE_S, self.process.kill)
        self._deadline.start()

    def wait_for_line(self, pattern: str) -> re.Match[str]:
        """Read until a line matches."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"no line matches {pattern!r} in:\n{self.output}")

    def wait(self) -> int:
        """Read to the end and return the exit status."""
        assert self.process.stdout
        self.lines += [line.rstrip() for line in self.process.stdout]
        return self.process.wait()

    @property
    def output(self) -> str:
        """All lines read so far."""
        return "\n".join(self.lines)

    def pids(self) -> dict[int, list[int]]:
        """Return the pids that each rank said it had, one for each of its starts."""
        found: dict[int, list[int]] = {}
        for rank, pid in re.findall(r"rank (\d+) of \d+ on cuda:\d+, pid (\d+)", self.output):
            found.setdefault(int(rank), []).append(int(pid))
        return found

    def end(self) -> None:
        """Stop what still runs, politely first: an agent takes its workers along."""
        self._deadline.cancel()
        self._deadline.join()
        self.process.terminate()
        try:
            self.process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def launched(gpus: int, tmp_path: Path) -> Iterator[Launched]:
    """Start a job with a worker for each GPU, long enough to be interrupted."""
    arguments = ("--steps=60", "--checkpoint-every=5", "--log-every=1", "--step-time=0.05")
    job = Launched(tmp_path / "checkpoints", gpus, [*arguments, "--device=cuda"])
    yield job
    job.end()


@pytest.mark.gpu
@pytest.mark.slow
def test_an_nccl_job_that_loses_a_worker_resumes_from_its_checkpoint(
    gpus: int, launched: Launched
) -> None:
    """SIGKILL of the last rank after step 22: a new round resumes at step 20 and ends well.

    With one GPU it is a job of one worker, because NCCL refuses two ranks on one device.
    """
    launched.wait_for_line(r"\bstep 22 loss ")
    before = launched.pids()
    assert sorted(before) == list(range(gpus)), launched.output
    os.kill(before[gpus - 1][-1], signal.SIGKILL)

    resumed = launched.wait_for_line(r"resumed at step (\d+), world size (\d+)")
    assert int(resumed[1]) >= 20, launched.output
    assert int(resumed[2]) == gpus
    assert launched.wait() == 0, launched.output
    assert re.search(r"done: step 60 loss \S+ parameters sha256:\w{64}", launched.output)
    # Every rank was started twice, as a new process each time.
    assert [len(set(pids)) for _, pids in sorted(launched.pids().items())] == [2] * gpus
