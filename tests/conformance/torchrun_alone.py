"""What one launcher, ours or torchrun, does when something goes wrong on its own machine.

Each function plays one failure of `docs/torchrun-failures.md` and tells whether the launcher stands
it. `python -m tests.conformance.torchrun_lives` prints them for both.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.conformance.launchers import Running, address, run, write
from tests.free_ports import free_port

__all__ = ["FAILURES"]

# How long what should have ended is watched, before it is said to go on.
_WATCHED_S = 20.0

_LEAVES_A_KEY = """
import os, sys
from datetime import timedelta
from torch.distributed import TCPStore
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=30))
print("found", store.check(["left by an attempt"]), flush=True)
store.set("left by an attempt", "1")
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""
_STAYS = """
import os, time
print("up", os.getpid(), flush=True)
while not os.path.exists("done"): time.sleep(0.05)
"""
_HAS_A_CHILD = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, flush=True)
sys.exit(3)
"""
_IS_DEAF = """
import os, signal, sys, time
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open("deaf", "w").close()
    while True: signal.pause()
while not os.path.exists("deaf"): time.sleep(0.02)
sys.exit(3)
"""
_TAKES_HINTS = """
import signal, sys
def hint(*_):
    print("hinted", flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, hint)
print("up", flush=True)
while True: signal.pause()
"""


def has_a_store_for_each_attempt(folder: Path, launcher: Sequence[str]) -> bool:
    """Whether a restarted worker finds nothing that the failed attempt left (#135712)."""
    script = write(folder / "leaves.py", _LEAVES_A_KEY)
    done = run(folder, *launcher, "--standalone", "--max-restarts=1", script)
    return done.stdout.split() == ["found", "False"] * 2


def takes_its_workers_along(folder: Path, launcher: Sequence[str]) -> bool:
    """Whether no worker is left when the agent is killed."""
    script = write(folder / "stays.py", _STAYS)
    agent = Running(folder, *launcher, "--standalone", script)
    try:
        return _ends_with(agent, "up ", agent.process.kill)
    finally:
        (folder / "done").touch()
        agent.end()


def takes_children_of_a_failed_worker_along(folder: Path, launcher: Sequence[str]) -> bool:
    """Whether a worker's own children end with it."""
    script = write(folder / "child.py", _HAS_A_CHILD)
    agent = Running(folder, *launcher, "--standalone", "--tee=0", script)
    try:
        return _ends_with(agent, "child ", lambda: None)
    finally:
        agent.end()


def keeps_to_the_grace(folder: Path, launcher: Sequence[str]) -> bool:
    """Whether --shutdown-timeout=2 holds for the sibling of a worker that crashed (#119856)."""
    script = write(folder / "deaf.py", _IS_DEAF)
    words = (*launcher, "--standalone", "--nproc-per-node=2", "--shutdown-timeout=2", script)
    agent = Running(folder, *words)
    deadline = time.monotonic() + 120
    while not (folder / "deaf").exists() and time.monotonic() < deadline:
        select.select([], [], [], 0.05)
    began = time.monotonic()
    agent.wait()
    return time.monotonic() - began < 20


def passes_hints_on(folder: Path, launcher: Sequence[str]) -> bool:
    """Whether SIGUSR1 reaches the worker, and the job succeeds (#154849)."""
    script = write(folder / "hints.py", _TAKES_HINTS)
    handled = "--signals-to-handle=SIGTERM,SIGUSR1"
    agent = Running(folder, *launcher, "--standalone", handled, script)
    try:
        agent.wait_for("up")
        agent.process.send_signal(signal.SIGUSR1)
        return agent.wait() == 0 and "hinted" in agent.printed
    finally:
        agent.end()


def lives_without_its_store_host(folder: Path, launcher: Sequence[str]) -> bool:
    """Whether two of three nodes go on when the one that hosts the store is killed (#67742)."""
    script = write(folder / "stays.py", _STAYS)
    conf = "last_call_timeout=600,keep_alive_interval=1"  # all three, and three beats to notice
    words = (
        *(*launcher, "--nnodes=2:3", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=host"),
        # torchrun's store listens on every address: a port that nobody else has.
        f"--rdzv-endpoint={address(99)}:{free_port()}",
    )
    agents = [
        Running(folder, *words, f"--rdzv-conf={conf},is_host={host}", script)
        for host in ("true", "false", "false")
    ]
    try:
        for agent in agents:
            agent.wait_for("up ")
        agents[0].process.kill()
        pidfds = [os.pidfd_open(agent.process.pid) for agent in agents[1:]]
        ended = select.select(pidfds, [], [], _WATCHED_S / 2)[0]
        for pidfd in pidfds:
            os.close(pidfd)
        return not ended
    finally:
        (folder / "done").touch()
        for agent in agents:
            agent.process.send_signal(signal.SIGTERM)
            agent.wait()


def _ends_with(agent: Running, said: str, act: Callable[[], None]) -> bool:
    """Do something once a process has said its pid; tell whether it ends soon, and end it."""
    agent.wait_for(said)
    agent.wait_for("\n", agent.printed[: agent.printed.index(said)].count("\n") + 1)
    pid = int(agent.printed.partition(said)[2].split()[0])
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        act()
        if select.select([pidfd], [], [], _WATCHED_S)[0]:
            return True
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return False
    finally:
        os.close(pidfd)


FAILURES: Mapping[str, Callable[[Path, Sequence[str]], bool]] = {
    "a store of its own for each attempt": has_a_store_for_each_attempt,
    "no worker is left by a killed agent": takes_its_workers_along,
    "no child is left by a failed worker": takes_children_of_a_failed_worker_along,
    "--shutdown-timeout holds after a crash": keeps_to_the_grace,
    "SIGUSR1 is a hint and not the end": passes_hints_on,
    "goes on without the store's host": lives_without_its_store_host,
}
