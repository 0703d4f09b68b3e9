"""What `docs/torchrun-parity.md` says of behaviour, with real commands and real workers."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.conformance.launchers import (
    OLD,
    OURS,
    WITH_TORCH,
    Running,
    address,
    error_in,
    run,
    write,
)

# Each starts launchers, and most wait for a worker that imports torch.
pytestmark = pytest.mark.slow


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


def test_a_node_that_finds_nobody_may_try_again(tmp_path: Path) -> None:
    """Exit code 3 where no node hosts the endpoint (yet), and the reason on the console."""
    script = write(tmp_path / "pass.py", "pass")
    target = tmp_path / "error.json"
    done = run(
        tmp_path,
        *(*OURS, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={address(82)}"),
        *("--rdzv-conf=is_host=false,join_timeout=2,store_timeout=0.5", script),
        environ={"TORCHELASTIC_ERROR_FILE": str(target)},
    )
    assert done.returncode == 3, done.stderr
    assert "no leader was reached within 2 s" in error_in(target)["message"]


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
        ("--rdzv-conf=store_type=disk",),
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
    """Both ways to say it, into the same --log-dir: each has groups and logs of its own."""
    script = write(tmp_path / "sum.py", STACKED)
    logs = tmp_path / "logs"
    jobs = {}
    try:
        for job, alone in {
            "1": ("--standalone",),
            "3": ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"),
        }.items():
            jobs[job] = Running(
                tmp_path,
                *(*OURS, *alone, "--nproc-per-node=2", f"--log-dir={logs}", "--tee=1"),
                *(script, str(tmp_path), job),
                environ=WITH_TORCH,
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


def test_a_script_older_than_torch_2_gets_the_word_that_it_knows(tmp_path: Path) -> None:
    """It declares --local_rank only, and torch.distributed.launch of today passes another."""
    script = write(
        tmp_path / "old.py",
        "import argparse, sys\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local_rank', type=int)\n"
        "parser.add_argument('--steps', type=int)\n"
        "sys.stdout.write(f'{parser.parse_args()}\\n')\n",
    )
    done = run(tmp_path, *OURS, "--pass-local-rank", "--nproc-per-node=2", script, "--steps=3")
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.splitlines())
    assert said == [f"Namespace(local_rank={rank}, steps=3)" for rank in (0, 1)]


ON_A_DRAWN_MACHINE = """
import os, sys
from pytest_elastic import launch
from pytest_elastic.cli.main import main
from pytest_elastic.workers.affinity import Topology

first, *others = sorted(os.sched_getaffinity(0))
cpus = (first, *others)
drawn = Topology(
    nodes={0: frozenset([first]), 1: frozenset(others)},
    cores={cpu: cpu for cpu in cpus},
    caches={cpu: cpu for cpu in cpus},
    sockets={cpu: 0 for cpu in cpus},
    allowed=frozenset(cpus),
    gpu_nodes=(1, 0),
)
launch.find_gpus = lambda: ("a", "b")
launch.read_topology = lambda gpus: drawn
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("start", ["auto", "exec"])
def test_workers_run_on_the_processors_that_were_chosen(tmp_path: Path, start: str) -> None:
    """Warm or exec'ed, a worker has its processors from its first instruction on."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("there is one processor only")
    script = write(
        tmp_path / "where.py",
        "import os\n"
        "print('{RANK}'.format(**os.environ) + f' on {sorted(os.sched_getaffinity(0))}')\n",
    )
    launcher = write(tmp_path / "drawn.py", ON_A_DRAWN_MACHINE)
    done = run(
        tmp_path,
        *(sys.executable, launcher, "run", "--standalone", "--nproc-per-node=2"),
        *(f"--worker-start={start}", "--numa-binding=node", "--tee=1", script),
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[default0]:0 on {others}",
        f"[default1]:1 on {[first]}",
    ]
