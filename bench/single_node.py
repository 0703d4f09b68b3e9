"""What one node costs: to a cold shell, to a user who asks for help, and while nothing happens.

Both are run as a person types them, outside any cluster of the harness. The two launchers of a cold
start take turns, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from pytest_elastic.workers.process_tree import children_of

__all__ = ["FIGURES"]

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_EXAMPLE = os.path.join(_ROOT, "examples", "train.py")
_LAUNCHERS: Mapping[str, Sequence[str]] = {
    "pytest-elastic": (sys.executable, "-m", "pytest_elastic", "run"),
    "torchrun": (sys.executable, "-m", "torch.distributed.run"),
}
_ROUNDS = 5
_MAX_RATIO = 0.5
_LIMIT_S = 180.0
_HELPS = 15
_MAX_HELP_S = 0.15
_IDLE_S = 60.0
_MAX_IDLE_SHARE = 0.001


def cold_start(*, quick: bool) -> dict[str, object]:
    """Time `--standalone --nproc-per-node=4 examples/train.py` up to its first step, in turns."""
    sys.stdout.write(
        f"\nfrom a cold shell to the first step of 4 workers, {os.cpu_count()} cores\n"
    )
    seconds: dict[str, list[float]] = {name: [] for name in _LAUNCHERS}
    for _ in range(2 if quick else _ROUNDS):
        for name, command in _LAUNCHERS.items():
            seconds[name].append(_to_first_step(command))
    for name, times in seconds.items():
        sys.stdout.write(f"  {name:<18} {', '.join(f'{t:.2f}' for t in times)} (seconds)\n")
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    if quick:
        return {"seconds": medians, "missed": False}
    ratio = medians["pytest-elastic"] / medians["torchrun"]
    sys.stdout.write(f"  ratio {ratio:.2f}, to be reached: {_MAX_RATIO:g}\n")
    return {"seconds": medians, "ratio": ratio, "missed": ratio > _MAX_RATIO}


def help_answers(*, quick: bool) -> dict[str, object]:
    """Time `pytest-elastic run --help`, from the start of its process to its end."""
    sys.stdout.write("\n--help, as the wall clock and as the processor time have it\n")
    walls, processor = [], []
    for _ in range(3 if quick else _HELPS):
        began, used = time.monotonic(), os.times()
        subprocess.run(
            [*_LAUNCHERS["pytest-elastic"], "--help"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=True,
        )
        walls.append(time.monotonic() - began)
        now = os.times()
        processor.append(
            now.children_user + now.children_system - used.children_user - used.children_system
        )
    median = statistics.median(walls)
    sys.stdout.write(
        f"  median {median:.3f} s, processor {statistics.median(processor):.3f} s,"
        f" to be reached: {_MAX_HELP_S:g}\n"
    )
    return {"seconds": median, "missed": not quick and median > _MAX_HELP_S}


def idle_agent(*, quick: bool) -> dict[str, object]:
    """Measure the processor time of an agent and its keeper while the workers only sleep."""
    seconds = 10.0 if quick else _IDLE_S
    sys.stdout.write(f"\nan idle node, over {seconds:g} s\n")
    program = ["-m", "timeit", "-n1", "-r1", "-s", "import time", "time.sleep(600)"]
    agent = subprocess.Popen(
        [*_LAUNCHERS["pytest-elastic"], "--standalone", "--nproc-per-node=2", *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        keeper = _wait_for_workers(agent.pid)
        before = [_used(pid) for pid in (agent.pid, keeper)]
        time.sleep(seconds)
        after = [_used(pid) for pid in (agent.pid, keeper)]
    finally:
        agent.terminate()
        agent.wait(_LIMIT_S)
    missed = False
    shares = {}
    for name, (cpu_0, wakeups_0), (cpu_1, wakeups_1) in zip(
        ("agent", "keeper"), before, after, strict=True
    ):
        shares[name] = share = (cpu_1 - cpu_0) / seconds
        missed |= share > _MAX_IDLE_SHARE
        rate = (wakeups_1 - wakeups_0) / seconds
        sys.stdout.write(f"  {name:<18} {share:.4%} of a core, {rate:.1f} wakeups a second\n")
    sys.stdout.write(f"  to be reached: {_MAX_IDLE_SHARE:.1%}\n")
    return {"share": shares, "missed": missed}


FIGURES = {"cold_start": cold_start, "help": help_answers, "idle_agent": idle_agent}


def _to_first_step(command: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        began = time.monotonic()
        job = subprocess.Popen(
            [
                *(*command, "--standalone", "--nproc-per-node=4", _EXAMPLE),
                *("--steps=2", "--log-every=1", f"--checkpoint-dir={folder}"),
            ],
            env={**os.environ, "TMPDIR": folder},  # torchrun leaves its log folders behind
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert job.stdout is not None, "a pipe was asked for"
        first = 0.0
        for line in job.stdout:
            if line.startswith("step 1 "):
                first = time.monotonic() - began
        if job.wait(_LIMIT_S) != 0 or not first:
            raise RuntimeError(f"{' '.join(command)} ended with {job.returncode}")
        return first


def _wait_for_workers(agent: int) -> int:
    """Wait until the workers have run for a moment; return the pid of their parent."""
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        for keeper in children_of(agent):
            # The store service, and both workers.
            if len(children_of(keeper)) == 3:
                time.sleep(2.0)
                return keeper
        time.sleep(0.1)
    raise RuntimeError("the workers did not start")


def _used(pid: int) -> tuple[float, int]:
    """Return the processor time of a process in seconds, and how often it has waited."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
        nanoseconds = int(file.read().split()[0])
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        waits = next(int(li.split()[1]) for li in file if li.startswith("voluntary_ctxt"))
    return nanoseconds / 1e9, waits
