"""A worker that SIGKILL does not end, as one that waits for a disk or a driver: here it is frozen.

A process in a frozen control group of version 1 is in uninterruptible sleep until it is thawed.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
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
        job.wait()
    assert job.process.returncode == 3, job.printed
    assert "this node cannot go on: processes of round 1 have outlived SIGKILL" in job.printed
    assert f"(pid {pid} is in state D, waits in " in job.printed


def a_node(name: str, *, is_host: bool) -> Sequence[str]:
    """Return the command line of one of two nodes on this machine."""
    conf = f"is_host={is_host},kill_timeout=2,last_call_timeout=60,min_round=0.1"
    return (
        *("--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.91.31.1:29400"),
        *(f"--node-name={name}", f"--rdzv-conf={conf}", "--worker-start=exec"),
        *("--max-restarts=3", "--failure-grace=0.5", "stays.py"),
    )


@pytest.mark.parametrize("stuck_is_host", [True, False])
def test_a_node_that_cannot_end_a_stopped_round_names_what_is_left_and_tells_the_other(
    tmp_path: Path, freezer: Freezer, *, stuck_is_host: bool
) -> None:
    """A rank of the other has failed: this node can run no other round, and leaves the job."""
    (tmp_path / "stays.py").write_text(STAYS)
    with (
        Running(*a_node("stuck", is_host=stuck_is_host), cwd=tmp_path) as stuck,
        Running(*a_node("other", is_host=not stuck_is_host), cwd=tmp_path) as other,
    ):
        pids = []
        for job in (stuck, other):
            job.wait_for(" is up")
            pids.append(int(job.printed.partition(" is up")[0].rpartition(" ")[2]))
        freezer.freeze(pids[0])
        os.kill(pids[1], signal.SIGKILL)
        assert stuck.process.wait(LIMIT_S) == 3
        freezer.close()
        stuck.wait()
        assert "this node cannot go on: processes of round 1 have outlived" in stuck.printed
        assert f"(pid {pids[0]} is in state D, waits in " in stuck.printed, stuck.printed
        other.wait_for("processes of round 1 have outlived SIGKILL, so it cannot run another one")
