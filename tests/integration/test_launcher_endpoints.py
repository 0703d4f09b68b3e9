"""`pytest-elastic run` with three endpoints: each node may be missing, or lost, at any time.

Real commands on one machine, with an address of its own for each node.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.free_ports import free_port
from tests.integration.called_launcher import STAYS, Running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the program."""
    (tmp_path / "stays.py").write_text(STAYS)
    return tmp_path


class Job:
    """Nodes n1, n2, ... at 127.0.0.1, 127.0.0.2, ...; the first three have an endpoint each."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.endpoints = [f"127.0.0.{number}:{port}" for number in (1, 2, 3)]
        self.nodes: dict[int, Running] = {}
        self._folder = folder

    def start(self, number: int) -> Running:
        """Start a node; one of n1 to n3 hosts its endpoint, as the addresses before are not its."""
        words = (
            *("--nnodes=2:3", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=job"),
            f"--rdzv-endpoint={','.join(self.endpoints)}",
            "--rdzv-conf=beat_interval=0.3,lease=5,last_call_timeout=0.5,min_round=0.2",
            *(f"--node-name=n{number}", f"--local-addr=127.0.0.{number}", "stays.py"),
        )
        environ = {"TMPDIR": str(self._folder)}  # an agent that is killed leaves its logs there
        node = self.nodes[number] = Running(*words, cwd=self._folder, environ=environ)
        return node

    def kill(self, number: int) -> None:
        """Kill a node's agent; its keeper ends the workers, and the store of its endpoint."""
        self.nodes.pop(number).end()

    def stop(self) -> None:
        """Let the workers end well, and their agents with them."""
        (self._folder / "stop").touch()
        for node in self.nodes.values():
            node.wait()


@pytest.fixture
def job(folder: Path) -> Iterator[Job]:
    """Return a job without nodes yet; whatever is left of it at the end is killed."""
    job = Job(folder)
    yield job
    for node in job.nodes.values():
        with contextlib.suppress(OSError):
            node.end()


def test_a_host_whose_port_is_in_use_hosts_once_it_is_free(folder: Path) -> None:
    """The job before has not ended there yet; it is told whose store is in the way."""
    words = ("--nnodes=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    with contextlib.ExitStack() as stack:
        before = Running(*words, "--rdzv-id=before", "stays.py", cwd=folder)
        stack.callback(before.end)
        before.wait_for("world of 1 in round 1;")
        after = Running(*words, "--rdzv-id=after", "stays.py", cwd=folder)
        stack.callback(after.end)
        after.wait_for("is that of run 'before'")
        (folder / "stop").touch()
        assert before.wait() == 0
        assert after.wait() == 0
    assert "world of 1 in round 1;" in after.printed


def test_survivors_do_not_call_a_coordinator_lost_that_has_left(job: Job) -> None:
    """The one that follows it has heard why nobody decides any more."""
    nodes = [job.start(number) for number in (1, 2, 3)]
    for node in nodes:
        node.wait_for("world of 3 in round ")
    # A node may have hosted another endpoint before it heard of the one that began the job.
    (leaves,) = [node for node in nodes if "] round 1: " in node.printed]
    name = f"n{nodes.index(leaves) + 1}"
    leaves.process.send_signal(signal.SIGTERM)
    survivors = [node for node in nodes if node is not leaves]
    for node in survivors:
        node.wait_for("world of 2 in round ")
    job.stop()
    said = "".join(node.printed for node in survivors)
    assert f": {name} left; this node was elected" in said
    assert f"{name} was lost" not in said
    assert f"lost node {name}" not in said


def test_any_host_of_an_endpoint_may_be_missing_or_lost_at_any_time(job: Job) -> None:
    """The first before the job begins, any of them after that; a new node joins all the same.

    All addresses are the machine's own here, so a node hosts the first endpoint that is free: the
    one that comes last serves an endpoint that was lost, with an empty store, and finds the job at
    another.
    """
    first = job.start(1)
    first.wait_for("a majority of nodes goes on without any other")
    first.wait_for(f"reached 1 of 3 endpoints: {job.endpoints[0]}; not {job.endpoints[1]} (")
    assert "world of" not in first.printed
    second = job.start(2)
    second.wait_for("world of 2 in round 1;")
    first.wait_for(f"reached 2 of 3 endpoints: {job.endpoints[0]}, {job.endpoints[1]}; not ")
    third = job.start(3)
    third.wait_for("world of 3 in round 2;")
    decides = 1 if "hosting the rendezvous" in first.printed else 2
    job.kill(decides)
    third.wait_for("world of 2 in round 3;")
    newcomer = job.start(4)
    newcomer.wait_for("world of 3 in round 4;")
    assert "hosting the rendezvous" not in newcomer.printed
    job.stop()
    assert [node.process.returncode for node in job.nodes.values()] == [0, 0, 0]
