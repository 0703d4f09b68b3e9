"""A world for faults: a played cluster, and what is the run's own, in virtual time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_harness.cluster.facets import Visits
from elastic_harness.cluster.process import ProcessRef
from elastic_harness.faults.context import FaultContext
from elastic_harness.faults.injector import Injector
from elastic_harness.faults.layers import (
    ClockLayers,
    DiskLayers,
    LimitLayers,
    LinkLayers,
    NameLayers,
    StopLayers,
)
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.future import Future, settled
from elastic_harness.observe.ends import ProcessEnds
from elastic_harness.scenario.engine.messages import EngineInput, Fire, Heal
from elastic_harness.scenario.engine.situation import NodeRef, Situation, WorkerRef
from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.toxiproxy.stream import Direction, Toxic

from tests.unit.faults.played_cluster import PlayedCluster, PlayedProcess
from tests.unit.faults.story import story_of
from tests.unit.faults.virtual_time import VirtualTime

__all__ = ["Sent", "World"]

# Where the files of jobs lie, those of worlds that have any.
_FILES = tempfile.TemporaryDirectory(prefix="played-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What one node was to say, to whom, and on how many connections."""

    node: str
    at: tuple[str, int]
    words: bytes
    connections: int


class PlayedStrangers:
    """The strangers of a played world (`Strangers`); a numb one takes nothing from them.

    `refuses` is what they meet with instead of somebody who listens, `hangs_up` tells whether the
    store closes on them.
    """

    def __init__(self, *, numb: bool) -> None:
        self._numb = numb
        self.sent: dict[str, list[Sent]] = {}
        self.refuses = ""
        self.hangs_up = False

    def send(
        self, owner: str, node: str, at: tuple[str, int], words: bytes, *, connections: int
    ) -> None:
        sent = Sent(node=node, at=at, words=words, connections=connections)
        self.sent.setdefault(owner, []).append(sent)

    def visits(self, owner: str) -> Visits:
        wanted = sum(each.connections for each in self.sent.get(owner, []))
        taken = 0 if self._numb or self.refuses else wanted
        closed = taken if self.hangs_up else 0
        return Visits(wanted=wanted, taken=taken, closed=closed, refusal=self.refuses)

    def send_away(self, owner: str) -> None:
        self.sent.pop(owner, None)


class PlayedProxies:
    """The proxies of a played world (`Proxies`): "late" is off, all others are on."""

    def __init__(self, cluster: PlayedCluster) -> None:
        self._cluster = cluster
        self.toxics: dict[str, tuple[str, Toxic]] = {}
        self.switched: dict[str, tuple[str, bool]] = {}
        self.met: dict[tuple[str, str, str], int] = {}

    def add_toxic(self, owner: str, proxy: str, toxic: Toxic) -> Future[None]:
        self.toxics[owner] = (proxy, toxic)
        return self._cluster.operate(f"add_toxic {owner}", lambda: None)

    def remove_toxics(self, owner: str) -> Future[None]:
        self.toxics.pop(owner, None)
        return self._cluster.operate(f"remove_toxics {owner}", lambda: None)

    def switch(self, owner: str, proxy: str, *, enabled: bool) -> Future[None]:
        if not self._cluster.numb:
            self.switched[owner] = (proxy, enabled)
        return self._cluster.operate(f"switch_proxy {owner}", lambda: None)

    def unswitch(self, owner: str) -> Future[None]:
        self.switched.pop(owner, None)
        return self._cluster.operate(f"unswitch_proxy {owner}", lambda: None)

    def is_on(self, proxy: str) -> bool:
        return [proxy != "late", *(on for name, on in self.switched.values() if name == proxy)][-1]

    def toxic_met(self, proxy: str, toxic: str, way: Direction) -> int:
        return self.met.get((proxy, toxic, way.value), 0)


class World:
    """A played cluster with faults at work, and what is the run's: `Launchers` and `Probes`."""

    def __init__(self, nodes: int = 3, *, numb: bool = False, patience: float = 1.0) -> None:
        self.time = VirtualTime()
        self.cluster = PlayedCluster(self.time, numb=numb)
        self.processes = self.cluster.processes_by_pid
        self.launchers = self.cluster.launchers
        self.log = self.cluster.log
        self.broken = self.cluster.broken
        self.stuck = self.cluster.stuck
        self.links = self.cluster.network.links
        self.send = self.cluster.network.send
        self.look_up = self.cluster.names.look_up
        self.budget = self.cluster.budget
        self.told: list[EngineInput] = []
        self.entered: list[str] = []  # nodes whose workers entered their working folder again
        self.registry = built_in_faults()
        self.endpoints: dict[str, tuple[str, int]] = {}
        self.strangers = self.cluster.strangers = PlayedStrangers(numb=numb)
        self.proxies = PlayedProxies(self.cluster)
        self.folder = Path(_FILES.name, str(id(self)))
        self.context = FaultContext(
            cluster=self.cluster,
            scheduler=self.time,
            seed=Seed(value=1),
            launchers=self,
            probes=self,
            ends=ProcessEnds(self.cluster, self.time),
            proxies=self.proxies,
            links=LinkLayers(self.cluster),
            names=NameLayers(self.cluster),
            limits=LimitLayers(self.cluster),
            disks=DiskLayers(self.cluster, "/checkpoints", on_overlay=self.enter_again),
            clocks=ClockLayers(self.cluster, "clock of {}".format),
            stops=StopLayers(self.cluster),
            directory=str(self.folder),
            data_folders=(str(self.folder),),
            patience=patience,
        )
        self.cluster.on_node_gone = self.context.stops.forget
        self.injector = Injector(self.context, self.registry.parse, self.time, self.told.append)
        for number in range(1, nodes + 1):
            self.cluster.bring_up(f"n{number}")
            self.processes[1000 + number] = PlayedProcess()

    # --- what tests do -------------------------------------------------------------------------

    @property
    def up(self) -> list[str]:
        return list(self.cluster.nodes)

    def situation(self) -> Situation:
        return Situation(
            nodes=tuple(
                NodeRef(
                    name=name,
                    address="",
                    incarnation=1,
                    started_at=0.0,
                    launcher=self.launcher_of(name),
                )
                for name in self.up
            ),
            workers=tuple(
                WorkerRef(rank=i, local_rank=0, node=f"n{i + 1}", process=self.worker(i))
                for i in range(len(self.up))
            ),
            store_host="n1",
            seed=Seed(value=1),
            used_names=tuple(self.up),
        )

    def worker(self, rank: int) -> ProcessRef:
        return ProcessRef(node=f"n{rank + 1}", pid=1001 + rank, start_time=7)

    def fire(
        self,
        action: str,
        value: object,
        *,
        entry_id: str = "x",
        meanwhile: Callable[[World], None] = lambda _: None,
    ) -> Fire:
        """Aim and inject a fault, as the engine and the runner would; something comes between."""
        fault = self.registry.parse(action, value)
        targets = fault.resolve(self.situation(), stream=entry_id)
        meanwhile(self)
        order = Fire(entry_id=entry_id, action=action, value=value, targets=targets)
        self.injector.fire(order)
        return order

    def heal(self, entry_id: str = "x") -> None:
        self.injector.heal(Heal(entry_id=entry_id))

    def answer(
        self, rank: int, act: str, phase: str = "began", detail: str = "", *, by: str = "x"
    ) -> None:
        """Let a worker's probe say how far it is with an order by that entry."""
        said = {"act": act, "phase": phase, "detail": detail, "by": by}
        self.processes[self.worker(rank).pid].answers[by] = said

    def end(self, rank: int, code: int = 1) -> None:
        """Let a worker end with an exit code, negative: by that signal."""
        self.cluster.die(self.worker(rank).pid, code)

    def lose(self, node: str) -> None:
        """Let a node end by itself."""
        self.cluster.take_down(node)

    def come(self, *nodes: str) -> None:
        """Let nodes start by themselves."""
        for node in nodes:
            self.cluster.bring_up(node)

    def end_everything(self) -> None:
        """Let every node lose its power, and all that ran there with it."""
        for node in self.up:
            self.cluster.take_down(node)

    def pass_time(self, seconds: float = 1.0) -> None:
        self.time.pass_time(seconds)

    def write(self, name: str, data: bytes = bytes(range(200))) -> Path:
        """Write a file of the job, where its checkpoints lie and each node's own disk, too."""
        self.folder.mkdir(exist_ok=True)
        self.cluster.folders = {"/tmp/disk": str(self.folder)}
        path = self.folder / name
        path.write_bytes(data)
        return path

    @property
    def story(self) -> list[str]:
        """What the engine was told, in words."""
        return story_of(self.told)

    def story_of(self, entry_id: str) -> list[str]:
        """What it was told of one entry."""
        return story_of(each for each in self.told if getattr(each, "entry_id", "") == entry_id)

    # --- Probes --------------------------------------------------------------------------------

    def enter_again(self, node: str) -> None:
        self.entered.append(node)

    def order(self, process: ProcessRef, order: Mapping[str, Any]) -> bool:
        found = self.processes.get(process.pid)
        if found is None or not found.has_probe:
            return False
        found.orders.append(order)
        if order.get("act") == "watch_files" and not self.cluster.numb:
            said = {"act": "watch_files", "phase": "began", "detail": ""}
            found.answers[str(order["by"])] = said
        return True

    def answer_of(self, process: ProcessRef, by: str) -> Mapping[str, Any]:
        found = self.processes.get(process.pid) or self.cluster.gone.get(process.pid)
        return found.answers.get(by, {}) if found else {}

    def steps_of(self, process: ProcessRef) -> int:
        found = self.processes.get(process.pid)
        return found.steps if found else 0

    # --- Launchers -----------------------------------------------------------------------------

    def launcher_of(self, node: str) -> ProcessRef | None:
        pid = self.launchers.get(node)
        return ProcessRef(node=node, pid=pid) if pid in self.processes and pid else None

    def start_node(self, node: str, *, keep_disk: bool) -> Future[None]:
        disk = " keep_disk" if keep_disk else ""
        return self.cluster.operate(f"start {node}{disk}", lambda: self.cluster.bring_up(node))

    def store_endpoint(self, which: str) -> tuple[str, int] | None:
        return self.endpoints.get(which)

    def run_command(self, node: str, argv: Sequence[str], *, name: str) -> Future[int]:
        self.log.append(f"run {' '.join(argv)} on {node} for {name}")
        if "run" in self.stuck:
            return Future()
        return settled(1 if "run" in self.broken or self.cluster.numb else 0)

    def end_commands(self, name: str) -> None:
        self.log.append(f"end commands of {name}")
