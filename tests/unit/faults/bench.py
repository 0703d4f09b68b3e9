"""A world for faults: plain values behind the `FaultContext` interface, in virtual time.

Operations are answered by the world when the test lets time pass, as a cluster would: never inside
the call.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.faults.context import Ticket
from elastic_harness.faults.injector import Injector
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.scenario.engine.messages import EngineInput, Fire, Heal
from elastic_harness.scenario.engine.situation import NodeRef, ProcessRef, Situation, WorkerRef
from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.scenario.stage.stops import StageStops
from elastic_harness.toxiproxy.stream import Direction, Toxic

from tests.unit.faults.budget import Budget
from tests.unit.faults.played_network import PlayedNetwork
from tests.unit.faults.process import PlayedProcess
from tests.unit.faults.story import story_of
from tests.unit.faults.strangers import PlayedStrangers
from tests.unit.faults.virtual_time import VirtualTime

__all__ = ["World"]


class World(StageStops, PlayedStrangers, PlayedNetwork):
    """Nodes n1 … with a launcher and a worker each; every operation takes 10 ms.

    `broken` names operations that the cluster refuses, `stuck` those it never answers. In a world
    that is `numb` everything is answered, and nothing comes of it; of nodes in `numb_nodes`, too.
    `ends_instead` is how processes end, by pid, whatever signal they are sent. How one ended is
    told of those that were watched, `told_after_s` later; one of `ends_when_watched` is gone then.
    """

    def __init__(self, nodes: int = 3, *, numb: bool = False) -> None:
        StageStops.__init__(self, pause=self._pause_node, resume=self._resume_node)
        PlayedStrangers.__init__(self)
        PlayedNetwork.__init__(self)
        self.numb = numb
        self.time = VirtualTime()
        self.processes: dict[int, PlayedProcess] = {}
        self.launchers: dict[str, int] = {}
        self.ends: dict[int, PlayedProcess] = {}
        self.tells_ends = True
        self.told_after_s = 0.0
        self.watched: set[int] = set()
        self.ends_when_watched: set[int] = set()
        self.numb_nodes: set[str] = set()
        self.ends_instead: dict[int, int] = {}
        self.up: list[str] = []
        self.frozen: set[str] = set()
        self.is_paused_by_signals = False
        self.log: list[str] = []
        self.broken: set[str] = set()
        self.stuck: set[str] = set()
        self.toxics: dict[str, tuple[str, Toxic]] = {}
        self.switched: dict[str, tuple[str, bool]] = {}
        self.met: dict[tuple[str, str, str], int] = {}
        self.told: list[EngineInput] = []
        self.registry = built_in_faults()
        self.budget = Budget(self._later, numb=numb)
        self.endpoints: dict[str, tuple[str, int]] = {}
        self.injector = Injector(self, self.registry, self.time, self.told.append)
        for number in range(1, nodes + 1):
            self._bring_up(f"n{number}")
            self.processes[1000 + number] = PlayedProcess()

    # --- what tests do -------------------------------------------------------------------------

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
        return ProcessRef(pid=1001 + rank, start_time=7)

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
        self._die(self.worker(rank).pid, code)

    def lose(self, node: str) -> None:
        """Let a node end by itself."""
        self._take_down(node)

    def come(self, *nodes: str) -> None:
        """Let nodes start by themselves."""
        for node in nodes:
            self._bring_up(node)

    def end_everything(self) -> None:
        """Let every node lose its power, and all that ran there with it."""
        for node in tuple(self.up):
            self._take_down(node)

    def pass_time(self, seconds: float = 1.0) -> None:
        self.time.pass_time(seconds)

    @property
    def story(self) -> list[str]:
        """What the engine was told, in words."""
        return story_of(self.told)

    def story_of(self, entry_id: str) -> list[str]:
        """What it was told of one entry."""
        return story_of(each for each in self.told if getattr(each, "entry_id", "") == entry_id)

    # --- FaultContext --------------------------------------------------------------------------

    patience = 1.0

    def now(self) -> float:
        return self.time.now()

    def signal(self, process: ProcessRef, signum: int) -> bool:
        found = self.processes.get(process.pid)
        if found is None:
            return False
        self.log.append(f"{signal.Signals(signum).name} {process.pid}")
        if signum in found.ignores or self.numb:
            return True
        if signum == signal.SIGSTOP:
            found.state = "T"
        elif signum == signal.SIGCONT:
            found.state = "S"
        elif found.state == "S" or signum == signal.SIGKILL:
            code = self.ends_instead.get(process.pid, -signum)
            self._later(lambda: self._die(process.pid, code))
        return True

    def is_alive(self, process: ProcessRef) -> bool:
        return process.pid in self.processes

    def process_state(self, process: ProcessRef) -> str:
        found = self.processes.get(process.pid)
        return found.state if found else ""

    def order_worker(self, process: ProcessRef, order: Mapping[str, Any]) -> bool:
        found = self.processes.get(process.pid)
        if found is None or not found.has_probe:
            return False
        found.orders.append(order)
        if order.get("act") == "watch_files" and not self.numb:
            said = {"act": "watch_files", "phase": "began", "detail": ""}
            found.answers[str(order["by"])] = said
        return True

    def watch_end(self, process: ProcessRef) -> bool:
        if process.pid not in self.processes:
            return False
        self.watched.add(process.pid)
        if process.pid in self.ends_when_watched:
            self._die(process.pid)
        return True

    def exit_code_of(self, process: ProcessRef) -> int | None:
        ended = self.ends.get(process.pid)
        if ended is None or process.pid not in self.watched or not self.tells_ends:
            return None
        return ended.exit_code if self.now() >= ended.ended_at + self.told_after_s else None

    def answer_of(self, process: ProcessRef, by: str) -> Mapping[str, Any]:
        found = self.processes.get(process.pid) or self.ends.get(process.pid)
        return found.answers.get(by, {}) if found else {}

    def steps_of(self, process: ProcessRef) -> int:
        found = self.processes.get(process.pid)
        return found.steps if found else 0

    def launcher_of(self, node: str) -> ProcessRef | None:
        pid = self.launchers.get(node)
        return ProcessRef(pid=pid) if pid in self.processes else None

    def run_command(self, node: str, argv: Sequence[str], *, name: str) -> Ticket[int]:
        self.log.append(f"run {' '.join(argv)} on {node} for {name}")
        ticket: Ticket[int] = Ticket()
        if "run" not in self.stuck:
            ticket.settle(1 if "run" in self.broken or self.numb else 0)
        return ticket

    def end_commands(self, name: str) -> None:
        self.log.append(f"end commands of {name}")

    def store_endpoint(self, which: str) -> tuple[str, int] | None:
        return self.endpoints.get(which)

    @property
    def resources(self) -> Budget:
        return self.budget

    def is_node_up(self, node: str) -> bool:
        return node in self.up

    def crash_node(self, node: str) -> Ticket[None]:
        return self._operate(f"crash {node}", lambda: self._take_down(node))

    def power_cut(self, node: str) -> Ticket[None]:
        return self._operate(f"power_cut {node}", lambda: self._take_down(node))

    def start_node(self, node: str, *, keep_disk: bool) -> Ticket[None]:
        disk = " keep_disk" if keep_disk else ""
        return self._operate(f"start {node}{disk}", lambda: self._bring_up(node))

    def add_toxic(self, owner: str, proxy: str, toxic: Toxic) -> Ticket[None]:
        self.toxics[owner] = (proxy, toxic)
        return self._operate(f"add_toxic {owner}", lambda: None)

    def remove_toxics(self, owner: str) -> Ticket[None]:
        self.toxics.pop(owner, None)
        return self._operate(f"remove_toxics {owner}", lambda: None)

    def switch_proxy(self, owner: str, proxy: str, *, enabled: bool) -> Ticket[None]:
        if not self.numb:
            self.switched[owner] = (proxy, enabled)
        return self._operate(f"switch_proxy {owner}", lambda: None)

    def unswitch_proxy(self, owner: str) -> Ticket[None]:
        self.switched.pop(owner, None)
        return self._operate(f"unswitch_proxy {owner}", lambda: None)

    def is_proxy_on(self, proxy: str) -> bool:
        return [proxy != "late", *(on for name, on in self.switched.values() if name == proxy)][-1]

    def toxic_met(self, proxy: str, toxic: str, way: Direction) -> int:
        return self.met.get((proxy, toxic, way.value), 0)

    # --- inside --------------------------------------------------------------------------------

    def _later(self, callback: Callable[[], None]) -> None:
        self.time.call_at(self.time.now() + 0.01, callback)

    def _operate(self, name: str, act: Callable[[], None]) -> Ticket[None]:
        ticket: Ticket[None] = Ticket()
        self._do(name, act, ticket.settle)
        return ticket

    def _do(
        self, name: str, act: Callable[[], None], on_done: Callable[[ClusterError | None], None]
    ) -> None:
        self.log.append(name)
        verb = name.split(maxsplit=1)[0]

        def answer() -> None:
            if verb in self.broken:
                return on_done(ClusterError(f"cannot {name}"))
            try:
                if not self.numb:
                    act()
            except ClusterError as error:
                return on_done(error)
            return on_done(None)

        if verb not in self.stuck:
            self._later(answer)

    def _die(self, pid: int, code: int = -9) -> None:
        if (ended := self.processes.pop(pid, None)) is not None:
            ended.exit_code = code
            ended.ended_at = self.now()
            self.ends[pid] = ended

    def _pause_node(self, node: str, on_done: Callable[[ClusterError | None], None]) -> None:
        self._do(f"pause {node}", partial(self._freeze, node), on_done)

    def _resume_node(self, node: str, on_done: Callable[[ClusterError | None], None]) -> None:
        self._do(f"resume {node}", partial(self._thaw, node), on_done)

    def _freeze(self, node: str) -> None:
        if node not in self.up:
            raise ClusterError(f"{node} is not up any more")
        self.frozen.add(node)
        self._mark(node, "T")

    def _thaw(self, node: str) -> None:
        if node not in self.up:
            raise ClusterError(f"{node} is not up any more")
        self.frozen.discard(node)
        self._mark(node, "S")

    def _mark(self, node: str, state: str) -> None:
        """Stop or continue all that runs on a node, where it is paused by signals."""
        if self.is_paused_by_signals:
            for pid in (self.launchers[node], 1000 + int(node[1:])):
                self.processes[pid].state = state

    def _take_down(self, node: str) -> None:
        if node in self.numb_nodes:
            return
        self.up.remove(node)
        self._stops.forget(node)
        self.frozen.discard(node)
        self._die(self.launchers.pop(node))
        self._die(1000 + int(node[1:]))

    def _bring_up(self, node: str) -> None:
        if node in self.numb_nodes:
            return
        self.up.append(node)
        pid = 500 + len(self.log) * 50 + int(node[1:])
        self.launchers[node] = pid
        self.processes[pid] = PlayedProcess()
