"""A world that faults are injected into, and what must not be done to it, each with its reason."""

from __future__ import annotations

from collections.abc import Callable

from elastic_simulation.checks import Watch
from elastic_simulation.process import Process
from elastic_simulation.random_faults.plan import InjectedFault
from elastic_simulation.world import World

__all__ = ["MAX_STARTS", "Target", "can_boot", "may_come"]

MAX_STARTS = 12
"""How many agents are started in a world at most."""
# The nodes of a plan have arrived by then: they are new ones, to a host without a mark.
_ALL_HERE_S = 1.0


class Target:
    """A world that faults are injected into, with what the judges must know of them."""

    def __init__(
        self, world: World, watch: Watch, *, stops_at: float, keeps_enough: bool = False
    ) -> None:
        self.world = world
        self.keeps_enough = keeps_enough
        self.watch = watch
        self.stops_at = stops_at
        self.lost_leader = ""  # an incarnation, of a job without succession
        self.is_healed = False  # what was to happen to links later does not happen any more
        self.tell: Callable[[str], None] = lambda _: None  # an effect that comes later

    @property
    def has_succession(self) -> bool:
        """Whether the job outlives its coordinator, so that no node has to be spared."""
        return self.world.config.outlives_coordinator

    @property
    def may_come(self) -> bool:
        """Whether one more node that knows of no job may be there.

        With `min_nodes` of them, a host that comes back at the endpoint without a mark begins the
        job anew beside its survivors, while these elect: no node that it can ask knows better
        (R12).
        """
        return may_come(self.world)

    @property
    def host(self) -> str:
        """The leader's node; the endpoint's host if there is no leader."""
        assert self.world.host is not None, "a node hosts the rendezvous"
        deciding = [p for p in self.world.every_process if p.is_alive and p.leader is not None]
        if not ((self.has_succession or self.world.has_several_endpoints) and deciding):
            return self.world.host.name
        return max(deciding, key=lambda p: p.leader.term if p.leader else 0).name

    def leads_a_job(self, name: str) -> bool:
        """Tell whether the job ends with a node: of several hosts, once it has proposed a round."""
        leader = self.world.processes[name].leader
        if not self.world.has_several_endpoints:
            return True
        return leader is not None and leader._replication.newest.number > 0  # noqa: SLF001

    def pick(self, fault: InjectedFault, *, spare_host: bool = True) -> str:
        """Return the node that a fault falls on; the host only where it has to be."""
        names = sorted(self.world.processes)
        if spare_host and len(names) > 1 and not self.has_succession:
            names = [name for name in names if name != self.host]
        return names[fault.who % len(names)]

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do something to links after a while, unless all is healed by then."""

        def unless_quiet() -> None:
            if not self.is_healed:
                act()

        self.world.later(delay_s, unless_quiet)

    def victim(self, fault: InjectedFault) -> Process | None:
        """Return a living agent that is not the host's, if the fault found one."""
        process = self.world.processes[self.pick(fault)]
        may_be = self.has_succession or process.name != self.host
        return process if process.is_alive and may_be else None

    def is_needed(self, process: Process) -> bool:
        """Tell whether no round could follow without a node, where plans keep enough of them."""
        if not self.keeps_enough:
            return False
        world = self.world
        left = [
            p
            for p in world.every_process
            if p.is_alive and p.agent.over is None and p is not process
        ]
        if len(left) < world.config.min_nodes:
            return True
        if not world.config.has_succession:
            return False
        if not world.starts:
            return process is world.host  # no other node can begin the job
        roster = max((a for _, a in world.starts), key=lambda a: a.round).roster
        present = {p.node.incarnation for p in left if p.agent.drain_grace_s is None}
        return 2 * sum(entry.incarnation in present for entry in roster) <= len(roster)


def may_come(world: World) -> bool:
    """Tell whether one more node that knows of no job may be there (see `Target.may_come`)."""
    if world.endpoints is not None and world.endpoints.keep_others_out():
        return True
    if not (world.config.has_succession or world.has_several_endpoints):
        return True
    new = [p for p in world.every_process if p.is_alive and not p.agent.belongs]
    if len(new) + world.expected + 1 < world.config.min_nodes:
        return True
    if world.host is None or not world.marks.is_at(world.host.name):
        return False
    # With so many agents as two jobs need, two first rounds may be acknowledged (R12).
    living = [p for p in world.every_process if p.is_alive and p.agent.over is None]
    return len(living) + world.expected + 1 < 2 * world.config.min_nodes


def can_boot(world: World, name: str) -> bool:
    """Tell whether a machine can be up again: after a loss of power, that takes a lease at least.

    Only the endpoint's matters, which has lost its mark (R12).
    """
    process, host = world.processes[name], world.host
    if host is None or name != host.name:
        return True
    is_up = world.time >= process.lost_power_at + world.config.lease_s
    return process.has_power or (is_up and world.time >= _ALL_HERE_S)
