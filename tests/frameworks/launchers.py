"""Launch commands of frameworks, which call torchrun in their own process, launch by ours.

Run by `tox -e frameworks`, with the frameworks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.jobs import LIMIT_S, PROGRAMS
from tests.free_ports import free_port

BIN = os.path.dirname(sys.executable)
COMMANDS: dict[str, tuple[str, ...]] = {
    # Its way for GPUs, which is torchrun's; ACCELERATE_USE_CPU keeps the workers on processors.
    "accelerate launch": (
        *(f"{BIN}/accelerate", "launch", "--multi_gpu", "--num_processes=2"),
        *("--main_process_port=0", str(PROGRAMS / "accelerate_ddp.py")),
    ),
    "fabric run": (
        *(f"{BIN}/fabric", "run", "--accelerator=cpu", "--strategy=ddp", "--devices=2"),
        *("--main-port={port}", str(PROGRAMS / "fabric_sum.py")),
    ),
}


@pytest.mark.parametrize(("value", "own_round"), [("0", "none"), ("1", "1")])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_launch_command_launches_by_ours(
    name: str, value: str, own_round: str, tmp_path: Path
) -> None:
    """The variable decides which launcher the workers have; the command is the same."""
    done = subprocess.run(
        [word.format(port=free_port()) for word in COMMANDS[name]],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_ELASTIC_AS_TORCHRUN": value, "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r"rank (\d) of 2: loss 3\.0000, round (\w+)", done.stdout)
    assert sorted(said) == [("0", own_round), ("1", own_round)], done.stdout + done.stderr
