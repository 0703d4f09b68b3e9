"""`SimulatedCluster` as any caller of the interface has it: no scenario, no stage."""

from __future__ import annotations

import signal
from typing import TypeVar

import pytest
from elastic_harness.cluster.cluster import (
    Cluster,
    ClusterError,
    ClusterEvent,
    NodeGone,
    NodeSpec,
    ProcessExited,
    having,
)
from elastic_harness.cluster.process import ProcessHandle, ProcessSpec
from elastic_harness.future import Future
from elastic_harness.network.link_model import DropReason, LinkMode, LinkPolicy
from elastic_simulation.process import Process
from elastic_simulation.scenarios.cluster import SimulatedCluster
from elastic_simulation.scenarios.job_world import JobWorld
from elastic_simulation.scenarios.training import Script
from elastic_simulation.world import settings

from pytest_elastic.errors import UsageError

T = TypeVar("T")
NAMES = ("n1", "n2", "n3")
RUN = ProcessSpec(
    argv=("pytest-elastic", "run", "--nproc-per-node=2", "train.py"), environ={}, cwd="/"
)


class Job:
    """A cluster of three nodes with a launcher on each; what happens is in `events`."""

    def __init__(self, nodes: str = "2:3") -> None:
        self.events: list[ClusterEvent] = []
        self.world = JobWorld(
            settings(nodes),
            Script(),
            on_event=lambda *_: None,
            on_exit=self._on_exit,
        )
        self.simulated = SimulatedCluster(self.world, on_event=self.events.append)
        self.cluster: Cluster = self.simulated
        self.launchers: dict[str, ProcessHandle] = {}
        for index, name in enumerate(NAMES, start=1):
            self.start(name, index)

    def _on_exit(self, process: Process) -> None:
        self.simulated.on_exit(process)

    def start(self, name: str, index: int) -> None:
        """Start a node, and a launcher on it."""
        self.wait(self.cluster.start_node(NodeSpec(name=name, index=index)))
        self.launchers[name] = self.wait(self.cluster.spawn(name, RUN))

    def wait(self, operation: Future[T]) -> T:
        """Let time pass until an operation is done; return its outcome, or raise its error."""
        if not operation.is_done:
            self.world.run_until(lambda: operation.is_done, within_s=1.0)
        return operation.result()

    def form(self, *names: str) -> None:
        """Wait for a round of these nodes."""
        world = self.world
        world.run_until(
            lambda: set(names) <= set(world.processes) and world.all_run(*names), within_s=10.0
        )

    def dropped(self, source: str, target: str) -> dict[DropReason, int]:
        """Return what a link has dropped."""
        counters = self.wait(self.simulated.network.counters())
        return dict(counters.links[source, target].dropped)


def test_a_node_that_crashes_takes_its_launcher_along_and_may_come_back() -> None:
    """With the next incarnation, into the job that went on without it."""
    job = Job()
    job.form(*NAMES)
    job.wait(job.cluster.crash_node("n2"))
    exited, gone = job.events
    assert isinstance(exited, ProcessExited)
    assert exited.process is job.launchers["n2"]
    assert exited.process.exit_code == -signal.SIGKILL
    assert isinstance(gone, NodeGone)
    assert (gone.node, gone.incarnation, gone.cause) == ("n2", 1, "crash")
    assert list(job.cluster.nodes) == ["n1", "n3"]
    job.form("n1", "n3")
    job.start("n2", 2)
    assert job.cluster.nodes["n2"].incarnation == 2
    job.form(*NAMES)


def test_a_launcher_that_is_killed_is_gone_and_its_node_is_not() -> None:
    """Its workers go with it, by its keeper's doing; what does not run takes no signal."""
    job = Job()
    job.form(*NAMES)
    assert len(job.wait(job.cluster.processes("n3"))) == 1 + 2
    assert job.wait(job.cluster.signal(job.launchers["n3"].ref, signal.SIGKILL))
    job.form("n1", "n2")
    assert job.wait(job.cluster.processes("n3")) == ()
    assert "n3" in job.cluster.nodes
    assert not job.wait(job.cluster.signal(job.launchers["n3"].ref, signal.SIGTERM))


def test_a_launcher_that_is_asked_to_leaves() -> None:
    """SIGTERM is a drain: it ends with the status of one."""
    job = Job()
    job.form(*NAMES)
    assert job.wait(job.cluster.signal(job.launchers["n2"].ref, signal.SIGTERM))
    job.form("n1", "n3")
    job.world.run(2.0)
    assert job.launchers["n2"].exit_code is not None
    assert job.launchers["n2"].exit_code != -signal.SIGKILL


def test_a_node_that_stands_still_is_left_out_until_it_goes_on() -> None:
    """All of its processes say so."""
    job = Job()
    job.form(*NAMES)
    job.wait(job.cluster.pause_node("n2"))
    assert {process.state for process in job.wait(job.cluster.processes("n2"))} == {"T"}
    job.form("n1", "n3")
    job.wait(job.cluster.resume_node("n2"))
    job.form(*NAMES)


@pytest.mark.parametrize(
    ("mode", "reason"), [(LinkMode.DROP, DropReason.DOWN), (LinkMode.REJECT, DropReason.REJECTED)]
)
def test_a_cut_link_is_felt_and_counted(mode: LinkMode, reason: DropReason) -> None:
    """A node that hears nothing any more is given up; healed, it comes back."""
    job = Job()
    job.form(*NAMES)
    pairs = [("n1", "n3"), ("n2", "n3")]
    job.wait(job.simulated.network.lay(pairs, (("", LinkPolicy(up=False, mode=mode)),)))
    job.form("n1", "n2")
    assert job.dropped("n1", "n3")[reason] > 0
    job.wait(job.simulated.network.lay(pairs, ()))
    job.form(*NAMES)


def test_a_slow_and_lossy_link_is_borne_and_counted() -> None:
    """What is lost is sent again: no node is given up."""
    job = Job()
    job.form(*NAMES)
    pairs = [("n1", "n2"), ("n2", "n1")]
    policy = LinkPolicy(latency_s=0.05, jitter_s=0.01, loss=0.1)
    job.wait(job.simulated.network.lay(pairs, (("", policy),)))
    job.world.run(20.0)
    assert job.world.all_run(*NAMES)
    assert len(job.world.seals()) == 1
    assert job.dropped("n1", "n2")[DropReason.LOST] > 0


def test_a_reset_leaves_nothing() -> None:
    """No node, no process, no policy; the same cluster can be used again."""
    job = Job()
    job.form(*NAMES)
    job.wait(job.simulated.network.lay([("n1", "n2")], (("", LinkPolicy(up=False)),)))
    job.wait(job.cluster.reset(seed="2"))
    assert not job.cluster.nodes
    assert all(launcher.exit_code is not None for launcher in job.launchers.values())
    assert not job.world.cut_links


def test_what_a_simulated_node_lacks_is_an_error_and_no_silence() -> None:
    """Each with a sentence; and a node that does not run is a usage error."""
    job = Job()
    other = ProcessSpec(argv=("python", "train.py"), environ={}, cwd="/")
    with pytest.raises(ClusterError, match=r"not 'python train\.py'"):
        job.wait(job.cluster.spawn("n1", other))
    facets = {"disks": "disk_faults", "limits": "cpu_limit", "clock": "clock_skew"}
    for facet, capability in facets.items():
        with pytest.raises(ClusterError, match="machines of the control plane and no more"):
            having(getattr(job.cluster, facet), job.cluster.capabilities[capability])
    with pytest.raises(ClusterError, match="classes of traffic"):
        job.wait(job.simulated.network.lay([("n1", "n2")], (), traffic="store"))
    with pytest.raises(UsageError, match="there is no node 'n9'"):
        job.cluster.crash_node("n9")
