"""`pytest-elastic run`: the host's agent is killed and started again, and meets new nodes only.

Real commands on one machine, with an address of its own for each node.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.free_ports import free_port
from tests.integration.called_launcher import STAYS, Running


class Job:
    """Nodes n1, n2, ... at 127.0.0.1, 127.0.0.2, ...; the endpoint is at the first."""

    def __init__(self, folder: Path) -> None:
        self._endpoint = f"127.0.0.1:{free_port()}"
        self._folder = folder
        (folder / "stays.py").write_text(STAYS)
        self.every: list[Running] = []

    def start(self, number: int) -> Running:
        """Start a node; with this lease, agents that are frozen for a test are not missed."""
        words = (
            *("--nnodes=3:5", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=job"),
            f"--rdzv-endpoint={self._endpoint}",
            "--rdzv-conf=beat_interval=0.3,lease=60,last_call_timeout=0.3,min_round=0.2",
            *(f"--node-name=n{number}", f"--local-addr=127.0.0.{number}", "stays.py"),
        )
        node = Running(*words, cwd=self._folder, environ={"TMPDIR": str(self._folder)})
        self.every.append(node)
        return node

    def marks(self) -> list[Path]:
        """Return the marks on this machine."""
        return list(self._folder.glob("pytest_elastic_*/*.mark"))

    def stop(self) -> None:
        """Let the workers end well, and their agents with them."""
        (self._folder / "stop").touch()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Return a job without nodes yet; whatever is left of it at the end is killed."""
    job = Job(tmp_path)
    yield job
    for node in job.every:
        with contextlib.suppress(OSError):
            node.end()


def test_a_host_that_is_started_again_waits_for_its_survivors_and_joins_them(job: Job) -> None:
    """They are frozen until it has enough new nodes for a second job, which it does not begin."""
    host = job.start(1)
    host.wait_for("hosting the rendezvous")  # the first does, as all addresses are this machine's
    second, third = job.start(2), job.start(3)
    for node in (host, second, third):
        node.wait_for("world of 3 in round 1;")
    assert len(job.marks()) == 1
    for node in (second, third):
        os.kill(node.process.pid, signal.SIGSTOP)
    host.end()
    again = job.start(1)
    again.wait_for("hosting the rendezvous")
    new = [job.start(number) for number in (4, 5)]
    again.wait_for("enough nodes are ready, but this machine was in a job of this --rdzv-id")
    for node in (second, third):
        os.kill(node.process.pid, signal.SIGCONT)
    for node in (second, third, again, *new):
        node.wait_for("world of 5 in round ")
    job.stop()
    for node in (second, third, again, *new):
        node.wait()
        assert node.process.returncode == 0
    for node in (again, *new):
        assert "in round 1;" not in node.printed
    assert "coordinating no more" in again.printed
    assert job.marks() == []
