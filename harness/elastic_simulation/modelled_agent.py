"""The agent's own machine in a played world, over workers that train."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, cast

from elastic_simulation.machine_agent import MachineAgent
from pytest_elastic.agent import messages as a

if TYPE_CHECKING:
    from elastic_simulation.job_world import JobWorld

__all__ = ["ModelledAgent"]


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
            case a.Emit(event=event):
                self._world.state(self.process, event)
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
