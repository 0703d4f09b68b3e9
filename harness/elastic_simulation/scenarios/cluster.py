"""A cluster whose nodes are played: the launcher's machines in virtual time, behind `Cluster`.

Everything that makes sense without processes and packets is there: nodes come, leave, crash, lose
power and stand still; a launcher is spawned, signalled and ends; links have policies and counters.
What a node would need a kernel for is refused with a `ClusterError`, as the capabilities say. An
operation is done when `on_done` is called, some at once, some after a while of the world's time.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from elastic_harness.cluster.cluster import (
    CAPABILITIES,
    Capabilities,
    Capability,
    ClusterError,
    ClusterEvent,
    ClusterNode,
    Done,
    NetworkCounters,
    NodeGone,
    NodeSpec,
    ProcessExited,
    ProcessHandle,
    ProcessInfo,
    ProcessSpec,
)
from elastic_harness.network.link_model import Layers, LinkMode, LinkPolicy, Pair, hardest_cut

from elastic_simulation.process import Process
from elastic_simulation.scenarios.job_world import JobWorld
from elastic_simulation.scenarios.lacking import Lacking
from pytest_elastic.errors import UsageError

__all__ = ["SIMULATED", "SimulatedCluster"]

_CAN = {
    "network": "links follow the switch's own model, for all traffic alike",
    "names": "names are addresses",
    "pause": "a whole node stands still",
    "private_pids": "a process is a number, and no number comes twice",
}
SIMULATED = Capabilities(
    tuple(
        Capability(
            name=name,
            available=name in _CAN,
            reason=_CAN.get(name, "simulated nodes are machines of the control plane and no more"),
        )
        for name in CAPABILITIES
    )
)
# A node is up, and its agent has been executed, this long after it was asked for.
_START_S = 0.05
_AGENT_S = 0.2
_SLOTS = "--nproc-per-node="


@dataclass(slots=True)
class _Launcher:
    """A launcher that was spawned; its process comes a moment later."""

    handle: ProcessHandle
    process: Process | None = None


class SimulatedCluster(Lacking):
    """Nodes of a `JobWorld`. The world's `on_exit` has to be this cluster's."""

    kind: ClassVar[str] = "simulated"

    def __init__(self, world: JobWorld, *, on_event: Callable[[ClusterEvent], None]) -> None:
        self.world = world
        self.capabilities = SIMULATED
        self._on_event = on_event
        self._nodes: dict[str, ClusterNode] = {}
        self._starts: dict[str, int] = {}
        self._launchers: dict[int, _Launcher] = {}  # by pid
        self._cut: set[Pair] = set()
        self._rejected: set[Pair] = set()

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        """The nodes that run now, by name, in the order of their start."""
        return dict(self._nodes)

    def start(self, on_done: Done[None]) -> None:
        """There is nothing to start."""
        on_done(None)

    # --- nodes -------------------------------------------------------------------------------

    def start_node(self, spec: NodeSpec, on_done: Done[ClusterNode]) -> None:
        """Start a node; a name that ran before gets its next incarnation."""
        if spec.name in self._nodes:
            raise UsageError(f"cannot start node {spec.name!r}: it runs already")

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
            on_done(node)

        self.world.later(_START_S, up)

    def stop_node(self, name: str, on_done: Done[None]) -> None:
        """End a node."""
        self._end(name, "stopped", self.world.crash, on_done)

    def crash_node(self, name: str, on_done: Done[None]) -> None:
        """End all processes of a node at once; its kernel resets their connections."""
        self._end(name, "crashed", self.world.crash, on_done)

    def power_cut(self, name: str, on_done: Done[None]) -> None:
        """Let a node be gone without a word."""
        self._end(name, "lost power", self.world.cut_power, on_done)

    def _end(self, name: str, reason: str, end: Callable[[str], None], on_done: Done[None]) -> None:
        node = self._node(name)
        process = self.world.processes.get(name)
        if process is not None and process.is_alive:
            end(name)
        for launcher in list(self._launchers.values()):
            if launcher.handle.node == name:  # one that had not begun yet
                self._exited(launcher, -signal.SIGKILL)
        del self._nodes[name]
        gone = NodeGone(node=name, incarnation=node.incarnation, asked=True, reason=reason)
        self._on_event(gone)
        on_done(None)

    def pause_node(self, name: str, on_done: Done[None]) -> None:
        """Let everything on a node stand still; twice is harmless."""
        self._node(name)
        process = self.world.processes.get(name)
        if process is not None:
            process.is_frozen = process.is_suspended = True
            self.world.is_changed = True
        on_done(None)

    def resume_node(self, name: str, on_done: Done[None]) -> None:
        """Let a paused node go on; harmless when it runs."""
        self._node(name)
        process = self.world.processes.get(name)
        if process is not None and process.is_suspended:
            process.resume()
        on_done(None)

    def _node(self, name: str) -> ClusterNode:
        if name not in self._nodes:
            known = ", ".join(self._nodes) or "none"
            raise UsageError(f"there is no node {name!r}", hint=f"running: {known}")
        return self._nodes[name]

    # --- processes ---------------------------------------------------------------------------

    def spawn(self, node: str, spec: ProcessSpec, on_done: Done[ProcessHandle]) -> None:
        """Start our launcher on a node: no other program is played."""
        which = self._node(node)
        slots = _slots_of(spec.argv)
        if slots is None:
            command = " ".join(spec.argv)[:80]
            on_done(ClusterError(f"simulated nodes run `pytest-elastic run`, and not {command!r}"))
            return
        pid = self.world.next_pid()
        handle = ProcessHandle(node=node, id=pid, pid=pid, node_pid=pid, pidfd=-1)
        launcher = self._launchers[pid] = _Launcher(handle)
        on_done(handle)

        def begin() -> None:
            if self._nodes.get(node) is which and handle.exit_code is None:
                self.world.start(node, slots=slots)
                launcher.process = self.world.processes[node]

        self.world.later(_AGENT_S, begin)

    def on_exit(self, process: Process) -> None:
        """Take note that a launcher of the world has ended."""
        for launcher in list(self._launchers.values()):
            if launcher.process is process:
                self._exited(launcher, self.world.exit_codes[process.node.incarnation])

    def _exited(self, launcher: _Launcher, exit_code: int) -> None:
        if launcher.handle.exit_code is None:
            launcher.handle.exit_code = exit_code
            del self._launchers[launcher.handle.pid]
            self._on_event(ProcessExited(process=launcher.handle))

    def signal(self, process: ProcessHandle | ProcessInfo, signum: int) -> bool:
        """Send a signal to a launcher or a worker; False when it has ended."""
        launcher = self._launchers.get(process.pid)
        if launcher is not None:
            self._signal_launcher(launcher, signum)
            return True
        worker = self.world.training.workers.get(process.pid)
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

    def processes(self, node: str) -> tuple[ProcessInfo, ...]:
        """List the launcher and the workers of a node."""
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
                node_pid=pid,
                node_ppid=1,
                command=(command,),
                started_at=0.0,
                state=state,
            )
            for pid, (command, state) in sorted(states.items())
        )

    # --- links -------------------------------------------------------------------------------

    def set_policy(
        self,
        pairs: Sequence[Pair],
        policy: LinkPolicy,
        on_done: Done[None],
        *,
        traffic: str | None = None,
        layers: Layers = (),
    ) -> None:
        """Apply a policy to (source, destination) links; in force at once."""
        if traffic is not None:
            on_done(ClusterError("simulated links do not tell classes of traffic apart"))
            return
        cut = hardest_cut(layers or (("", policy),))
        for pair in pairs:
            self.world.network.change(pair, policy, layers=layers)
            if cut is None:
                self._heal(pair)
            elif cut is LinkMode.REJECT:
                # Who is refused hears so, and so does who would have been spoken to.
                self._rejected.add(pair)
                self.world.reject(pair[0], [pair[1]])
                self.world.network.block(pair, 0)
            else:
                self._cut.add(pair)
                self.world.cut(*pair)
        on_done(None)

    def _heal(self, pair: Pair) -> None:
        back = (pair[1], pair[0])
        was_rejected = pair in self._rejected
        self._rejected.discard(pair)
        self._cut.discard(pair)
        is_back_well = back not in self._rejected and back not in self._cut
        self.world.heal([pair, back] if was_rejected and is_back_well else [pair])

    def counters(self, on_done: Done[NetworkCounters]) -> None:
        """Read what links have done since the last reset."""
        on_done(NetworkCounters(links=self.world.network.counters(), own_drops={}))

    def learn_traffic(
        self, endpoints: Mapping[str, Sequence[tuple[str, int]]], on_done: Done[None]
    ) -> None:
        """Need no classes of traffic: there is one."""
        del endpoints
        on_done(None)

    # --- the end -----------------------------------------------------------------------------

    def reset(self, on_done: Done[None], *, seed: str = "") -> None:
        """End all nodes and heal all links."""
        for name in list(self._nodes):
            self.stop_node(name, lambda _: None)
        self._cut.clear()
        self._rejected.clear()
        self.world.heal()
        self.world.network.heal(seed)
        on_done(None)

    def close(self, on_done: Done[None]) -> None:
        """Reset; there is nothing else to end."""
        self.reset(on_done)

    # --- what simulated nodes do not have ----------------------------------------------------

    def open_socket(
        self, node: str, on_done: Done[socket.socket], *, datagram: bool = False
    ) -> None:
        """Refuse."""
        del datagram
        on_done(self._lacks(node, "sockets"))


def _slots_of(argv: Sequence[str]) -> int | None:
    """Return how many workers a launcher's command asks for; None if it is not our launcher's."""
    words = [os.path.basename(word) for word in argv[:4]]
    if "run" not in words or not any("pytest-elastic" in w or "pytest_elastic" in w for w in words):
        return None
    for word in argv:
        if word.startswith(_SLOTS) and word[len(_SLOTS) :].isdigit():
            return int(word[len(_SLOTS) :])
    return 1
