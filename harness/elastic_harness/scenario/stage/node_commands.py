"""Commands that a scenario runs on nodes, beside the launchers: started, waited for, ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from elastic_harness.cluster.cluster import Cluster, ClusterError, ProcessHandle, ProcessSpec
from elastic_harness.faults.context import Ticket

__all__ = ["NodeCommands"]


@dataclass(slots=True, kw_only=True)
class _Command:
    name: str
    ticket: Ticket[int]
    process: ProcessHandle | None = None


class NodeCommands:
    """The commands of one run. Everything happens in the loop's thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._commands: list[_Command] = []

    def run(self, node: str, spec: ProcessSpec, *, name: str) -> Ticket[int]:
        """Start a command of the entry `name`; the answer is its exit code."""
        command = _Command(name=name, ticket=Ticket())
        self._commands.append(command)

        def on_spawned(outcome: ProcessHandle | ClusterError) -> None:
            if isinstance(outcome, ClusterError):
                command.ticket.settle(outcome)
                return
            command.process = outcome
            if outcome.exit_code is not None:
                self.on_exit(outcome)

        self._cluster.spawn(node, spec, on_spawned)
        return command.ticket

    def on_exit(self, process: ProcessHandle) -> None:
        """Take note that a process has ended, whosever it was."""
        for command in self._commands:
            if command.process is process and process.exit_code is not None:
                command.ticket.settle(process.exit_code)

    def end(self, name: str) -> None:
        """Kill what still runs of an entry."""
        for command in self._commands:
            process = command.process
            if command.name == name and process is not None and process.exit_code is None:
                self._cluster.signal(process, signal.SIGKILL)
