"""What can be done to a simulated job, by the kinds of `plan.InjectedFault`.

A fault says what it did, or returns "" when there was nothing to do it to. What the protocol does
not promise to survive is left out here, each with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from elastic_simulation.granted import ETCD
from elastic_simulation.random_faults.aimed import AIMED_FAULTS
from elastic_simulation.random_faults.plan import KINDS, NAMED, InjectedFault
from elastic_simulation.random_faults.target import MAX_STARTS, Target, can_boot
from elastic_simulation.world import World

__all__ = ["inject"]

T = TypeVar("T")

# Links and firewalls: shorter than a beat, than a lease, about a lease, longer than all of it.
_OUTAGES_S = (0.1, 0.7, 1.3, 3.0)


def _choose(fault: InjectedFault, options: Sequence[T]) -> T:
    return options[int(fault.how * len(options))]


def inject(target: Target, fault: InjectedFault) -> str:
    """Inject a fault; return what it did, "" for nothing."""
    if not target.world.processes:
        return ""
    return _FAULTS[fault.kind](target, fault)


# --- workers -------------------------------------------------------------------------------------


def _fail(target: Target, fault: InjectedFault) -> str:
    name = target.pick(fault, spare_host=False)
    agent = target.world.agent(name)
    if not agent.progresses:
        return ""  # what is stopped by SIGSTOP does not fail
    target.watch.worker_failures += 1
    target.world.fail(name, _choose(fault, [1, -9]))
    return f"fail {name}"


def _hang(target: Target, fault: InjectedFault) -> str:
    name = target.pick(fault, spare_host=False)
    agent = target.world.agent(name)
    if not agent.progresses:
        return ""
    target.watch.worker_failures += 1
    agent.hang(_choose(fault, [0.2, 1.5]))
    return f"hang {name}"


def _slow(target: Target, fault: InjectedFault) -> str:
    name = target.pick(fault, spare_host=False)
    stop_s = _choose(fault, [0.03, 0.5, 2.0, 9.0])
    target.world.agent(name).stop_s = stop_s
    return f"slow {name} {stop_s}"


def _succeed(target: Target, fault: InjectedFault) -> str:
    """Let the groups of the round that runs end well, one after the other."""
    agents = [p.agent for p in target.world.every_process if p.agent.progresses]
    if not agents or fault.how < 0.5:  # it ends the job: not in every run that may
        return ""
    spread_s = _choose(fault, [0.0, 0.0, 0.05, 1.0])
    for number, agent in enumerate(agents):
        assert agent.assignment is not None, "a group that runs has an assignment"
        delay_s = spread_s * ((number + fault.who) % len(agents))
        target.world.later(delay_s, partial(agent.succeed_in, agent.assignment.round))
    return f"succeed within {spread_s * (len(agents) - 1):g} s"


# --- nodes ---------------------------------------------------------------------------------------


def _lose(
    way: Callable[[World, str], None], word: str, target: Target, fault: InjectedFault
) -> str:
    """Let a living agent be lost in one of the ways that there are."""
    victim = target.victim(fault)
    if victim is None or target.is_needed(victim):
        return ""
    way(target.world, victim.name)
    return f"{word} {victim.name}"


def _back(target: Target, fault: InjectedFault) -> str:
    """Start a dead node again: same name, same address, new incarnation."""
    dead = sorted(n for n, p in target.world.processes.items() if not p.is_alive)
    dead = [name for name in dead if target.has_succession or name != target.host]
    dead = [name for name in dead if can_boot(target.world, name)]
    if not dead or len(target.world.every_process) >= MAX_STARTS or not target.may_come:
        return ""
    name = dead[fault.who % len(dead)]
    target.world.start(name, clock_rate=0.93 + 0.14 * fault.how)
    return f"back {name}"


def _join(target: Target, fault: InjectedFault) -> str:
    number = len(target.world.every_process)
    if number >= MAX_STARTS or not target.may_come:
        return ""
    name = f"n{number + 11}"
    target.world.start(name, clock_rate=0.93 + 0.14 * fault.how)
    return f"join {name}"


def _drain(target: Target, fault: InjectedFault) -> str:
    victim = target.victim(fault)
    # Held workers of a node that is told to leave go on, to save what they have (R5).
    if victim is None or victim.agent.over is not None or victim.agent.is_held:
        return ""
    if target.is_needed(victim):
        return ""
    victim.agent.drain(grace_s=_choose(fault, [0.1, 2.0]), takes_s=(0.05, 1.0)[fault.who % 2])
    return f"drain {victim.name}"


def _freeze(target: Target, fault: InjectedFault) -> str:
    process = target.world.processes[target.pick(fault, spare_host=False)]
    # A firewall that refuses, while the agent behind it cannot hold its workers: see R5.
    if not process.is_alive or process.is_frozen or target.world.rejecting:
        return ""
    seconds = _choose(fault, [0.1, 0.9, 1.4, 4.0])
    target.world.freeze(process.name, seconds)
    return f"freeze {process.name} {seconds}"


def _suspend(target: Target, fault: InjectedFault) -> str:
    process = target.world.processes[target.pick(fault, spare_host=False)]
    if not process.is_alive or process.is_frozen or target.world.rejecting:
        return ""
    seconds = _choose(fault, [0.1, 0.9, 1.4, 4.0])
    target.world.suspend(process.name, seconds)
    return f"suspend {process.name} {seconds}"


def _lose_host(target: Target, fault: InjectedFault) -> str:
    """Lose the coordinator's node in one of three ways; without succession, near the end."""
    name = target.host
    if not target.has_succession:
        if target.world.time < target.stops_at - 1.0 or target.lost_leader:
            return ""
        if target.leads_a_job(name):
            target.lost_leader = target.world.processes[name].node.incarnation
    elif not target.world.processes[name].is_alive or target.is_needed(
        target.world.processes[name]
    ):
        return ""
    way = _choose(fault, [World.kill_agent, World.crash, World.cut_power])
    way(target.world, name)
    return f"{way.__name__} {name}"


# --- links and stores ----------------------------------------------------------------------------


def _break(target: Target, fault: InjectedFault) -> str:
    victim = target.victim(fault)
    if victim is None or victim.pipe is None:
        return ""
    target.world.break_connection(victim.name)
    return f"break {victim.name}"


def _isolate(target: Target, fault: InjectedFault) -> str:
    name = target.pick(fault)
    others = [other for other in target.world.processes if other != name]
    if target.world.config.is_granted and fault.who % 2:
        others.append(ETCD)
    return _cut_off(target, fault, [name], others, f"isolate {name}")


def _split(target: Target, fault: InjectedFault) -> str:
    """Cut the nodes into two sides, both ways."""
    names = sorted(target.world.processes)
    side = [name for number, name in enumerate(names) if (fault.who >> number) & 1]
    other = [name for name in names if name not in side]
    if not side or not other:
        return ""
    if target.world.config.is_granted:
        other.append(ETCD)
    return _cut_off(target, fault, side, other, f"split {','.join(side)} from {','.join(other)}")


def _cut(target: Target, fault: InjectedFault) -> str:
    """Cut one direction between a node and the host."""
    name = target.pick(fault)
    if name == target.host:
        return ""
    pair = (name, target.host) if fault.who % 2 else (target.host, name)
    target.world.cut(*pair)
    return _heal_later(target, fault, [pair], f"cut {pair[0]} to {pair[1]}")


def _turn(target: Target, fault: InjectedFault) -> str:
    """Let an outage of one direction change over to the other, after which the first is heard."""
    name = target.pick(fault)
    if name == target.host:
        return ""
    world, seconds = target.world, _choose(fault, _OUTAGES_S)
    first, second = (target.host, name), (name, target.host)
    if fault.who % 4 == 0:
        first, second = second, first
    world.cut(*first)
    target.later(seconds * 0.8, lambda: world.cut(*second))
    target.later(seconds, lambda: world.heal([first]))
    target.later(seconds + 3.0, lambda: world.heal([second]))
    return f"cut {first[0]} to {first[1]} for {seconds} s, then the other way for 3 s"


def _reject(target: Target, fault: InjectedFault) -> str:
    victim = target.victim(fault)
    # An agent that is frozen at that very moment cannot hold its workers: beyond what R5 promises.
    # It need not be the victim: of two that are apart, each may decide, and the other be frozen.
    if victim is None or any(process.is_frozen for process in target.world.every_process):
        return ""
    others = sorted(target.world.processes)
    target.world.reject(victim.name, others)
    links = [pair for other in others for pair in ((victim.name, other), (other, victim.name))]
    return _heal_later(target, fault, links, f"reject {victim.name}")


def _cut_off(
    target: Target, fault: InjectedFault, side: Sequence[str], other: Sequence[str], what: str
) -> str:
    links = [pair for one in side for two in other for pair in ((one, two), (two, one))]
    for link in links:
        target.world.cut(*link)
    return _heal_later(target, fault, links, what)


def _heal_later(
    target: Target, fault: InjectedFault, links: Sequence[tuple[str, str]], what: str
) -> str:
    seconds = _choose(fault, _OUTAGES_S)
    target.later(seconds, lambda: target.world.heal(links))
    return f"{what} for {seconds} s"


def _no_store(target: Target, fault: InjectedFault) -> str:
    agent = target.world.agent(target.pick(fault, spare_host=False))
    agent.opens_stores = False
    target.world.later(2.0, lambda: setattr(agent, "opens_stores", True))
    return f"no store on {agent.process.name}"


def _endpoint(target: Target, fault: InjectedFault) -> str:
    seconds = _choose(fault, _OUTAGES_S)
    world = target.world
    world.is_endpoint_down = True
    world.later(seconds, lambda: setattr(world, "is_endpoint_down", False))
    return f"endpoint down for {seconds} s"


def _hosts_forget(target: Target, fault: InjectedFault) -> str:
    """Let hosts forget all, and begin apart from the running job's nodes; R12 promises one job."""
    if not target.world.starts or not target.has_succession:
        return ""
    several = target.world.endpoints is not None
    return (_several_forget if several else _the_host_forgets)(target, fault)


def _several_forget(target: Target, fault: InjectedFault) -> str:
    """Start a majority of several hosts again, cut off from all others for a moment.

    Together they could found a job. The others are heard of before `announced_within_s` is over;
    they are enough to go on, and the last host knows of them, too.
    """
    world = target.world
    assert world.endpoints is not None, "there are several"
    names = world.endpoints.names
    majority = len(names) // 2 + 1
    side = [names[(fault.who + number) % len(names)] for number in range(majority)]
    hosts = [world.processes.get(name) for name in names]
    if not all(host is not None and host.is_alive and host.agent.belongs for host in hosts):
        return ""
    left = [name for name in _newest_roster(world) if name not in side]
    if 2 * sum(world.processes[name].is_alive for name in left) <= len(_newest_roster(world)):
        return ""
    if len(world.every_process) + majority > MAX_STARTS:
        return ""
    for name in side:
        world.kill_agent(name)
    others = [name for name in world.processes if name not in side]
    seconds = world.config.lease_s * _choose(fault, [0.3, 0.6, 0.9])
    _cut_apart(target, side, others, seconds)
    world.start(*side)
    return f"{','.join(side)} forget, and are cut off for {seconds:.2f} s"


def _the_host_forgets(target: Target, fault: InjectedFault) -> str:
    """Cut the power of the only host; it is back a lease later, with all nodes outside the round.

    There are spares among them, and too few new nodes, or `may_come` says no.
    """
    world, host = target.world, target.world.host
    if host is None or not host.is_alive or target.is_needed(host):
        return ""
    seconds = world.config.lease_s * _choose(fault, [1.0, 2.0, 4.0])

    def come_back() -> None:
        roster = _newest_roster(world)
        living = [name for name, process in world.processes.items() if process.is_alive]
        idle = [name for name in living if name not in roster]
        busy = [name for name in living if name in roster]
        if target.is_healed or host.is_alive or not target.may_come:
            return
        if len(world.every_process) < MAX_STARTS and can_boot(world, host.name):
            _cut_apart(target, [host.name, *idle], busy, seconds)
            world.start(host.name)

    world.cut_power(host.name)
    world.later(world.config.lease_s * 1.01, come_back)
    return f"{host.name} forgets, and is back with those in no round for {seconds:.2f} s"


def _newest_roster(world: World) -> Sequence[str]:
    newest = max((each for _, each in world.starts), key=lambda each: (each.term, each.round))
    return [entry.name for entry in newest.roster]


def _cut_apart(target: Target, side: Sequence[str], others: Sequence[str], seconds: float) -> None:
    links = [pair for one in side for two in others for pair in ((one, two), (two, one))]
    for link in links:
        target.world.cut(*link)
    target.later(seconds, lambda: target.world.heal(links))


# --- time ----------------------------------------------------------------------------------------


def _age(target: Target, fault: InjectedFault) -> str:
    """Let a job run for longer than its join timeout, so that nothing rests on when it began."""
    seconds = target.world.config.join_timeout_s * _choose(fault, [1.2, 2.0])
    target.world.run(seconds)
    return f"{seconds:g} s pass"


_FAULTS: dict[str, Callable[[Target, InjectedFault], str]] = {
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
_NAMED = {"age": _age, "hosts forget": _hosts_forget}
assert tuple(sorted(_NAMED)) == NAMED, "every kind that is named can be done"
_FAULTS |= {**AIMED_FAULTS, **_NAMED}
