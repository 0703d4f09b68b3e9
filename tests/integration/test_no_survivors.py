"""Nothing of a cluster outlives its owner, whichever process is killed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.cluster.cluster import ServerLost
from elastic_harness.cluster.limits import cgroups
from elastic_harness.cluster.server import stale_resources

from pytest_elastic.boot.descriptors import open_pidfd
from pytest_elastic.errors import UsageError
from tests.cluster_bench import ROOT, Bench

LIMIT_S = 60.0

OWNER = """
import sys, time
from functools import partial
from pathlib import Path
from elastic_harness.future import wait_for
from tests.cluster_bench import Bench
bench = Bench(sys.argv[1], Path(sys.argv[2]), preload=())
bench.start("n1", "n2")
shares = "touch /dev/shm/faketime_shm_$$ /dev/shm/sem.faketime_sem_$$"  # as libfaketime does
sleeps = "setsid sleep 1000 & setsid setsid sleep 1000 & sleep 1000"
bench.run("n1", "sh", "-c", f"{shares}; {sleeps}")
bench.run("n2", "sleep", "1000")
wait_for(bench.loop, bench.cluster.pause_node("n2"))
bench.until(lambda: len(bench.processes("n1")) >= 3, "processes")
pids = [info.pid for name in ("n1", "n2") for info in bench.processes(name)]
pids += [*bench.cluster.own_pids]
pids += [node.pid for node in bench.cluster.nodes.values()]
print(*pids, flush=True)
time.sleep(1000)
"""


def skip_without(kind: str) -> None:
    """Skip the test where this kind of cluster cannot be had."""
    try:
        choose_cluster(kind)
    except UsageError as error:
        pytest.skip(error.message)


@pytest.mark.parametrize("kind", ["namespace", "process"])
@pytest.mark.parametrize("victim", ["owner", "supervisor", "server"])
def test_nothing_survives_a_kill(tmp_path: Path, kind: str, victim: str) -> None:
    """Whichever is killed, pytest, supervisor or server: nothing of the cluster is left."""
    skip_without(kind)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, kind, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'harness'}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        owner.stdout.close()
        assert len(pids) >= 8
        supervisor = child_of(owner.pid, pids)
        server = child_of(supervisor, pids)
        chosen = {"owner": owner.pid, "supervisor": supervisor, "server": server}[victim]
        pidfds = list(open_pidfds(pids))
        os.kill(chosen, signal.SIGKILL)
        wait_for_ends(pidfds, LIMIT_S)
    finally:
        owner.kill()
        owner.wait()
    if victim == "supervisor":
        # As the next session does; else the supervisor has done it before it ended.
        stale_resources.remove_stale()
    assert left_by(supervisor) == []
    shared = [name for name in os.listdir("/dev/shm") if "faketime" in name]
    assert not [name for name in shared if name.endswith(tuple(f"_{pid}" for pid in pids))]


def test_the_loss_of_the_server_is_reported(tmp_path: Path) -> None:
    """A server that dies takes all nodes along, and says so."""
    skip_without("namespace")
    bench = Bench("namespace", tmp_path, preload=())
    bench.start("n1")
    process = bench.run("n1", "sleep", "1000")
    for pid in bench.cluster.own_pids:
        with contextlib.suppress(ProcessLookupError):  # it ended with the process killed before it
            os.kill(pid, signal.SIGKILL)
    bench.until(lambda: bench.is_lost, "the loss to be noticed")
    assert process.exit_code == -signal.SIGKILL
    assert not bench.cluster.nodes
    assert isinstance(bench.events[-1], ServerLost)
    bench.close()


def wait_for_ends(pidfds: Sequence[int], within_s: float) -> None:
    """Wait until every one of some processes has ended; a zombie has."""
    poll = select.poll()
    running = set(pidfds)
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    while running:
        ended = poll.poll(within_s * 1000)
        assert ended, f"{len(running)} of {len(pidfds)} processes are left after {within_s} s"
        for pidfd, _ in ended:
            poll.unregister(pidfd)
            os.close(pidfd)
            running.discard(pidfd)


def open_pidfds(pids: Sequence[int]) -> Iterator[int]:
    """Yield a descriptor of each process that is there; a shell's helper may have gone since."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            yield open_pidfd(pid)


def child_of(parent: int, among: Sequence[int]) -> int:
    """Return the one of some processes whose parent this is."""
    (found,) = (pid for pid in among if f"PPid:\t{parent}\n" in status_of(pid))
    return found


def status_of(pid: int) -> str:
    """Return what the kernel says of a process; nothing of one that has gone."""
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def left_by(supervisor: int) -> list[str]:
    """Return control groups and temporary files that carry a session's tag."""
    folders = {hierarchy.folder for hierarchy in cgroups.find_hierarchies().values()}
    return [
        f"{folder}/{name}"
        for folder in sorted({*folders, tempfile.gettempdir()})
        for name in os.listdir(folder)
        if cgroups.owner_of(name) == supervisor
    ]
