"""A session of runs on one cluster: one at a time, and a cluster that was lost is replaced."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from elastic_harness.cluster import process_table
from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.cluster.cluster import ClusterNode, NodeSpec
from elastic_harness.future import Future
from elastic_harness.history.events import HarnessFailed, RunClosed
from elastic_harness.scenario.launchers import launcher_named
from elastic_harness.scenario.model import Scenario
from elastic_harness.scenario.planning.planner import make_plan
from elastic_harness.session import HarnessSession, OpenRun, _make_socket_dir

from pytest_elastic.errors import UsageError

SCRIPT = """
import os, sys, time
if sys.argv[1] == "forever":
    time.sleep(600)
"""

Start = Callable[[str], OpenRun]


@pytest.fixture
def session() -> Iterator[HarnessSession]:
    """Return a session of plain processes, ended afterwards."""
    session = HarnessSession(choose_cluster("process"), preload=())
    yield session
    session.close()


@pytest.fixture
def start(session: HarnessSession, tmp_path: Path) -> Start:
    """Return how to start a run whose worker ends at once, or never does by itself."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "runs").mkdir()

    def start(how_long: str) -> OpenRun:
        job = {"script": "train.py", "args": [how_long]}
        scenario = Scenario.model_validate(
            {"version": 1, "id": "session", "title": "One of several", "job": job, "nodes": 1}
        )
        directory = tmp_path / "runs" / str(len(os.listdir(tmp_path / "runs")))
        directory.mkdir()
        return session.open(
            make_plan(scenario, seed=1),
            launcher_named("pytest-elastic"),
            directory=str(directory),
            base_dir=str(tmp_path),
            cwd=str(tmp_path),
            environ=dict(os.environ),
        )

    return start


def wait_for_a_worker(opened: OpenRun) -> None:
    """Wait until a worker of the run has said hello."""

    def begin() -> Future[None]:
        seen: Future[None] = Future()

        def look() -> None:
            if opened.run.history.worlds.current is not None:
                seen.settle(None)

        opened.run.listen(look)
        look()
        return seen

    opened.thread.wait(begin, timeout_s=60)


def test_a_clean_cluster_is_kept_and_a_dirty_one_is_replaced_and_said(
    session: HarnessSession, start: Start
) -> None:
    """A folder of a run and a node that nobody ended are found; the next run has a new cluster."""
    assert start("now").wait().outcome == "succeeded"
    cluster, thread, first = session.cluster, session.thread, session.cluster.own_pids
    assert start("now").wait().outcome == "succeeded"
    assert (session.cluster, session.replacements) == (cluster, [])
    left = Path(cluster.scratch) / "run-left"
    left.mkdir()
    start_node = partial(cluster.start_node, NodeSpec(name="n7", index=7))
    assert isinstance(thread.wait(start_node, timeout_s=60), ClusterNode)
    assert start("now").wait().outcome == "succeeded"
    (reason,) = session.replacements
    for part in ("it was not clean", "node n7 runs", "is left: ", f"{left} is left"):
        assert part in reason
    assert not first & session.cluster.own_pids
    assert not left.exists(), "its supervisor has removed it"


def test_one_run_at_a_time(start: Start) -> None:
    """A second one is refused while the first runs, and welcome when it has been ended."""
    first = start("forever")
    with pytest.raises(UsageError, match="one job runs at a time"):
        start("briefly")
    assert first.stop("enough").outcome == "stopped"
    assert start("briefly").wait().outcome == "succeeded"


def test_a_run_whose_cluster_is_lost_says_so_and_the_next_one_has_another(
    start: Start, session: HarnessSession
) -> None:
    """The server dies under a run: that run ends and is unknown, and no later one suffers."""
    doomed = start("forever")
    wait_for_a_worker(doomed)
    pids = session.cluster.own_pids
    parents = {pid: row.ppid for pid in pids if (row := process_table.row_of(pid))}
    (server,) = (pid for pid, parent in parents.items() if parent in pids)
    os.kill(server, signal.SIGKILL)
    result = doomed.wait()
    assert result.outcome == "aborted"
    assert any("the cluster was lost" in problem for problem in result.problems), result.problems
    assert start("briefly").wait().outcome == "succeeded"
    assert session.cluster.own_pids.isdisjoint(pids)


def test_sockets_of_runs_lie_where_the_supervisor_removes_them(
    start: Start, session: HarnessSession
) -> None:
    """A run takes its folder away; the session's own goes with the cluster."""
    run = start("forever")
    scratch = Path(session.cluster.scratch)
    (socket_dir,) = (path for path in scratch.iterdir() if path.name.startswith("run-"))
    assert (socket_dir / "observe").is_socket()
    run.stop("enough")
    assert not socket_dir.exists()
    assert scratch.exists()
    session.close()
    assert not scratch.exists()


def test_a_path_too_long_for_a_socket_is_refused_with_the_way_out(
    start: Start, session: HarnessSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel allows 107 bytes, and its own error would name neither path nor limit."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    with pytest.raises(UsageError, match="its path would be too long") as refused:
        start("briefly")
    assert "TMPDIR" in (refused.value.hint or "")
    session.close()
    assert [path for path in long.iterdir() if path.name.startswith("pytest-elastic")] == []


@pytest.mark.parametrize("how", ["another user's", "writable for all", "a link"])
def test_a_run_is_not_put_into_a_folder_that_another_user_has_made(
    tmp_path: Path, how: str
) -> None:
    """Its name can be guessed, and its owner could replace what is in it."""
    scratch = tmp_path / "pytest-elastic-1-2-3"
    if how == "a link":
        (tmp_path / "elsewhere").mkdir()
        scratch.symlink_to(tmp_path / "elsewhere")
    else:
        scratch.mkdir(mode=0o700)
    if how == "another user's":
        if os.geteuid() != 0:
            pytest.skip("takes root to give a folder away")
        os.chown(scratch, 65534, 65534)
    elif how == "writable for all":
        scratch.chmod(0o777)
    with pytest.raises(UsageError, match="another user has made it") as refused:
        _make_socket_dir(str(scratch))
    assert "TMPDIR" in (refused.value.hint or "")
    assert not any(scratch.iterdir())


def test_nothing_is_written_down_behind_the_end_of_a_run(
    start: Start, session: HarnessSession
) -> None:
    """It is stopped while its launcher is being started, which fails then: that is no failure."""
    stopped = [start("forever").stop("enough") for _ in range(3)]
    assert start("briefly").wait().outcome == "succeeded"
    for result in stopped:
        kinds = [type(entry.event) for entry in result.history]
        assert kinds[-1] is RunClosed, kinds
        assert HarnessFailed not in kinds
        assert not result.problems
    session.close()
