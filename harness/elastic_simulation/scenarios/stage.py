"""The stage of a simulated run: the real one, over a `SimulatedCluster`.

What differs is where single processes are looked at: there is no /proc, so a signal and a state go
through the cluster; and probes are part of the world.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from elastic_harness.cluster.cluster import ProcessInfo
from elastic_harness.faults.nodes.node_resources import NodeResources
from elastic_harness.faults.ticket import FaultImpossible
from elastic_harness.scenario.engine.situation import ProcessRef
from elastic_harness.scenario.stage.stage import Stage

from elastic_simulation.scenarios.training import Training

__all__ = ["SimulatedProbes", "SimulatedStage"]


class SimulatedProbes:
    """What a stage asks of the observer (`scenario.stage.Orders`), answered by a `Training`."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def order(self, pid: int, order: Mapping[str, Any]) -> bool:
        """Have a worker do something in its step hook."""
        return self._training.order(pid, order)

    def answer_of(self, pid: int, by: str) -> Mapping[str, Any]:
        """Return what a worker has said of an order to end."""
        worker = self._training.workers.get(pid)
        is_that = worker is not None and worker.answer.get("by") == by
        return worker.answer if worker is not None and is_that else {}

    def exit_code_of(self, pid: int) -> int | None:
        """Return how a worker has ended."""
        worker = self._training.workers.get(pid)
        return worker.exit_code if worker is not None else None

    def enter_again(self, node: str) -> None:
        """Do nothing: simulated workers have no working folder."""

    def steps_of(self, pid: int) -> int:
        """Return how many steps a worker has completed."""
        worker = self._training.workers.get(pid)
        return worker.count if worker is not None else 0


class SimulatedStage(Stage):
    """One run's nodes on a `SimulatedCluster`."""

    def signal(self, process: ProcessRef, signum: int) -> bool:
        """Send a signal to that very process."""
        found = self._find(process)
        return found is not None and self._cluster.signal(found, signum)

    def process_state(self, process: ProcessRef) -> str:
        """Return a letter as in /proc/PID/stat, "" once it has ended."""
        found = self._find(process)
        return found.state if found is not None else ""

    def watch_end(self, process: ProcessRef) -> bool:
        """Tell whether that very process is there: how it ends is known anyway."""
        return self.is_alive(process)

    def exit_code_of(self, process: ProcessRef) -> int | None:
        """Return how a worker has ended, negative: by that signal."""
        assert isinstance(self._orders, SimulatedProbes), "a simulated stage has simulated probes"
        return self._orders.exit_code_of(process.pid)

    def _find(self, process: ProcessRef) -> ProcessInfo | None:
        for name in self._cluster.nodes:
            for found in self._cluster.processes(name):
                if found.pid == process.pid:
                    return found
        return None

    @property
    def resources(self) -> NodeResources:
        """Refuse: simulated nodes have no processor, memory or disk."""
        return self._refuse_resources()

    def _refuse_resources(self) -> NoReturn:
        raise FaultImpossible("simulated nodes have no processor, memory or disk")
