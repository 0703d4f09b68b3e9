"""A job whose coordinator is named from outside, by etcd or in a file: real agents for tests."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.conformance.launchers import OURS, Running, write

__all__ = [
    "CONF",
    "Start",
    "agent",
    "ending",
    "host_and_other",
    "is_running",
    "leave_behind",
    "starts",
    "take_over",
]

CONF = "beat_interval=0.3,lease=2,drift=0.2,min_round=0.1,last_call_timeout=600"

# Says how it was started; ends well when told to, badly when told to once.
_STAY = """
import os, sys, time
names = ("PYTEST_ELASTIC_ROUND", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "PYTEST_ELASTIC_TERM")
words = ["started", *(os.environ[name] for name in names), str(os.getpid())]
sys.stdout.write(" ".join(words) + "\\n")  # at once, or a reader sees half of it
sys.stdout.flush()
while not os.path.exists("done"):
    if os.path.exists("fail") and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(5)
    time.sleep(0.05)
"""


class Start(NamedTuple):
    """One start of a node's worker."""

    round: int
    size: int
    restarts: int
    term: int
    pid: int


def agent(folder: Path, name: str, *words: str) -> Running:
    """Start one node of the job; `words` say where it meets, and how many there are."""
    # Nothing here makes an optimizer, or counts how soon workers start.
    command = (*OURS, "--worker-start=exec", "--rdzv-id=job", *words, f"--node-name={name}")
    return Running(folder, *command, write(folder / "stay.py", _STAY))


def starts(running: Running) -> list[Start]:
    """Return each start of a node's worker."""
    found = re.findall(r"^started (\d+) (\d+) (\d+) (\d+) (\d+)$", running.printed, re.MULTILINE)
    return [Start(*map(int, numbers)) for numbers in found]


def is_running(pid: int) -> bool:
    """Tell whether a process is there and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def host_and_other(agents: Mapping[str, Running]) -> tuple[Running, Running]:
    """Wait for the first round of two nodes; return who decides, and who does not."""
    for each in agents.values():
        each.wait_for("started 1 2 0 ")
    host = next(each for each in agents.values() if "names this node" in each.printed)
    return host, next(each for each in agents.values() if each is not host)


def leave_behind(agents: Mapping[str, Running]) -> tuple[Running, Running]:
    """Freeze who does not decide until the other one has gone on alone; returns that one first."""
    here, away = host_and_other(agents)
    away.process.send_signal(signal.SIGSTOP)
    here.wait_for("started ", times=2)
    return here, away


def take_over(host: Running, other: Running) -> Start:
    """Freeze who decides until the other one does; it comes back as a member.

    Returns how the other one went on alone: a later round, of a higher term, at no cost.
    """
    host.process.send_signal(signal.SIGSTOP)
    other.wait_for("started ", times=2)
    (old,) = starts(host)
    assert not is_running(old.pid), "two rounds ran at once"
    alone = starts(other)[-1]
    assert "names this node" in other.printed
    assert alone.round > old.round
    assert (alone.size, alone.restarts) == (1, 0)
    assert alone.term > old.term
    host.process.send_signal(signal.SIGCONT)
    other.wait_for("started ", times=3)
    host.wait_for("started ", times=2)
    assert starts(host)[-1][:4] == starts(other)[-1][:4]
    return alone


@contextmanager
def ending(agents: Mapping[str, Running]) -> Iterator[None]:
    """End what is left of the agents behind a block, frozen or not."""
    try:
        yield
    finally:
        for each in agents.values():
            each.process.send_signal(signal.SIGCONT)
            each.end()
