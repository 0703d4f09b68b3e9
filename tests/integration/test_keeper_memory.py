"""A worker that the kernel killed because memory ran out is told from one that somebody killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_elastic.workers.messages import GroupGone, StartGroup, WorkerEnded, WorkersRunning
from tests.integration.memory_group import limited_memory
from tests.integration.small_agent import AgentProcess, python_worker

_LIMIT_BYTES = 100 * 1024 * 1024
_HUNGRY = "x = []\nwhile True: x.append(bytearray(1 << 20))"


@pytest.fixture
def limited_group() -> Iterator[Path]:
    """A control group with little memory, below the one that the tests run in."""
    with limited_memory(_LIMIT_BYTES) as group:
        yield group


def test_running_out_of_memory_is_told_from_a_kill(limited_group: Path, tmp_path: Path) -> None:
    """Both end by SIGKILL; only the first is said to have been out of memory."""
    with AgentProcess(warm=False) as agent:
        (limited_group / "cgroup.procs").write_text(str(agent.keeper_pid))
        hungry = python_worker(["-c", _HUNGRY], cwd=str(tmp_path))
        agent.send(StartGroup(round=1, workers=[hungry]))
        ended = agent.wait_for(WorkerEnded)
        assert (ended.exit_code, ended.was_out_of_memory) == (-signal.SIGKILL, True)
        agent.wait_for(GroupGone)
        agent.reports.clear()
        patient = python_worker(["-c", "import time; time.sleep(1000)"], cwd=str(tmp_path))
        agent.send(StartGroup(round=2, workers=[patient]))
        os.kill(agent.wait_for(WorkersRunning).pids[0], signal.SIGKILL)
        ended = agent.wait_for(WorkerEnded)
        assert (ended.exit_code, ended.was_out_of_memory) == (-signal.SIGKILL, False)
