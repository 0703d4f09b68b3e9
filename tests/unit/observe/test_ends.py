"""How processes ended: real ones, by the kernel's word, and workers by their launcher's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from elastic_harness.cluster import process_table
from elastic_harness.cluster.client import ProcessCluster
from elastic_harness.cluster.cluster import Capabilities
from elastic_harness.cluster.process import ProcessRef
from elastic_harness.future import wait_for
from elastic_harness.history.events import ProcessExited, WorkerHello
from elastic_harness.observe.ends import ProcessEnds

from pytest_elastic.events.model import Event, Record, WorkerExited
from pytest_elastic.loop import Loop
from tests.unit.faults.played_cluster import PlayedCluster, PlayedProcess
from tests.unit.faults.virtual_time import VirtualTime


def cluster_of(loop: Loop) -> ProcessCluster:
    """Return a cluster that is not started: processes of this machine are watched without it."""
    return ProcessCluster(loop, on_event=lambda _: None, capabilities=Capabilities(()))


def ref(pid: int) -> ProcessRef:
    """Return a process for good."""
    return ProcessRef(node="n1", pid=pid, start_time=process_table.start_ticks(pid))


def end_of(loop: Loop, code: str) -> int | None:
    """Watch a process that runs this and is reaped; return how it ended, by the kernel's word."""
    cluster = cluster_of(loop)
    with subprocess.Popen(
        [sys.executable, "-Ic", f"import os, signal; input(); {code}"], stdin=subprocess.PIPE
    ) as process:
        ended = cluster.ended(ref(process.pid))
        assert cluster.ended(ref(process.pid)) is ended, "twice is harmless"
        loop.run_once(0)
        assert not ended.is_done
        process.communicate(b"go\n")
    return wait_for(loop, ended)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("pass", 0),
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
    ],
)
def test_the_kernel_tells_how_a_watched_process_ended(loop: Loop, code: str, told: int) -> None:
    """Once its parent has taken note."""
    if end_of(loop, "pass") is None:
        pytest.skip("PIDFD_GET_INFO tells no exit status before Linux 6.15")
    assert end_of(loop, code) == told


def test_a_process_that_is_dead_and_not_reaped_has_ended(loop: Loop) -> None:
    """How, nothing tells: its parent has not looked."""
    cluster = cluster_of(loop)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        ended = cluster.ended(ref(process.pid))
        assert process.stdin is not None
        process.stdin.close()
        assert wait_for(loop, ended, within_s=20) is None
        assert wait_for(loop, cluster.state(ref(process.pid))) == "Z"


def test_of_a_process_that_has_ended_nothing_is_told(loop: Loop) -> None:
    """Nor of one that only has its pid; it has no state, and takes no signal."""
    cluster = cluster_of(loop)
    own = ref(os.getpid())
    with subprocess.Popen(["true"]) as process:
        process.wait()
    for gone in (replace(own, start_time=own.start_time + 1), replace(own, pid=process.pid)):
        assert cluster.ended(gone).result() is None
        assert cluster.state(gone).result() == ""
        assert cluster.signal(gone, signal.SIGKILL).result() is False


def record(event: Event) -> Record:
    """Return what happened on n1."""
    return Record(at=0.0, source="agent", node="n1", run_id="job", event=event)


def hello(pid: int, rank: int, round_: int = 1) -> Record:
    """Return a worker's hello."""
    return record(
        WorkerHello(
            pid=pid,
            start_time=5,
            rank=rank,
            local_rank=rank,
            group_rank=0,
            world_size=2,
            restart_count=0,
            max_restarts=0,
            master_addr="n1",
            master_port=1,
            run_id="job",
            round=round_,
        )
    )


def exited(rank: int, code: int, number: int, round_: int = 1) -> Record:
    """Return what a launcher says of a worker; its pid is that of the node's own namespace."""
    return record(
        WorkerExited(
            round=round_,
            local_rank=rank,
            rank=rank,
            pid=7,
            exit_code=code,
            signal=number,
            cause="failed",
        )
    )


def test_where_the_kernel_does_not_tell_the_launcher_does() -> None:
    """By round and rank: the launcher knows the process by another pid. Before and after."""
    time = VirtualTime()
    cluster = PlayedCluster(time)
    cluster.tells_ends = False
    ends = ProcessEnds(cluster, time)
    processes = {pid: ProcessRef(node="n1", pid=pid, start_time=5) for pid in (71, 72, 73)}
    for pid in processes:
        cluster.processes_by_pid[pid] = PlayedProcess()
    found = {pid: ends.of(process) for pid, process in processes.items()}
    for each in (hello(71, 0), hello(72, 1), exited(1, 3, 0)):
        ends.learn(each)
    for pid in processes:
        cluster.die(pid)
    time.pass_time(0.1)
    assert {pid for pid, each in found.items() if each.is_done} == {72}
    ends.learn(exited(0, 0, 9))
    time.pass_time(2)
    assert {pid: each.result() for pid, each in found.items()} == {71: -9, 72: 3, 73: None}


def test_how_a_launcher_ended_is_known_by_its_pid() -> None:
    """The cluster has started it."""
    time = VirtualTime()
    cluster = PlayedCluster(time)
    cluster.tells_ends = False
    cluster.processes_by_pid[9] = PlayedProcess()
    ends = ProcessEnds(cluster, time)
    found = ends.of(ProcessRef(node="n1", pid=9))
    cluster.die(9)
    time.pass_time(0.1)
    ends.learn(record(ProcessExited(pid=9, role="launcher", exit_code=-9)))
    assert found.result() == -9
