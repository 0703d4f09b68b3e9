"""pytest is interrupted or killed in the middle of a run: what it ends with, and what is left."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass

import pytest
from elastic_harness import leaks
from elastic_harness.cluster import leftovers, process_table

from tests.plugin.place import Place, scenario, wait_until

TEST_IN_PYTHON = """
    def test_forever(elastic_job):
        elastic_job("forever.py", nodes=2).wait()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What a pytest in the middle of a run has on the machine: processes, and their tag."""

    processes: frozenset[tuple[int, int]]
    tag: str

    @property
    def left(self) -> list[str]:
        """What of it is still there."""
        rows = [(pid, process_table.row_of(pid)) for pid, _ in sorted(self.processes)]
        alive = [
            f"process {pid}"
            for pid, row in rows
            if row is not None and (pid, row.start_ticks) in self.processes and row.state != "Z"
        ]
        folder = leftovers.scratch_folder(self.tag)
        return [*alive, folder] if os.path.exists(folder) else alive


def traces_of(pid: int) -> Traces:
    """Look at everything that descends from a pytest."""
    rows = process_table.descendants(pid)
    environs = [process_table.environ_of(row.pid) for row in rows]
    tags = {environ.get(leftovers.ENVIRONMENT_MARK, "") for environ in environs} - {""}
    assert len(tags) == 1, f"one cluster is expected, with one tag: {tags}"
    return Traces(processes=frozenset((row.pid, row.start_ticks) for row in rows), tag=tags.pop())


def start_and_wait_for_workers(place: Place, *arguments: str) -> subprocess.Popen[str]:
    """Start pytest on a job that never ends, and return it when both workers are at work."""
    place.add_scripts()
    place.add("forever.elastic.yaml", scenario("forever", script="forever.py"))
    place.add("test_forever.py", TEST_IN_PYTHON)
    process = place.start("--elastic-seed=1", *arguments)

    def are_at_work() -> bool:
        return all((place.folder / f"alive-{rank}-0").exists() for rank in range(2))

    wait_until(lambda: are_at_work() or process.poll() is not None, what="both workers are at work")
    if process.poll() is not None:
        pytest.fail(process.communicate(timeout=30)[0])
    return process


@pytest.mark.parametrize(
    ("cluster", "test"),
    [("namespace", "forever.elastic.yaml"), ("process", "test_forever.py")],
)
def test_ctrl_c_ends_the_run_and_then_pytest(place: Place, cluster: str, test: str) -> None:
    """Exit code 2 and pytest's own word for it; every process has gone before pytest goes."""
    before = leaks.snapshot()
    process = start_and_wait_for_workers(place, f"--elastic-cluster={cluster}", test)
    traces = traces_of(process.pid)
    assert len(traces.processes) >= 6, "supervisor, server, two launchers, two workers"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, out
    assert "KeyboardInterrupt" in out
    assert "INTERNALERROR" not in out
    assert traces.left == []
    assert leaks.leaks_since(before) == []
    (run,) = place.runs
    history = (place.folder / ".elastic" / run / "history.jsonl").read_text()
    assert '"run_ended"' in history, "the run was ended, not abandoned"


@pytest.mark.parametrize(
    ("cluster", "test"),
    [("namespace", "test_forever.py"), ("process", "forever.elastic.yaml")],
)
def test_a_killed_pytest_leaves_nothing_but_the_artifacts(
    place: Place, cluster: str, test: str
) -> None:
    """SIGKILL cannot be handled: the supervisor sees to processes, sockets and folders."""
    before = leaks.snapshot()
    process = start_and_wait_for_workers(place, f"--elastic-cluster={cluster}", test)
    traces = traces_of(process.pid)
    assert os.path.exists(leftovers.scratch_folder(traces.tag)), "there is something to remove"
    process.kill()
    process.communicate(timeout=30)
    wait_until(lambda: not traces.left, within_s=20, what=f"gone: {traces.left}")
    assert leaks.leaks_since(before) == []
    (run,) = place.runs
    assert (place.folder / ".elastic" / run / "plan.json").exists()
