"""What becomes of jobs under stock torchrun with one rendezvous or the other.

The tests run these with ours. `python -m tests.conformance.torchrun_lives` runs them with torch's
own c10d as well, and prints what `docs/torchrun-failures.md` says of it; that takes five minutes,
because what torchrun does not do can only be waited for. Before that, it plays the failures of
`torchrun_alone` to both launchers.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.conformance.launchers import OURS, TORCHRUN, Running, address, write
from tests.conformance.torchrun_alone import FAILURES

STAY = """
import os, time
names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
print("in", *(os.environ[name] for name in names), os.getpid(), flush=True)
while not os.path.exists("done"): time.sleep(0.05)
"""

# Node after node fails once: the second of two nodes only when the first has started again.
TAKE_TURNS = """
import os, sys, time
rank, count = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
starts = f"starts.{rank}"
with open(starts, "a") as file: file.write("x")
mine = os.path.getsize(starts)
print("in", rank, "for the", mine, "with count", count, flush=True)
while not all(os.path.exists(f"starts.{r}") and os.path.getsize(f"starts.{r}") >= mine
              for r in "01"): time.sleep(0.02)
if (mine, rank) in ((1, "0"), (2, "1")): sys.exit(3)
while mine < 3: time.sleep(1)
"""

# Short enough to be waited for, with either rendezvous.
CONF: Mapping[str, str] = {
    "c10d": "last_call_timeout=600,keep_alive_interval=1,keep_alive_max_attempt=2",
    "pytest-elastic": "last_call_timeout=600,beat_interval=0.5,lease=4,min_round=0.1",
}


def words(backend: str, number: int, *more: str, is_host: bool) -> list[str]:
    """Return the command of one agent; nodes of one number meet."""
    conf = f"{CONF[backend]},is_host={str(is_host).lower()}"
    return [
        *(*TORCHRUN, f"--rdzv-backend={backend}", f"--rdzv-endpoint={address(number)}"),
        *("--rdzv-id=lives", f"--rdzv-conf={conf}", *more),
    ]


def starts(agent: Running) -> list[tuple[int, ...]]:
    """Return (rank, world size, port, pid) of each worker that an agent has started."""
    found = re.findall(r"^in (\d+) (\d+) (\d+) (\d+)$", agent.printed, re.MULTILINE)
    return [tuple(map(int, numbers)) for numbers in found]


def wait_for_start(agent: Running, times: int, limit_s: float) -> bool:
    """Read what an agent prints until it has started so many workers, or the time is over."""
    assert agent.process.stdout is not None, "it was started with a pipe"
    fd = agent.process.stdout.fileno()
    deadline = time.monotonic() + limit_s
    while len(starts(agent)) < times:
        ready, _, _ = select.select([fd], [], [], max(deadline - time.monotonic(), 0))
        data = os.read(fd, 65536) if ready else b""
        if not data:
            return False
        agent.printed += data.decode()
    return True


def survivor_and_newcomer(folder: Path, backend: str, limit_s: float) -> dict[str, bool]:
    """Kill one of two nodes, and start another: say what becomes of the job."""
    script = write(folder / "stay.py", STAY)
    more = ("--nnodes=1:2", "--max-restarts=1", script)
    host, other = (words(backend, 86, *more, is_host=is_host) for is_host in (True, False))
    survivor, victim = agents = [Running(folder, *host), Running(folder, *other)]
    found = {}
    try:
        for agent in agents:
            assert wait_for_start(agent, 1, 120.0), agent.printed
        victim.process.kill()
        # Its worker is an orphan now, and would go on for ever.
        os.kill(starts(victim)[0][3], signal.SIGKILL)
        found["goes on without the dead node"] = wait_for_start(survivor, 2, limit_s)
        before = len(starts(survivor))
        newcomer = Running(folder, *other)
        agents.append(newcomer)
        found["takes another in"] = wait_for_start(newcomer, 1, limit_s) and wait_for_start(
            survivor, before + 1, limit_s
        )
        ports = [port for _, _, port, _ in starts(survivor)]
        found["gives every round a store of its own"] = len(set(ports)) == len(ports) > 1
        (folder / "done").touch()
        if all(found.values()):
            found["succeeds"] = [survivor.wait(), newcomer.wait()] == [0, 0]
        return found
    finally:
        for agent in agents:
            agent.process.send_signal(signal.SIGTERM)
        (folder / "done").touch()
        for agent in agents:
            agent.wait()


def one_budget(folder: Path, backend: str) -> tuple[list[int], str]:
    """Have each of two nodes fail once with --max-restarts=1; return exit codes and the output."""
    script = write(folder / "take_turns.py", TAKE_TURNS)
    more = ("--nnodes=2", "--max-restarts=1", script)
    agents = [
        Running(folder, *words(backend, 87, *more, is_host=is_host)) for is_host in (True, False)
    ]
    try:
        codes = [agent.wait() for agent in agents]
        return codes, "".join(agent.printed for agent in agents)
    finally:
        for agent in agents:
            agent.end()


def main() -> None:
    """Print what becomes of each job, under each launcher, then with each rendezvous."""
    for what, play in FAILURES.items():
        for launcher, title in ((TORCHRUN, "torchrun"), (OURS, "pytest-elastic")):
            with tempfile.TemporaryDirectory() as name:
                is_so = play(Path(name), launcher)
            _print(f"{title:15} {'yes' if is_so else 'NO ':3} {what}")
    for backend in CONF:
        with tempfile.TemporaryDirectory() as name:
            show = survivor_and_newcomer(Path(name), backend, 90.0)
        for what, is_so in show.items():
            _print(f"{backend:15} {'yes' if is_so else 'NO ':3} {what}")
        with tempfile.TemporaryDirectory() as name:
            codes, printed = one_budget(Path(name), backend)
        counts = sorted(set(re.findall(r"in . for the (\d) with count (\d)", printed)))
        _print(f"{backend:15} exit codes {codes} with one restart and two failures; {counts}")


_print: Callable[[str], None] = lambda text: print(text, file=sys.stdout, flush=True)  # noqa: E731, T201


if __name__ == "__main__":
    main()
