"""`pytest-elastic run` interrupted or in trouble: what is said, the exit code, what is left."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from elastic_harness.cluster import process_table

from tests.integration.called_launcher import LIMIT_S, run, start
from tests.launch_server import Started

# In short sleeps: a signal that comes between Python's look for one and the system call of a sleep
# is handled when that sleep is over, as Python has it.
WAITS_FOR_CTRL_C = """
import os, sys, time
try:
    sys.stdout.write(f"up {os.getpid()}\\n")
    sys.stdout.flush()
    while True: time.sleep(0.1)
except KeyboardInterrupt:
    sys.stdout.write(f"rank {os.environ['RANK']} was interrupted\\n")
    sys.exit(1)
"""
# Deaf to everything that can be ignored.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdout.write(f"up {os.getpid()}\\n")
sys.stdout.flush()
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with scripts that never end by themselves."""
    (tmp_path / "hello.py").write_text("print('hello')\n")
    (tmp_path / "waits.py").write_text(WAITS_FOR_CTRL_C)
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    return tmp_path


def wait_for_workers(process: Started, count: int) -> list[int]:
    """Read until so many workers are up; returns a descriptor of each.

    Past the stream's own buffer: what waits in there, `select` does not see, nor `communicate`.
    """
    assert process.stdout is not None, "it was started with a pipe"
    printed = b""
    deadline = time.monotonic() + LIMIT_S
    while len(up := re.findall(rb"^up (\d+)\n", printed, re.MULTILINE)) < count:
        left_s = max(deadline - time.monotonic(), 0)
        ready, _, _ = select.select([process.stdout], [], [], left_s)
        data = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not data:
            process.kill()
            pytest.fail(f"no {count} workers: {printed!r} {process.communicate(timeout=30)}")
        printed += data
    return [os.pidfd_open(int(pid)) for pid in up]


def expect_all_ended(pidfds: Sequence[int], *, within_s: float = 0.0) -> None:
    """Expect that every process has ended."""
    for pidfd in pidfds:
        ended, _, _ = select.select([pidfd], [], [], within_s)
        os.close(pidfd)
        assert ended, "a worker is left"


@pytest.mark.parametrize("target", ["terminal", "agent"])
def test_ctrl_c_interrupts_the_workers_and_ends_the_launcher(folder: Path, target: str) -> None:
    """Workers get SIGINT (once each, no matter from where), exit code 130, nothing is left."""
    process = start("--standalone", "--nproc-per-node=2", "waits.py", cwd=folder)
    pidfds = wait_for_workers(process, 2)
    if target == "terminal":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    out, err = (text.decode() for text in process.communicate(timeout=LIMIT_S))
    assert process.returncode == 128 + signal.SIGINT, err
    assert sorted(out.splitlines()) == ["rank 0 was interrupted", "rank 1 was interrupted"]
    assert err.count("leaving the job: the agent received SIGINT") == 1
    assert "pytest_elastic/" not in err
    expect_all_ended(pidfds)


def test_a_second_ctrl_c_ends_workers_that_do_not_listen(folder: Path) -> None:
    """The first one begins a grace, so long that only the second can have ended it."""
    options = ("--standalone", "--nproc-per-node=2", "--shutdown-timeout=6000")
    process = start(*options, "stubborn.py", cwd=folder)
    pidfds = wait_for_workers(process, 2)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None, "it was started with a pipe"
    while b"leaving the job" not in (line := process.stderr.readline()):
        assert line, "it ended without a word"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGINT
    expect_all_ended(pidfds)


def test_ctrl_c_while_the_command_is_still_loading_shows_no_traceback(
    folder: Path, tmp_path: Path
) -> None:
    """In the tenth of a second in which no handler is there yet."""
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "def interrupt(event, arguments):\n"
        "    if event == 'import' and arguments[0] == 'pytest_elastic.launch':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.addaudithook(interrupt)\n"
    )
    ended = run("hello.py", cwd=folder, environ={"PYTHONPATH": str(tmp_path / "early")})
    assert (ended.code, ended.out, ended.err) == (130, "", "")


def test_a_launcher_whose_keeper_is_killed_says_so_and_ends(folder: Path) -> None:
    """It hosts the rendezvous, and nobody is left to whom the job's end could be told."""
    process = start("--standalone", "--nproc-per-node=2", "stubborn.py", cwd=folder)
    pidfds = wait_for_workers(process, 2)
    rows = process_table.descendants(process.pid)
    (keeper,) = [row.pid for row in rows if row.ppid == process.pid]
    os.kill(keeper, signal.SIGKILL)
    _, err = (text.decode() for text in process.communicate(timeout=LIMIT_S))
    assert process.returncode == 3
    assert err.count("this node cannot go on: the keeper ended with -9") == 1
    expect_all_ended(pidfds)


def test_a_worker_that_prints_much_neither_stops_the_launcher_nor_fills_it(folder: Path) -> None:
    """100 MB through --tee: to the file in full, and the agent stays as small as it was."""
    line, count = 1024, 100 * 1024
    (folder / "prints.py").write_text(
        "import sys\n"
        f"for _ in range({count}): sys.stdout.write('x' * {line - 1} + '\\n')\n"
        "sys.stdout.flush()\n"
        "open('done', 'w').close()\n"
        "import time\n"
        "time.sleep(600)\n"
    )
    os.mkfifo(folder / "done")
    # A forked one has torch in its memory.
    words = ("--standalone", "--tee=3", "--log-dir=logs", "prints.py")
    process = start(*words, cwd=folder, is_forked=False)
    assert process.stdout is not None, "it was started with a pipe"
    shown = 0
    with subprocess.Popen(["cat", str(folder / "done")]) as bell:
        while bell.poll() is None:
            ready, _, _ = select.select([process.stdout], [], [], 0.2)
            shown += len(os.read(process.stdout.fileno(), 1 << 20)) if ready else 0
    with open(f"/proc/{process.pid}/status", encoding="utf-8") as status:
        peak_kb = next(int(row.split()[1]) for row in status if row.startswith("VmHWM"))
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=LIMIT_S)
    assert peak_kb < 100 * 1024, f"{peak_kb} kB for 100 MB of output"
    (log,) = (folder / "logs").rglob("stdout.log")
    assert log.stat().st_size == line * count
    assert shown + len(rest) > 0


@pytest.mark.parametrize("start", ["auto", "exec"])
def test_what_a_parent_ignores_is_ignored_by_workers(tmp_path: Path, start: str) -> None:
    """As Slurm scripts have it by `trap '' USR1`; also where a worker begins again."""
    (tmp_path / "script.py").write_text(
        "import os, signal\n"
        "if 'AGAIN' not in os.environ: os.environ.update(AGAIN='1', OMP_NUM_THREADS='3')\n"
        "print('ignored', signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN)\n"
        "print('TERM', signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)\n"
    )
    words = ["-m", "pytest_elastic", "run", "--standalone", f"--worker-start={start}", "script.py"]
    done = subprocess.run(
        ["sh", "-c", "trap '' USR1; exec \"$@\"", "sh", sys.executable, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ignored", "True", "TERM", "True"], done.stderr
