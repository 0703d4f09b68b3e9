"""What every kind of cluster promises, whatever its nodes are made of."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic_harness.cluster.choose import choose_cluster
from elastic_harness.cluster.client import ClusterClient
from elastic_harness.cluster.cluster import (
    Cluster,
    ClusterError,
    LiveCluster,
    NodeGone,
    NodeSpec,
    ProcessExited,
)
from elastic_harness.cluster.machines.cluster import MachinesCluster
from elastic_harness.cluster.process import is_running
from elastic_harness.future import wait_for

from pytest_elastic.errors import UsageError
from pytest_elastic.loop import Loop
from tests.cluster_bench import Bench
from tests.machines import MachinesBench, Network


def keep_the_interface(local: ClusterClient, far: MachinesCluster) -> tuple[LiveCluster, ...]:
    """Have the type checker compare the signatures."""
    return local, far


SLEEP = ("sleep", "1000")
# A grandchild that has left its session, its parent and its parent's process group.
ESCAPE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.001)  # until it has left its parent
        open(sys.argv[1], "w").close()
        time.sleep(1000)
    os._exit(0)
time.sleep(1000)
"""


@pytest.fixture(scope="module", params=["namespace", "process", "machines", "plain machines"])
def cluster_bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """One server for all tests of a kind, with nothing preloaded but what it needs itself."""
    kind: str = request.param
    folder = tmp_path_factory.mktemp("cluster")
    if kind in ("machines", "plain machines"):
        if os.geteuid() != 0:
            pytest.skip("only root can make the namespaces that stand for machines")
        network = Network(2)
        far = MachinesBench(network, folder, nodes="namespace" if kind == "machines" else "process")
        yield far
        far.close()
        assert network.is_clean()
        network.end()
        return
    if kind == "namespace":
        try:
            choose_cluster(kind)
        except UsageError as error:
            pytest.skip(error.message)
    made = Bench(kind, folder, preload=())
    yield made
    made.close()


@pytest.fixture
def bench(cluster_bench: Bench, tmp_path: Path) -> Iterator[Bench]:
    """Lend the server, without nodes, and look for what the test left."""
    yield from cluster_bench.borrow(tmp_path)


@pytest.mark.parametrize("kind", ["namespace", "process"])
def test_a_cluster_that_is_closed_while_it_is_started_has_not_started(kind: str) -> None:
    """Who started it makes nothing more in its folder, which is gone or soon will be."""
    try:
        choice = choose_cluster(kind)
    except UsageError as error:
        pytest.skip(error.message)
    with contextlib.closing(Loop()) as loop:
        cluster = choice.make(loop, on_event=print, preload=())
        started, closed = cluster.start(), cluster.close()
        assert cluster.close() is closed
        wait_for(loop, closed)
        assert str(started.error) == "the cluster was closed while it was started"


def test_a_started_node_is_listed_with_its_address(bench: Bench) -> None:
    """Nodes are known by name, in the order of their start, and have different addresses."""
    bench.start("n1", "n2")
    nodes = bench.cluster.nodes
    assert list(nodes) == ["n1", "n2"]
    assert [node.address.rpartition(".")[2] for node in nodes.values()] == ["1", "2"]
    assert nodes["n1"].address.rpartition(".")[0] == nodes["n2"].address.rpartition(".")[0]


def test_the_exit_of_a_process_is_reported_with_its_status(bench: Bench) -> None:
    """An exit status, and the number of a signal with a minus, arrive once as an event."""
    bench.start("n1")
    exited = bench.run("n1", "sh", "-c", "exit 3")
    killed = bench.run("n1", "sh", "-c", "kill -9 $$")
    assert (bench.finish(exited), bench.finish(killed)) == (3, -signal.SIGKILL)
    reported = [event.process for event in bench.events if isinstance(event, ProcessExited)]
    assert sorted(process.id for process in reported) == [exited.id, killed.id]


def test_what_libfaketime_shares_goes_with_the_process_that_was_killed(bench: Bench) -> None:
    """It removes that itself at an exit only, and nodes may have the host's /dev/shm."""
    bench.start("n1")
    shares = "touch /dev/shm/faketime_shm_$$ /dev/shm/sem.faketime_sem_$$"
    killed = bench.run("n1", "sh", "-c", f"{shares}; kill -9 $$")
    assert bench.finish(killed) == -signal.SIGKILL
    script = f"{shares}; touch ready; sleep 1000"
    stays = bench.run("n1", "sh", "-c", script)
    bench.wait_for_file("ready")
    bench.end("crash", "n1")
    left = [name for name in os.listdir("/dev/shm") if "faketime" in name]
    assert not [
        name for name in left if name.endswith((f"_{killed.node_pid}", f"_{stays.node_pid}"))
    ]


def test_a_process_has_exactly_the_environment_and_folder_it_was_given(bench: Bench) -> None:
    """Nothing of the server's own environment is seen, but for the mark of the session."""
    bench.start("n1")
    process = bench.run("n1", "sh", "-c", "pwd; env")
    lines = bench.output(process).splitlines()
    assert lines[0] == str(bench.folder)
    names = {line.partition("=")[0] for line in lines[1:]} - {"PWD", "OLDPWD", "_", "SHLVL"}
    # Where nodes share the host's /tmp, each is told of a folder of its own instead.
    own = set() if bench.cluster.capabilities.has("private_disk") else {"TMPDIR"}
    assert names == {"PATH", "PYTHONPATH", "PYTEST_ELASTIC_CLUSTER", *own}


def test_a_command_that_cannot_be_executed_is_refused_with_the_reason(bench: Bench) -> None:
    """The result of a spawn is known once the program runs; what is in its way is said."""
    bench.start("n1")
    with pytest.raises(ClusterError, match=r"cannot start 'no-such-program': .*No such file"):
        bench.run("n1", "no-such-program")


def test_a_process_starts_with_clean_signals_in_a_session_of_its_own(bench: Bench) -> None:
    """It ignores and blocks nothing, and leads its session."""
    bench.start("n1")
    code = (
        "import os; print(os.getsid(0) == os.getpid()); "
        "print(*[line.split()[1] for line in open('/proc/self/status') if line[:6] == 'SigIgn' "
        "or line[:6] == 'SigBlk'])"
    )
    # Python itself ignores SIGPIPE and SIGXFSZ: bits 13 and 25.
    expected = f"{0:016x} {1 << 12 | 1 << 24:016x}"
    assert bench.output(bench.python("n1", code)).splitlines() == ["True", expected]


def test_an_entry_point_called_in_a_forked_child_behaves_like_the_command(bench: Bench) -> None:
    """Arguments, status, output and __main__ are the same, forked from the server or executed."""
    bench.start("n1")
    called = bench.run(
        "n1", "entry", "a", "b", preloaded_entry="tests.conformance.entry_points:report"
    )
    assert bench.finish(called) == 7, bench.printed()
    by_call = bench.printed()
    code = (
        "import sys; from tests.conformance.entry_points import report; "
        "sys.argv[0] = 'entry'; sys.exit(report(sys.argv[1:]))"
    )
    executed = bench.run("n1", sys.executable, "-c", code, "a", "b")
    assert bench.finish(executed) == 7, bench.printed()
    assert bench.printed() == by_call * 2
    assert "arguments a b" in by_call


def test_a_role_called_in_a_forked_child_may_fork_warm_programs(bench: Bench) -> None:
    """A preloaded role goes on as what it returns, here a program started by CPython itself."""
    bench.start("n1")
    played = bench.run(
        "n1", "role", "hello", preloaded_role="tests.conformance.entry_points:make_role"
    )
    assert bench.output(played) == "__main__ hello\n"


def test_a_facet_is_there_or_its_capability_says_why_not(bench: Bench) -> None:
    """None of them is there and does nothing."""
    cluster: Cluster = bench.cluster
    facets = {
        "network": cluster.network,
        "disk_faults": cluster.disks,
        "names": cluster.names,
        "clock_skew": cluster.clock,
    }
    for name, facet in facets.items():
        capability = cluster.capabilities[name]
        assert (facet is not None) == capability.available, name
        assert capability.reason
    assert cluster.sockets is not None
    assert cluster.limits is not None


def test_how_a_process_ends_is_an_event(bench: Bench) -> None:
    """Its state is known until then, and nothing afterwards."""
    bench.start("n1")
    process = bench.run("n1", *SLEEP)
    assert is_running(wait_for(bench.loop, bench.cluster.state(process.ref)))
    ended = bench.cluster.ended(process.ref)
    assert not ended.is_done
    assert wait_for(bench.loop, bench.cluster.signal(process.ref, signal.SIGUSR1))
    assert wait_for(bench.loop, ended) in (-signal.SIGUSR1, None)  # None before Linux 6.15
    assert wait_for(bench.loop, bench.cluster.state(process.ref)) == ""
    assert wait_for(bench.loop, bench.cluster.ended(process.ref)) is None


def test_a_signal_reaches_a_process_and_only_while_it_runs(bench: Bench) -> None:
    """Signalling tells whether there was anybody to signal."""
    bench.start("n1")
    process = bench.run("n1", *SLEEP)
    assert wait_for(bench.loop, bench.cluster.signal(process.ref, signal.SIGTERM))
    assert bench.finish(process) == -signal.SIGTERM
    assert not wait_for(bench.loop, bench.cluster.signal(process.ref, signal.SIGTERM))


def test_processes_of_a_node_are_listed_with_their_parents(bench: Bench) -> None:
    """The list has what was started and what that started, and can be signalled."""
    bench.start("n1", "n2")
    shell = bench.run("n1", "sh", "-c", "sleep 1000; true")
    bench.until(
        lambda: [info.command for info in bench.processes("n1")][1:] == [SLEEP],
        "the shell to execute its child",
    )
    first, second = bench.processes("n1")
    assert (first.pid, first.node_pid, first.command[0]) == (shell.pid, shell.node_pid, "sh")
    assert second.node_ppid == first.node_pid
    assert first.start_time <= second.start_time
    assert bench.processes("n2") == ()
    assert wait_for(bench.loop, bench.cluster.signal(second.ref, signal.SIGKILL))
    assert bench.finish(shell) == 0


CAUSES = {"stop": "teardown", "crash": "crash", "cut": "power_cut"}


@pytest.mark.parametrize("how", CAUSES)
def test_the_end_of_a_node_is_the_end_of_all_its_processes(bench: Bench, how: str) -> None:
    """Nothing outlives its node, not even what has left its parent and its session."""
    bench.start("n1", "n2")
    process = bench.python("n1", ESCAPE, str(bench.folder / "escaped"))
    other = bench.run("n2", *SLEEP)
    bench.wait_for_file("escaped")
    pids = [info.pid for info in bench.processes("n1") if info.state != "Z"]
    assert len(pids) == 2
    assert all(bench.proc(pid).exists() for pid in pids)
    bench.end(how, "n1")
    assert process.exit_code == -signal.SIGKILL
    assert not any(bench.proc(pid).exists() for pid in pids)
    assert list(bench.cluster.nodes) == ["n2"]
    assert other.exit_code is None
    gone = [event for event in bench.events if isinstance(event, NodeGone)]
    assert [(event.node, event.cause) for event in gone] == [("n1", CAUSES[how])]


def test_a_node_that_ends_by_itself_is_reported(bench: Bench) -> None:
    """When the first process of a node is killed from outside, the node is gone, unasked."""
    bench.start("n1")
    process = bench.run("n1", *SLEEP)
    init = bench.cluster.nodes["n1"].pid
    bench.kill(init)
    bench.until(lambda: not bench.cluster.nodes, "the node to be gone")
    assert process.exit_code == -signal.SIGKILL
    gone = [event for event in bench.events if isinstance(event, NodeGone)]
    assert [(event.node, event.cause) for event in gone] == [("n1", "lost")]


def test_a_name_that_ran_before_gets_its_next_incarnation(bench: Bench) -> None:
    """A reboot finds its disk again, a replacement an empty one."""
    bench.start("n1")
    disk = bench.cluster.nodes["n1"].disk
    bench.finish(bench.run("n1", "sh", "-c", f"echo kept > {disk}/file"))
    bench.end("crash", "n1")
    bench.start(
        "n1",
        spec=lambda name, index: NodeSpec(
            name=name, index=index, shared=[str(bench.folder)], keep_disk=True
        ),
    )
    assert bench.cluster.nodes["n1"].incarnation == 2
    assert bench.output(bench.run("n1", "cat", f"{disk}/file")) == "kept\n"
    bench.end("crash", "n1")
    bench.start("n1")
    assert bench.cluster.nodes["n1"].incarnation == 3
    assert bench.finish(bench.run("n1", "test", "-e", f"{disk}/file")) == 1


def test_a_paused_node_does_nothing_until_it_is_resumed(bench: Bench) -> None:
    """Everything that a node runs stands still, and goes on afterwards as if nothing had been."""
    bench.start("n1", "n2")
    count = (
        "import os, sys, time\n"
        "os.fork()\n"
        "while True:\n"
        "    open(sys.argv[1], 'a').write('x')\n"
        "    time.sleep(0.001)\n"
    )
    paused, free = bench.folder / "paused", bench.folder / "free"
    bench.python("n1", count, str(paused))
    bench.python("n2", count, str(free))
    for name in ("paused", "free"):
        bench.wait_for_file(name)
    wait_for(bench.loop, bench.cluster.pause_node("n1"))
    wait_for(bench.loop, bench.cluster.pause_node("n1"))
    before, of_other = paused.stat().st_size, free.stat().st_size
    bench.until(lambda: free.stat().st_size > of_other + 50, "the other node to go on")
    assert paused.stat().st_size == before
    wait_for(bench.loop, bench.cluster.resume_node("n1"))
    bench.until(lambda: paused.stat().st_size > before, "the node to go on")


def test_a_paused_node_can_be_ended(bench: Bench) -> None:
    """What stands still can die."""
    bench.start("n1")
    process = bench.run("n1", *SLEEP)
    wait_for(bench.loop, bench.cluster.pause_node("n1"))
    bench.end("crash", "n1")
    assert process.exit_code == -signal.SIGKILL


def test_what_names_no_running_node_is_refused_at_once(bench: Bench) -> None:
    """A name that does not run is a mistake of the caller's, and so is one that runs already."""
    bench.start("n1")
    with pytest.raises(UsageError, match="there is no running node 'n9'"):
        bench.end("crash", "n9")
    with pytest.raises(UsageError, match="cannot start node 'n1': it is running"):
        bench.start("n1")


def test_a_reset_leaves_no_node(bench: Bench) -> None:
    """After a reset the same names start from their first incarnation."""
    bench.start("n1", "n2", "n3")
    processes = [bench.run(name, *SLEEP) for name in ("n1", "n2", "n3")]
    bench.reset(bench.folder)
    assert not bench.cluster.nodes
    assert [process.exit_code for process in processes] == [-signal.SIGKILL] * 3
    bench.start("n1")
    assert bench.cluster.nodes["n1"].incarnation == 1
