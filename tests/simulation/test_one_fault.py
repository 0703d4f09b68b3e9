"""A job that is well, or in the middle of something, loses one node: the others go on without it.

Campaigns judge a job once all is healed; here it is judged while the fault lasts. A draw in which
the voters that are left would be no majority is passed over, whatever led to that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from elastic_simulation.checks import Watch
from elastic_simulation.world import World
from elastic_simulation.worlds import formed

from tests.spec.test_r11_succession import succeeding

LASTS_S = 30.0
WITHIN_S = 9.0

Do = Callable[[World, random.Random, Sequence[str]], str]
Hit = Callable[[World, random.Random, str], None]


# --- what the job is in the middle of; each returns who is gone then, or "" -----------------------


def _run(_world: World, _rng: random.Random, _names: Sequence[str]) -> str:
    return ""


def _fail(world: World, rng: random.Random, names: Sequence[str]) -> str:
    world.fail(rng.choice(names))
    return ""


def _stop_slowly(world: World, rng: random.Random, names: Sequence[str]) -> str:
    world.agent(rng.choice(names)).stop_s = 2.9
    return _fail(world, rng, names)


def _grow(world: World, _rng: random.Random, _names: Sequence[str]) -> str:
    world.start("new")
    return ""


def _leave(world: World, rng: random.Random, names: Sequence[str]) -> str:
    name = rng.choice(names)
    world.agent(name).drain(grace_s=1.0, takes_s=rng.choice([0.05, 0.5]))
    return name


def _lose_another(world: World, rng: random.Random, names: Sequence[str]) -> str:
    name = rng.choice(names)
    world.crash(name)
    return name


SITUATIONS: Sequence[Do] = (_run, _fail, _stop_slowly, _grow, _leave, _lose_another)


# --- what is done to one node --------------------------------------------------------------------


def _cut(world: World, rng: random.Random, victim: str, *, to: bool, back: bool) -> None:
    """Cut its links one after the other, within half a second."""
    spread_s = rng.choice([0.0, 0.1, 0.3, 0.5])
    others = [name for name in world.processes if name != victim]
    after_s = 0.0
    for at_s, other in sorted((rng.random() * spread_s, other) for other in others):
        world.run(at_s - after_s)
        after_s = at_s
        if to:
            world.cut(other, victim)
        if back:
            world.cut(victim, other)


FAULTS: Mapping[str, Hit] = {
    "deaf": lambda world, rng, name: _cut(world, rng, name, to=True, back=False),
    "mute": lambda world, rng, name: _cut(world, rng, name, to=False, back=True),
    "apart": lambda world, rng, name: _cut(world, rng, name, to=True, back=True),
    "refusing": lambda world, _, name: world.reject(name, list(world.processes)),
    "without power": lambda world, _, name: world.cut_power(name),
    "crashed": lambda world, _, name: world.crash(name),
    "killed": lambda world, _, name: world.kill_agent(name),
    "frozen": lambda world, _, name: world.freeze(name, LASTS_S),
    "suspended": lambda world, _, name: world.suspend(name, LASTS_S),
}
# A leader that loses another node just before it is deaf is one of some thirty.
SEEDS = {"deaf": 240}


def _could_go_on(world: World, gone: set[str]) -> bool:
    """Tell whether most voters are left of the newest decided record, and of each that follows."""
    living = [each for each in world.every_process if each.is_alive]
    bases = [each.follower.voter.base for each in living if each.follower.voter.base is not None]
    base = max(bases, key=lambda each: each.rank)
    records = [each.follower.voter.record for each in living]
    later = [each for each in records if each is not None and each.rank > base.rank]
    left = {each.node.incarnation for each in living if each.name not in gone}
    return all(
        2 * len(left.intersection(each.configuration.voters)) > len(each.configuration.voters)
        for each in (base, *later)
    )


def _world(rng: random.Random) -> tuple[World, Sequence[str]]:
    """Return a world in which a round of three to five nodes runs, and their names."""
    size = rng.choice([3, 3, 4, 5])
    names = [f"n{number}" for number in range(1, size + 1)]
    fewest, most = rng.choice([2, size // 2 + 1, size]), size + rng.choice([0, 1])
    config = succeeding(f"{fewest}:{most}")
    world = formed(*names, config=config, after_s=2.0 + rng.random())
    Watch(world).worker_failures = 3
    world.jitter_s = rng.choice([0.0, 0.0, 0.02, 0.1])
    return world, names


def _choose(world: World, rng: random.Random, names: Sequence[str]) -> str:
    """Choose one of these nodes, more often than not the one that leads."""
    leaders = [name for name in names if world.processes[name].leader is not None]
    return rng.choice(leaders if leaders and rng.random() < 0.6 else names)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_others_go_on_while_one_node_is_lost(fault: str) -> None:
    """Some node leads, and if enough are left for a round, all of them run."""
    judged = 0
    for seed in (seeds := range(SEEDS.get(fault, 60))):
        rng = random.Random(f"{fault} {seed}")
        world, names = _world(rng)
        situation = rng.choice(SITUATIONS)
        gone = {situation(world, rng, names)}
        world.run(rng.choice([0.0, 0.05, 0.1, 0.3, 0.6, 1.0, 1.5, 2.5]) + 0.1 * rng.random())
        victim = _choose(world, rng, [name for name in names if name not in gone])
        gone.add(victim)
        could_before = _could_go_on(world, gone)
        FAULTS[fault](world, rng, victim)
        if not (could_before and _could_go_on(world, gone)):
            continue
        judged += 1
        world.run(WITHIN_S)
        where = (
            f"seed {seed}: {victim} of {', '.join(names)} is {fault}, after {situation.__name__}"
        )
        here = [one for one in world.every_process if one.is_alive and one.name not in gone]
        assert any(one.leader is not None for one in here), where
        left = [name for name in names if name not in gone]
        if len(left) >= world.config.min_nodes:
            assert [name for name in left if not world.agent(name).progresses] == [], where
    assert judged > len(seeds) / 2
