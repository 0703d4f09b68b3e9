"""On a warm server everything is forked: launcher, keeper, store service and workers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from pytest_elastic.boot.spawn import command_and_environ

_ROOT = Path(__file__).parents[2]


def test_a_launcher_forked_from_a_warm_server_runs_a_job(tmp_path: Path) -> None:
    """Workers are warm, see none of their ancestors' descriptors, and the exit codes go up."""
    code = (
        "import os, sys\n"
        "fds = [os.readlink(f'/proc/self/fd/{fd}') for fd in range(3, 30)\n"
        "       if os.path.exists(f'/proc/self/fd/{fd}')]\n"
        "names = [name for name in sys.modules if 'elastic' in name and 'torch' not in name]\n"
        "print('rank', os.environ['RANK'], 'torch' in sys.modules, fds, names, flush=True)\n"
    )
    command, environ = command_and_environ(
        "tests.integration.forked_launcher:ServerRole",
        {"code": code},
        base_environ={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    done = subprocess.run(
        command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == "the launcher's last words\n"
    assert done.returncode == 1
    assert sorted(done.stdout.splitlines()) == [
        "dismissed True",
        "keeper True torch preloaded",
        "rank 0 True [] []",
        "rank 1 True [] []",
        "store open",
        "workers warm",
    ]
