"""A storm: faults drawn from a seed, then calm, then a job that must be well again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from elastic_harness.simulation.checks import Watch
from elastic_harness.simulation.played_agent import STOP_S, PlayedAgent
from elastic_harness.simulation.world import World, settings

__all__ = ["Storm", "weather"]

STORM_S = 10.0
# The longest honest way back: a lease, a stop with its eviction, a join window, and some rounds.
CALM_S = 25.0


@dataclass(slots=True)
class Storm:
    """One run; `said` is what was done to the world, in order."""

    world: World
    watch: Watch
    kinds: list[str]
    said: list[str]
    is_host_hit: bool = False


def weather(seed: int, agent_class: type[PlayedAgent] = PlayedAgent) -> Storm:
    """Run a storm and its calm; raises AssertionError when a promise was broken."""
    draw = random.Random(seed)
    count = draw.randint(2, 5)
    minimum = draw.choice([1, 1, 2, count])
    maximum = draw.choice([count, count + 1, count + 3, max(minimum, count - 1)])
    config = settings(
        f"{minimum}:{maximum}",
        max_restarts=draw.choice([0, 1, 3, 8]),
        last_call_s=draw.choice([0.2, 1.0]),
        min_round_s=draw.choice([0.2, 1.0]),
        shutdown_timeout_s=1.0,
        join_timeout_s=60.0,
    )
    world = World(config, checks_wire=False, agent_class=agent_class)
    world.latency_s = draw.choice([0.0005, 0.01, 0.1])
    names = [f"n{number + 1}" for number in range(count)]
    for name in names:
        _start_later(world, draw.choice([0.0, draw.random()]), name, draw.uniform(0.93, 1.07))
    # Swarm: each seed has its own kinds of trouble, and its own calm between two of them.
    kinds = sorted(draw.sample(sorted(_FAULTS), draw.randint(1, 6)))
    storm = Storm(world=world, watch=Watch(world), kinds=kinds, said=[])
    pause_s = draw.choice([0.05, 0.3, 1.0, 2.0])
    world.run(draw.choice([0.0, 0.5, 3.0]))
    while world.time < STORM_S:
        world.run(draw.expovariate(1 / pause_s))
        if world.processes:
            _FAULTS[draw.choice(kinds)](storm, draw)
    _end(storm)
    return storm


def _start_later(world: World, delay_s: float, name: str, clock_rate: float) -> None:
    world.later(delay_s, lambda: world.start(name, clock_rate=clock_rate))


def _end(storm: Storm) -> None:
    """Heal everything, and expect a job that runs, or an end that has a reason."""
    world = storm.world
    world.heal()
    for process in world.every_process:
        process.agent.stop_s = STOP_S
    storm.said.append(f"{world.time:.3f} calm")
    world.run(CALM_S)
    storm.watch.judge_ends()
    storm.watch.judge_budget()
    if not {"slow", "freeze", "lose host"} & set(storm.kinds):
        storm.watch.judge_evictions()
    host = world.host
    assert host is not None, "somebody hosts the rendezvous"
    if storm.is_host_hit:
        left = [p.name for p in world.every_process if p.is_alive and p.agent.belongs]
        assert not left, f"{left} have not noticed that the coordinator is gone"
        return
    assert host.coordinator is not None, "the host runs the coordinator"
    living = [p for p in world.every_process if p.is_alive and p.agent.over is None]
    if host.finished is not None or host.agent.over is not None:
        left = [p.name for p in living if p.agent.belongs]
        assert not left, f"{left} have not noticed that the job is over"
        return
    running = [p for p in living if p.agent.is_running]
    wanted = min(len(living), world.config.max_nodes)
    if wanted >= world.config.min_nodes:
        assert len(running) == wanted, (
            f"{[p.name for p in running]} of {[p.name for p in living]} run after the calm"
        )


def _say(storm: Storm, text: str) -> None:
    storm.said.append(f"{storm.world.time:.3f} {text}")


def _pick(storm: Storm, draw: random.Random, *, spare_host: bool = True) -> str:
    names = sorted(storm.world.processes)
    host = storm.world.host
    if spare_host and host is not None and len(names) > 1:
        names.remove(host.name)
    return draw.choice(names)


def _fail(storm: Storm, draw: random.Random) -> None:
    name = _pick(storm, draw, spare_host=False)
    agent = storm.world.agent(name)
    if agent.is_running and not agent.is_held:  # what is stopped by SIGSTOP does not fail
        storm.watch.worker_failures += 1
        _say(storm, f"fail {name}")
        storm.world.fail(name, draw.choice([1, -9]))


def _kill(storm: Storm, draw: random.Random) -> None:
    name = _pick(storm, draw)
    if name != _host(storm):
        _say(storm, f"kill {name}")
        storm.world.kill_agent(name)


def _crash(storm: Storm, draw: random.Random) -> None:
    name = _pick(storm, draw)
    if name != _host(storm):
        _say(storm, f"crash {name}")
        storm.world.crash(name)


def _power(storm: Storm, draw: random.Random) -> None:
    name = _pick(storm, draw)
    if name != _host(storm):
        _say(storm, f"power {name}")
        storm.world.cut_power(name)


def _back(storm: Storm, draw: random.Random) -> None:
    """A dead node comes back: same name, new incarnation."""
    dead = sorted(n for n, p in storm.world.processes.items() if not p.is_alive)
    if dead and dead[0] != _host(storm):
        name = draw.choice(dead)
        if name != _host(storm):
            _say(storm, f"back {name}")
            storm.world.start(name, clock_rate=draw.uniform(0.93, 1.07))


def _join(storm: Storm, draw: random.Random) -> None:
    if len(storm.world.every_process) < 12:
        name = f"n{len(storm.world.every_process) + 11}"
        _say(storm, f"join {name}")
        storm.world.start(name, clock_rate=draw.uniform(0.93, 1.07))


def _drain(storm: Storm, draw: random.Random) -> None:
    name = _pick(storm, draw)
    agent = storm.world.agent(name)
    can_leave = storm.world.processes[name].is_alive and agent.over is None
    # Held workers of a node that is told to leave go on, to save what they have (see R5).
    if can_leave and not agent.is_held and name != _host(storm):
        _say(storm, f"drain {name}")
        agent.drain(grace_s=draw.choice([0.1, 2.0]), takes_s=draw.choice([0.05, 1.0]))


def _break(storm: Storm, draw: random.Random) -> None:
    name = _pick(storm, draw)
    if name != _host(storm):
        _say(storm, f"break {name}")
        storm.world.break_connection(name)


def _isolate(storm: Storm, draw: random.Random) -> None:
    name = _pick(storm, draw)
    _say(storm, f"isolate {name}")
    storm.world.isolate(name, sorted(storm.world.processes))
    storm.world.later(draw.choice([0.1, 0.7, 1.3, 3.0]), storm.world.heal)


def _cut_one_way(storm: Storm, draw: random.Random) -> None:
    name = _pick(storm, draw)
    pair = [name, _host(storm)]
    draw.shuffle(pair)
    _say(storm, f"cut {pair[0]} to {pair[1]}")
    storm.world.cut(pair[0], pair[1])
    storm.world.later(draw.choice([0.1, 0.7, 1.3, 3.0]), storm.world.heal)


def _reject(storm: Storm, draw: random.Random) -> None:
    name = _pick(storm, draw)
    # An agent that is frozen at that very moment cannot hold its workers: beyond what R5 promises.
    if name != _host(storm) and not storm.world.processes[name].is_frozen:
        _say(storm, f"reject {name}")
        storm.world.reject(name, sorted(storm.world.processes))
        storm.world.later(draw.choice([0.1, 0.7, 1.3, 3.0]), storm.world.heal)


def _freeze(storm: Storm, draw: random.Random) -> None:
    name = _pick(storm, draw, spare_host=False)
    process = storm.world.processes[name]
    if process.is_alive and not process.is_frozen and not storm.world.rejecting:
        seconds = draw.choice([0.1, 0.9, 1.4, 4.0])
        _say(storm, f"freeze {name} {seconds}")
        storm.world.freeze(name, seconds)


def _lose_host(storm: Storm, draw: random.Random) -> None:
    """Lose the coordinator's node, near the end of the storm, in one of three ways."""
    if storm.world.time < STORM_S - 1.0 or storm.is_host_hit:
        return
    storm.is_host_hit = True
    way = draw.choice([World.kill_agent, World.crash, World.cut_power])
    _say(storm, f"{way.__name__} {_host(storm)}")
    way(storm.world, _host(storm))


def _slow(storm: Storm, draw: random.Random) -> None:
    name = _pick(storm, draw, spare_host=False)
    storm.world.agent(name).stop_s = draw.choice([0.03, 0.5, 2.0, 9.0])
    _say(storm, f"slow {name} {storm.world.agent(name).stop_s}")


def _no_store(storm: Storm, draw: random.Random) -> None:
    agent = storm.world.agent(_pick(storm, draw, spare_host=False))
    agent.opens_stores = False
    _say(storm, f"no store {agent.process.name}")
    storm.world.later(2.0, lambda: setattr(agent, "opens_stores", True))


def _host(storm: Storm) -> str:
    assert storm.world.host is not None, "somebody hosts the rendezvous"
    return storm.world.host.name


_FAULTS = {
    "back": _back,
    "break": _break,
    "crash": _crash,
    "cut": _cut_one_way,
    "drain": _drain,
    "fail": _fail,
    "freeze": _freeze,
    "isolate": _isolate,
    "join": _join,
    "kill": _kill,
    "lose host": _lose_host,
    "no store": _no_store,
    "power": _power,
    "reject": _reject,
    "slow": _slow,
}
