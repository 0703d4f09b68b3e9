"""pytest is interrupted or killed in the middle of a run: what it ends with, and what is left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from elastic_harness import leaks
from elastic_harness.cluster import process_table
from elastic_harness.cluster.server import stale_resources

from tests.plugin.place import LIMIT_S, Place, scenario

Start = Callable[..., tuple[subprocess.Popen[str], "Traces"]]

TEST_IN_PYTHON = """
    def test_forever(elastic_job):
        elastic_job("forever.py", nodes=2).wait()
"""
TEST_ON_RANKS = """
    import os, pytest, subprocess

    @pytest.mark.ranks(2)
    def test_forever(rank):
        with subprocess.Popen(["sleep", "600"]):
            with open(os.environ["BELL"], "w") as bell:
                bell.write(str(rank))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What runs under way have on the machine: processes, and the tag of each cluster."""

    pidfds: tuple[int, ...]
    tags: tuple[str, ...]

    def wait_for_ends(self, within_s: float) -> list[int]:
        """Wait until every process has ended; returns those that have not."""
        poll = select.poll()
        for pidfd in self.pidfds:
            poll.register(pidfd, select.POLLIN)
        left = list(self.pidfds)
        deadline = time.monotonic() + within_s
        while left and (ended := poll.poll(1000 * max(0.0, deadline - time.monotonic()))):
            for pidfd, _ in ended:
                poll.unregister(pidfd)
                left.remove(pidfd)
        return left

    @property
    def folders(self) -> list[str]:
        """Where their sockets lie, as far as that is there."""
        return list(filter(os.path.exists, map(stale_resources.scratch_folder, self.tags)))


def traces_of(pid: int) -> Traces:
    """Look at everything that descends from a pytest, or from a check-up."""
    rows = process_table.descendants(pid)
    tags = {process_table.environ_of(row.pid).get(stale_resources.ENVIRONMENT_MARK) for row in rows}
    return Traces(
        pidfds=tuple(os.pidfd_open(row.pid) for row in rows), tags=tuple(sorted(filter(None, tags)))
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return how to start pytest on a job that never ends; waits until both workers are at work."""
    place = Place(tmp_path, preload="torch")  # its cluster descends from it
    place.add_ini()
    started: list[subprocess.Popen[str]] = []
    traces: list[Traces] = []
    place.add_scripts()
    place.add("forever.elastic.yaml", scenario("forever", script="forever.py"))
    place.add("test_forever.py", TEST_IN_PYTHON)
    place.add("test_ranks.py", TEST_ON_RANKS)
    place.environ["BELL"] = str(place.folder / "bell")
    os.mkfifo(place.environ["BELL"])

    def start(*arguments: str) -> tuple[subprocess.Popen[str], Traces]:
        # Open for writing too, so that the first worker's end of it is not the end.
        bell = os.open(place.environ["BELL"], os.O_RDWR | os.O_NONBLOCK)
        process = place.start("--elastic-seed=1", *arguments)
        started.append(process)
        pidfd = os.pidfd_open(process.pid)
        rung = b""
        while len(rung) < 2:
            ready, _, _ = select.select([bell, pidfd], [], [], LIMIT_S)
            if bell not in ready:
                process.kill()
                pytest.fail(f"no workers: {process.communicate(timeout=LIMIT_S)[0]}")
            rung += os.read(bell, 2)
        os.close(bell)
        os.close(pidfd)
        assert sorted(rung) == sorted(b"01")
        traces.append(traces_of(process.pid))
        return process, traces[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=LIMIT_S)
    for each in traces:
        for pidfd in each.pidfds:
            os.close(pidfd)


@pytest.mark.parametrize(
    ("cluster", "test"),
    [
        ("namespace", "forever.elastic.yaml"),
        pytest.param("process", "test_forever.py", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_ends_the_run_and_then_pytest(
    place: Place, start: Start, cluster: str, test: str
) -> None:
    """Exit code 2 and pytest's own word for it; every process has gone before pytest goes."""
    before = leaks.snapshot()
    process, traces = start(f"--elastic-cluster={cluster}", test)
    assert len(traces.pidfds) >= 6, "supervisor, server, two launchers, two workers"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, out
    assert "KeyboardInterrupt" in out
    assert "INTERNALERROR" not in out
    assert traces.wait_for_ends(within_s=0) == []
    assert traces.folders == []
    (run,) = place.runs
    history = (place.folder / ".elastic" / run / "history.jsonl").read_text()
    assert '"run_ended"' in history, "the run was ended, not abandoned"
    assert left_since(before, traces) == []


@pytest.mark.parametrize(
    ("cluster", "test"),
    [
        pytest.param("namespace", "test_forever.py", marks=pytest.mark.slow),
        ("process", "forever.elastic.yaml"),
    ],
)
def test_a_killed_pytest_leaves_nothing_but_the_artifacts(
    place: Place, start: Start, cluster: str, test: str
) -> None:
    """SIGKILL cannot be handled: the supervisor sees to processes, sockets and folders."""
    before = leaks.snapshot()
    process, traces = start(f"--elastic-cluster={cluster}", test)
    assert len(traces.folders) == 1, "there is something to remove"
    process.kill()
    process.communicate(timeout=LIMIT_S)
    assert traces.wait_for_ends(within_s=60) == []
    assert traces.folders == []
    (run,) = place.runs
    assert (place.folder / ".elastic" / run / "plan.json").exists()
    assert left_since(before, traces) == []


def test_a_killed_pytest_leaves_nothing_of_a_test_on_ranks(start: Start) -> None:
    """Nor what the ranks have started."""
    before = leaks.snapshot()
    process, traces = start("test_ranks.py")
    assert len(traces.pidfds) >= 5, "the server, two ranks, and what each has started"
    process.kill()
    process.communicate(timeout=LIMIT_S)
    assert traces.wait_for_ends(within_s=60) == []
    assert left_since(before, traces) == []


def left_since(before: leaks.Snapshot, traces: Traces) -> list[str]:
    """Return what is left, save what this test itself still holds."""
    spared = leaks.Spared(fds=frozenset(traces.pidfds))
    return leaks.leaks_since(before, within_s=20.0, spared=spared)
