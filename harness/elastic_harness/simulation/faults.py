"""What can be done to a simulated job, by the kinds of `plan.Blow`.

A fault says what it did, or returns "" when there was nothing to do it to. What the protocol does
not promise to survive is left out here, each with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from elastic_harness.simulation.checks import Watch
from elastic_harness.simulation.granted import ETCD
from elastic_harness.simulation.plan import KINDS, Blow
from elastic_harness.simulation.process import Process
from elastic_harness.simulation.world import World

__all__ = ["Target", "can_boot", "may_come", "strike"]

T = TypeVar("T")

_MAX_STARTS = 12
# The nodes of a plan have arrived by then: they are new ones, to a host without a mark.
_ALL_HERE_S = 1.0
# Links and firewalls: shorter than a beat, than a lease, about a lease, longer than all of it.
_OUTAGES_S = (0.1, 0.7, 1.3, 3.0)


class Target:
    """A world that blows fall on, with what the judges must know of them."""

    def __init__(
        self, world: World, watch: Watch, *, stops_at: float, keeps_enough: bool = False
    ) -> None:
        self.world = world
        self.keeps_enough = keeps_enough
        self.watch = watch
        self.stops_at = stops_at
        self.is_host_hit = False
        self.is_calm = False  # what was to happen to links later does not happen any more

    @property
    def has_succession(self) -> bool:
        """Whether the job outlives its coordinator, so that nobody has to be spared."""
        return self.world.config.outlives_coordinator

    @property
    def may_come(self) -> bool:
        """Whether one more node that knows of no job may be there.

        With `min_nodes` of them, a host that comes back at the endpoint without a mark begins the
        job anew beside its survivors, while these elect: nobody it can ask knows better (R12).
        """
        return may_come(self.world)

    @property
    def host(self) -> str:
        """The node that decides; the endpoint's where nobody does."""
        assert self.world.host is not None, "somebody hosts the rendezvous"
        deciding = [p for p in self.world.every_process if p.is_alive and p.coordinator is not None]
        if not (self.has_succession and deciding):
            return self.world.host.name
        return max(deciding, key=lambda p: p.coordinator.term if p.coordinator else 0).name

    def pick(self, blow: Blow, *, spare_host: bool = True) -> str:
        """Return the node that a blow falls on; the host only where it has to be."""
        names = sorted(self.world.processes)
        if spare_host and len(names) > 1 and not self.has_succession:
            names = [name for name in names if name != self.host]
        return names[blow.who % len(names)]

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do something to links after a while, unless it is calm by then."""

        def unless_calm() -> None:
            if not self.is_calm:
                act()

        self.world.later(delay_s, unless_calm)

    def victim(self, blow: Blow) -> Process | None:
        """Return a living agent that is not the host's, if the blow found one."""
        process = self.world.processes[self.pick(blow)]
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
            return process is world.host  # nobody else can begin the job
        roster = max((a for _, a in world.starts), key=lambda a: a.round).roster
        present = {p.node.incarnation for p in left if p.agent.drain_grace_s is None}
        return 2 * sum(entry.incarnation in present for entry in roster) <= len(roster)


def may_come(world: World) -> bool:
    """Tell whether one more node that knows of no job may be there (see `Target.may_come`)."""
    if not world.config.has_succession:
        return True
    if world.endpoints is not None and world.endpoints.keep_others_out():
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


def _choose(blow: Blow, options: Sequence[T]) -> T:
    return options[int(blow.how * len(options))]


def strike(target: Target, blow: Blow) -> str:
    """Let a blow fall; return what it did, "" for nothing."""
    if not target.world.processes:
        return ""
    return _FAULTS[blow.kind](target, blow)


# --- workers -------------------------------------------------------------------------------------


def _fail(target: Target, blow: Blow) -> str:
    name = target.pick(blow, spare_host=False)
    agent = target.world.agent(name)
    if not agent.progresses:
        return ""  # what is stopped by SIGSTOP does not fail
    target.watch.worker_failures += 1
    target.world.fail(name, _choose(blow, [1, -9]))
    return f"fail {name}"


def _hang(target: Target, blow: Blow) -> str:
    name = target.pick(blow, spare_host=False)
    agent = target.world.agent(name)
    if not agent.progresses:
        return ""
    target.watch.worker_failures += 1
    agent.hang(_choose(blow, [0.2, 1.5]))
    return f"hang {name}"


def _slow(target: Target, blow: Blow) -> str:
    name = target.pick(blow, spare_host=False)
    stop_s = _choose(blow, [0.03, 0.5, 2.0, 9.0])
    target.world.agent(name).stop_s = stop_s
    return f"slow {name} {stop_s}"


def _succeed(target: Target, blow: Blow) -> str:
    """Let the groups of the round that runs end well, one after the other."""
    agents = [p.agent for p in target.world.every_process if p.agent.progresses]
    if not agents or blow.how < 0.5:  # it ends the job: not in every storm that may
        return ""
    spread_s = _choose(blow, [0.0, 0.0, 0.05, 1.0])
    for number, agent in enumerate(agents):
        assert agent.assignment is not None, "a group that runs has an assignment"
        delay_s = spread_s * ((number + blow.who) % len(agents))
        target.world.later(delay_s, partial(agent.succeed_in, agent.assignment.round))
    return f"succeed within {spread_s * (len(agents) - 1):g} s"


# --- nodes ---------------------------------------------------------------------------------------


def _lose(way: Callable[[World, str], None], word: str, target: Target, blow: Blow) -> str:
    """Let a living agent be lost in one of the ways that there are."""
    victim = target.victim(blow)
    if victim is None or target.is_needed(victim):
        return ""
    way(target.world, victim.name)
    return f"{word} {victim.name}"


def _back(target: Target, blow: Blow) -> str:
    """Start a dead node again: same name, same address, new incarnation."""
    dead = sorted(n for n, p in target.world.processes.items() if not p.is_alive)
    dead = [name for name in dead if target.has_succession or name != target.host]
    dead = [name for name in dead if can_boot(target.world, name)]
    if not dead or len(target.world.every_process) >= _MAX_STARTS or not target.may_come:
        return ""
    name = dead[blow.who % len(dead)]
    target.world.start(name, clock_rate=0.93 + 0.14 * blow.how)
    return f"back {name}"


def _join(target: Target, blow: Blow) -> str:
    number = len(target.world.every_process)
    if number >= _MAX_STARTS or not target.may_come:
        return ""
    name = f"n{number + 11}"
    target.world.start(name, clock_rate=0.93 + 0.14 * blow.how)
    return f"join {name}"


def _drain(target: Target, blow: Blow) -> str:
    victim = target.victim(blow)
    # Held workers of a node that is told to leave go on, to save what they have (R5).
    if victim is None or victim.agent.over is not None or victim.agent.is_held:
        return ""
    if target.is_needed(victim):
        return ""
    victim.agent.drain(grace_s=_choose(blow, [0.1, 2.0]), takes_s=(0.05, 1.0)[blow.who % 2])
    return f"drain {victim.name}"


def _freeze(target: Target, blow: Blow) -> str:
    process = target.world.processes[target.pick(blow, spare_host=False)]
    # A firewall that refuses, while the agent behind it cannot hold its workers: see R5.
    if not process.is_alive or process.is_frozen or target.world.rejecting:
        return ""
    seconds = _choose(blow, [0.1, 0.9, 1.4, 4.0])
    target.world.freeze(process.name, seconds)
    return f"freeze {process.name} {seconds}"


def _suspend(target: Target, blow: Blow) -> str:
    process = target.world.processes[target.pick(blow, spare_host=False)]
    if not process.is_alive or process.is_frozen or target.world.rejecting:
        return ""
    seconds = _choose(blow, [0.1, 0.9, 1.4, 4.0])
    target.world.suspend(process.name, seconds)
    return f"suspend {process.name} {seconds}"


def _lose_host(target: Target, blow: Blow) -> str:
    """Lose the coordinator's node in one of three ways; without succession, near the end."""
    name = target.host
    if not target.has_succession:
        if target.world.time < target.stops_at - 1.0 or target.is_host_hit:
            return ""
        target.is_host_hit = True
    elif not target.world.processes[name].is_alive or target.is_needed(
        target.world.processes[name]
    ):
        return ""
    way = _choose(blow, [World.kill_agent, World.crash, World.cut_power])
    way(target.world, name)
    return f"{way.__name__} {name}"


# --- links and stores ----------------------------------------------------------------------------


def _break(target: Target, blow: Blow) -> str:
    victim = target.victim(blow)
    if victim is None or victim.pipe is None:
        return ""
    target.world.break_connection(victim.name)
    return f"break {victim.name}"


def _isolate(target: Target, blow: Blow) -> str:
    name = target.pick(blow)
    others = [other for other in target.world.processes if other != name]
    if target.world.config.is_granted and blow.who % 2:
        others.append(ETCD)
    return _cut_off(target, blow, [name], others, f"isolate {name}")


def _split(target: Target, blow: Blow) -> str:
    """Cut the nodes into two sides, both ways."""
    names = sorted(target.world.processes)
    side = [name for number, name in enumerate(names) if (blow.who >> number) & 1]
    other = [name for name in names if name not in side]
    if not side or not other:
        return ""
    if target.world.config.is_granted:
        other.append(ETCD)
    return _cut_off(target, blow, side, other, f"split {','.join(side)} from {','.join(other)}")


def _cut(target: Target, blow: Blow) -> str:
    """Cut one direction between a node and the host."""
    name = target.pick(blow)
    if name == target.host:
        return ""
    pair = (name, target.host) if blow.who % 2 else (target.host, name)
    target.world.cut(*pair)
    return _heal_later(target, blow, [pair], f"cut {pair[0]} to {pair[1]}")


def _turn(target: Target, blow: Blow) -> str:
    """Let an outage of one direction change over to the other, after which the first is heard."""
    name = target.pick(blow)
    if name == target.host:
        return ""
    world, seconds = target.world, _choose(blow, _OUTAGES_S)
    first, second = (target.host, name), (name, target.host)
    if blow.who % 4 == 0:
        first, second = second, first
    world.cut(*first)
    target.later(seconds * 0.8, lambda: world.cut(*second))
    target.later(seconds, lambda: world.heal([first]))
    target.later(seconds + 3.0, lambda: world.heal([second]))
    return f"cut {first[0]} to {first[1]} for {seconds} s, then the other way for 3 s"


def _reject(target: Target, blow: Blow) -> str:
    victim = target.victim(blow)
    # An agent that is frozen at that very moment cannot hold its workers: beyond what R5 promises.
    # It need not be the victim: of two that are apart, each may decide, and the other be frozen.
    if victim is None or any(process.is_frozen for process in target.world.every_process):
        return ""
    others = sorted(target.world.processes)
    target.world.reject(victim.name, others)
    links = [pair for other in others for pair in ((victim.name, other), (other, victim.name))]
    return _heal_later(target, blow, links, f"reject {victim.name}")


def _cut_off(
    target: Target, blow: Blow, side: Sequence[str], other: Sequence[str], what: str
) -> str:
    links = [pair for one in side for two in other for pair in ((one, two), (two, one))]
    for link in links:
        target.world.cut(*link)
    return _heal_later(target, blow, links, what)


def _heal_later(target: Target, blow: Blow, links: Sequence[tuple[str, str]], what: str) -> str:
    seconds = _choose(blow, _OUTAGES_S)
    target.later(seconds, lambda: target.world.heal(links))
    return f"{what} for {seconds} s"


def _no_store(target: Target, blow: Blow) -> str:
    agent = target.world.agent(target.pick(blow, spare_host=False))
    agent.opens_stores = False
    target.world.later(2.0, lambda: setattr(agent, "opens_stores", True))
    return f"no store on {agent.process.name}"


def _endpoint(target: Target, blow: Blow) -> str:
    seconds = _choose(blow, _OUTAGES_S)
    world = target.world
    world.is_endpoint_down = True
    world.later(seconds, lambda: setattr(world, "is_endpoint_down", False))
    return f"endpoint down for {seconds} s"


_FAULTS: dict[str, Callable[[Target, Blow], str]] = {
    "back": _back,
    "break": _break,
    "crash": partial(_lose, World.crash, "crash"),
    "cut": _cut,
    "drain": _drain,
    "endpoint": _endpoint,
    "fail": _fail,
    "freeze": _freeze,
    "hang": _hang,
    "isolate": _isolate,
    "join": _join,
    "kill": partial(_lose, World.kill_agent, "kill"),
    "lose host": _lose_host,
    "no store": _no_store,
    "power": partial(_lose, World.cut_power, "power"),
    "reject": _reject,
    "slow": _slow,
    "split": _split,
    "succeed": _succeed,
    "suspend": _suspend,
    "turn": _turn,
}
assert tuple(sorted(_FAULTS)) == KINDS, "every kind that is drawn can be done"
