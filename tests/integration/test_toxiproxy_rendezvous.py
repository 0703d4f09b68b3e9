"""A job whose nodes find each other through a proxy on loopback, as docs/toxiproxy.md shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from elastic_harness.toxiproxy.client import ProxyHandle, ToxiproxyClient
from elastic_harness.toxiproxy.server import serving

from tests.free_ports import free_port

LIMIT_S = 240.0
SCRIPT = """
import torch, torch.distributed as dist

from tests.free_ports import free_port
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total), flush=True)
dist.destroy_process_group()
"""


class Job:
    """Two agents: one hosts the store at its own port, the other comes through the proxy."""

    def __init__(self, proxy: ProxyHandle, folder: Path) -> None:
        self.proxy = proxy
        self._script = folder / "train.py"
        self._script.write_text(SCRIPT)
        self._agents: list[subprocess.Popen[str]] = []

    def start(self, endpoint: str, *, is_host: bool, join_timeout_s: int) -> subprocess.Popen[str]:
        """Start an agent."""
        conf = f"is_host={str(is_host).lower()},join_timeout={join_timeout_s}"
        agent = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest_elastic", "run", "--nnodes=2", "--rdzv-id=routed"),
                *("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-conf={conf}"),
                *("--preload=", str(self._script)),  # it uses no torch
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._agents.append(agent)
        return agent

    def end(self) -> None:
        """Kill what still runs. The keeper of an agent ends its workers."""
        for agent in self._agents:
            agent.kill()
            agent.communicate(timeout=LIMIT_S)


@pytest.mark.slow
def test_an_agent_finds_the_store_through_a_proxy_and_not_round_it(tmp_path: Path) -> None:
    """With the proxy off it finds nothing; with a slow one it joins, and the job succeeds."""
    with serving() as server:
        client = ToxiproxyClient(server.url)
        job = Job(client.create(f"127.0.0.1:{free_port()}", "rendezvous"), tmp_path)
        try:
            with job.proxy.down():
                lost = job.start(job.proxy.listen, is_host=False, join_timeout_s=2)
                printed, _ = lost.communicate(timeout=LIMIT_S)
            assert lost.returncode != 0
            assert f"cannot reach a store at {job.proxy.listen}" in printed
            job.proxy.add_toxic(type="latency", attributes={"latency": 100})
            host = job.start(job.proxy.upstream, is_host=True, join_timeout_s=60)
            guest = job.start(job.proxy.listen, is_host=False, join_timeout_s=60)
            outputs = [agent.communicate(timeout=LIMIT_S)[0] for agent in (host, guest)]
            assert (host.returncode, guest.returncode) == (0, 0), outputs
            assert all("sum 2" in text for text in outputs)
        finally:
            job.end()
