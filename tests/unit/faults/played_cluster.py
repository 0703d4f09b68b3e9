"""A cluster of plain values behind the `Cluster` interface and its facets, in virtual time.

Operations are answered when the test lets time pass, as a cluster would: never inside the call.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, cast

from elastic_harness.cluster.cluster import (
    CAPABILITIES,
    Capabilities,
    ClusterError,
    ClusterNode,
    NodeSpec,
)
from elastic_harness.cluster.disks.policy import DiskCounters, DiskPolicy
from elastic_harness.cluster.facets import FileLimit, Limited, NetworkCounters, Strangers
from elastic_harness.cluster.files.local_files import LocalFiles
from elastic_harness.cluster.limits.cgroup_layout import GroupReadings
from elastic_harness.cluster.local_logs import LocalLogs
from elastic_harness.cluster.process import ProcessHandle, ProcessInfo, ProcessRef, ProcessSpec
from elastic_harness.future import Future, settled
from elastic_harness.network.link_model import HEALTHY, DecisionKind, Layers, Link, LinkPolicy, Pair
from elastic_harness.network.names import NameChange

from pytest_elastic.loop import Loop
from tests.unit.faults.virtual_time import VirtualTime

__all__ = ["Budget", "PlayedCluster", "PlayedProcess"]

ALL_THERE_IS = Capabilities.of(dict.fromkeys(CAPABILITIES, (True, "it is played")))


@dataclass(slots=True)
class PlayedProcess:
    """Its state as in /proc, the signals it ignores, and what its probe was told and has said.

    `answers` are by whose order it was.
    """

    state: str = "S"
    ignores: set[int] = field(default_factory=set)
    orders: list[Mapping[str, Any]] = field(default_factory=list)
    has_probe: bool = True
    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    exit_code: int | None = None
    ended: Future[int | None] = field(default_factory=Future)
    steps: int = 0


class PlayedCluster:
    """Nodes n1 … with a launcher and a worker each; every operation takes 10 ms.

    `broken` names operations that it refuses, `stuck` those it never answers. One that is `numb`
    answers everything, and nothing comes of it; of nodes in `numb_nodes`, too, and of the layers
    of owners to whom it is `deaf`.
    """

    kind = "played"
    capabilities = ALL_THERE_IS

    def __init__(self, time: VirtualTime, *, numb: bool = False) -> None:
        self.time = time
        self.numb = numb
        self.log: list[str] = []
        self.broken: set[str] = set()
        self.stuck: set[str] = set()
        self.numb_nodes: set[str] = set()
        self.frozen: set[str] = set()
        self.is_paused_by_signals = False
        self.processes_by_pid: dict[int, PlayedProcess] = {}
        self.gone: dict[int, PlayedProcess] = {}
        self.launchers: dict[str, int] = {}
        self.ends_instead: dict[int, int] = {}
        self.ends_when_watched: set[int] = set()
        self.tells_ends = True
        self.told_after_s = 0.0
        self.on_node_gone: Callable[[str], None] = lambda _: None
        self.nodes: dict[str, ClusterNode] = {}
        self.network = PlayedNetwork(self)
        self.names = PlayedNames(self)
        self.budget = self.limits = Budget(self)
        self.disks = PlayedDisks(self)
        self.logs = LocalLogs()
        self.files = LocalFiles(cast("Loop", self.time), lambda _: self.folders)
        self.clock = PlayedClock(self)
        self.sockets = PlayedSockets(self)
        self.strangers: Strangers | None = None
        self.folders: Mapping[str, str] = {}
        self._starts: dict[str, int] = {}

    def later(self, callback: Callable[[], None]) -> None:
        self.time.call_at(self.time.now() + 0.01, callback)

    def answer(self, value: Any) -> Future[Any]:  # noqa: ANN401 (one answer for all questions)
        """Return what is answered a moment later."""
        future: Future[Any] = Future()
        self.later(lambda: future.settle(value))
        return future

    def operate(self, name: str, act: Callable[[], None]) -> Future[None]:
        """Note an operation, and do it a moment later."""
        self.log.append(name)
        verb = name.split(maxsplit=1)[0]
        future: Future[None] = Future(name)

        def do() -> None:
            if verb in self.broken:
                return future.settle(ClusterError(f"cannot {name}"))
            try:
                if not self.numb:
                    act()
            except ClusterError as error:
                return future.settle(error)
            return future.settle(None)

        if verb not in self.stuck:
            self.later(do)
        return future

    # --- nodes ---------------------------------------------------------------------------------

    def start(self) -> Future[None]:
        return settled(None)

    def reset(self, *, seed: str = "") -> Future[None]:
        raise NotImplementedError

    def close(self) -> Future[None]:
        raise NotImplementedError

    def start_node(self, spec: NodeSpec) -> Future[ClusterNode]:
        raise NotImplementedError

    def stop_node(self, name: str) -> Future[None]:
        return self.operate(f"stop {name}", lambda: self.take_down(name))

    def crash_node(self, name: str) -> Future[None]:
        return self.operate(f"crash {name}", lambda: self.take_down(name))

    def power_cut(self, name: str) -> Future[None]:
        return self.operate(f"power_cut {name}", lambda: self.take_down(name))

    def pause_node(self, name: str) -> Future[None]:
        return self.operate(f"pause {name}", lambda: self._hold(name, still=True))

    def resume_node(self, name: str) -> Future[None]:
        return self.operate(f"resume {name}", lambda: self._hold(name, still=False))

    def _hold(self, node: str, *, still: bool) -> None:
        if node not in self.nodes:
            raise ClusterError(f"{node} is not up any more")
        if still:
            self.frozen.add(node)
        else:
            self.frozen.discard(node)
        if self.is_paused_by_signals:
            for pid in (self.launchers[node], 1000 + int(node[1:])):
                self.processes_by_pid[pid].state = "T" if still else "S"

    def take_down(self, node: str) -> None:
        if node in self.numb_nodes:
            return
        del self.nodes[node]
        self.frozen.discard(node)
        self.die(self.launchers.pop(node))
        self.die(1000 + int(node[1:]))
        self.budget.forget(node)
        self.disks.forget(node)
        self.on_node_gone(node)

    def bring_up(self, node: str) -> None:
        if node in self.numb_nodes:
            return
        incarnation = self._starts[node] = self._starts.get(node, 0) + 1
        self.nodes[node] = ClusterNode(
            name=node,
            index=int(node[1:]),
            incarnation=incarnation,
            address=f"10.77.0.{node[1:]}",
            hostname=node,
            disk="/tmp/disk",
            pid=1,
        )
        pid = 500 + len(self.log) * 50 + int(node[1:])
        self.launchers[node] = pid
        self.processes_by_pid[pid] = PlayedProcess()

    # --- processes -----------------------------------------------------------------------------

    def spawn(self, node: str, spec: ProcessSpec) -> Future[ProcessHandle]:
        raise NotImplementedError

    def processes(self, node: str) -> Future[tuple[ProcessInfo, ...]]:
        raise NotImplementedError

    def signal(self, process: ProcessRef, signum: int) -> Future[bool]:
        found = self.processes_by_pid.get(process.pid)
        if found is None:
            return settled(outcome=False)
        self.log.append(f"{signal.Signals(signum).name} {process.pid}")
        if signum in found.ignores or self.numb:
            return settled(outcome=True)
        if signum == signal.SIGSTOP:
            found.state = "T"
        elif signum == signal.SIGCONT:
            found.state = "S"
        elif found.state == "S" or signum == signal.SIGKILL:
            code = self.ends_instead.get(process.pid, -signum)
            self.later(lambda: self.die(process.pid, code))
        return settled(outcome=True)

    def state(self, process: ProcessRef) -> Future[str]:
        found = self.processes_by_pid.get(process.pid)
        return settled(found.state if found else "")

    def ended(self, process: ProcessRef) -> Future[int | None]:
        found = self.processes_by_pid.get(process.pid)
        if found is not None and process.pid in self.ends_when_watched:
            self.die(process.pid)
        return found.ended if found is not None else settled(None)

    def die(self, pid: int, code: int = -9) -> None:
        """End a process; how, is told a while later."""
        if (ended := self.processes_by_pid.pop(pid, None)) is not None:
            ended.exit_code = code
            self.gone[pid] = ended
            # A cluster waits a second until it is told.
            is_told = self.tells_ends and self.told_after_s <= 1.0
            told = code if is_told else None
            at = self.time.now() + (self.told_after_s if is_told else 0.0)
            self.time.call_at(at, lambda: ended.ended.settle(told))


class PlayedNetwork:
    """Links (`Network`): the switch's own model of each."""

    def __init__(self, cluster: PlayedCluster) -> None:
        self._cluster = cluster
        self.deaf: set[str] = set()
        self.links: dict[Pair, LinkPolicy] = {}
        self.places: dict[tuple[Pair, str | None], LinkPolicy] = {}
        self.wires: dict[Pair, Link] = {}
        self.captures: dict[str, list[Pair]] = {}
        self._owners: dict[tuple[Pair, str | None], set[str]] = {}

    def send(self, source: str, target: str, packets: int = 1) -> None:
        """Send packets over a link, which decides on each; a numb one does nothing to them."""
        now = self._cluster.time.now()
        link = self._link((source, target))
        for _ in range(packets):
            decision = link.offer(1000, f"{source}>{target}", now, opens=False)
            if decision.kind is DecisionKind.LEAVE:
                link.count_delivery()

    def _link(self, pair: Pair) -> Link:
        return self.wires.setdefault(pair, Link(f"{pair[0]}>{pair[1]}"))

    def lay(
        self, pairs: Sequence[Pair], layers: Layers, *, traffic: str | None = None
    ) -> Future[None]:
        owners = {owner for owner, _ in layers}
        before = self._owners.get((pairs[0], traffic), set())
        self._owners.update({(pair, traffic): owners for pair in pairs})
        changed = sorted(owners ^ before)
        what = f"{'lift' if before - owners else 'impose'} {' '.join(changed)}".rstrip()
        heard = tuple(layer for layer in layers if layer[0] not in self.deaf)
        return self._cluster.operate(what, lambda: self._change(pairs, traffic, heard))

    def _change(self, pairs: Sequence[Pair], traffic: str | None, layers: Layers) -> None:
        """Put policies in force; those for a class of traffic in a place of their own."""
        policy = layers[-1][1] if layers else HEALTHY  # the newest of them
        for pair in pairs:
            self._link(pair).lay(layers, self._cluster.time.now(), traffic=traffic)
            self.places[pair, traffic] = policy
            if traffic is None:
                self.links[pair] = policy

    def learn_traffic(self, endpoints: Mapping[str, Sequence[tuple[str, int]]]) -> Future[None]:
        return settled(None)

    def counters(self) -> Future[NetworkCounters]:
        links = {pair: link.counters() for pair, link in self.wires.items()}
        answer: Future[NetworkCounters] = self._cluster.answer(
            NetworkCounters(links=links, own_drops={})
        )
        return answer

    def capture(self, id: str, pairs: Sequence[Pair], path: str) -> Future[Sequence[str]]:
        self.captures[id] = list(pairs)
        return self._cluster.answer((path,))

    def captured(self, id: str) -> Future[int]:
        return self._cluster.answer(
            sum(self._link(pair).counters().packets for pair in self.captures[id])
        )

    def end_capture(self, id: str) -> Future[int]:
        self.captures.pop(id, None)
        return self._cluster.answer(0)


class PlayedNames:
    """What nodes find under names (`Names`)."""

    def __init__(self, cluster: PlayedCluster) -> None:
        self._cluster = cluster
        self.changes: dict[str, dict[str, NameChange]] = {}
        self._asked: dict[str, dict[str, dict[str, int]]] = {}

    def look_up(self, node: str, name: str) -> None:
        """Let a process of a node look up a name."""
        if (change := self.changes.get(node, {}).get(name)) is not None:
            by_name = self._asked.setdefault(node, {}).setdefault(change.owner, {})
            by_name[name] = by_name.get(name, 0) + 1

    def set_names(self, node: str, changes: Mapping[str, NameChange]) -> Future[Mapping[str, str]]:
        deaf = self._cluster.network.deaf
        heard = {name: each for name, each in changes.items() if each.owner not in deaf}
        if not self._cluster.numb:
            self.changes[node] = heard
        known = {name: each.address for name, each in self._cluster.nodes.items()}
        for name in changes if not self._cluster.numb else ():
            known.pop(name, None)
        return self._cluster.answer(known)

    def asked(self, node: str) -> Future[Mapping[str, Mapping[str, int]]]:
        return self._cluster.answer(self._asked.get(node, {}))


class Budget:
    """What nodes have been left (`Limits`); `counted` is what their kernel says."""

    def __init__(self, cluster: PlayedCluster) -> None:
        self._cluster = cluster
        self.counted: dict[str, GroupReadings] = {}
        self.limits: dict[str, dict[str, Any]] = {}
        self.files: dict[int, int] = {}

    def count(self, node: str, **counted: int) -> None:
        """Let the kernel count something."""
        self.counted[node] = replace(self.counted.get(node, GroupReadings()), **counted)

    def forget(self, node: str) -> None:
        self.limits.pop(node, None)
        self.files.pop(1000 + int(node[1:]), None)

    def limit_node(self, node: str, of: Limited, most: float | None) -> Future[None]:
        given = {**self.limits.get(node, {}), of: most}
        left = {kind: each for kind, each in given.items() if each is not None}
        self.limits.pop(node, None)
        if left:
            self.limits[node] = left
        return self._cluster.answer(None)

    def readings(self, node: str) -> Future[GroupReadings]:
        return self._cluster.answer(self.counted.get(node, GroupReadings()))

    def limit_files(
        self, process: ProcessRef, *, free: int, at_most: int | None = None
    ) -> Future[FileLimit | None]:
        if self._cluster.numb:
            return settled(None)
        asked = 9 + free
        limit = self.files[process.pid] = asked if at_most is None else min(asked, at_most)
        return settled(FileLimit(limit=limit, asked=asked))

    def restore_files(self, process: ProcessRef, *, at_most: int | None = None) -> Future[None]:
        self.files.pop(process.pid, None)
        if at_most is not None:
            self.files[process.pid] = at_most
        return settled(None)


class PlayedDisks:
    """What is laid over directories of nodes (`Disks`)."""

    def __init__(self, cluster: PlayedCluster) -> None:
        self._cluster = cluster
        self.policies: dict[tuple[str, str], DiskPolicy] = {}
        self.counts = DiskCounters()

    def set_policy(
        self, node: str, path: str, owner: str, policy: DiskPolicy | None
    ) -> Future[None]:
        if policy is None:
            self.policies.pop((node, path), None)
        else:
            self.policies[node, path] = policy
        return self._cluster.answer(None)

    def counters(self, node: str, path: str) -> Future[DiskCounters]:
        return self._cluster.answer(self.counts)

    def forget(self, node: str) -> None:
        self.policies = {key: each for key, each in self.policies.items() if key[0] != node}


class PlayedClock:
    """By how much clocks are wrong (`Clock`), by file."""

    def __init__(self, cluster: PlayedCluster) -> None:
        self._cluster = cluster
        self.offsets: dict[str, float] = {}

    def set_offset(self, node: str, file: str, offset_s: float) -> Future[None]:
        self.offsets.pop(file, None)
        if offset_s:
            self.offsets[file] = offset_s
        return settled(None)

    def time_of_day(self, node: str) -> Future[float]:
        return settled(1000.0)


class PlayedSockets:
    """Who listens where (`Sockets`)."""

    def __init__(self, cluster: PlayedCluster) -> None:
        self._cluster = cluster
        self.serving: dict[tuple[str, int], tuple[int, ...]] = {}

    @property
    def gateway_address(self) -> NoReturn:
        raise NotImplementedError

    def open(self, node: str, *, datagram: bool = False) -> NoReturn:
        raise NotImplementedError

    def listeners(self, node: str, port: int) -> Future[tuple[ProcessRef, ...]]:
        pids = self.serving.get((node, port), ())
        return settled(tuple(ProcessRef(node=node, pid=pid) for pid in pids))
