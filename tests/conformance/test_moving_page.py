"""What docs/moving-from-torchrun.md shows, run: the two commands, Slurm's script, Kubernetes' job.

There is neither of the two here. What they do to a launcher is done by a few lines: `srun` starts
the command once for each node and passes signals on; a kubelet starts again what failed, and
signals the first process of a container's pid namespace. Changed in what the page shows are the
things that this machine does not have: devices, names.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import inspect
import os
import re
import select
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from pytest_elastic import launch
from pytest_elastic.cli.run import read_config
from pytest_elastic.config import LaunchConfig
from pytest_elastic.launch import settings_of
from pytest_elastic.rendezvous.follower.departure import leave_timeout_s
from pytest_elastic.workers.keeper_client import Keeper
from pytest_elastic.workers.process_tree import children_of, descendants, send_signal
from tests.conformance.launchers import LIMIT_S, OURS, WITH_TORCH, Running, address
from tests.integration.test_container import CONTAINER, NEEDS_CONTAINERS, children

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
# Says what Slurm told this node, once all nodes have added to a sum.
SUMS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
told = " ".join(os.environ["SLURM_" + name] for name in ("NODEID", "PROCID", "NTASKS"))
os.write(1, f"sum {one.item():g}, task {told}\\n".encode())
dist.destroy_process_group()
"""
# Takes a hint, and ends when it is told.
HEARS = STAYS.replace(
    "signal.signal(", "signal.signal(signal.SIGUSR1, lambda *_: say('a hint'))\nsignal.signal(", 1
)
SCONTROL = "#!/bin/sh\nfor n in 0 1 2 3; do echo $SLURM_JOB_NODELIST; done\n"
# Refuses what the page's script does not use. It ends with the largest exit code, as srun does.
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do
    [[ $1 == --kill-on-bad-exit=0 ]] || { echo "srun: unknown option $1"; exit 1; }
    shift
done
export SLURM_NTASKS=$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE)) SLURM_LOCALID=0
for ((n = 0; n < SLURM_NTASKS; n++)); do
    SLURM_PROCID=$n SLURM_NODEID=$n SLURMD_NODENAME=node$n "$@" & agents="$agents $!"
done
trap 'kill -TERM $agents' TERM
trap 'kill -USR1 $agents' USR1
code=0
for agent in $agents; do
    wait $agent; one=$?
    # An interrupted wait is taken up again.
    while kill -0 $agent 2>/dev/null; do wait $agent; one=$?; done
    echo "srun: $one"
    ((one > code)) && code=$one
done
exit $code
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
    run = importlib.import_module("torch.distributed.run")
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


def command_in(folder: Path) -> str:
    """Install the command `pytest-elastic` in a folder; return a PATH in which it is found."""
    command = folder / "pytest-elastic"
    command.write_text(f'#!/bin/sh\nexec {shlex.join(OURS[:-1])} "$@"\n')
    command.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Return what submits the page's script, or what is made of it, with a training script."""
    (script,) = (block for block in blocks("bash") if block.startswith("#!"))
    assert script.count("--nproc-per-node=gpu") == 1
    script = script.replace("--nproc-per-node=gpu", "--nproc-per-node=1")
    (sizes,) = re.findall(r"^#SBATCH --nodes=(\d+) --ntasks-per-node=(\d+)$", script, re.MULTILINE)
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN), ("job", script)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environ = {
        "PATH": command_in(tmp_path),
        "HOME": str(tmp_path),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": address(97),
        "SLURM_JOB_NUM_NODES": sizes[0],
        "SLURM_NTASKS_PER_NODE": sizes[1],
    }
    jobs = []

    def submit(program: str, edit: Callable[[str], str] = str, **more: str) -> Running:
        (tmp_path / "train.py").write_text(program)
        (tmp_path / "job").write_text(edit(script))
        jobs.append(Running(tmp_path, str(tmp_path / "job"), environ={**environ, **more}))
        return jobs[-1]

    yield submit
    for job in jobs:
        job.end()


@pytest.mark.slow
def test_slurms_script_runs_a_job_to_its_success(
    tmp_path: Path, batch: Callable[..., Running]
) -> None:
    """Each of the four tasks is a node of one job, which the script's exit code tells about."""
    job = batch(SUMS, **WITH_TORCH)
    assert job.wait() == 0, job.printed
    said = re.findall(r"sum (\d), task (\d \d \d)", job.printed)
    assert sorted(said) == [("4", f"{task} {task} 4") for task in range(4)], job.printed
    assert not list(tmp_path.glob(".elastic-*")), "the token goes with the job"


@pytest.mark.slow
def test_slurms_script_starts_a_job_that_saves_before_its_time_is_over(
    tmp_path: Path, batch: Callable[..., Running]
) -> None:
    """Four nodes meet at the first host; --signal=TERM reaches every worker with its grace."""
    job = batch(STAYS)
    # A node that was late for the first round comes with another.
    job.wait_for(" 4 0\n", times=4)
    (token,) = tmp_path.glob(".elastic-4711.token")
    assert token.stat().st_mode & 0o777 == 0o600
    together = len(job.printed)
    # As the scheduler does: the step's processes are signalled, not the script's shell.
    (srun,) = children_of(job.process.pid)
    os.kill(srun, signal.SIGTERM)
    assert job.wait() == 143, job.printed
    assert sorted(re.findall(r"saved (\d)", job.printed[together:])) == ["0", "1", "2", "3"]
    assert re.findall(r"srun: (\d+)", job.printed) == ["143"] * 4, job.printed
    assert not token.exists()


def with_a_hint(script: str) -> str:
    """Return the page's script with what the page says of a hint."""
    notice, signals = re.findall(r"`(--signal=USR1@\d+|--signals-to-handle=\S+)`", PAGE.read_text())
    script, count = re.subn(r"--signal=TERM@\d+", notice, script)
    assert count == 1
    return script.replace("    train.py\n", f"    {signals} \\\n    train.py\n")


@pytest.mark.slow
def test_a_hint_of_slurm_reaches_every_worker_and_ends_none(batch: Callable[..., Running]) -> None:
    """With --signal=USR1 and what the page has for it, the job goes on until SIGTERM."""
    job = batch(HEARS, with_a_hint)
    job.wait_for(" 4 0\n", times=4)
    (srun,) = children_of(job.process.pid)
    os.kill(srun, signal.SIGUSR1)
    job.wait_for("a hint\n", times=4)
    assert "saved" not in job.printed
    os.kill(srun, signal.SIGTERM)
    assert job.wait() == 143, job.printed
    assert len(re.findall(r"saved \d", job.printed)) == 4, job.printed


@pytest.mark.slow
def test_a_signal_to_every_process_of_the_step_is_the_same_notice(
    batch: Callable[..., Running],
) -> None:
    """Where Slurm tracks processes by /proc, workers and keepers get the agents' SIGTERM, too."""
    job = batch(STAYS)
    job.wait_for(" 4 0\n", times=4)
    together = len(job.printed)
    (srun,) = children_of(job.process.pid)
    send_signal(descendants(srun), signal.SIGTERM)
    assert job.wait() == 143, job.printed
    assert sorted(re.findall(r"saved (\d)", job.printed[together:])) == ["0", "1", "2", "3"]
    assert re.findall(r"srun: (\d+)", job.printed) == ["143"] * 4, job.printed


def longest_end_s(config: LaunchConfig) -> float:
    """Return how long an agent may take from SIGTERM to its end."""
    keeper_s = inspect.signature(Keeper.dismiss).parameters["timeout_s"].default
    last_lines_s = launch._DRAIN_S + launch._FLUSH_S
    leave_s = leave_timeout_s(settings_of(config))
    return float(config.shutdown_timeout_s + leave_s + keeper_s + last_lines_s)


def test_the_recipes_leave_an_agent_time_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers save, are killed if need be, and it says how it ended: then SIGKILL may come."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    _, manifest = yaml.safe_load_all(blocks("yaml")[0])
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (script,) = (block for block in blocks("bash") if block.startswith("#!"))
    _, slurm = script.replace("\\\n", "").split("srun --kill-on-bad-exit=0 ")
    (notice,) = re.findall(r"^#SBATCH --signal=TERM@(\d+)$", script, re.MULTILINE)
    for words, grace_s in (
        (container["command"], pod["terminationGracePeriodSeconds"]),
        (shlex.split(slurm), int(notice)),
    ):
        config = read_config([word.replace("=gpu", "=1") for word in words[2:]], {})
        assert longest_end_s(config) >= config.shutdown_timeout_s + 10
        assert grace_s > longest_end_s(config), f"{grace_s} s for {shlex.join(words)}"


class Pod:
    """A container with `restartPolicy: OnFailure`, and its kubelet."""

    def __init__(self, folder: Path, words: list[str], environ: dict[str, str]) -> None:
        self._folder, self._words, self._environ = folder, words, environ
        self.runs: list[Running] = []
        self.start()

    @property
    def now(self) -> Running:
        """The container that runs now."""
        return self.runs[-1]

    def start(self) -> None:
        """Start the container, for the first time or again."""
        self.runs.append(Running(self._folder, *self._words, environ=self._environ))

    def tend(self) -> bool:
        """Start the container again if it failed; tell whether it has succeeded."""
        code = self.now.process.poll()
        if code:
            self.start()
        return code == 0


def mount_secret(folder: Path, mode: int) -> Path:
    """Put a token where a kubelet would: behind two links, so that it can replace all at once."""
    (folder / "..2026_1").mkdir()
    token = folder / "..2026_1" / "token"
    token.touch(mode)
    token.write_text("a token as long as openssl makes one")
    (folder / "..data").symlink_to("..2026_1")
    (folder / "token").symlink_to("..data/token")
    return folder / "token"


@pytest.fixture
def start_pods(tmp_path: Path) -> Iterator[Callable[..., list[Pod]]]:
    """Return what starts the pods of the page's job; words may stand before each one's command."""
    _, job = yaml.safe_load_all(blocks("yaml")[0])
    template = job["spec"]["template"]["spec"]
    assert template["restartPolicy"] == "OnFailure"
    (container,) = template["containers"]
    (mount,), (volume,) = container["volumeMounts"], template["volumes"]
    assert mount["name"] == volume["name"]
    (tmp_path / "train.py").write_text(STAYS)
    place, token = address(98), mount_secret(tmp_path, volume["secret"]["defaultMode"])
    words = [
        word.replace("train-0.train:", f"{place}:")
        .replace("=gpu", "=1")
        .replace(f"{mount['mountPath']}/token", str(token))
        for word in container["command"]
    ]
    assert f"--rdzv-endpoint={place}:29400" in words
    assert f"--rdzv-token-file={token}" in words
    assert words.pop() == "train.py"
    # What the manifest sets, and the kubelet for the pods of an indexed Job.
    environ = {entry["name"]: entry["value"] for entry in container.get("env", ())}
    environ["PATH"] = command_in(tmp_path)
    pods: list[Pod] = []

    def begin(*before: str) -> list[Pod]:
        for number in range(job["spec"]["parallelism"]):
            # By its name, a pod knows whether it is the first; these have one address each.
            conf = f"--rdzv-conf={SOON},is_host={str(number == 0).lower()}"
            own = {**environ, "JOB_COMPLETION_INDEX": str(number)}
            pods.append(Pod(tmp_path, [*before, *words, conf, "train.py"], own))
        return pods

    yield begin
    for pod in pods:
        for run in pod.runs:
            run.end()


def wait_for_success(folder: Path, pods: list[Pod]) -> None:
    """Let the programs end, and all pods with them."""
    (folder / "done").touch()
    deadline = time.monotonic() + LIMIT_S
    while [pod for pod in pods if not pod.tend()]:
        assert time.monotonic() < deadline
        select.select([], [], [], 0.05)


@pytest.mark.slow
def test_a_pod_that_is_started_again_finds_its_job(
    tmp_path: Path, start_pods: Callable[..., list[Pod]]
) -> None:
    """Any pod, and the one that hosts the rendezvous; the others go on meanwhile, at no cost."""
    pods = start_pods()
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
    wait_for_success(tmp_path, pods)
    assert [len(pod.runs) for pod in pods] == [2, 1, 2, 1]


def processes_in(namespace: str) -> list[str]:
    """Return the processes of a pid namespace, as the kernel tells them from outside."""
    found = []
    for process in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.readlink(f"{process}/ns/pid") == namespace:
                found.append(process)
    return found


@pytest.mark.slow
@NEEDS_CONTAINERS
def test_a_pod_that_is_told_to_end_saves_and_leaves(
    tmp_path: Path, start_pods: Callable[..., list[Pod]]
) -> None:
    """The command is the first process of each container, and SIGTERM goes to it alone."""
    pods = start_pods(*CONTAINER)
    for pod in pods:
        pod.now.wait_for(" 4 0\n")
    for victim in (pods[2], pods[0]):
        (first,) = children(victim.now.process.pid)
        namespace = os.readlink(f"/proc/{first}/ns/pid")
        assert len(processes_in(namespace)) > 2, "the agent, its keeper and a worker"
        others = [pod for pod in pods if pod is not victim]
        rounds_of_3 = [pod.now.printed.count(" 3 0\n") for pod in others]
        together = len(victim.now.printed)
        os.kill(first, signal.SIGTERM)
        assert victim.now.wait() == 143, victim.now.printed
        assert re.findall(r"saved \d", victim.now.printed[together:]), victim.now.printed
        assert not processes_in(namespace)
        for pod, before in zip(others, rounds_of_3, strict=True):
            pod.now.wait_for(" 3 0\n", times=before + 1)
        victim.start()  # in another place
        for pod in pods:
            pod.now.wait_for(" 4 0\n", times=pod.now.printed.count(" 4 0\n") + 1)
    wait_for_success(tmp_path, pods)
    assert [len(pod.runs) for pod in pods] == [2, 1, 2, 1]
