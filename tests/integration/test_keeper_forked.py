"""On a warm server everything is forked: launcher, keeper, store service and workers."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from pytest_elastic.boot.spawn import command_and_environ
from pytest_elastic.workers.messages import (
    CallStore,
    GroupGone,
    StartGroup,
    StoreAnswered,
    WorkersRunning,
)
from pytest_elastic.workers.process_tree import children_of
from tests.integration.small_agent import AgentProcess, python_worker

_ROOT = Path(__file__).parents[2]


def test_a_launcher_forked_from_a_warm_server_runs_a_job(tmp_path: Path) -> None:
    """Workers are warm, see none of their ancestors' descriptors or modules; exit codes go up."""
    code = (
        "import os, sys\n"
        "fds = [os.readlink(f'/proc/self/fd/{fd}') for fd in range(3, 30)\n"
        "       if os.path.exists(f'/proc/self/fd/{fd}')]\n"
        "names = [name for name in sys.modules if 'elastic' in name and 'torch' not in name]\n"
        "line = f\"rank {os.environ['RANK']} {'torch' in sys.modules} {fds} {names}\\n\"\n"
        "sys.stdout.write(line)\n"  # in one piece: the other rank writes at the same moment
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
        "keeper warm",
        "rank 0 False [] []",
        "rank 1 False [] []",
        "store open",
        "workers warm",
    ]


LATE_THREAD = """
import os, signal, threading
def begin(*_):
    threading.Thread(target=signal.sigwait, args=([signal.SIGALRM],), daemon=True).start()
    open("begun", "w").close()
signal.signal(signal.SIGALRM, begin)
"""


def test_a_keeper_that_got_a_thread_forks_no_programs_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was preloaded may begin one at any time; a lock it holds would stay locked for ever."""
    (tmp_path / "begins_late.py").write_text(LATE_THREAD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with AgentProcess(preload=["begins_late"]) as agent:
        worker = python_worker(["-c", "pass"], cwd=str(tmp_path))
        for round_, start, said in ((1, "warm", "nothing tells"), (2, "exec", "has 2 threads")):
            agent.send(StartGroup(round=round_, workers=[worker]))
            agent.wait_for(GroupGone)
            running = agent.wait_for(WorkersRunning)
            assert running.start == start
            assert said in running.start_reason
            os.kill(agent.keeper_pid, signal.SIGALRM)
            agent.wait_until((tmp_path / "begun").exists)
        agent.send(CallStore(id=1, call="open", arguments={"host": "127.0.0.1"}))
        assert agent.wait_for(StoreAnswered).error == ""
        (service,) = children_of(agent.keeper_pid)
        # What the kernel told a program when it was executed; a forked one has its parent's.
        told = [Path(f"/proc/{pid}/auxv").read_bytes() for pid in (service, agent.keeper_pid)]
        assert told[0] != told[1]
