"""What the engine has seen of the run so far: worlds, nodes, launchers, the store's host."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace

from elastic_harness.cluster.process import ProcessRef
from elastic_harness.history.events import (
    FilesUnseen,
    NodeStarted,
    NodeStopped,
    ProcessExited,
    ProcessStarted,
)
from elastic_harness.history.worlds import World, Worlds
from elastic_harness.scenario.engine.situation import (
    NodeRef,
    Situation,
    WorkerRef,
)
from elastic_harness.scenario.planning.seed import Seed
from pytest_elastic.events.model import CoordinatorStarted, Record
from pytest_elastic.rendezvous.model import natural_key

__all__ = ["LauncherView", "ObservedRun"]

# How a launcher ends that has done what SIGTERM asks for.
_OBEDIENT = frozenset({0, 128 + signal.SIGTERM, -signal.SIGTERM})
# How one ends that was killed: by itself, or below a shell.
_KILLED = frozenset({-signal.SIGKILL, 128 + signal.SIGKILL})


@dataclass(slots=True, kw_only=True)
class LauncherView:
    """The newest launcher of a node.

    `excused_by`: the faults that may have ended it. If there are any, its exit code says nothing
    about the job. `in_danger_of`: those under which the kernel may have killed it.
    """

    process: ProcessRef
    exit_code: int | None = None
    excused_by: set[str] = field(default_factory=set)
    in_danger_of: set[str] = field(default_factory=set)

    @property
    def counts(self) -> bool:
        """Tell whether it says something about the job how it ends."""
        was_killed = self.exit_code in _KILLED and bool(self.in_danger_of)
        return not (self.excused_by or was_killed)


class ObservedRun:
    """A reduction of the history to what triggers, clauses and selectors ask for."""

    def __init__(self, *, store_host: str) -> None:
        self.worlds = Worlds()
        self.launchers: dict[str, LauncherView] = {}
        self.nodes: dict[str, NodeRef] = {}
        self.files_unseen = ""  # why files may have been written that no event tells of
        self._used_names: list[str] = []
        self._store_host = store_host
        self._store_term = -1

    @property
    def world(self) -> World | None:
        """The newest world."""
        return self.worlds.current

    @property
    def is_done(self) -> bool:
        """Tell whether all ranks of the newest world have come to the end of their script."""
        return self.world is not None and self.world.is_finished

    def observe(self, record: Record) -> None:
        """Take the next record into account."""
        self.worlds.observe(record)
        match record.event:
            case NodeStarted(address=address, incarnation=incarnation):
                self._on_node_started(record, address, incarnation)
            case NodeStopped():
                self.nodes.pop(record.node, None)
            case ProcessStarted(role="launcher", pid=pid):
                self.launchers[record.node] = LauncherView(
                    process=ProcessRef(node=record.node, pid=pid)
                )
            case ProcessExited(role="launcher", pid=pid, exit_code=exit_code):
                launcher = self.launchers.get(record.node)
                if launcher is not None and launcher.process.pid == pid:
                    launcher.exit_code = exit_code
            case FilesUnseen(reason=reason):
                self.files_unseen = self.files_unseen or reason
            case CoordinatorStarted(term=term) if term > self._store_term:
                self._store_host, self._store_term = record.node, term
            case _:
                pass

    def step_of(self, rank: int) -> tuple[int, int] | None:
        """Return the worker (pid) that has a rank now, and the step that it has done."""
        worker = self.world.workers.get(rank) if self.world is not None else None
        return None if worker is None else (worker.pid, worker.last_step or 0)

    def excuse(self, node: str, fault: str) -> None:
        """Note that a fault is about to end this node's launcher; one that has ended counts."""
        launcher = self.launchers.get(node)
        if launcher is not None and launcher.exit_code is None:
            launcher.excused_by.add(fault)

    def endanger(self, node: str, fault: str) -> None:
        """Note that the kernel may kill this node's launcher while a fault is in force."""
        launcher = self.launchers.get(node)
        if launcher is not None and launcher.exit_code is None:
            launcher.in_danger_of.add(fault)

    def note_undone(self, fault: str) -> None:
        """Note that a fault kills no launcher any more."""
        for launcher in self.launchers.values():
            if launcher.exit_code is None:
                launcher.in_danger_of.discard(fault)

    def take_excuses_back(self, fault: str) -> None:
        """Note that a fault did nothing: however launchers ended, it was not by this one."""
        for launcher in self.launchers.values():
            launcher.excused_by.discard(fault)
            launcher.in_danger_of.discard(fault)

    @property
    def have_launchers_that_count_ended(self) -> bool:
        """Tell whether all launchers that no fault has ended are over, and there were some."""
        counting = [each for each in self.launchers.values() if each.counts]
        return bool(counting) and all(each.exit_code is not None for each in counting)

    @property
    def have_all_launchers_ended(self) -> bool:
        """Tell whether no launcher runs any more, and there were some."""
        launchers = self.launchers.values()
        return bool(launchers) and all(each.exit_code is not None for each in launchers)

    @property
    def outcome(self) -> str:
        """How the job ended, by the launchers that count: succeeded or failed.

        Drained, when every node has left because it was told to: with success, or as programs end
        that obey SIGTERM (status 143, or by the signal itself).
        """
        counting = [each.exit_code for each in self.launchers.values() if each.counts]
        if counting:
            return "succeeded" if all(code == 0 for code in counting) else "failed"
        codes = [each.exit_code for each in self.launchers.values()]
        return "drained" if codes and all(code in _OBEDIENT for code in codes) else "failed"

    @property
    def exit_codes(self) -> dict[str, int]:
        """The exit code of each launcher that has ended, by node."""
        ended = ((name, each.exit_code) for name, each in self.launchers.items())
        return {name: code for name, code in ended if code is not None}

    @property
    def ended_by_faults(self) -> tuple[str, ...]:
        """The nodes whose launcher a fault has ended, or has broken for good."""
        exempt = (name for name, each in self.launchers.items() if not each.counts)
        return tuple(sorted(exempt, key=natural_key))

    def describe(self) -> str:
        """Say in one line where the job stands."""
        world = self.world
        if world is None:
            return "no worker has said hello"
        hello = f"{len(world.workers)} of {world.world_size} ranks"
        step = "no step done" if world.last_step is None else f"step {world.last_step}"
        alive = sum(worker.is_alive for worker in world.workers.values())
        return f"round {world.ordinal}, {hello} ({alive} alive), {step}"

    def situation(self, seed: Seed) -> Situation:
        """Return the frozen picture that selectors are resolved against."""
        nodes = tuple(
            self._with_launcher(self.nodes[name]) for name in sorted(self.nodes, key=natural_key)
        )
        return Situation(
            nodes=nodes,
            workers=self._workers(),
            store_host=self._store_host,
            seed=seed,
            used_names=tuple(self._used_names),
        )

    def _on_node_started(self, record: Record, address: str, incarnation: int) -> None:
        self.nodes[record.node] = NodeRef(
            name=record.node, address=address, incarnation=incarnation, started_at=record.at
        )
        if record.node not in self._used_names:
            self._used_names.append(record.node)

    def _with_launcher(self, node: NodeRef) -> NodeRef:
        launcher = self.launchers.get(node.name)
        if launcher is None or launcher.exit_code is not None:
            return node
        return replace(node, launcher=launcher.process)

    def _workers(self) -> tuple[WorkerRef, ...]:
        if self.world is None:
            return ()
        return tuple(
            WorkerRef(
                rank=rank,
                local_rank=worker.local_rank,
                node=worker.node,
                process=ProcessRef(
                    node=worker.node, pid=worker.pid, start_time=worker.hello.start_time
                ),
            )
            for rank, worker in sorted(self.world.workers.items())
            if worker.is_alive
        )
