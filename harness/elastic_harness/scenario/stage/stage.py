"""The real world of one run: its nodes, their launchers, and everything that can be done to them.

The stage turns what happens on a cluster into events, and gives faults their `FaultContext`. It
decides nothing: the engine says what is to be done, and when.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from elastic_harness.cluster.cluster import (
    Cluster,
    ClusterError,
    ClusterEvent,
    ClusterNode,
    NodeGone,
    NodeSpec,
    ProcessExited,
    ProcessHandle,
    ServerLost,
)
from elastic_harness.cluster.process_table import row_of
from elastic_harness.faults.nodes.node_resources import NodeResources
from elastic_harness.faults.ticket import Ticket
from elastic_harness.history import events
from elastic_harness.scenario.engine.situation import ProcessRef
from elastic_harness.scenario.stage.network import StageNetwork
from elastic_harness.scenario.stage.node_commands import NodeCommands
from elastic_harness.scenario.stage.plan import StagePlan, command_spec, launcher_spec
from elastic_harness.scenario.stage.proxies import StageProxies
from elastic_harness.scenario.stage.stops import StageStops
from elastic_harness.toxiproxy.remote import RemoteToxiproxy
from pytest_elastic.errors import ElasticError
from pytest_elastic.events.model import Event, Record
from pytest_elastic.loop import Loop

__all__ = ["Orders", "Stage"]

# How long a node may take to end what it runs after its launcher has ended: the keeper of a
# launcher that was killed shows its tombstone for a lease, and a machine under test is busy.
SURVIVOR_GRACE_S = 5.0
_SURVIVOR_LOOK_S = 0.1


class Orders(Protocol):
    """What the stage needs of the observer: a word to a worker's probe."""

    def enter_again(self, node: str) -> None:
        """Have a node's workers enter their working folder by its path: it may be covered."""

    def order(self, pid: int, order: Mapping[str, Any]) -> bool:
        """Send an order to the probe of a worker; False when it has none."""

    def answer_of(self, pid: int, by: str) -> Mapping[str, Any]:
        """Return what a worker's probe has said of an order by that entry."""

    def steps_of(self, pid: int) -> int:
        """Return how many steps a worker has completed."""


@dataclass(slots=True)
class _Actor:
    """One node of the run; `launcher` is its newest one."""

    index: int
    launcher: ProcessHandle | None = None
    cause: str = ""  # why the node will be gone, when that is our doing


class Stage(StageStops, StageNetwork):
    """One run's nodes on a cluster (`FaultContext`). Everything happens in the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        plan: StagePlan,
        *,
        orders: Orders,
        on_fact: Callable[[str, str, Event], None],
        on_lost: Callable[[str], None],
        toxiproxy: RemoteToxiproxy | None = None,
    ) -> None:
        StageStops.__init__(self, pause=cluster.pause_node, resume=cluster.resume_node)
        StageNetwork.__init__(
            self,
            loop,
            cluster,
            seed=plan.seed,
            capture_dir=os.path.join(os.path.dirname(plan.log_dir), "captures"),
            proxies=StageProxies(
                loop,
                cluster,
                plan.proxies,
                seed=plan.seed,
                run_id=plan.job.run_id,
                remote=toxiproxy,
            ),
        )
        self._loop = loop
        self._plan = plan
        self._orders = orders
        self._on_fact = on_fact
        self._on_lost = on_lost
        self._actors: dict[str, _Actor] = {}
        self._commands = NodeCommands(cluster)
        self._resources = NodeResources(
            cluster,
            plan.data_folders,
            clock_folders=plan.log_dir_of if plan.launch_environs else None,
            on_covered=orders.enter_again,
        )
        # Known once their nodes are up; newcomers get the same.
        self._endpoint_hosts: Sequence[str] = ()
        self._exit_codes: dict[str, int] = {}

    # The run's own business

    def learn(self, record: Record) -> None:
        """Take note of what a record tells of endpoints, and of how processes ended."""
        StageNetwork.learn(self, record)
        self._ends.learn(record)

    def close(self) -> None:
        """Close what is open; harmless twice."""
        StageNetwork.close(self)
        self._ends.close()

    def begin(self, names: Sequence[str], on_done: Callable[[ElasticError | None], None]) -> None:
        """Start the first nodes, and when all are up, their launchers at once."""
        waiting = set(names)
        failed = False

        def on_up(name: str, outcome: ClusterNode | ClusterError) -> None:
            nonlocal failed
            if failed:
                return
            if isinstance(outcome, ClusterError):
                failed = True
                on_done(outcome)
                return
            waiting.discard(name)
            if not waiting:
                self._open_proxies(names, on_done)

        for name in names:
            self._start(name, keep_disk=False, on_done=partial(on_up, name))

    def _open_proxies(
        self, names: Sequence[str], on_done: Callable[[ElasticError | None], None]
    ) -> None:
        def on_open(problem: ElasticError | None) -> None:
            if problem is not None:
                on_done(problem)
            else:
                self._begin_launchers(names, on_done)

        self._proxies.open(
            store_host=self._plan.store_host,
            endpoint_port=self._plan.job.endpoint_port,
            on_done=on_open,
        )

    def _begin_launchers(
        self, names: Sequence[str], on_done: Callable[[ElasticError | None], None]
    ) -> None:
        hosts = self._plan.endpoints
        self._endpoint_hosts = tuple(self._cluster.nodes[name].hostname for name in hosts)
        self._endpoints.meet_at(hosts, self._plan.job.endpoint_port)
        waiting = set(names)

        def on_spawned(name: str, outcome: ElasticError | None) -> None:
            if outcome is not None:
                waiting.clear()
                on_done(outcome)
            elif name in waiting:
                waiting.discard(name)
                if not waiting:
                    on_done(None)

        for name in names:
            self._launch(name, partial(on_spawned, name))

    @property
    def running_launchers(self) -> list[str]:
        """Names of the nodes whose launcher has not ended."""
        return [
            name
            for name, actor in self._actors.items()
            if actor.launcher is not None and actor.launcher.exit_code is None
        ]

    @property
    def exit_codes(self) -> Mapping[str, int]:
        """The exit code of each node's newest launcher that has ended."""
        return dict(self._exit_codes)

    def on_cluster_event(self, event: ClusterEvent) -> None:
        """Take note of what happens on the cluster by itself."""
        match event:
            case ProcessExited(process=process):
                self._commands.on_exit(process)
                actor = self._actors.get(process.node)
                if actor is None or actor.launcher is not process:
                    return
                assert process.exit_code is not None, "a process that exited has an exit code"
                self._exit_codes[process.node] = process.exit_code
                code = process.exit_code
                gone = events.ProcessExited(pid=process.pid, role="launcher", exit_code=code)
                self._fact("cluster", process.node, gone)
            case NodeGone():
                self._strangers.on_node_gone(event.node)
                self._stops.forget(event.node)
                actor = self._actors.get(event.node)
                cause = (actor.cause if actor else "") or ("teardown" if event.asked else "lost")
                self._fact("cluster", event.node, events.NodeStopped(cause=cause))
            case ServerLost(reason=reason):
                self._on_lost(reason)

    def find_survivors(self, on_done: Callable[[], None]) -> None:
        """Look, on every node whose launcher has ended, for what outlived it (bounded)."""
        deadline = self._loop.now() + SURVIVOR_GRACE_S * self._plan.patience

        def look() -> None:
            left = {
                name: self._cluster.processes(name)
                for name in self._cluster.nodes
                if self._has_ended(name)
            }
            left = {name: found for name, found in left.items() if found}
            if left and self._loop.now() < deadline:
                self._loop.call_at(self._loop.now() + _SURVIVOR_LOOK_S, look)
                return
            over = [name for name in self._cluster.nodes if self._has_ended(name)]
            self._fact("cluster", "", events.SurvivorsSought(nodes=tuple(over)))
            for name, found in left.items():
                for process in found:
                    command = " ".join(process.command)[:200]
                    self._fact(
                        "cluster", name, events.SurvivorFound(pid=process.pid, command=command)
                    )
            on_done()

        look()

    def _has_ended(self, name: str) -> bool:
        """Tell whether a node has had a launcher, and none runs there any more."""
        return name in self._actors and name not in self.running_launchers

    # FaultContext: processes

    @property
    def patience(self) -> float:
        """What multiplies every time that is waited for something to be seen."""
        return self._plan.patience

    def now(self) -> float:
        """Return the loop's time."""
        return self._loop.now()

    def signal(self, process: ProcessRef, signum: int) -> bool:
        """Send a signal to that very process."""
        if not self.is_alive(process):
            return False
        try:
            os.kill(process.pid, signum)
        except ProcessLookupError:
            return False
        return True

    def is_alive(self, process: ProcessRef) -> bool:
        """Tell whether that very process runs."""
        return self.process_state(process) not in ("", "Z", "X")

    def process_state(self, process: ProcessRef) -> str:
        """Return the letter of /proc/PID/stat, "" once it has ended."""
        found = row_of(process.pid)
        if found is None or process.start_time not in (0, found.start_ticks):
            return ""
        return found.state

    def order_worker(self, process: ProcessRef, order: Mapping[str, Any]) -> bool:
        """Send an order to a worker's probe."""
        return self._orders.order(process.pid, order)

    def answer_of(self, process: ProcessRef, by: str) -> Mapping[str, Any]:
        """Return what a worker's probe has said of an order by that entry."""
        return self._orders.answer_of(process.pid, by)

    def steps_of(self, process: ProcessRef) -> int:
        """Return how many steps a worker has completed."""
        return self._orders.steps_of(process.pid)

    def launcher_of(self, node: str) -> ProcessRef | None:
        """Return the node's launcher while it runs."""
        actor = self._actors.get(node)
        if actor is None or actor.launcher is None or actor.launcher.exit_code is not None:
            return None
        return ProcessRef(pid=actor.launcher.pid)

    def run_command(self, node: str, argv: Sequence[str], *, name: str) -> Ticket[int]:
        """Run a command on a node, for the entry `name`."""
        spec = command_spec(self._plan, node, argv, name=name)
        return self._commands.run(node, spec, name=name)

    def end_commands(self, name: str) -> None:
        """Kill what still runs for the entry `name`."""
        self._commands.end(name)

    # FaultContext: resources

    @property
    def resources(self) -> NodeResources:
        """Processor, memory, files and disks of nodes."""
        return self._resources

    # FaultContext: nodes

    def is_node_up(self, node: str) -> bool:
        """Tell whether a node runs."""
        return node in self._cluster.nodes

    def crash_node(self, node: str) -> Ticket[None]:
        """End all processes of a node; its sockets close."""
        return self._end_node(node, "crash", self._cluster.crash_node)

    def power_cut(self, node: str) -> Ticket[None]:
        """End a node in silence."""
        return self._end_node(node, "power_cut", self._cluster.power_cut)

    def start_node(self, node: str, *, keep_disk: bool) -> Ticket[None]:
        """Start a node and its launcher."""
        ticket: Ticket[None] = Ticket()

        def on_up(outcome: ClusterNode | ClusterError) -> None:
            if isinstance(outcome, ClusterError):
                ticket.settle(outcome)
            else:
                self._launch(node, ticket.settle)

        self._start(node, keep_disk=keep_disk, on_done=on_up)
        return ticket

    # How it is done

    def _start(
        self, name: str, *, keep_disk: bool, on_done: Callable[[ClusterNode | ClusterError], None]
    ) -> None:
        actor = self._actors.get(name)
        if actor is None:
            taken = {other.index for other in self._actors.values()}
            index = next(number for number in range(1, len(taken) + 2) if number not in taken)
            actor = self._actors[name] = _Actor(index)
        actor.cause = ""

        def on_up(outcome: ClusterNode | ClusterError) -> None:
            if isinstance(outcome, ClusterNode):
                self._fact(
                    "cluster",
                    name,
                    events.NodeStarted(address=outcome.address, incarnation=outcome.incarnation),
                )
                self._rename_again(name)
            on_done(outcome)

        spec = NodeSpec(
            name=name,
            index=actor.index,
            shared=self._plan.shared,
            keep_disk=keep_disk,
            sysctls=self._plan.sysctls,
        )
        self._cluster.start_node(spec, on_up)

    def _launch(self, name: str, on_done: Callable[[ElasticError | None], None]) -> None:
        actor = self._actors[name]
        spec = launcher_spec(
            self._plan,
            name,
            address=self._cluster.nodes[name].address,
            index=actor.index - 1,
            endpoint_hosts=self._endpoint_hosts,
            has_names=self._cluster.capabilities.has("names"),
            proxies=self._proxies.addresses,
            rendezvous_proxy=self._proxies.rendezvous,
        )

        def on_spawned(outcome: ProcessHandle | ClusterError) -> None:
            if isinstance(outcome, ClusterError):
                on_done(outcome)
                return
            actor.launcher = outcome
            self._exit_codes.pop(name, None)
            self._fact(
                "cluster",
                name,
                events.ProcessStarted(pid=outcome.pid, role="launcher", argv=tuple(spec.argv)),
            )
            on_done(None)

        os.makedirs(self._plan.log_dir_of(name), exist_ok=True)
        self._cluster.spawn(name, spec, on_spawned)

    def _end_node(
        self, node: str, cause: str, operation: Callable[[str, Callable[..., None]], None]
    ) -> Ticket[None]:
        ticket: Ticket[None] = Ticket()
        if node in self._actors:
            self._actors[node].cause = cause
        operation(node, ticket.settle)
        return ticket

    def _fact(self, source: str, node: str, event: Event) -> None:
        self._on_fact(source, node, event)
