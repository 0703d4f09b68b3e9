"""The nodes of a simulated run, as faults may touch them (`FaultContext`)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from elastic_harness.faults.resource_context import Resources
from elastic_harness.faults.ticket import FaultImpossible, Ticket
from elastic_harness.history import events
from elastic_harness.network.link_counters import DropReason, LinkCounters
from elastic_harness.network.link_policy import LinkMode, LinkPolicy
from elastic_harness.network.overlay import Overlay, Place
from elastic_harness.scenario.situation import ProcessRef
from elastic_harness.simulation.job_world import JobWorld
from elastic_harness.simulation.process import Process
from pytest_elastic.events.model import Event

__all__ = ["SimulatedStage"]

_Pair = tuple[str, str]
# A node is up, and its agent has been executed, this long after it was asked for.
_START_S = 0.05
_AGENT_S = 0.2


class SimulatedStage:
    """Does to a `JobWorld` what the real stage does to a cluster, as far as faults of it go."""

    def __init__(
        self, world: JobWorld, *, slots: int, on_fact: Callable[[str, str, Event], None]
    ) -> None:
        self.world = world
        self._slots = slots
        self._on_fact = on_fact
        self._up: dict[str, int] = {}  # which start of a node is up, by name
        self._starts: dict[str, int] = {}
        self._launchers: dict[str, tuple[int, Process | None]] = {}
        self._overlay = Overlay()
        self._modes: dict[_Pair, LinkMode] = {}

    # --- the run's own business --------------------------------------------------------------

    def begin(self, names: Sequence[str], first: str) -> None:
        """Start the first nodes at once, the one that hosts the rendezvous before the others."""
        for name in sorted(names, key=lambda each: each != first):
            self._node_up(name)
        for name in sorted(names, key=lambda each: each != first):
            self._launch(name)

    def on_exit(self, process: Process) -> None:
        """Report a launcher that has ended."""
        pid, current = self._launchers.get(process.name, (0, None))
        if current is process:
            code = self.world.exit_codes[process.node.incarnation]
            self._launchers[process.name] = (pid, None)
            exited = events.ProcessExited(pid=pid, role="launcher", exit_code=code)
            self._on_fact("cluster", process.name, exited)

    @property
    def running_launchers(self) -> list[str]:
        """Names of the nodes whose launcher has not ended."""
        return [name for name, (_, process) in self._launchers.items() if process is not None]

    def exit_codes(self) -> Mapping[str, int]:
        """The exit code of each node's newest launcher that has ended."""
        found: dict[str, int] = {}
        for process in self.world.every_process:
            if process.node.incarnation in self.world.exit_codes:
                found[process.name] = self.world.exit_codes[process.node.incarnation]
        return found

    def _node_up(self, name: str) -> None:
        self._starts[name] = self._starts.get(name, 0) + 1
        self._up[name] = self._starts[name]
        started = events.NodeStarted(address=name, incarnation=self._starts[name])
        self._on_fact("cluster", name, started)

    def _launch(self, name: str) -> None:
        if name not in self._up:
            return
        pid = self.world.next_pid()
        argv = ("pytest-elastic", "run")
        started = events.ProcessStarted(pid=pid, role="launcher", argv=argv)
        self._on_fact("cluster", name, started)
        which = self._up[name]

        def start() -> None:
            if self._up.get(name) == which:
                self.world.start(name, slots=self._slots)
                self._launchers[name] = (pid, self.world.processes[name])

        self.world.later(_AGENT_S, start)

    def _gone(self, name: str, cause: str) -> None:
        self._up.pop(name, None)
        self._on_fact("cluster", name, events.NodeStopped(cause=cause))

    # --- FaultContext: processes -------------------------------------------------------------

    def now(self) -> float:
        """Return the time in the world."""
        return self.world.time

    def _launcher(self, pid: int) -> Process | None:
        for each, process in self._launchers.values():
            if each == pid:
                return process
        return None

    def signal(self, process: ProcessRef, signum: int) -> bool:
        """Send a signal to a launcher or a worker."""
        if not self.is_alive(process):
            return False
        agent = self._launcher(process.pid)
        if agent is not None:
            self._signal_agent(agent, signum)
        else:
            worker = self.world.training.workers[process.pid]
            if signum in (signal.SIGSTOP, signal.SIGCONT):
                worker.is_stopped = signum == signal.SIGSTOP
            else:
                worker.host.end_worker(worker.pid, -signum)
        return True

    def _signal_agent(self, process: Process, signum: int) -> None:
        match signum:
            case signal.SIGKILL:
                self.world.kill_agent(process.name)
            case signal.SIGSTOP:
                process.is_frozen = True
            case signal.SIGCONT:
                process.thaw()
            case _:
                process.agent.drain(grace_s=0.0)

    def is_alive(self, process: ProcessRef) -> bool:
        """Tell whether a process runs."""
        return self.process_state(process) != ""

    def process_state(self, process: ProcessRef) -> str:
        """Return a letter as in /proc/PID/stat."""
        agent = self._launcher(process.pid)
        if agent is not None:
            return ("T" if agent.is_frozen else "S") if agent.is_alive else ""
        worker = self.world.training.workers.get(process.pid)
        if worker is None or not worker.is_alive:
            return ""
        return "T" if worker.is_stopped or not worker.host.can_run else "S"

    def order_worker(self, process: ProcessRef, order: Mapping[str, Any]) -> bool:
        """Send an order to a worker."""
        return self.world.training.order(process.pid, order)

    def answer_of(self, process: ProcessRef) -> Mapping[str, Any]:
        """Return what a worker has said of an order: nothing, ever."""
        return {}

    def steps_of(self, process: ProcessRef) -> int:
        """Return how many steps a worker has completed."""
        worker = self.world.training.workers.get(process.pid)
        return worker.count if worker is not None else 0

    def launcher_of(self, node: str) -> ProcessRef | None:
        """Return the node's launcher while it runs."""
        pid, process = self._launchers.get(node, (0, None))
        return ProcessRef(pid=pid) if process is not None else None

    # --- FaultContext: nodes -----------------------------------------------------------------

    def is_node_up(self, node: str) -> bool:
        """Tell whether a node runs."""
        return node in self._up

    def crash_node(self, node: str) -> Ticket[None]:
        """End all processes of a node; its sockets close."""
        return self._end(node, "crash", self.world.crash)

    def power_cut(self, node: str) -> Ticket[None]:
        """End a node in silence."""
        return self._end(node, "power_cut", self.world.cut_power)

    def _end(self, node: str, cause: str, end: Callable[[str], None]) -> Ticket[None]:
        ticket: Ticket[None] = Ticket()
        if node in self.world.processes and self.world.processes[node].is_alive:
            end(node)
        self._gone(node, cause)
        ticket.settle(None)
        return ticket

    def start_node(self, node: str, *, keep_disk: bool) -> Ticket[None]:
        """Start a node and its launcher; disks are not modelled."""
        del keep_disk
        ticket: Ticket[None] = Ticket()

        def up() -> None:
            self._node_up(node)
            self._launch(node)
            ticket.settle(None)

        self.world.later(_START_S, up)
        return ticket

    def pause_node(self, node: str) -> Ticket[None]:
        """Freeze every process of a node."""
        process = self.world.processes[node]
        process.is_frozen = process.is_suspended = True
        self.world.is_changed = True
        ticket: Ticket[None] = Ticket()
        ticket.settle(None)
        return ticket

    def resume_node(self, node: str) -> Ticket[None]:
        """Let a frozen node go on."""
        self.world.processes[node].resume()
        ticket: Ticket[None] = Ticket()
        ticket.settle(None)
        return ticket

    # --- FaultContext: links -----------------------------------------------------------------

    def impose(
        self,
        owner: str,
        pairs: Sequence[_Pair],
        policy: LinkPolicy,
        *,
        traffic: str | None = None,
    ) -> Ticket[None]:
        """Cut links; what else a policy asks for is not modelled."""
        return self._apply(self._overlay.impose(owner, pairs, policy, traffic=traffic))

    def lift(self, owner: str) -> Ticket[None]:
        """Take away what `owner` has laid over links."""
        return self._apply(self._overlay.lift(owner))

    def _apply(self, policies: Mapping[Place, LinkPolicy]) -> Ticket[None]:
        ticket: Ticket[None] = Ticket()
        healed = []
        for (pair, _), policy in policies.items():
            source, target = pair
            if policy.up:
                healed.append(pair)
                self._modes.pop(pair, None)
            elif policy.mode is LinkMode.REJECT:
                self._modes[pair] = policy.mode
                self.world.reject(source, [target])
                self.world.blocked[pair] += 1
            else:
                self._modes[pair] = policy.mode
                self.world.cut(source, target)
        self.world.heal(healed)
        ticket.settle(None)
        return ticket

    def counters(self) -> Ticket[Mapping[_Pair, LinkCounters]]:
        """Read what links have kept from passing."""
        ticket: Ticket[Mapping[_Pair, LinkCounters]] = Ticket()
        ticket.settle({pair: self._read(pair, n) for pair, n in self.world.blocked.items()})
        return ticket

    def _read(self, pair: _Pair, count: int) -> LinkCounters:
        mode = self._modes.get(pair, LinkMode.DROP)
        if mode is LinkMode.HOLD:
            return LinkCounters(packets=count)
        reason = DropReason.REJECTED if mode is LinkMode.REJECT else DropReason.DOWN
        return LinkCounters(packets=count, dropped={reason: count})

    @property
    def resources(self) -> Resources:
        """Refuse: simulated nodes have no processor, memory or disk."""
        raise FaultImpossible("simulated nodes have no processor, memory or disk")

    # --- what is not modelled ----------------------------------------------------------------

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        """Refuse what no simulated node has, as a fault that is impossible."""
        if name.startswith("_"):
            raise AttributeError(name)

        def refuse(*_: object, **__: object) -> NoReturn:
            raise FaultImpossible(f"a simulated node has nothing for `{name}`")

        return refuse
