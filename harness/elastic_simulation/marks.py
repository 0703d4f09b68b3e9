"""What hosts of a played job's endpoint leave on their machines (R12).

It outlives the processes of a node, and is gone when its machine has lost its power.
"""

from __future__ import annotations

from elastic_simulation.process import Process, Surroundings
from pytest_elastic.rendezvous.consensus.records import KnownJob, Mark
from pytest_elastic.rendezvous.follower.connection import ConnectionPhase

__all__ = ["Marks"]


class Marks:
    """The mark of each machine, by the name of its node, and when it was renewed."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self._left: dict[str, tuple[KnownJob, float]] = {}
        self._found: dict[str, KnownJob] = {}  # by the incarnation that found it

    def is_at(self, name: str) -> bool:
        """Tell whether a machine has one."""
        return name in self._left

    def found_by(self, process: Process) -> KnownJob | None:
        """Return of which job the mark told that a host found as it began."""
        return self._found.get(process.node.incarnation)

    def open(self, process: Process) -> Mark | None:
        """Return what a host finds, and renew its own once a beat from now on."""
        if not self._world.config.has_succession:
            return None
        self._renew(process)
        if process.name not in self._left:
            return None
        job, at = self._left[process.name]
        self._found[process.node.incarnation] = job
        return Mark(job=job, renewed_at=process.moment(at))

    def remember(self, process: Process) -> None:
        """Leave a mark, if this is the host and knows of a job; the process is about to promise."""
        world = self._world
        is_host = process is world.host and not world.has_several_endpoints
        if is_host and world.config.has_succession:
            job = process.follower.known_job
            if job is not None:
                self._left[process.name] = (job, world.time)

    def part(self, process: Process) -> None:
        """Take the mark away if the job has ended."""
        if process is self._world.host and process.follower.has_ended:
            self.lose(process.name)

    def lose(self, name: str) -> None:
        """Forget what was on a machine."""
        self._left.pop(name, None)

    def _renew(self, process: Process) -> None:
        if not process.is_alive or process.agent.over is not None:
            return
        if not process.is_frozen and process.follower.connection is ConnectionPhase.JOINED:
            self.remember(process)
        self._world.later(self._world.config.beat_interval_s, self._renew, process)
