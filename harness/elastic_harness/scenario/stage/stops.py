"""Stopping processes and nodes of a run, and seeing how processes end: a part of the stage."""

from __future__ import annotations

import signal
from collections.abc import Callable

from elastic_harness.cluster.cluster import ClusterError
from elastic_harness.faults.ticket import Ticket
from elastic_harness.faults.workers.stops import Stops
from elastic_harness.observe.ends import ProcessEnds
from elastic_harness.scenario.engine.situation import ProcessRef

__all__ = ["Operation", "StageStops"]

# What a cluster does to a node, and whom it tells how it went.
Operation = Callable[[str, Callable[[ClusterError | None], None]], None]


class StageStops:
    """What faults have stopped on one run's nodes (`FaultContext`), each for itself."""

    def __init__(self, *, pause: Operation, resume: Operation) -> None:
        self._stops = Stops()
        self._ends = ProcessEnds()
        self._pause = pause
        self._resume = resume

    def signal(self, process: ProcessRef, signum: int) -> bool:
        """Send a signal to that very process."""
        raise NotImplementedError

    def watch_end(self, process: ProcessRef) -> bool:
        """Take note of how a process ends; False when that very process has ended already."""
        return self._ends.watch(process)

    def exit_code_of(self, process: ProcessRef) -> int | None:
        """Return how a watched process has ended, negative: by that signal; None: nothing tells."""
        return self._ends.exit_code_of(process)

    def stop(self, owner: str, node: str, process: ProcessRef) -> bool:
        """Stop a process of a node by SIGSTOP; False when it has ended."""
        if not self.signal(process, signal.SIGSTOP):
            return False
        self._stops.stop(owner, node, process)
        return True

    def stopped_by(self, node: str, process: ProcessRef) -> tuple[str, ...]:
        """Return which faults stop a process of a node, or pause the node."""
        return self._stops.owners_of(node, process)

    def let_go_on(self, owner: str) -> None:
        """Continue what `owner` has stopped and nobody else stops; harmless twice."""
        for process in self._stops.release(owner):
            self.signal(process, signal.SIGCONT)

    def pause_node(self, owner: str, node: str) -> Ticket[None]:
        """Freeze every process of a node."""
        ticket: Ticket[None] = Ticket()
        self._stops.pause(owner, node)
        self._pause(node, ticket.settle)
        return ticket

    def resume_node(self, owner: str, node: str) -> Ticket[None]:
        """Let a node go on, unless somebody else has paused it too; harmless twice."""
        ticket: Ticket[None] = Ticket()
        if not self._stops.resume(owner, node):
            ticket.settle(None)
            return ticket

        def on_done(outcome: ClusterError | None) -> None:
            # Where there is no freezer, all of its processes were stopped and continued.
            released, held = self._stops.after_resume(node)
            for process in released:
                self.signal(process, signal.SIGCONT)
            for process in held:
                self.signal(process, signal.SIGSTOP)
            ticket.settle(outcome)

        self._resume(node, on_done)
        return ticket
