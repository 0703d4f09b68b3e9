"""Jobs of our launcher over torch's own rendezvous handlers, with a real etcd."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.launchers import OURS, Running, write
from tests.integration.etcd_server import EtcdServer, serve_etcd

pytestmark = pytest.mark.slow

# No worker here uses torch, and its handler imports it in a process of its own.
LEAN = ("--preload=",)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Serve etcd with the API that torch's handlers speak."""
    folder = tmp_path / "etcd"
    folder.mkdir()
    yield from serve_etcd(folder)


TWO_ROUNDS = """
import os, sys, time
rank, count = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print("in", os.environ["PYTEST_ELASTIC_ROUND"], rank, os.environ["WORLD_SIZE"], count, flush=True)
if count == "0":
    open(f"started.{rank}", "w").close()
    while not all(os.path.exists(f"started.{r}") for r in "01"): time.sleep(0.02)
    if rank == "1": sys.exit(3)
    while True: time.sleep(1)
"""


def test_a_job_over_etcd_restarts_and_counts_once(tmp_path: Path, etcd: EtcdServer) -> None:
    """Torch's handler forms the rounds; number, count and worker store are the same for all."""
    script = write(tmp_path / "two_rounds.py", TWO_ROUNDS)
    words = (
        *(*OURS, *LEAN, "--nnodes=2", "--max-restarts=1", "--rdzv-backend=etcd-v2"),
        *(f"--rdzv-endpoint={etcd.endpoint}", "--rdzv-id=restarts", script),
    )
    agents = [Running(tmp_path, *words) for _ in range(2)]
    try:
        codes = [agent.wait() for agent in agents]
        printed = "".join(agent.printed for agent in agents)
        assert codes == [0, 0], printed
        started = sorted(line for line in printed.splitlines() if line.startswith("in "))
        assert started == ["in 1 0 2 0", "in 1 1 2 0", "in 2 0 2 1", "in 2 1 2 1"]
        assert "(exit code 3) (restarts used: 1)" in printed
    finally:
        for agent in agents:
            agent.end()


OUT_OF_TREE = """
import os
from torch.distributed import PrefixStore, FileStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler, RendezvousInfo, RendezvousStoreInfo)

class Handler(RendezvousHandler):
    def __init__(self, parameters):
        self.parameters, self.round = parameters, 0
        self.base = FileStore(parameters.endpoint)
    def get_backend(self): return "by-file"
    def next_rendezvous(self):
        self.round += 1
        store = PrefixStore(str(self.round), self.base)
        rank = store.add("rank", 1) - 1
        size = self.parameters.min_nodes
        return RendezvousInfo(store, rank, size, RendezvousStoreInfo("127.0.0.1", 1))
    def is_closed(self): return self.base.check(["closed"])
    def set_closed(self): self.base.set("closed", "1")
    def num_nodes_waiting(self): return 0
    def get_run_id(self): return self.parameters.run_id
    def shutdown(self):
        self.set_closed()
        return True

def give(): return Handler
"""


def test_a_handler_that_a_package_gives_torchrun_serves_our_nodes(tmp_path: Path) -> None:
    """And where the budget is used up on one node, all name the same failure."""
    (tmp_path / "by_file.py").write_text(OUT_OF_TREE)
    info = tmp_path / "by_file-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: by-file\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchrun.handlers]\nby-file = by_file:give\n")
    script = write(tmp_path / "fail.py", TWO_ROUNDS)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    words = (
        *OURS,
        *LEAN,
        "--nnodes=2",
        "--rdzv-backend=by-file",
        f"--rdzv-endpoint={tmp_path}/store",
    )
    agents = [Running(tmp_path, *words, script, environ={"PYTHONPATH": path}) for _ in range(2)]
    try:
        assert [agent.wait() for agent in agents] == [1, 1], agents[0].printed
        for agent in agents:
            (first,) = [line for line in agent.printed.splitlines() if "first failure" in line]
            assert "rank 1" in first
            assert first.endswith("in round 1: exit code 3")
    finally:
        for agent in agents:
            agent.end()


def test_a_frozen_etcd_blocks_no_agent(tmp_path: Path, etcd: EtcdServer) -> None:
    """Under torchrun, supervision and etcd share a thread; here a signal is obeyed at once."""
    script = write(
        tmp_path / "stay.py",
        "import signal\nprint('listening', flush=True)\nwhile True: signal.pause()\n",
    )
    agent = Running(
        tmp_path,
        *(
            *OURS,
            *LEAN,
            "--nnodes=1",
            "--rdzv-backend=etcd",
            f"--rdzv-endpoint={etcd.endpoint}",
            script,
        ),
    )
    try:
        agent.wait_for("listening")
        etcd.signal(signal.SIGSTOP)
        agent.process.send_signal(signal.SIGTERM)
        assert agent.wait() == 128 + signal.SIGTERM, agent.printed
    finally:
        etcd.signal(signal.SIGCONT)
        agent.end()


def test_an_endpoint_without_etcd_is_one_error(tmp_path: Path) -> None:
    """Exit code 3, as at any endpoint where nobody is: it may be up later."""
    script = write(tmp_path / "pass.py", "pass")
    done = subprocess.run(
        [*OURS, *LEAN, "--rdzv-backend=etcd-v2", "--rdzv-endpoint=127.0.0.1:1", script],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    what = "cannot reach what the rendezvous backend etcd-v2 stands on, at 127.0.0.1:1: "
    assert what in done.stderr
    assert "Traceback" not in done.stderr
