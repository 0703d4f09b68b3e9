"""A process floods an agent's port while a job with a short lease runs (R15)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.messages import encode
from tests.integration import flood
from tests.integration.called_launcher import LIMIT_S, STAYS, Running
from tests.integration.test_launcher_hostile import frame

FLOOD_S = 8.0
# Strangers may make an agent hold 8 MiB, and the allocator keeps some times that: growths of 32 to
# 105 MiB were seen, in twenty runs, and 235 or more where nothing was bounded.
MEMORY_KIB = 160 * 1024

QUESTION = frame(encode(m.Question(run_id="flooded")))
UNSIGNED = b'{"a":[' + b"[]," * 80_000 + b"[]]}"
WORDS = {
    "questions": QUESTION * 2_800,
    "frames of 240 kB": len(UNSIGNED).to_bytes(4, "big") + UNSIGNED,
    "frames that never end": len(UNSIGNED).to_bytes(4, "big") + UNSIGNED[:-1],
}


@dataclass(frozen=True)
class Node:
    """One agent of the job, and the file of its events."""

    running: Running
    file: Path

    def events(self) -> list[dict[str, Any]]:
        """Return what it has told so far."""
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def door(self) -> tuple[str, int]:
        """Return where it listens."""
        started = next(e["event"] for e in self.events() if e["kind"] == "agent_started")
        return started["address"], started["port"]

    def rounds(self) -> list[int]:
        """Return the rounds that it took part in."""
        return [e["event"]["round"] for e in self.events() if e["kind"] == "workers_started"]

    def memory_kib(self, name: str = "VmRSS") -> int:
        """Return what the agent holds in memory, or held at most (`VmHWM`)."""
        status = Path(f"/proc/{self.running.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith(name)).split()[1])


def begin(folder: Path, number: int, lease_s: float, words: list[str]) -> Node:
    """Start one of two nodes."""
    prefix = f"127.83.{os.getpid() % 250}."
    file = folder / f"n{number}.jsonl"
    running = Running(
        *words,
        "--nnodes=2",
        "--rdzv-id=flooded",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={prefix}1:{29500 + os.getpid() // 250 % 1000}",
        f"--local-addr={prefix}{number}",
        f"--rdzv-conf=beat_interval=0.5,lease={lease_s},last_call_timeout=0.1,min_round=0.1",
        "--max-restarts=3",
        "stay.py",
        cwd=folder,
        environ={"PYTEST_ELASTIC_EVENTS": f"file:{file}"},
    )
    return Node(running, file)


@pytest.mark.parametrize(
    ("has_token", "kind", "connections", "how", "lease_s"),
    [
        (False, "questions", 150, "repeat", 2.0),
        pytest.param(True, "questions", 150, "repeat", 2.0, marks=pytest.mark.slow),
        (True, "frames of 240 kB", 150, "repeat", 2.0),
        # A stranger is let go after a lease: in a short one, few could be held at once.
        (True, "frames that never end", 900, "stay", FLOOD_S),
    ],
)
def test_a_flood_of_strangers_costs_a_member_neither_its_lease_nor_its_memory(
    tmp_path: Path, *, has_token: bool, kind: str, connections: int, how: str, lease_s: float
) -> None:
    """Hundreds of connections for eight seconds: no round is lost."""
    (tmp_path / "stay.py").write_text(STAYS)
    words = []
    if has_token:
        token = tmp_path / "token"
        token.touch(0o600)
        token.write_text("a token of the job that is long enough")
        words = [f"--rdzv-token-file={token}"]
    said = tmp_path / "said"
    said.write_bytes(WORDS[kind])
    with ExitStack() as stack:
        nodes = [begin(tmp_path, number, lease_s, words) for number in (1, 2)]
        for node in nodes:
            stack.enter_context(node.running)
        for node in nodes:
            node.running.wait_for("world of 2")
        host = next(n for n in nodes if "coordinator_started" in n.file.read_text())
        before = host.memory_kib()
        address, port = host.door()
        order = [flood.__file__, address, str(port), str(connections), str(FLOOD_S)]
        done = subprocess.run(
            [sys.executable, *order, str(said), how],
            capture_output=True,
            timeout=LIMIT_S,
            check=True,
        )
        told = json.loads(done.stdout)
        assert told["opened"] >= connections, told
        assert told["sent"] >= connections * 1000, told
        assert host.memory_kib("VmHWM") - before < MEMORY_KIB, told
        (tmp_path / "stop").touch()
        codes = [node.running.process.wait(LIMIT_S) for node in nodes]
        for node in nodes:
            node.running.wait()
    assert codes == [0, 0], nodes[0].running.printed
    assert [node.rounds() for node in nodes] == [[1], [1]], nodes[0].running.printed
