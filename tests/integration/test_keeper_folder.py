"""What an agent has made for itself goes with it, also when it is killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_elastic.workers.messages import InheritFolder, StartGroup, WorkersRunning
from pytest_elastic.workers.process_tree import start_time
from tests.integration.hanging_disks import HangingDisks
from tests.integration.small_agent import AgentProcess, python_worker

SOON_S = 60.0
UNTIL_KILLED = ["-c", "import signal; signal.pause()"]


def test_a_killed_agents_own_folder_goes_with_its_keeper(tmp_path: Path) -> None:
    """Last of all; one that dismisses its keeper may still want it, and removes it itself."""
    folder = tmp_path / "torchelastic_x"
    (folder / "none_y" / "attempt_0" / "0").mkdir(parents=True)
    with AgentProcess(warm=False, linger_s=0.0) as agent:
        agent.send(InheritFolder(path=str(folder)))
    assert folder.is_dir(), "the agent ended on purpose"
    with AgentProcess(warm=False, linger_s=0.0) as agent:
        agent.send(InheritFolder(path=str(folder)))
        # Told after the folder, so that the keeper knows of that as soon as these run.
        agent.send(StartGroup(round=1, workers=[python_worker(UNTIL_KILLED, cwd=str(tmp_path))]))
        agent.wait_for(WorkersRunning)
        agent.process.kill()
        agent.wait_until(lambda: start_time(agent.keeper_pid) is None, within_s=SOON_S)
        assert not folder.exists()
    assert tmp_path.is_dir()


def test_a_folder_that_hangs_keeps_no_keeper(tmp_path: Path) -> None:
    """Its workers are gone; what is in the folder stays."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("takes root, and /dev/fuse")
    disks = HangingDisks()
    with AgentProcess(warm=False, linger_s=0.0) as agent:
        agent.send(InheritFolder(path=str(tmp_path)))
        agent.send(StartGroup(round=1, workers=[python_worker(UNTIL_KILLED, cwd="/")]))
        agent.wait_for(WorkersRunning)
        disks.hide(tmp_path)
        try:
            agent.process.kill()
            agent.wait_until(lambda: start_time(agent.keeper_pid) is None, within_s=SOON_S)
        finally:
            disks.close()
