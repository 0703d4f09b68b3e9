"""`--rdzv-conf port_range`: the ports on which a launcher listens, as a firewall would see them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.launchers import WITH_TORCH
from tests.integration.called_launcher import LIMIT_S, run

ENDPOINT_PORT, FIRST, LAST = 29400, 20000, 20011
# Rank 0 writes down what listens in the network namespace once all workers have met in the store.
WORKER = """
import datetime, json, os, sys
from torch.distributed import TCPStore
round_ = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
port = int(os.environ["MASTER_PORT"])
store = TCPStore(os.environ["MASTER_ADDR"], port, timeout=datetime.timedelta(seconds=60))
store.set(f"{round_}/{os.environ['RANK']}", "here")
store.wait([f"{round_}/{rank}" for rank in range(int(os.environ["WORLD_SIZE"]))])
if os.environ["RANK"] == "0":
    lines = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/self/net/{name}")]
    listens = [int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A"]
    with open(f"seen-{round_}.json", "w") as file:
        json.dump([port, listens], file)
    store.set(f"{round_}/seen", "")
store.wait([f"{round_}/seen"])
sys.exit(1 if round_ < int(sys.argv[1]) - 1 else 0)
"""
# All of its processes end with the first one.
ALONE = ("unshare", "--mount-proc", "--net", "--pid", "--fork", "--kill-child")
NODES = """
ip link set lo up
"$@" &
"$@" && wait $!
"""
OURS = ("-m", "pytest_elastic", "run", "--rdzv-backend=c10d")
THEIRS = ("-m", "torch.distributed.run", "--rdzv-backend=pytest-elastic")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs a network of its own"
)
@pytest.mark.parametrize(
    ("launcher", "rounds"),
    [
        pytest.param(OURS, 3, id="ours"),
        pytest.param(THEIRS, 1, id="torchrun", marks=pytest.mark.slow),
    ],
)
def test_a_job_listens_on_ports_of_the_range_and_at_its_endpoint(
    tmp_path: Path, launcher: tuple[str, ...], rounds: int
) -> None:
    """Two nodes, in a network where nothing else listens."""
    (tmp_path / "worker.py").write_text(WORKER)
    options = (
        "--nnodes=2",
        f"--max-restarts={rounds - 1}",
        f"--rdzv-conf=port_range={FIRST}-{LAST}",
    )
    where = (f"--rdzv-endpoint=127.0.0.1:{ENDPOINT_PORT}", "--monitor-interval=0.1")
    command = (sys.executable, *launcher, *options, *where, "worker.py", str(rounds))
    job = subprocess.run(
        [
            "unshare",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            NODES,
            "sh",
            *command,
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **WITH_TORCH},
    )
    assert job.returncode == 0, job.stderr
    seen = [json.loads((tmp_path / f"seen-{each}.json").read_text()) for each in range(rounds)]
    for master_port, listens in seen:
        assert master_port in listens
        others = [port for port in listens if port != ENDPOINT_PORT]
        assert len(others) == len(listens) - 1 >= 3  # two launchers and a worker store
        assert all(FIRST <= port <= LAST for port in others), listens
    assert len({master_port for master_port, _ in seen}) == rounds  # none is used again at once


@contextlib.contextmanager
def taken_ports(count: int) -> Iterator[str]:
    """Listen on the first `count` ports of a range of four, and yield the range."""
    for first in range(20000, 30000, 4):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 4):
                sock = stack.enter_context(socket.create_server(("127.0.0.1", port)))
                if port >= first + count:
                    sock.close()
            yield f"{first}-{first + 3}"
            return
    pytest.fail("no four ports of this machine are free")


def test_a_launcher_without_a_free_port_says_so(tmp_path: Path) -> None:
    """It is the user's to give more ports."""
    with taken_ports(4) as ports:
        options = ("--standalone", f"--rdzv-conf=port_range={ports}", "--no-python", "true")
        ended = run(*options, cwd=tmp_path)
    assert ended.code == 2, ended.err
    assert f"all ports of --rdzv-conf port_range={ports} are in use" in ended.err
    ended.expect_no_line_of_ours()


def test_a_worker_store_without_a_free_port_ends_the_job_with_the_reason(tmp_path: Path) -> None:
    """The launcher itself got the last port of the range."""
    with taken_ports(3) as ports:
        options = ("--standalone", f"--rdzv-conf=port_range={ports}", "--no-python", "true")
        ended = run(*options, cwd=tmp_path)
    assert ended.code != 0
    assert f"all ports of --rdzv-conf port_range={ports} are in use" in ended.err
    ended.expect_no_line_of_ours()
