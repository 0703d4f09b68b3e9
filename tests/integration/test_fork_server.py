"""Servers of several clusters, forked from one interpreter."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.cluster import process_table
from elastic_harness.cluster.client import ClusterClient
from elastic_harness.cluster.server.server_process import VARIABLE, sharing_one_interpreter
from elastic_harness.future import wait_for

from pytest_elastic.boot.descriptors import open_descriptors
from pytest_elastic.boot.descriptors import wait_for as wait_for_event
from tests.cluster_bench import LIMIT_S, Bench

# Without torch: what is tested is who forks whom.
PRELOAD = ("json",)
PRINT_ENVIRONMENT = "import os; print(os.environ['HERE'], os.getcwd(), flush=True)"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody around us shares an interpreter."""
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def fork_server() -> Iterator[int]:
    """Return the fork server that is shared during a test."""
    before = {row.pid for row in process_table.descendants(os.getpid())}
    with sharing_one_interpreter(PRELOAD):
        (server,) = {row.pid for row in process_table.descendants(os.getpid())} - before
        yield server


def supervisor_of(bench: Bench) -> int:
    """Return the outermost process of a cluster."""
    assert isinstance(bench.cluster, ClusterClient)
    server = bench.cluster._server
    assert server is not None
    return server.pid


def parent_of(pid: int) -> int:
    """Return the number of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_clusters_of_a_process_are_forked_from_one_interpreter(
    fork_server: int, tmp_path: Path
) -> None:
    """Each is in a session of its own, works as any other, and ends when it is closed."""
    benches = [Bench("process", tmp_path, preload=PRELOAD) for _ in range(2)]
    pids = [supervisor_of(bench) for bench in benches]
    assert {parent_of(pid) for pid in pids} == {fork_server}
    assert [os.getsid(pid) for pid in pids] == pids
    for bench in benches:
        bench.start("n1")
        words = (sys.executable, "-c", PRINT_ENVIRONMENT)
        process = bench.run("n1", *words, environ={"HERE": "it is"})
        wait_for(bench.loop, bench.cluster.ended(process.ref), within_s=LIMIT_S)
        bench.close()
    assert (tmp_path / "output").read_text() == f"it is {tmp_path}\n" * 2
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


@pytest.mark.parametrize("other", ["umask", "preload", "limit"])
def test_one_in_other_surroundings_has_an_interpreter_of_its_own(
    fork_server: int, tmp_path: Path, other: str
) -> None:
    """What a process has from its parent cannot be taken over from somebody else's."""
    code = f"""
import os, resource, sys
sys.path[:0] = {[str(path) for path in sys.path]!r}
from pathlib import Path
from tests.cluster_bench import Bench
from tests.integration.test_fork_server import PRELOAD, parent_of, supervisor_of
preload = PRELOAD
match {other!r}:
    case "umask": os.umask(0o77)
    case "preload": preload = ("json", "csv")
    case "limit": resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
bench = Bench("process", Path({str(tmp_path)!r}), preload=preload)
print(parent_of(supervisor_of(bench)) == os.getpid())
bench.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


def test_without_the_fork_server_a_cluster_is_started_as_ever(
    fork_server: int, tmp_path: Path
) -> None:
    """It may have been killed, or its owner may have ended."""
    os.kill(fork_server, signal.SIGKILL)
    os.waitid(os.P_PID, fork_server, os.WEXITED | os.WNOWAIT)
    bench = Bench("process", tmp_path, preload=PRELOAD)
    assert parent_of(supervisor_of(bench)) == os.getpid()
    bench.close()


def test_what_cannot_be_imported_is_named_as_without_a_fork_server(tmp_path: Path) -> None:
    """The fork server ends of it while it is asked, and says nothing."""
    wait = "import select; select.select([], [], [], 0.5)"
    (tmp_path / "broken.py").write_text(f"{wait}\nimport nothing_here\n")
    code = f"""
import sys
sys.path[:0] = {[str(path) for path in sys.path]!r}
from pathlib import Path
from elastic_harness.cluster.server.server_process import sharing_one_interpreter
from tests.cluster_bench import Bench
with sharing_one_interpreter(("broken",)):
    Bench("process", Path({str(tmp_path)!r}), preload=("broken",))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cannot preload 'broken'" in done.stderr
    assert "nothing_here" in done.stderr


def test_who_finds_an_interpreter_that_is_shared_holds_no_connection_to_it(
    fork_server: int,
) -> None:
    """It waits for who has connected to say something, and serves nobody else meanwhile."""
    assert fork_server
    before = open_descriptors()
    with sharing_one_interpreter(PRELOAD):
        assert open_descriptors() == before


def test_a_fork_server_ends_with_its_owner_and_a_cluster_does_not_end_with_it(
    tmp_path: Path,
) -> None:
    """No matter which process is killed, no orphan is left."""
    with sharing_one_interpreter(PRELOAD):
        bench = Bench("process", tmp_path, preload=PRELOAD)
        assert parent_of(supervisor_of(bench)) != os.getpid()
    bench.start("n1")
    bench.close()
    code = (
        "import signal\n"
        "from elastic_harness.cluster.server.server_process import sharing_one_interpreter\n"
        f"with sharing_one_interpreter({PRELOAD!r}):\n"
        "    print(flush=True)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        (server,) = {row.pid for row in process_table.descendants(owner.pid)}
        pidfd = os.pidfd_open(server)
        owner.kill()
    assert wait_for_event(pidfd, select.POLLIN, LIMIT_S), "it goes on without its owner"
    os.close(pidfd)
