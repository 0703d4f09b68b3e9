"""The probe reads steps off what a worker prints; and the bench leaves nothing of a launcher."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.history.events import RankHeld, ResumeObserved, StepCompleted, WorkerHello

from tests.integration.probe_bench import DEADLINE_S, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Give a bench, and end everything on it."""
    made = Bench(tmp_path)
    yield made
    made.close()


def test_steps_are_read_off_what_a_worker_prints_where_that_is_asked_for(bench: Bench) -> None:
    """Line by line, however a line is put together, and a rank is held at a printed step."""
    bench.observer.arm(12)
    process = bench.start(
        """
        import sys
        for step in range(11, 14):
            print("step", step, "of", 99, end="")
            print(" loss 0.5")
        sys.stderr.write("step 1")
        print("step many loss 0.5")
        """,
        ELASTIC_PROBE_STEP=r"step (\w+) .*loss",
    )
    bench.until(lambda: bench.seen(RankHeld))
    bench.observer.release(process.pid)
    (said,) = bench.until_all_ended()
    assert "step 11 of 99 loss 0.5\nstep 12 of 99 loss 0.5\n" in said
    steps = [(each.event.step, each.event.step_source) for each in bench.seen(StepCompleted)]
    assert steps == [(11, "log"), (12, "log"), (13, "log")]
    assert [each.event.step for each in bench.seen(ResumeObserved)] == [10]
    assert [each.event.step for each in bench.seen(RankHeld)] == [12]


@pytest.mark.parametrize("lives", [True, False], ids=["a launcher that lives", "one that is gone"])
def test_the_bench_leaves_nothing_behind_of_a_launcher(tmp_path: Path, *, lives: bool) -> None:
    """Its worker has a session of its own, as under torchrun, and outlives it."""
    bench = Bench(tmp_path)
    worker = bench.write("import time; time.sleep(600)")
    launch = f"""
        import os, subprocess, sys, time
        environ = {{**os.environ, "RANK": "0"}}
        subprocess.Popen([sys.executable, {worker!r}], env=environ, start_new_session=True)
        time.sleep(600 if {lives} else 0)
    """
    environ = bench.environ()
    del environ["RANK"]  # as a launcher's, which is no worker itself
    launcher = bench.start_command([sys.executable, bench.write(launch)], environ)
    bench.until(lambda: any(hello.event.argv[-1] == worker for hello in bench.seen(WorkerHello)))
    if not lives:
        bench.until(lambda: launcher.poll() is not None)
    ends = [os.pidfd_open(source.worker.pid) for source in bench.observer.stack_sources]
    assert ends
    bench.close()
    for end in ends:
        ended, _, _ = select.select([end], [], [], DEADLINE_S)
        os.close(end)
        assert ended, "a worker was left behind"
