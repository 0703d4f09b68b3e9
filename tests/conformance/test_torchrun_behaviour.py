"""What `docs/torchrun-parity.md` says of behaviour, with real commands and real workers."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
# Each starts launchers, and most wait for a worker that imports torch.
pytestmark = pytest.mark.slow

LIMIT_S = 120.0
OURS = (sys.executable, "-m", "pytest_elastic", "run")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
OLD = (sys.executable, "-m", "torch.distributed.launch")

RECORDED = """
import sys
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("sample 17 is not a tensor")
main()
"""


def write(path: Path, text: str) -> str:
    """Write a script and return its path."""
    path.write_text(text)
    return str(path)


def run(
    folder: Path, *words: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; what it leaves in the temporary folder goes with the test."""
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "TMPDIR": str(folder), **(environ or {})},
        cwd=folder,
        check=False,
    )


class Running:
    """A command in the background; what it prints is read as it comes."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
            cwd=folder,
        )
        self.printed = ""

    def wait_for(self, text: str, times: int = 1) -> None:
        """Read until a text has been printed so many times."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        deadline = time.monotonic() + LIMIT_S
        while self.printed.count(text) < times:
            ready, _, _ = select.select([fd], [], [], max(deadline - time.monotonic(), 0))
            data = os.read(fd, 65536) if ready else b""
            assert data, f"{text!r} was not printed {times} times:\n{self.printed}"
            self.printed += data.decode()

    def wait(self) -> int:
        """Read the rest, and return the exit code."""
        rest, _ = self.process.communicate(timeout=LIMIT_S)
        self.printed += rest.decode()
        return self.process.returncode

    def end(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.process.communicate(timeout=LIMIT_S)


def address(number: int) -> str:
    """Return an address of this machine where no other test and no other run uses any port."""
    return f"127.{number}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"


def error_in(path: Path) -> dict[str, Any]:
    """Return what an error file says, without what no two runs have in common."""
    message: dict[str, Any] = json.loads(path.read_text())["message"]
    extra = message["extraInfo"]
    assert abs(time.time() - int(extra.pop("timestamp"))) < LIMIT_S
    return message


# Error files, both ways


def test_the_reason_of_a_failure_is_left_where_torchrun_leaves_it(tmp_path: Path) -> None:
    """The root cause's own file, with its exit code, becomes the agent's."""
    script = write(tmp_path / "raise.py", RECORDED)
    found = {}
    for name, launcher in (("ours", OURS), ("theirs", TORCHRUN)):
        target = tmp_path / f"{name}.json"
        environ = {"TORCHELASTIC_ERROR_FILE": str(target)}
        done = run(tmp_path, *launcher, "--standalone", script, environ=environ)
        assert done.returncode == 1
        found[name] = error_in(target)
    assert found["ours"] == found["theirs"]
    assert found["ours"]["message"] == "ValueError: sample 17 is not a tensor"
    assert found["ours"]["errorCode"] == 1
    assert "in main" in found["ours"]["extraInfo"]["py_callstack"]


def test_a_failure_without_a_recorded_exception_is_left_too(tmp_path: Path) -> None:
    """Who failed and how, where torchrun would leave nothing."""
    script = write(tmp_path / "exit.py", "import os, sys; sys.exit(3 * int(os.environ['RANK']))")
    target = tmp_path / "error.json"
    done = run(
        tmp_path,
        *(*OURS, "--standalone", "--nproc-per-node=2", script),
        environ={"TORCHELASTIC_ERROR_FILE": str(target)},
    )
    assert done.returncode == 1
    error = error_in(target)
    assert error["message"].startswith("rank 1 (node ")
    assert error["message"].endswith(": exit code 3")
    assert error["errorCode"] == 3


def test_an_error_file_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    """The exit code is still the job's."""
    script = write(tmp_path / "exit.py", "raise SystemExit(3)")
    environ = {"TORCHELASTIC_ERROR_FILE": "/nowhere/error.json"}
    done = run(tmp_path, *OURS, "--standalone", script, environ=environ)
    assert done.returncode == 1
    assert "cannot write the reason to /nowhere/error.json" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("outer", "inner"), [(OURS, OURS), (OURS, TORCHRUN), (TORCHRUN, OURS)], ids=str
)
def test_a_launcher_below_a_launcher_passes_the_reason_up(
    tmp_path: Path, outer: tuple[str, ...], inner: tuple[str, ...]
) -> None:
    """The exception of the innermost worker is in the outermost summary, whoever is in between."""
    script = write(tmp_path / "raise.py", RECORDED)
    done = run(
        tmp_path,
        *(*outer, "--standalone", "--log-dir", str(tmp_path / "outer"), "-r", "3"),
        *("--no-python", *inner, "--standalone", script),
    )
    assert done.returncode == 1
    assert "ValueError: sample 17 is not a tensor" in done.stderr


def test_an_exception_under_run_path_is_recorded(tmp_path: Path) -> None:
    """--run-path needs no decorator, as with torchrun."""
    script = write(tmp_path / "raise.py", "raise ValueError('sample 17 is not a tensor')")
    done = run(tmp_path, *OURS, "--standalone", "--run-path", script)
    assert done.returncode == 1
    assert "ValueError: sample 17" in done.stderr.partition("first failure")[2]


# Output


def test_filtered_lines_are_those_that_torchrun_filters(tmp_path: Path) -> None:
    """Lines of tee'd streams with one of the texts, of every rank, in one file for each stream."""
    script = write(
        tmp_path / "talk.py",
        "import os, sys\n"
        "for word in ('loss 1', 'a,b', 'other'):\n"
        "    print(word); print('err', word, file=sys.stderr)\n",
    )
    found = {}
    for name, launcher in (("ours", OURS), ("theirs", TORCHRUN)):
        logs = tmp_path / name
        done = run(
            tmp_path,
            *(*launcher, "--standalone", "--nproc-per-node=2", f"--log-dir={logs}", "--tee=3"),
            *("--duplicate-stdout-filters=loss,a,,b", "--duplicate-stderr-filters=other", script),
        )
        assert done.returncode == 0
        found[name] = {
            path.name: sorted(path.read_text().splitlines())
            for path in logs.glob("*/attempt_0/filtered_*.log")
        }
    assert found["ours"] == found["theirs"]
    assert found["ours"]["filtered_stderr.log"] == ["[default0]:err other", "[default1]:err other"]
    assert "[default1]:a,b" in found["ours"]["filtered_stdout.log"]


def test_events_can_be_shown_on_the_console(tmp_path: Path) -> None:
    """--event-log-handler=console writes each event as a line of JSON."""
    script = write(tmp_path / "pass.py", "pass")
    done = run(tmp_path, *OURS, "--standalone", "--event-log-handler=console", script)
    assert done.returncode == 0
    records = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    kinds = [record["kind"] for record in records]
    assert kinds[0] == "config_resolved"
    assert kinds[-1] == "agent_exited"


# Signals and exit codes


def test_a_hint_of_the_scheduler_reaches_workers_and_not_their_children(tmp_path: Path) -> None:
    """With SIGUSR1 among --signals-to-handle, workers hear of it and the job goes on to its end."""
    script = write(
        tmp_path / "hear.py",
        "import signal, subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "heard = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))\n"
        "print('listening', flush=True)\n"
        "while not heard: signal.pause()\n"
        "print(f'child {child.poll()}', flush=True)\n"
        "child.kill()\n"
        "child.wait()\n",
    )
    job = Running(
        tmp_path,
        *(*OURS, "--standalone", "--nproc-per-node=2"),
        *("--signals-to-handle=SIGTERM,SIGUSR1", script),
    )
    try:
        job.wait_for("listening", times=2)
        job.process.send_signal(signal.SIGUSR1)
        assert job.wait() == 0, job.printed
        assert job.printed.count("child None") == 2
    finally:
        job.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_node_that_is_told_to_leave_says_by_its_exit_code_why(
    tmp_path: Path, number: signal.Signals
) -> None:
    """128 + the signal, also when the workers make an end of their own."""
    script = write(
        tmp_path / "stay.py",
        "import signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(0))\n"
        "print('listening', flush=True)\n"
        "while True: signal.pause()\n",
    )
    job = Running(tmp_path, *OURS, "--standalone", script)
    try:
        job.wait_for("listening")
        job.process.send_signal(number)
        assert job.wait() == 128 + number, job.printed
    finally:
        job.end()


def test_a_node_that_cannot_join_is_refused(tmp_path: Path) -> None:
    """Exit code 2 where nobody hosts the endpoint, and the reason for whoever asks."""
    script = write(tmp_path / "pass.py", "pass")
    target = tmp_path / "error.json"
    done = run(
        tmp_path,
        *(*OURS, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={address(82)}"),
        *("--rdzv-conf=is_host=false,join_timeout=2,store_timeout=0.5", script),
        environ={"TORCHELASTIC_ERROR_FILE": str(target)},
    )
    assert done.returncode == 2, done.stderr
    assert "no coordinator was reached within 2 s" in error_in(target)["message"]


def test_a_job_whose_store_host_is_gone_is_lost(tmp_path: Path) -> None:
    """Exit code 3: the same command would have been right, and can be started again."""
    script = write(
        tmp_path / "stay.py",
        "import signal\nprint('listening', flush=True)\nwhile True: signal.pause()\n",
    )
    words = (*OURS, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={address(84)}")
    conf = "--rdzv-conf=beat_interval=0.2,lease=2"
    agents = [Running(tmp_path, *words, conf, script) for _ in range(2)]
    try:
        for agent in agents:
            agent.wait_for("listening")
        (host,) = [agent for agent in agents if "hosting the rendezvous" in agent.printed]
        (other,) = [agent for agent in agents if agent is not host]
        host.process.kill()
        assert other.wait() == 3, other.printed
    finally:
        for agent in agents:
            agent.end()


@pytest.mark.parametrize(
    "words",
    [
        ("--nnodes=4:2",),
        ("--logs-specs=mine",),
        ("--rdzv-conf=store_type=file",),
        ("--numa-binding=near",),
        ("--virtual-local-rank", "--nproc-per-node=2"),
        ("--no-such-option",),
    ],
)
def test_what_cannot_be_meant_is_exit_code_2_before_anything_starts(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """One line, and perhaps a hint."""
    script = write(tmp_path / "pass.py", "open('ran', 'w')")
    done = run(tmp_path, *OURS, *words, script, environ={"CUDA_VISIBLE_DEVICES": "0"})
    assert done.returncode == 2
    assert 1 <= len(done.stderr.splitlines()) <= 2
    assert done.stderr.startswith("pytest-elastic run: ")
    assert not (tmp_path / "ran").exists()


# Several of a kind


STACKED = """
import os, sys, time
import torch
import torch.distributed as dist
folder, job = sys.argv[1:]
dist.init_process_group("gloo")
open(f"{folder}/{job}.{dist.get_rank()}", "w").close()
while not all(os.path.exists(f"{folder}/{j}.{r}") for j in "13" for r in "01"): time.sleep(0.02)
total = torch.tensor([int(job)])
dist.all_reduce(total)
print("total", int(total), flush=True)
dist.destroy_process_group()
"""


def test_two_jobs_on_one_host_know_nothing_of_each_other(tmp_path: Path) -> None:
    """Two --standalone at once, into the same --log-dir: each has groups and logs of its own."""
    script = write(tmp_path / "sum.py", STACKED)
    logs = tmp_path / "logs"
    jobs = {}
    try:
        for job in "13":
            jobs[job] = Running(
                tmp_path,
                *(*OURS, "--standalone", "--nproc-per-node=2", f"--log-dir={logs}", "--tee=1"),
                *(script, str(tmp_path), job),
            )
        for job, running in jobs.items():
            assert running.wait() == 0, running.printed
            assert running.printed.count(f"total {2 * int(job)}\n") == 2
    finally:
        for running in jobs.values():
            running.end()
    assert len(list(logs.iterdir())) == 2


def test_nodes_of_a_static_rendezvous_are_ordered_by_their_numbers(tmp_path: Path) -> None:
    """The node without --node-rank is node 0, hosts, and has the first rank."""
    script = write(
        tmp_path / "rank.py",
        "import os\nprint('rank {RANK} of {WORLD_SIZE}'.format(**os.environ), flush=True)\n",
    )
    words = (*OURS, "--nnodes=2", f"--master-addr={address(83)}", "--master-port=29511")
    # The node that hosts is started last.
    second = Running(tmp_path, *words, "--node-rank=1", script)
    first = Running(tmp_path, *words, script)
    try:
        assert (first.wait(), second.wait()) == (0, 0), first.printed + second.printed
        assert re.findall(r"rank . of .", first.printed) == ["rank 0 of 2"]
        assert re.findall(r"rank . of .", second.printed) == ["rank 1 of 2"]
    finally:
        first.end()
        second.end()


def test_the_same_command_started_again_finds_its_job(tmp_path: Path) -> None:
    """As a scheduler does after a crash: the node is taken in, at no cost to the budget of 0."""
    script = write(
        tmp_path / "stay.py",
        "import os, time\n"
        "names = ('PYTEST_ELASTIC_ROUND', 'WORLD_SIZE', 'TORCHELASTIC_RESTART_COUNT')\n"
        "print(' '.join(['in', *(os.environ[name] for name in names)]), flush=True)\n"
        "while not os.path.exists('done'): time.sleep(0.05)\n",
    )
    words = (*OURS, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={address(85)}")
    conf = "--rdzv-conf=beat_interval=0.2,lease=2,min_round=0.1"
    agents = [Running(tmp_path, *words, conf, script) for _ in range(2)]
    try:
        for agent in agents:
            agent.wait_for("in 1 2 0")
        (host,) = [agent for agent in agents if "hosting the rendezvous" in agent.printed]
        (other,) = [agent for agent in agents if agent is not host]
        other.process.kill()
        agents.append(Running(tmp_path, *words, conf, script))
        host.wait_for("in 2 2 0")
        (tmp_path / "done").touch()
        assert [host.wait(), agents[-1].wait()] == [0, 0], host.printed + agents[-1].printed
    finally:
        for agent in agents:
            agent.end()


def test_a_script_of_the_old_launcher_gets_the_same_words(tmp_path: Path) -> None:
    """--pass-local-rank is torch.distributed.launch without --use-env."""
    script = write(
        tmp_path / "words.py",
        "import os, sys\nsys.stdout.write(f\"{os.environ['RANK']} {sys.argv[1:]}\\n\")\n",
    )
    options = ("--nproc-per-node=2", "--max-restarts=0", script, "--steps=3")
    theirs = run(tmp_path, *OLD, *options)
    ours = run(tmp_path, *OURS, "--pass-local-rank", *options)
    assert (ours.returncode, theirs.returncode) == (0, 0)
    assert sorted(ours.stdout.splitlines()) == sorted(theirs.stdout.splitlines())
    assert "1 ['--local-rank=1', '--steps=3']" in ours.stdout
