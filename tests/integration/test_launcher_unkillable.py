"""A worker that SIGKILL does not end, as one that waits for a disk or a driver: here it is frozen.

A process in a frozen control group of version 1 is in uninterruptible sleep until it is thawed.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.called_launcher import LIMIT_S, Running

FREEZER = Path("/sys/fs/cgroup/freezer")
STAYS = """
import os, time
print(f"worker {os.getpid()} is up", flush=True)
time.sleep(600)
"""


class Freezer:
    """A control group whose processes are frozen."""

    def __init__(self) -> None:
        self._group = FREEZER / f"pytest-elastic-test-{os.getpid()}"
        self._group.mkdir()

    def freeze(self, pid: int) -> None:
        """Freeze a process until `close`."""
        (self._group / "cgroup.procs").write_text(str(pid))
        (self._group / "freezer.state").write_text("FROZEN")

    def close(self) -> None:
        """Thaw what is frozen, which ends it if it was killed, and take the group away."""
        if not self._group.exists():
            return
        pids = [int(line) for line in (self._group / "cgroup.procs").read_text().split()]
        pidfds = [os.pidfd_open(pid) for pid in pids]
        (self._group / "freezer.state").write_text("THAWED")
        for pidfd in pidfds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], LIMIT_S)
            os.close(pidfd)
        self._group.rmdir()


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    """A freezer that is closed behind the test."""
    if os.geteuid() != 0 or not (FREEZER / "cgroup.procs").exists():
        pytest.skip("takes root, and the freezer of control groups in version 1")
    made = Freezer()
    yield made
    made.close()


def test_a_launcher_leaves_a_worker_that_cannot_be_killed_and_names_it(
    tmp_path: Path, freezer: Freezer
) -> None:
    """Two seconds after a signal that comes when they were killed; without one, after a minute."""
    (tmp_path / "stays.py").write_text(STAYS)
    words = ("--standalone", "--worker-start=exec", "--shutdown-timeout=0.5", "stays.py")
    with Running(*words, cwd=tmp_path) as job:
        job.wait_for(" is up")
        pid = int(job.printed.partition(" is up")[0].rpartition(" ")[2])
        freezer.freeze(pid)
        while job.process.poll() is None:
            job.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                job.process.wait(0.5)
        assert Path(f"/proc/{pid}/stat").read_text().split()[2] == "D", "nobody can end it"
        freezer.close()  # it holds the pipe that is read now
        job.read_rest()
    assert job.process.returncode == 3, job.printed
    assert "this node cannot go on: processes of round 1 have outlived SIGKILL" in job.printed
    assert f"(pid {pid} is in state D, waits in " in job.printed
