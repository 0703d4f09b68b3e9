"""What docs/moving-from-torchrun.md shows, run: the two commands, Slurm's script, Kubernetes' job.

There is neither of the two here. What they do to a launcher is done by a few lines: `srun` starts
the command once for each node and passes signals on, a kubelet starts what failed again. Changed in
what the page shows are the things that this machine does not have: devices, names.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pytest_elastic.cli.run import read_config
from pytest_elastic.config import LaunchConfig
from pytest_elastic.workers.process_tree import children_of
from tests.conformance.launchers import LIMIT_S, OURS, Running, address

pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "moving-from-torchrun.md"
# Sooner than a person would want it, so that the test is not long.
SOON = "beat_interval=0.2,lease=3,min_round=0.1,newcomer_window=0.1"

STAYS = """
import os, signal, sys, time
names = ("PYTEST_ELASTIC_ROUND", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
def say(line):
    os.write(1, (line + "\\n").encode())  # at once: four of them share a pipe
def save(*_):
    say("saved " + os.environ["RANK"])
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
say(" ".join(["in", *(os.environ[name] for name in names)]))
while not os.path.exists("done"): time.sleep(0.05)
"""
SCONTROL = "#!/bin/sh\nfor n in 0 1 2 3; do echo $SLURM_JOB_NODELIST; done\n"
SRUN = """#!/bin/bash
shift  # its own option
for n in 0 1 2 3; do "$@" & agents="$agents $!"; done
trap 'kill -TERM $agents' TERM
code=0
for agent in $agents; do
    wait $agent; one=$?
    # An interrupted wait is taken up again.
    while kill -0 $agent 2>/dev/null; do wait $agent; one=$?; done
    echo "srun: $one"
done
"""


def blocks(language: str) -> list[str]:
    """Return the page's blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def settings(config: LaunchConfig) -> dict[str, object]:
    """Return what a command means."""
    return {
        "nodes": (config.min_nodes, config.max_nodes),
        "nproc": config.nproc_per_node,
        "restarts": config.max_restarts,
        "endpoint": str(config.endpoint),
        "program": (config.program.target, *config.program.args),
    }


def test_one_word_is_changed_and_the_rest_means_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two lines of the page, read by each launcher's own parser."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    run = pytest.importorskip("torch.distributed.run")
    first, second = map(shlex.split, blocks("bash")[0].splitlines())
    assert (first[0], second[:2]) == ("torchrun", ["pytest-elastic", "run"])
    assert first[1:] == second[2:]
    theirs = run.parse_args(first[1:])
    low, _, high = theirs.nnodes.partition(":")
    assert settings(read_config(second[2:], {})) == {
        "nodes": (int(low), int(high)),
        "nproc": int(theirs.nproc_per_node),
        "restarts": theirs.max_restarts,
        "endpoint": theirs.rdzv_endpoint,
        "program": (theirs.training_script, *theirs.training_script_args),
    }


@pytest.mark.slow
def test_slurms_script_starts_a_job_that_saves_before_its_time_is_over(tmp_path: Path) -> None:
    """Four nodes meet at the first host; --signal=TERM reaches every worker with its grace."""
    (script,) = (block for block in blocks("bash") if block.startswith("#!"))
    assert "#SBATCH --signal=TERM" in script
    wanted = shlex.join(OURS)
    for found, ours in (
        ("pytest-elastic run", f"{wanted} --worker-start=exec"),
        ("--nproc-per-node=gpu", "--nproc-per-node=1"),
    ):
        assert script.count(found) == 1
        script = script.replace(found, ours)
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN), ("job", script)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "train.py").write_text(STAYS)
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": address(97),
        "SLURM_JOB_ID": "4711",
        "HOME": str(tmp_path),
    }
    # As the scheduler does: the step's processes are signalled, not the script's shell.
    job = Running(tmp_path, "bash", "-c", "exec ./job", environ=environ)
    try:
        # A node that was late for the first round comes with another.
        job.wait_for(" 4 0\n", times=4)
        (token,) = tmp_path.glob(".elastic-4711.token")
        assert token.stat().st_mode & 0o777 == 0o600
        together = len(job.printed)
        (srun,) = children_of(job.process.pid)
        os.kill(srun, signal.SIGTERM)
        job.wait()
    finally:
        job.end()
    assert sorted(re.findall(r"saved (\d)", job.printed[together:])) == ["0", "1", "2", "3"]
    assert re.findall(r"srun: (\d+)", job.printed) == ["143"] * 4, job.printed
    assert not token.exists()


class Pod:
    """A container with `restartPolicy: OnFailure`, and its kubelet."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self._folder, self._words = folder, words
        self.runs = [Running(folder, *words)]

    @property
    def now(self) -> Running:
        """The container that runs now."""
        return self.runs[-1]

    def tend(self) -> bool:
        """Start the container again if it failed; tell whether it has succeeded."""
        code = self.now.process.poll()
        if code:
            self.runs.append(Running(self._folder, *self._words))
        return code == 0


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[Pod]]:
    """Start the pods of the page's job."""
    _, job = yaml.safe_load_all(blocks("yaml")[0])
    template = job["spec"]["template"]["spec"]
    assert template["restartPolicy"] == "OnFailure"
    (container,) = template["containers"]
    words = container["args"]
    assert words[:2] == ["pytest-elastic", "run"]
    assert words[-1] == "train.py"
    (tmp_path / "train.py").write_text(STAYS)
    place, token = address(98), tmp_path / "token"
    (mount,), (volume,) = container["volumeMounts"], template["volumes"]
    assert mount["name"] == volume["name"]
    token.touch(volume["secret"]["defaultMode"])
    token.write_text("a token as long as openssl makes one")
    changed = [
        word.replace("train-0.train:", f"{place}:")
        .replace("=gpu", "=1")
        .replace(f"{mount['mountPath']}/token", str(token))
        for word in words[2:-1]
    ]
    assert f"--rdzv-endpoint={place}:29400" in changed
    assert f"--rdzv-token-file={token}" in changed
    started = [
        Pod(
            tmp_path,
            [
                *(*OURS, "--worker-start=exec", *changed),
                # By its name, a pod knows whether it is the first; these have one address each.
                f"--rdzv-conf={SOON},is_host={str(number == 0).lower()}",
                "train.py",
            ],
        )
        for number in range(job["spec"]["parallelism"])
    ]
    yield started
    for pod in started:
        for run in pod.runs:
            run.end()


@pytest.mark.slow
def test_a_pod_that_is_started_again_finds_its_job(tmp_path: Path, pods: list[Pod]) -> None:
    """Any pod, and the one that hosts the rendezvous; the others go on meanwhile, at no cost."""
    for pod in pods:
        pod.now.wait_for(" 4 0\n")
    for victim in (pods[2], pods[0]):
        victim.now.process.kill()
        victim.now.process.wait(LIMIT_S)
        for pod in pods:
            pod.tend()
        victim.now.wait_for(" 4 0\n")
        *_, last = re.findall(r"^in (\d+) 4 0$", victim.now.printed, re.MULTILINE)
        for pod in pods:
            pod.now.wait_for(f"in {last} 4 0")
    (tmp_path / "done").touch()
    deadline = time.monotonic() + LIMIT_S
    while [pod for pod in pods if not pod.tend()]:
        assert time.monotonic() < deadline
        select.select([], [], [], 0.05)
    assert [len(pod.runs) for pod in pods] == [2, 1, 2, 1]
