"""What an aimed fault may do to the leader, and to the links around it.

Each says what it did, or returns "" where nothing could be done, or must not be (`target.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from elastic_simulation.granted import ETCD
from elastic_simulation.process import Process
from elastic_simulation.random_faults.target import MAX_STARTS, Target
from elastic_simulation.world import World

__all__ = [
    "ACTS",
    "CHANGES",
    "KILLS_S",
    "LAYOUTS",
    "Act",
    "both",
    "cut",
    "depose",
    "heal",
    "leave",
    "let_kills_take",
    "nothing",
    "slow_kill",
    "swap",
]

_OUTAGES_S = (0.1, 0.7, 1.3, 2.0, 3.0, 6.0)
_PAUSES_S = (0.1, 0.9, 1.4, 4.0)
# An agent says that its workers are gone when they are; its keeper's lease does not wait for that.
KILLS_S = (0.1, 0.3, 1.3, 2.5)
Act = Callable[[Target, Process, random.Random], str]
_Link = tuple[str, str]


def nothing(target: Target, process: Process, draw: random.Random) -> str:
    """Let time pass."""
    del target, process, draw
    return ""


def _may_be_lost(target: Target, process: Process) -> bool:
    may_be = target.has_succession or process.name != target.host
    return process.is_alive and may_be and not target.is_needed(process)


def leave(target: Target, process: Process, draw: random.Random) -> str:
    """Tell the leader's node to leave (R4)."""
    agent = process.agent
    # Held workers of a node that is told to leave go on, to save what they have (R5).
    if not _may_be_lost(target, process) or agent.over is not None or agent.is_held:
        return ""
    if agent.drain_grace_s is not None:
        return ""
    agent.drain(grace_s=draw.choice([0.1, 2.0, 5.0]), takes_s=draw.choice([0.01, 0.05, 1.0]))
    return f"drain {process.name}"


def _lose(target: Target, process: Process, draw: random.Random) -> str:
    way = draw.choice([World.kill_agent, World.crash, World.cut_power])
    if not _may_be_lost(target, process):
        return ""
    way(target.world, process.name)
    return f"{way.__name__} {process.name}"


def _pause(target: Target, process: Process, draw: random.Random) -> str:
    way, seconds = draw.choice([World.freeze, World.suspend]), draw.choice(_PAUSES_S)
    # A firewall that refuses, while the agent behind it cannot hold its workers: see R5.
    if not process.is_alive or process.is_frozen or target.world.rejecting:
        return ""
    way(target.world, process.name, seconds)
    return f"{way.__name__} {process.name} {seconds}"


def depose(target: Target, process: Process, draw: random.Random) -> str:
    """Show a coordinator a record of a higher term, as if its leader was lost (R11.4)."""
    coordinator, ahead = process.leader, draw.choice([1, 1, 2, 6])
    if not target.world.config.has_succession or coordinator is None or not process.is_alive:
        return ""
    if not target.world.starts or process.is_frozen:
        return ""  # a leader that has decided nothing has no successor
    return f"depose {process.name} by term {target.world.show_newer(process, ahead)}"


def _fail(target: Target, process: Process, draw: random.Random) -> str:
    del draw
    if not process.agent.progresses:
        return ""
    target.watch.worker_failures += 1
    process.agent.fail(1)
    return f"fail {process.name}"


def _join(target: Target, process: Process, draw: random.Random) -> str:
    del process
    number = len(target.world.every_process)
    if number >= MAX_STARTS or not target.may_come:
        return ""
    name = f"n{number + 11}"
    target.world.start(name, clock_rate=0.93 + 0.14 * draw.random())
    return f"join {name}"


def _isolate(target: Target, process: Process, draw: random.Random) -> str:
    """Cut the leader off from all others."""
    others = _others(target, process.name)
    if target.world.config.is_granted and draw.random() < 0.5:
        others.append(ETCD)
    links = [pair for other in others for pair in both(process.name, other)]
    return cut(target, draw, links, f"isolate {process.name}")


def _part_from_some(target: Target, process: Process, draw: random.Random) -> str:
    """Cut the leader off from some of the others, in one direction or both."""
    others = _some(_others(target, process.name), draw)
    ways = draw.choice([(0, 1), (0, 1), (0,), (1,)])
    links = [both(process.name, other)[way] for other in others for way in ways]
    arrow = {(0, 1): "and", (0,): "to", (1,): "does not hear"}[ways]
    return cut(target, draw, links, f"cut {process.name} {arrow} {','.join(others)}")


def _other(target: Target, process: Process, draw: random.Random) -> str:
    """Cut another node off from all, or from all but the leader."""
    others = _others(target, process.name)
    if not others:
        return ""
    name = draw.choice(others)
    rest = [other for other in others if other != name]
    if draw.random() < 0.5:
        rest.append(process.name)
    return cut(target, draw, [p for each in rest for p in both(name, each)], f"isolate {name}")


def _narrow(target: Target, process: Process, draw: random.Random) -> str:
    """Leave the leader as few others as it needs, or some; it does not hear the rest."""
    others = _others(target, process.name)
    kept = _some(others, draw)
    if draw.random() < 0.7:  # half of a round is enough for the leader
        kept = sorted(draw.sample(others, min(len(others), (len(others) + 1) // 2)))
    apart = [other for other in others if other not in kept]
    links: list[_Link] = []
    is_deaf = draw.random() < 0.5
    for other in apart:
        links += both(process.name, other)[1:] if is_deaf else both(process.name, other)
    if draw.random() < 0.8:
        links += [pair for one in kept for other in apart for pair in both(one, other)]
    if draw.random() < 0.5:
        target.world.heal()
    what = "does not hear" if is_deaf else "is apart from"
    return cut(target, draw, links, f"{process.name} {what} {','.join(apart)}")


def swap(target: Target, process: Process, draw: random.Random) -> str:
    """Cut off the nodes that the leader hears, and, most often, let it hear the others."""
    world, others = target.world, _others(target, process.name)
    heard = [other for other in others if (other, process.name) not in world.cut_links]
    if draw.random() < 0.6:
        world.heal()
    rest = [process.name, *(other for other in others if other not in heard)]
    if draw.random() < 0.3:
        rest = rest[:1]
    links = [pair for one in heard for other in rest for pair in both(one, other)]
    return cut(target, draw, links, f"cut {','.join(heard)} off from {','.join(rest)}")


def _tangle(target: Target, process: Process, draw: random.Random) -> str:
    """Heal or cut any link."""
    names = [process.name, *_others(target, process.name)]
    pairs = [(one, other) for one in names for other in names if one < other]
    links: list[_Link] = []
    for one, other in pairs:
        pair = both(one, other)
        links += draw.choice([(), (), (), pair, pair, pair[:1], pair[1:]])
    target.world.heal()
    return cut(target, draw, links, f"cut {' '.join('>'.join(link) for link in links)}")


def heal(target: Target, process: Process, draw: random.Random) -> str:
    """Heal all links, or those of one node only."""
    world, name = target.world, draw.choice(["", process.name, *_others(target, process.name)])
    links = {pair for pair in world.cut_links if not name or name in pair}
    if not links:
        return ""
    world.heal(links)
    return f"heal {name or 'all'}"


def slow_kill(target: Target, process: Process, draw: random.Random) -> str:
    """Let its kernel take long to kill."""
    seconds = let_kills_take(target, process, draw.choice(KILLS_S))
    return f"kills take {process.name} {seconds} s"


def let_kills_take(target: Target, process: Process, seconds: float) -> float:
    """Let a kernel need so long to kill, or as long as it may; return that.

    A member's workers are killed by its keeper before its lease ends, in any case. The node that
    decides without succession has no lease, and is given up after a stop that took too long: its
    kernel has until then, and one lease more (R2, R6).
    """
    if process.name == target.host and not target.has_succession:
        seconds = min(seconds, target.world.config.lease_s / 2)
    process.agent.kill_s = seconds
    return seconds


def _others(target: Target, name: str) -> list[str]:
    names = target.world.processes
    return sorted(other for other, p in names.items() if other != name and p.is_alive)


def _some(names: Sequence[str], draw: random.Random) -> list[str]:
    return sorted(draw.sample(names, draw.randint(1, len(names)))) if names else []


def both(one: str, other: str) -> tuple[_Link, _Link]:
    """Return both directions between two nodes."""
    return (one, other), (other, one)


def cut(target: Target, draw: random.Random, links: Sequence[_Link], what: str) -> str:
    """Cut links for an outage; return what that is, for how long."""
    seconds = draw.choice(_OUTAGES_S)
    if not links:
        return ""
    for link in links:
        target.world.cut(*link)
    target.later(seconds, lambda: target.world.heal(links))
    return f"{what} for {seconds} s"


ACTS: tuple[Act, ...] = (
    depose,
    _fail,
    heal,
    _isolate,
    _isolate,
    _join,
    leave,
    leave,
    leave,
    _lose,
    _other,
    _part_from_some,
    _part_from_some,
    _pause,
    _narrow,
    _narrow,
    slow_kill,
    swap,
    _tangle,
)
CHANGES: tuple[Act, ...] = (
    leave,
    leave,
    leave,
    depose,
    depose,
    _lose,
    _pause,
    _isolate,
    _fail,
)
LAYOUTS: tuple[Act, ...] = (
    _isolate,
    _narrow,
    _narrow,
    _narrow,
    _narrow,
    _narrow,
    _other,
    _part_from_some,
    _part_from_some,
    _tangle,
    _tangle,
)
