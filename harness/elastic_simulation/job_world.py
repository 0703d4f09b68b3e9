"""A played world with workers that train: what a scenario's job runs in."""

from __future__ import annotations

from collections.abc import Callable

from elastic_simulation.modelled_agent import ModelledAgent
from elastic_simulation.network import SimulatedNetwork
from elastic_simulation.process import Direction, Process
from elastic_simulation.training import Script, Training
from elastic_simulation.world import World
from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.model import Settings

__all__ = ["JobWorld"]

_FIRST_PID = 10_000
# What a message of ours is on a link, about; and what a rank sends another one in a step.
_MESSAGE_BYTES = 300
_STEP_BYTES = 15_000


class JobWorld(World):
    """The world of one job.

    `on_event(source, node, event)` gets what agents and probes would report, `on_exit(process)`
    each launcher that has ended. `network` says what links do to what passes.
    """

    def __init__(
        self,
        config: Settings,
        script: Script,
        *,
        on_event: Callable[[str, str, Event], None],
        on_exit: Callable[[Process], None],
    ) -> None:
        self.network = SimulatedNetwork(now=lambda: self.time, later=self.later)
        self.training = Training(
            script,
            now=lambda: self.time,
            later=self.later,
            are_apart=self._are_apart,
            crossing_s=self._crossing_s,
            tell=lambda node, event: on_event("worker", node, event),
        )
        self.exit_codes: dict[str, int] = {}
        """By incarnation."""
        self._on_event = on_event
        self._on_exit = on_exit
        self._newest_pid = _FIRST_PID
        super().__init__(config, keeps_messages=False, agent_class=ModelledAgent)

    def next_pid(self) -> int:
        """Return a number for a process, never used twice."""
        self._newest_pid += 1
        return self._newest_pid

    def state(self, process: Process, event: Event) -> None:
        """Report a fact that a node states, too."""
        super().state(process, event)
        self._on_event("agent", process.name, event)

    # --- ends --------------------------------------------------------------------------------

    def _ended(self, process: Process, exit_code: int) -> None:
        if process.node.incarnation not in self.exit_codes:
            self.exit_codes[process.node.incarnation] = exit_code
            self._on_exit(process)

    def leave(self, process: Process) -> None:
        super().leave(process)
        if not process.is_alive:
            agent = process.agent
            assert isinstance(agent, ModelledAgent), "every agent of this world is modelled"
            self._ended(process, agent.exit_code if agent.exit_code is not None else 1)

    def kill_agent(self, name: str) -> None:
        super().kill_agent(name)
        self._ended(self.processes[name], -9)

    def crash(self, name: str) -> None:
        super().crash(name)
        self._ended(self.processes[name], -9)

    def cut_power(self, name: str) -> None:
        super().cut_power(name)
        self._ended(self.processes[name], -9)

    # --- links -------------------------------------------------------------------------------

    def is_cut(self, source: Process, target: Process) -> bool:
        is_so = super().is_cut(source, target)
        if is_so:
            self.network.block((source.name, target.name), _MESSAGE_BYTES)
        return is_so

    def _send(self, direction: Direction, item: m.Message | str) -> None:
        """Send a part of a connection over its link, as slow and lossy as that is."""
        pair = (direction.source.name, direction.target.name)
        if self.network.is_plain(pair) or pair in self.cut_links or pair in self.rejecting:
            super()._send(direction, item)
            return
        if not isinstance(item, str):
            item = self.carry(direction.source, direction.target, item)
        direction.items.append(item)
        took_s = self.network.stream_s(pair, _MESSAGE_BYTES, direction.pipe.id)
        self.later(self.draw_latency_s() + took_s, self._deliver, direction)

    def _crossing_s(self, source: str, target: str) -> float:
        """Return how long it takes a rank to be heard by one on another node."""
        if self.network.is_plain((source, target)):
            return 0.0
        return self.network.stream_s((source, target), _STEP_BYTES, "gloo")

    def _are_apart(self, source: str, target: str) -> bool:
        is_so = (source, target) in self.cut_links or (source, target) in self.rejecting
        if is_so:
            self.network.block((source, target), _STEP_BYTES)
        return is_so
