"""A played world with workers that train: what a scenario's job runs in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from elastic_harness.simulation.modelled_agent import ModelledAgent
from elastic_harness.simulation.process import Process
from elastic_harness.simulation.training import Script, Training
from elastic_harness.simulation.world import World
from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.model import Settings

__all__ = ["JobWorld"]

_FIRST_PID = 10_000


class JobWorld(World):
    """The world of one job.

    `on_event(source, node, event)` gets what agents and probes would report, `on_exit(process)`
    each launcher that has ended. `blocked` counts what was kept from passing, by link.
    """

    def __init__(
        self,
        config: Settings,
        script: Script,
        *,
        on_event: Callable[[str, str, Event], None],
        on_exit: Callable[[Process], None],
    ) -> None:
        self.training = Training(
            script,
            now=lambda: self.time,
            later=self.later,
            are_apart=self._are_apart,
            tell=lambda node, event: on_event("worker", node, event),
        )
        self.blocked: Counter[tuple[str, str]] = Counter()
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
        """Report a fact that a node states."""
        self.events.append((self.time, process.name, event))
        self._on_event("agent", process.name, event)

    def perform_member(self, process: Process, command: v.MemberCommand) -> None:
        if isinstance(command, v.Emit):
            self.state(process, command.event)
        else:
            super().perform_member(process, command)

    def perform_coordinator(self, process: Process, command: v.CoordinatorCommand) -> None:
        if isinstance(command, v.Emit):
            self.state(process, command.event)
        else:
            super().perform_coordinator(process, command)

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
            self.blocked[source.name, target.name] += 1
        return is_so

    def _are_apart(self, source: str, target: str) -> bool:
        is_so = (source, target) in self.cut_links or (source, target) in self.rejecting
        if is_so:
            self.blocked[source, target] += 1
        return is_so
