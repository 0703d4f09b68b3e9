"""The real world of one run: its nodes, what runs on them, and what faults need of both.

The stage turns what happens on a cluster into events, and makes the `FaultContext`. It decides
nothing: the engine says what is to be done, and when.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from elastic_harness.cluster.cluster import (
    Cluster,
    ClusterError,
    ClusterEvent,
    ClusterNode,
    NodeGone,
    NodeSpec,
    ProcessExited,
    ServerLost,
)
from elastic_harness.cluster.process import ProcessHandle, ProcessRef
from elastic_harness.faults.context import FaultContext, Probes
from elastic_harness.faults.layers import (
    ClockLayers,
    DiskLayers,
    LimitLayers,
    LinkLayers,
    NameLayers,
    StopLayers,
)
from elastic_harness.future import Future, Sleep, Steps, gather, run
from elastic_harness.history import events
from elastic_harness.observe.ends import ProcessEnds
from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.scenario.stage.plan import StagePlan, command_spec, launcher_spec
from elastic_harness.scenario.stage.proxies import StageProxies
from elastic_harness.toxiproxy.remote import RemoteToxiproxy
from pytest_elastic.events.model import Event, Record
from pytest_elastic.loop import Loop

__all__ = ["Stage"]

# How long a node may take to end what it runs after its launcher has ended: the keeper of a
# launcher that was killed shows its tombstone for a lease, and a machine under test is busy.
SURVIVOR_GRACE_S: Final = 5.0
_SURVIVOR_LOOK_S: Final = 0.1


@dataclass(slots=True)
class _Actor:
    """One node of the run; `launcher` is its newest one."""

    index: int
    launcher: ProcessHandle | None = None


@dataclass(slots=True)
class _Command:
    """What an entry of the timeline runs on a node, beside its launcher."""

    entry: str
    process: ProcessHandle | None = None
    ended: Future[int] = field(default_factory=Future)


class Stage:
    """One run's nodes on a cluster, and its `Launchers`; all of it in the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        cluster: Cluster,
        plan: StagePlan,
        *,
        probes: Probes,
        on_fact: Callable[[str, str, Event], None],
        on_lost: Callable[[str], None],
        toxiproxy: RemoteToxiproxy | None = None,
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._plan = plan
        self._on_fact = on_fact
        self._on_lost = on_lost
        self._actors: dict[str, _Actor] = {}
        self._commands: list[_Command] = []
        self._is_closed = False
        # Known once their nodes are up; newcomers get the same.
        self._endpoint_hosts: Sequence[str] = ()
        self._exit_codes: dict[str, int] = {}
        self._ends = ProcessEnds(cluster, loop)
        self._proxies = StageProxies(
            loop,
            cluster,
            plan.proxies,
            seed=plan.seed,
            run_id=plan.job.run_id,
            remote=toxiproxy,
        )
        has_clocks = bool(plan.launch_environs)
        self.context = FaultContext(
            cluster=cluster,
            scheduler=loop,
            seed=Seed(value=plan.seed),
            launchers=self,
            probes=probes,
            ends=self._ends,
            proxies=self._proxies,
            links=LinkLayers(cluster),
            names=NameLayers(cluster),
            limits=LimitLayers(cluster),
            disks=DiskLayers(
                cluster, next(iter(plan.data_folders), ""), on_overlay=probes.enter_again
            ),
            clocks=ClockLayers(cluster, plan.clock_file_of if has_clocks else None),
            stops=StopLayers(cluster),
            directory=os.path.dirname(plan.log_dir),
            data_folders=plan.data_folders,
            patience=plan.patience,
        )

    # The run's own business

    def learn(self, record: Record) -> None:
        """Note what a record tells of endpoints, and of how processes ended."""
        self.context.links.learn(record)
        self._ends.learn(record)
        if isinstance(record.event, events.WorkerHello):
            self._tell_end(record.node, record.event)

    def _tell_end(self, node: str, worker: events.WorkerHello) -> None:
        """Watch a worker, and state how it has ended, if anything tells that."""
        process = ProcessRef(node=node, pid=worker.pid, start_time=worker.start_time)
        ended = self._ends.of(process)

        def tell() -> None:
            code = ended.result()
            if code is not None and not self._is_closed:
                fact = events.WorkerEnded(pid=worker.pid, rank=worker.rank, exit_code=code)
                self._fact(node, fact)

        # Not at once: it may be another record that tells it, and that one comes first.
        ended.add_done_callback(lambda _: self._loop.call_soon(tell))

    def close(self) -> None:
        """Close what is open, and state nothing more; harmless twice."""
        self._is_closed = True
        self._proxies.close()

    def begin(self, names: Sequence[str]) -> Steps[None]:
        """Start the first nodes, and when all are up, their launchers at once."""
        yield from gather(self._start(name, keep_disk=False) for name in names)
        port = self._plan.job.endpoint_port
        yield from self._proxies.open(store_host=self._plan.store_host, endpoint_port=port)
        hosts = self._plan.endpoints
        self._endpoint_hosts = tuple(self._running(name).hostname for name in hosts)
        self.context.links.endpoints.meet_at(hosts, port)
        yield from gather(self._launch(name) for name in names)

    @property
    def exit_codes(self) -> Mapping[str, int]:
        """The exit code of each node's newest launcher that has ended."""
        return dict(self._exit_codes)

    def printed(self, node: str) -> str:
        """Return what a node's launcher and its workers have printed so far; in any thread."""
        logs = self._cluster.logs
        path = self._plan.launcher_log_of(node)
        for file in logs.list(os.path.dirname(path)):
            if file.path == path:
                return logs.read(path, 0, file.size).decode("utf-8", "replace")
        return ""

    def on_cluster_event(self, event: ClusterEvent) -> None:
        """Note what happens on the cluster by itself."""
        match event:
            case ProcessExited(process=process):
                self._on_exit(process)
            case NodeGone(node=node, cause=cause):
                self.context.stops.forget(node)
                self._fact(node, events.NodeStopped(cause=cause))
            case ServerLost(reason=reason):
                self._on_lost(reason)

    def _on_exit(self, process: ProcessHandle) -> None:
        code = process.exit_code
        assert code is not None, "a process that exited has an exit code"
        for command in self._commands:
            if command.process is process:
                command.ended.settle(code)
        actor = self._actors.get(process.node)
        if actor is not None and actor.launcher is process:
            self._exit_codes[process.node] = code
            gone = events.ProcessExited(pid=process.pid, role="launcher", exit_code=code)
            self._fact(process.node, gone)

    def find_survivors(self) -> Steps[None]:
        """Look, on every node whose launcher has ended, for what outlived it (bounded).

        What a command of the timeline has left running does not count.
        """
        deadline = self._loop.now() + SURVIVOR_GRACE_S * self._plan.patience
        own = {each.process.pid for each in self._commands if each.process is not None}
        while True:
            over = [name for name in self._cluster.nodes if self._has_ended(name)]
            there = yield from gather(self._cluster.processes(name) for name in over)
            found = [[each for each in processes if each.session not in own] for processes in there]
            if not any(found) or self._loop.now() >= deadline:
                break
            yield Sleep(seconds=_SURVIVOR_LOOK_S)
        self._fact("", events.SurvivorsSought(nodes=tuple(over)))
        for name, processes in zip(over, found, strict=True):
            for process in processes:
                command = " ".join(process.command)[:200]
                self._fact(name, events.SurvivorFound(pid=process.pid, command=command))

    def _has_ended(self, name: str) -> bool:
        """Tell whether a node has had a launcher, and none runs there any more."""
        return name in self._actors and self.launcher_of(name) is None

    # Launchers, for faults

    def launcher_of(self, node: str) -> ProcessRef | None:
        actor = self._actors.get(node)
        if actor is None or actor.launcher is None or actor.launcher.exit_code is not None:
            return None
        return actor.launcher.ref

    def start_node(self, node: str, *, keep_disk: bool) -> Future[None]:
        return run(self._loop, self._start_and_launch(node, keep_disk=keep_disk))

    def store_endpoint(self, which: str) -> tuple[str, int] | None:
        """Return where a store is: that of the "rendezvous", or of the newest round's "workers".

        Of several rendezvous endpoints, it is the first.
        """
        known = self.context.links.endpoints.by_class
        if which == "rendezvous":
            return next(iter(known["rendezvous"]), None)
        return next(reversed(known["store"]), None)

    def run_command(self, node: str, argv: Sequence[str], *, name: str) -> Future[int]:
        command = _Command(name)
        self._commands.append(command)
        spec = command_spec(self._plan, node, argv, name=name)

        def on_spawned(done: Future[ProcessHandle]) -> None:
            if done.error is not None:
                command.ended.settle(done.error)
                return
            command.process = done.result()
            if command.process.exit_code is not None:
                command.ended.settle(command.process.exit_code)

        self._cluster.spawn(node, spec).add_done_callback(on_spawned)
        return command.ended

    def end_commands(self, name: str) -> None:
        for command in self._commands:
            process = command.process
            if command.entry == name and process is not None and process.exit_code is None:
                self._cluster.signal(process.ref, signal.SIGKILL)

    # How it is done

    def _start_and_launch(self, name: str, *, keep_disk: bool) -> Steps[None]:
        yield from self._start(name, keep_disk=keep_disk)
        yield from self._launch(name)

    def _start(self, name: str, *, keep_disk: bool) -> Future[ClusterNode]:
        actor = self._actors.get(name)
        if actor is None:
            taken = {other.index for other in self._actors.values()}
            index = next(number for number in range(1, len(taken) + 2) if number not in taken)
            actor = self._actors[name] = _Actor(index)

        def on_up(node: ClusterNode) -> ClusterNode:
            started = events.NodeStarted(address=node.address, incarnation=node.incarnation)
            self._fact(name, started)
            self.context.names.change_again(name)
            return node

        spec = NodeSpec(
            name=name,
            index=actor.index,
            shared=self._plan.shared,
            read_only=self._plan.read_only,
            keep_disk=keep_disk,
            sysctls=self._plan.sysctls,
            resources=self._plan.resources,
            labels=self._plan.labels,
        )
        return self._cluster.start_node(spec).then(on_up)

    def _launch(self, name: str) -> Future[None]:
        actor = self._actors[name]
        spec = launcher_spec(
            self._plan,
            name,
            address=self._running(name).address,
            index=actor.index - 1,
            endpoint_hosts=self._endpoint_hosts,
            has_names=self._cluster.capabilities.has("names"),
            proxies=self._proxies.addresses,
            rendezvous_proxy=self._proxies.rendezvous,
        )

        def on_spawned(process: ProcessHandle) -> None:
            actor.launcher = process
            self._exit_codes.pop(name, None)
            self._fact(
                name,
                events.ProcessStarted(pid=process.pid, role="launcher", argv=tuple(spec.argv)),
            )

        os.makedirs(self._plan.log_dir_of(name), exist_ok=True)
        return self._cluster.spawn(name, spec).then(on_spawned)

    def _running(self, name: str) -> ClusterNode:
        """Return a node; raises ClusterError for one that was taken away meanwhile."""
        if name not in self._cluster.nodes:
            raise ClusterError(f"{name} is not up any more")
        return self._cluster.nodes[name]

    def _fact(self, node: str, event: Event) -> None:
        self._on_fact("cluster", node, event)
