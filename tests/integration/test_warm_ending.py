"""A warm worker ends well where torch would abort: with a collective of gloo still under way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.free_ports import free_port
from tests.unit.boot.held import ROLE, hold, without_gloos_own

LIMIT_S = 240.0

# Rank 1 joins the collective when rank 0 is at its end, and holds Python's lock. The thread that is
# to let go of the tensor now waits for that lock, and Python finalises: that aborts the process.
# The first to be registered is the last to be called, so torch comes after it.
_SCRIPT = """\
import atexit, ctypes, os, sys, time
if os.environ["RANK"] == "0":
    atexit.register(ctypes.PyDLL(None).usleep, 500_000)
    atexit.register(lambda: open("ending", "w").close())
import torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.ones(8)
if dist.get_rank() == 0:
    atexit.register(print, "its own callbacks are called")
    dist.all_reduce(tensor, async_op=True)
    sys.exit(7)
while not os.path.exists("ending"):
    time.sleep(0.001)
dist.all_reduce(tensor)
print(tensor[0].item())
"""


def test_a_rank_that_ends_during_a_collective_keeps_its_exit_code(tmp_path: Path) -> None:
    """The last thing a program does in Python is to let gloo's threads finish."""
    (tmp_path / "script.py").write_text(_SCRIPT)
    port = free_port()
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    other = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, **shared, "RANK": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        body = "return Program(argv=['script.py'], environ=os.environ.copy())"
        done = hold(ROLE.format(body=body), tmp_path, environ={**shared, "RANK": "0"}, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (7, "")
        assert without_gloos_own(done.stdout) == ["its own callbacks are called"]
        out, _ = other.communicate(timeout=LIMIT_S)
        assert without_gloos_own(out) == [
            "2.0"
        ]  # how a plain Python ends with gloo's threads is torch's affair
    finally:
        other.kill()
        other.communicate()
