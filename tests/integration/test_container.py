"""The agent as the first process of a pid namespace, as in a container."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.called_launcher import LIMIT_S
from tests.integration.test_launcher_drain import wait_until

NEEDS_CONTAINERS = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("nsenter") is None,
    reason="making a pid namespace needs root, unshare and nsenter (util-linux)",
)
pytestmark = NEEDS_CONTAINERS

CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def children(pid: int) -> list[int]:
    """Return the children of a process that has one thread, zombies included."""
    return [int(pid) for pid in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# A package that brings torch a device: with it, the launcher asks torch how many there are.
DEVICE = "[torch.backends]\nslow = slow:load\n"
# A driver that does not answer, or a slow disk: importing torch takes long.
SLOW_TORCH = """
with open("asked", "w") as asked:
    asked.write("torch is being imported")
open("never").read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT])
def test_pid_1_ends_by_a_signal_that_comes_before_the_agent_runs(
    tmp_path: Path, number: signal.Signals
) -> None:
    """While torch is asked for the number of devices, which takes seconds on many machines."""
    package = tmp_path / "slow-1.0.dist-info"
    package.mkdir()
    (package / "entry_points.txt").write_text(DEVICE)
    (tmp_path / "torch.py").write_text(SLOW_TORCH)
    (tmp_path / "train.py").touch()
    os.mkfifo(tmp_path / "asked")
    os.mkfifo(tmp_path / "never")
    asked = os.open(tmp_path / "asked", os.O_RDONLY | os.O_NONBLOCK)
    words = ["--standalone", "--nproc-per-node=gpu", "train.py"]
    with subprocess.Popen(
        [*CONTAINER, sys.executable, "-m", "pytest_elastic", "run", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    ) as unshare:
        try:
            assert select.select([asked], [], [], LIMIT_S)[0], "torch was not imported"
            (command,) = children(unshare.pid)
            os.kill(command, number)
            assert unshare.wait(LIMIT_S) == 128 + number
        finally:
            unshare.kill()
            os.close(asked)


def test_pid_1_reaps_orphans_that_it_did_not_start(tmp_path: Path) -> None:
    """Five calls into the container each leave an orphan behind, which then ends."""
    stay = tmp_path / "stay.py"
    stay.write_text("print('begun', flush=True)\nimport time\ntime.sleep(600)\n")
    words = ["--standalone", "--worker-start=exec", str(stay)]
    with subprocess.Popen(
        [*CONTAINER, sys.executable, "-m", "pytest_elastic", "run", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    ) as unshare:
        try:
            assert unshare.stdout is not None
            while b"begun" not in (line := unshare.stdout.readline()):
                assert line, "the agent ended"
            (agent,) = children(unshare.pid)
            before = set(children(agent))
            enter = ["nsenter", "-t", str(agent), "-p", "-m"]
            for _ in range(5):
                # The shell ends at once; reading the pipe to its end waits for the orphan.
                subprocess.run(
                    [*enter, "sh", "-c", "sh -c 'read x < /proc/uptime' & "],
                    stdout=subprocess.PIPE,
                    timeout=LIMIT_S,
                    check=True,
                )
            wait_until(lambda: set(children(agent)) == before, "no orphan is left as a zombie")
        finally:
            unshare.kill()
