"""How processes ended: real ones, by the kernel's word, and workers by their launcher's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from elastic_harness.cluster.process_table import row_of
from elastic_harness.history.events import ProcessExited, WorkerHello
from elastic_harness.observe.ends import ProcessEnds
from elastic_harness.scenario.engine.situation import ProcessRef

from pytest_elastic.events.model import Event, Record, WorkerExited


def ref(pid: int) -> ProcessRef:
    """Return a process for good."""
    found = row_of(pid)
    assert found is not None
    return ProcessRef(pid=pid, start_time=found.start_ticks)


def ended(code: str) -> tuple[ProcessEnds, ProcessRef]:
    """Watch a process that runs this and has been reaped."""
    made = ProcessEnds()
    with subprocess.Popen(
        [sys.executable, "-Ic", f"import os, signal; input(); {code}"], stdin=subprocess.PIPE
    ) as process:
        watched = ref(process.pid)
        assert made.watch(watched)
        assert made.watch(watched), "twice is harmless"
        assert made.exit_code_of(watched) is None
        process.communicate(b"go\n")
    return made, watched


def kernel_tells() -> bool:
    """Tell whether this kernel keeps exit statuses for those who hold a pidfd."""
    made, watched = ended("pass")
    return made.exit_code_of(watched) is not None


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("pass", 0),
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
    ],
)
def test_the_kernel_tells_how_a_watched_process_ended(code: str, told: int) -> None:
    """Once its parent has taken note, and for good."""
    if not kernel_tells():
        pytest.skip("PIDFD_GET_INFO tells no exit status before Linux 6.15")
    made, watched = ended(code)
    assert [made.exit_code_of(watched) for _ in range(2)] == [told, told]
    made.close()


def test_a_process_that_has_ended_cannot_be_watched() -> None:
    """Nor one that only has its pid."""
    made = ProcessEnds()
    own = ref(os.getpid())
    assert not made.watch(ProcessRef(pid=own.pid, start_time=own.start_time + 1))
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert not made.watch(ProcessRef(pid=process.pid))


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
    """By round and rank: the launcher knows the process by another pid."""
    made = ProcessEnds()
    for each in (hello(71, 0), hello(72, 1), exited(1, 3, 0), exited(0, 0, 9)):
        made.learn(each)
    assert made.exit_code_of(ProcessRef(pid=71, start_time=5)) == -9
    assert made.exit_code_of(ProcessRef(pid=72, start_time=5)) == 3
    made.learn(hello(73, 1, round_=2))
    assert made.exit_code_of(ProcessRef(pid=73, start_time=5)) is None
    made.learn(record(ProcessExited(pid=9, role="launcher", exit_code=-9)))
    assert made.exit_code_of(ProcessRef(pid=9)) == -9
