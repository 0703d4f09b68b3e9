"""A cluster whose nodes are played: the launcher's machines in virtual time, behind `Cluster`.

Everything that makes sense without processes and packets is there: nodes come, leave, crash, lose
power and stand still; a launcher is spawned, signalled and ends; links have policies and counters.
The facets for which a node would need a kernel are lacking, as the capabilities say. Operations are
done at once, or after a while of the world's time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from elastic_harness.cluster.cluster import (
    CAPABILITIES,
    Capabilities,
    ClusterError,
    ClusterEvent,
    ClusterNode,
    NodeGone,
    NodeSpec,
    ProcessExited,
)
from elastic_harness.cluster.facets import NetworkCounters, OnUnseen, OnWritten
from elastic_harness.cluster.local_logs import LocalLogs
from elastic_harness.cluster.process import ProcessHandle, ProcessInfo, ProcessRef, ProcessSpec
from elastic_harness.future import Future, settled
from elastic_harness.network.link_model import Layers, LinkMode, Pair, hardest_cut

from elastic_simulation.process import Process
from elastic_simulation.scenarios.job_world import JobWorld
from pytest_elastic.errors import UsageError

__all__ = ["SIMULATED", "SimulatedCluster"]

_CAN = {
    "network": "links follow the switch's own model, for all traffic alike",
    "names": "names are addresses",
    "pause": "a whole node stands still",
    "private_pids": "a process is a number, and no number comes twice",
}
_CANNOT = "simulated nodes are machines of the control plane and no more"
SIMULATED = Capabilities.of(
    {name: (name in _CAN, _CAN.get(name, _CANNOT)) for name in CAPABILITIES}
)
# A node is up, and its agent has been executed, this long after it was asked for.
_START_S = 0.05
_AGENT_S = 0.2
# A process that has ended is noticed this much later: real nodes do not act on it sooner.
_LOOK_S = 0.005
_SLOTS = "--nproc-per-node="


@dataclass(slots=True)
class _Launcher:
    """A launcher that was spawned; its process comes a moment later."""

    handle: ProcessHandle
    process: Process | None = None


class _NoFiles:
    """`Files`: simulated processes write none."""

    def watch(self, folder: str, on_written: OnWritten, on_unseen: OnUnseen) -> Callable[[], None]:
        """Nothing is ever told."""
        return lambda: None

    def corrupt(
        self, pattern: str, how: str, *, folders: Sequence[str], node: str | None = None
    ) -> Future[str]:
        """There is nothing to damage."""
        return settled(ClusterError(f"simulated nodes have no files, and none that is {pattern}"))


class SimulatedCluster:
    """Nodes of a `JobWorld`. The world's `on_exit` has to be this cluster's."""

    kind: ClassVar[str] = "simulated"
    sockets: ClassVar[None] = None
    disks: ClassVar[None] = None
    limits: ClassVar[None] = None
    names: ClassVar[None] = None
    strangers: ClassVar[None] = None
    clock: ClassVar[None] = None

    def __init__(self, world: JobWorld, *, on_event: Callable[[ClusterEvent], None]) -> None:
        self.world = world
        self.capabilities = SIMULATED
        self.network = SimulatedLinks(world)
        self.logs = LocalLogs()  # there are none: simulated processes print nothing
        self.files = _NoFiles()
        self._on_event = on_event
        self._nodes: dict[str, ClusterNode] = {}
        self._starts: dict[str, int] = {}
        self._launchers: dict[int, _Launcher] = {}  # by pid
        self._ends: dict[ProcessRef, Future[int | None]] = {}

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        return dict(self._nodes)

    def start(self) -> Future[None]:
        """There is nothing to start."""
        return settled(None)

    # --- nodes -------------------------------------------------------------------------------

    def start_node(self, spec: NodeSpec) -> Future[ClusterNode]:
        if spec.name in self._nodes:
            raise UsageError(f"cannot start node {spec.name!r}: it runs already")

        started: Future[ClusterNode] = Future()

        def up() -> None:
            incarnation = self._starts[spec.name] = self._starts.get(spec.name, 0) + 1
            node = self._nodes[spec.name] = ClusterNode(
                name=spec.name,
                index=spec.index,
                incarnation=incarnation,
                address=spec.name,
                hostname=spec.name,
                disk="/",
                pid=self.world.next_pid(),
            )
            started.settle(node)

        self.world.later(_START_S, up)
        return started

    def stop_node(self, name: str) -> Future[None]:
        return self._end(name, "teardown", self.world.crash)

    def crash_node(self, name: str) -> Future[None]:
        return self._end(name, "crash", self.world.crash)

    def power_cut(self, name: str) -> Future[None]:
        """Let a node be gone without a word."""
        return self._end(name, "power_cut", self.world.cut_power)

    def _end(self, name: str, cause: str, end: Callable[[str], None]) -> Future[None]:
        node = self._node(name)
        process = self.world.processes.get(name)
        if process is not None and process.is_alive:
            end(name)
        for launcher in list(self._launchers.values()):
            if launcher.handle.node == name:  # one that had not begun yet
                self._exited(launcher, -signal.SIGKILL)
        del self._nodes[name]
        gone = NodeGone(node=name, incarnation=node.incarnation, cause=cause, reason="it was ended")
        self._on_event(gone)
        return settled(None)

    def pause_node(self, name: str) -> Future[None]:
        self._node(name)
        process = self.world.processes.get(name)
        if process is not None:
            process.is_frozen = process.is_suspended = True
            self.world.is_changed = True
        return settled(None)

    def resume_node(self, name: str) -> Future[None]:
        self._node(name)
        process = self.world.processes.get(name)
        if process is not None and process.is_suspended:
            process.resume()
        return settled(None)

    def _node(self, name: str) -> ClusterNode:
        if name not in self._nodes:
            known = ", ".join(self._nodes) or "none"
            raise UsageError(f"there is no node {name!r}", hint=f"running: {known}")
        return self._nodes[name]

    # --- processes ---------------------------------------------------------------------------

    def spawn(self, node: str, spec: ProcessSpec) -> Future[ProcessHandle]:
        """Start our launcher on a node: no other program is played."""
        which = self._node(node)
        slots = _slots_of(spec.argv)
        if slots is None:
            command = " ".join(spec.argv)[:80]
            return settled(
                ClusterError(f"simulated nodes run `pytest-elastic run`, and not {command!r}")
            )
        pid = self.world.next_pid()
        handle = ProcessHandle(node=node, id=pid, pid=pid, node_pid=pid)
        launcher = self._launchers[pid] = _Launcher(handle)

        def begin() -> None:
            if self._nodes.get(node) is which and handle.exit_code is None:
                self.world.start(node, slots=slots)
                launcher.process = self.world.processes[node]

        self.world.later(_AGENT_S, begin)
        return settled(handle)

    def on_exit(self, process: Process) -> None:
        """Note that a launcher of the world has ended."""
        for launcher in list(self._launchers.values()):
            if launcher.process is process:
                self._exited(launcher, self.world.exit_codes[process.node.incarnation])

    def _exited(self, launcher: _Launcher, exit_code: int) -> None:
        if launcher.handle.exit_code is None:
            launcher.handle.exit_code = exit_code
            del self._launchers[launcher.handle.pid]
            self._on_event(ProcessExited(process=launcher.handle))

    def signal(self, process: ProcessRef, signum: int) -> Future[bool]:
        return settled(self._signal(process.pid, signum))

    def _signal(self, pid: int, signum: int) -> bool:
        launcher = self._launchers.get(pid)
        if launcher is not None:
            self._signal_launcher(launcher, signum)
            return True
        worker = self.world.training.workers.get(pid)
        if worker is None or not worker.is_alive:
            return False
        if signum in (signal.SIGSTOP, signal.SIGCONT):
            worker.is_stopped = signum == signal.SIGSTOP
        else:
            worker.host.end_worker(worker.pid, -signum)
        return True

    def _signal_launcher(self, launcher: _Launcher, signum: int) -> None:
        process = launcher.process
        if process is None:
            if signum not in (signal.SIGSTOP, signal.SIGCONT):
                self._exited(launcher, -signum)
        elif signum == signal.SIGKILL:
            self.world.kill_agent(process.name)
        elif signum == signal.SIGSTOP:
            process.is_frozen = True
        elif signum == signal.SIGCONT:
            process.thaw()
        else:
            process.agent.drain(grace_s=0.0)

    def processes(self, node: str) -> Future[tuple[ProcessInfo, ...]]:
        return settled(self._list(node))

    def state(self, process: ProcessRef) -> Future[str]:
        if process.node not in self._nodes:
            return settled("")
        found = (each.state for each in self._list(process.node) if each.pid == process.pid)
        return settled(next(found, ""))

    def ended(self, process: ProcessRef) -> Future[int | None]:
        """Watch how a process ends: it is looked at a few times a second."""
        if process not in self._ends:
            ended = self._ends[process] = Future()
            self._look_for_end(process, ended)
        return self._ends[process]

    def _look_for_end(self, process: ProcessRef, ended: Future[int | None]) -> None:
        worker = self.world.training.workers.get(process.pid)
        if self.state(process).result():
            self.world.later(_LOOK_S, lambda: self._look_for_end(process, ended))
        else:
            ended.settle(worker.exit_code if worker is not None else None)

    def _list(self, node: str) -> tuple[ProcessInfo, ...]:
        self._node(node)
        states: dict[int, tuple[str, str]] = {}
        for pid, launcher in self._launchers.items():
            if launcher.handle.node == node:
                is_frozen = launcher.process is not None and launcher.process.is_frozen
                states[pid] = ("pytest-elastic", "T" if is_frozen else "S")
        for pid, worker in self.world.training.workers.items():
            if worker.is_alive and worker.host.name == node:
                is_still = worker.is_stopped or not worker.host.can_run
                states[pid] = ("worker", "T" if is_still else "S")
        return tuple(
            ProcessInfo(
                node=node,
                pid=pid,
                session=pid,
                node_pid=pid,
                node_ppid=1,
                command=(command,),
                start_time=0,
                state=state,
            )
            for pid, (command, state) in sorted(states.items())
        )

    # --- the end -----------------------------------------------------------------------------

    def reset(self, *, seed: str = "") -> Future[None]:
        for name in list(self._nodes):
            self.stop_node(name)
        self.network.heal(seed)
        return settled(None)

    def close(self) -> Future[None]:
        """Reset; there is nothing else to end."""
        return self.reset()


class SimulatedLinks:
    """The links between simulated nodes (`Network`)."""

    def __init__(self, world: JobWorld) -> None:
        self._world = world
        self._cut: set[Pair] = set()
        self._rejected: set[Pair] = set()

    def lay(
        self, pairs: Sequence[Pair], layers: Layers, *, traffic: str | None = None
    ) -> Future[None]:
        if traffic is not None:
            return settled(ClusterError("simulated links do not tell classes of traffic apart"))
        cut = hardest_cut(layers)
        for pair in pairs:
            self._world.network.lay(pair, layers)
            if cut is None:
                self._heal(pair)
            elif cut is LinkMode.REJECT:
                # Both sides of a rejected link notice.
                self._rejected.add(pair)
                self._world.reject(pair[0], [pair[1]])
                self._world.network.block(pair, 0)
            else:
                self._cut.add(pair)
                self._world.cut(*pair)
        return settled(None)

    def _heal(self, pair: Pair) -> None:
        back = (pair[1], pair[0])
        was_rejected = pair in self._rejected
        self._rejected.discard(pair)
        self._cut.discard(pair)
        is_back_well = back not in self._rejected and back not in self._cut
        self._world.heal([pair, back] if was_rejected and is_back_well else [pair])

    def counters(self) -> Future[NetworkCounters]:
        links = self._world.network.counters()
        return settled(NetworkCounters(links=links, own_drops={}))

    def learn_traffic(self, endpoints: Mapping[str, Sequence[tuple[str, int]]]) -> Future[None]:
        del endpoints
        return settled(None)

    def capture(self, id: str, pairs: Sequence[Pair], path: str) -> Future[Sequence[str]]:
        del id, pairs, path
        return settled(ClusterError("simulated links carry no packets that could be captured"))

    def captured(self, id: str) -> Future[int]:
        del id
        return settled(0)

    def end_capture(self, id: str) -> Future[int]:
        del id
        return settled(0)

    def heal(self, seed: str) -> None:
        """Heal all links; what they draw by chance from now on follows from `seed`."""
        self._cut.clear()
        self._rejected.clear()
        self._world.heal()
        self._world.network.heal(seed)


def _slots_of(argv: Sequence[str]) -> int | None:
    """Return how many workers a launcher's command asks for; None if it is not our launcher's."""
    words = [os.path.basename(word) for word in argv[:4]]
    if "run" not in words or not any("pytest-elastic" in w or "pytest_elastic" in w for w in words):
        return None
    for word in argv:
        if word.startswith(_SLOTS) and word[len(_SLOTS) :].isdigit():
            return int(word[len(_SLOTS) :])
    return 1
