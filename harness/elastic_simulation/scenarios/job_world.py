"""A simulated world with workers that train, and its agents: what a scenario's job runs in."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, cast

from elastic_simulation.machine_agent import MachineAgent
from elastic_simulation.process import Direction, Process
from elastic_simulation.scenarios.network import SimulatedNetwork
from elastic_simulation.scenarios.training import Script, Training
from elastic_simulation.world import World
from pytest_elastic.agent import messages as a
from pytest_elastic.events.model import Event
from pytest_elastic.rendezvous.settings import Settings

__all__ = ["JobWorld", "ModelledAgent"]

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

    def _send(self, direction: Direction, item: Any) -> None:  # noqa: ANN401 (any message)
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


class ModelledAgent(MachineAgent):
    """An agent whose workers are those of a `Training`; it is their `Host`."""

    exit_code: int | None = None
    _pids: dict[int, int] = {}  # noqa: RUF012 (replaced at each start, never changed)

    @property
    def name(self) -> str:
        """The node's name."""
        return self.process.name

    @property
    def can_run(self) -> bool:
        """Whether the workers are neither stopped by their agent nor with their machine."""
        return self.is_running and not self.is_held and not self.process.is_suspended

    @property
    def _world(self) -> JobWorld:
        return cast("JobWorld", self.process.world)

    # --- what the machine wants --------------------------------------------------------------

    def _perform(self, command: a.AgentCommand) -> None:
        match command:
            case Event():
                self._world.state(self.process, command)
            case a.Start(assignment=assignment):
                slots = assignment.roster[assignment.group_rank].slots
                self._pids = {rank: self._world.next_pid() for rank in range(slots)}
                super()._perform(command)
                self._world.training.begin(self, assignment, self._pids)
            case a.Exit(code=code):
                self.exit_code = code
                super()._perform(command)
            case _:
                super()._perform(command)

    def _pid(self, local_rank: int) -> int:
        return self._pids[local_rank]

    def _signal(self, round_: int, number: int) -> None:
        if number not in (signal.SIGSTOP, signal.SIGCONT) and self.assignment is not None:
            self._is_told_to_end = self.is_stopping = True
            if not self.is_held:
                self._world.training.ask_to_leave(self, self.assignment.term, round_)
            return
        super()._signal(round_, number)

    def _end_soon(self, round_: int) -> None:
        if self.assignment is not None:
            self._world.training.ask_to_leave(self, self.assignment.term, round_)

    def _exited(self, round_: int, local_rank: int, exit_code: int) -> None:
        self._world.training.gone(self._pids[local_rank], exit_code)
        super()._exited(round_, local_rank, exit_code)

    def _tell_peers(self, round_: int) -> None:
        term = self.assignment.term if self.assignment is not None else 0
        if not self._world.training.is_settled(term, round_):
            super()._tell_peers(round_)

    def die(self, how: str | None) -> None:
        """Everything on the node is gone."""
        for local_rank in self._alive:
            self._world.training.gone(self._pids[local_rank])
        super().die(how)

    # --- what workers do ---------------------------------------------------------------------

    def end_worker(self, pid: int, exit_code: int, message: str = "") -> None:
        """Let one worker end."""
        local_rank = next((rank for rank, each in self._pids.items() if each == pid), None)
        if local_rank is None or local_rank not in self._alive or self.assignment is None:
            return
        round_ = self.assignment.round
        self._alive.remove(local_rank)
        self._world.training.gone(pid, exit_code)
        self._give(
            a.WorkerExit(
                round=round_,
                local_rank=local_rank,
                pid=pid,
                exit_code=exit_code,
                message=message,
            )
        )
        self._tell_peers(round_)

    def end_group(self, round_: int, exit_code: int) -> None:
        """Let all workers of a round end, by their own doing."""
        if not self.is_held:
            self._end_all(round_, exit_code)
