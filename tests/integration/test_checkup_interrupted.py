"""`pytest-elastic chaos SCRIPT` is interrupted by Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness import leaks
from elastic_harness.cluster import process_table
from elastic_harness.cluster.server.server_process import VARIABLE

from tests.integration.test_checkup import LIMIT_S
from tests.plugin.test_interruption import Traces, left_since, traces_of

SAID = "Interrupted: the runs are being ended, which takes seconds; Ctrl-C again ends at once.\n"
# Each worker rings once it is there, and waits for good.
FOREVER = """\
import os, signal
bell = os.open(os.environ["BELL"], os.O_WRONLY)
os.write(bell, b".")
signal.pause()
"""


class CheckUp:
    """A check-up whose two undisturbed runs do not end; all of them have begun."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.before = leaks.snapshot()
        (folder / "train.py").write_text(FOREVER)
        bell = folder / "bell"
        os.mkfifo(bell)
        environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest_elastic", "chaos", "--nodes=1", *words, "train.py"],
            cwd=folder,
            env={**environ, "BELL": str(bell)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        ours = os.open(bell, os.O_RDWR | os.O_NONBLOCK)
        for _ in range(2 if "--jobs=2" in words else 1):
            assert select.select([ours], [], [], LIMIT_S)[0], "no worker has begun"
            os.read(ours, 1)
        os.close(ours)
        self.traces: Traces = traces_of(self.process.pid)

    def interrupt(self) -> None:
        """Press Ctrl-C: all processes of the terminal's job get the signal."""
        os.killpg(self.process.pid, signal.SIGINT)


@pytest.fixture
def checkup(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CheckUp]:
    """Return a check-up in the middle of its first runs."""
    checkup = CheckUp(tmp_path, *request.param)
    yield checkup
    checkup.process.kill()
    checkup.process.communicate(timeout=LIMIT_S)
    for pidfd in checkup.traces.pidfds:
        os.close(pidfd)


@pytest.mark.parametrize(
    "checkup", [["--jobs=2"], ["--cluster=process", "--jobs=1"]], indirect=True
)
def test_ctrl_c_is_answered_and_ends_the_runs(checkup: CheckUp) -> None:
    """In one line, and with 130; every process has gone before the command goes."""
    assert checkup.traces.folders, "there is something to remove"
    checkup.interrupt()
    _, said = checkup.process.communicate(timeout=LIMIT_S)
    assert said == SAID
    assert checkup.process.returncode == 128 + signal.SIGINT
    assert checkup.traces.wait_for_ends(within_s=0) == []
    assert checkup.traces.folders == []
    assert left_since(checkup.before, checkup.traces) == []


@pytest.mark.parametrize("checkup", [["--jobs=1"]], indirect=True)
def test_a_second_ctrl_c_ends_at_once(checkup: CheckUp) -> None:
    """Even where the runs cannot be ended: what is left goes as soon as that is possible."""
    stderr = checkup.process.stderr
    assert stderr is not None
    rows = process_table.descendants(checkup.process.pid)
    for row in rows:
        os.kill(row.pid, signal.SIGSTOP)
    checkup.interrupt()
    assert stderr.readline() == SAID, "it is said before anything has been ended"
    checkup.interrupt()
    assert checkup.process.wait(LIMIT_S) == 128 + signal.SIGINT
    for row in rows:
        with contextlib.suppress(ProcessLookupError):  # killed by one that goes on already
            os.kill(row.pid, signal.SIGCONT)
    assert checkup.traces.wait_for_ends(within_s=60) == []
    assert checkup.traces.folders == []
