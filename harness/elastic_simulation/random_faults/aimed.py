"""Faults that are aimed: at the leader, within milliseconds of what it has just decided.

An armed one waits for the next moment of its kind (`_MOMENTS`), and then does a few things in a
row, each a drawn while after the one before. What it does follows from `InjectedFault.who` and
`InjectedFault.how`, as everything else about a fault. "beset" does the same at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from elastic_simulation.process import Process
from elastic_simulation.random_faults.aimed_acts import (
    ACTS,
    CHANGES,
    KILLS_S,
    LAYOUTS,
    Act,
    both,
    cut,
    depose,
    heal,
    leave,
    let_kills_take,
    nothing,
    slow_kill,
    swap,
)
from elastic_simulation.random_faults.plan import AIMED, InjectedFault
from elastic_simulation.random_faults.target import Target
from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import ports

__all__ = ["AIMED_FAULTS"]

# What a node states, or is told, at such a moment; a commit shows when its first workers start.
_MOMENTS: dict[str, tuple[type[object], ...]] = {
    "on start": (ports.StartWorkers,),
    "on election": (events.CoordinatorStarted,),
    "on ending": (events.JobEnding,),
    "on parting": (events.CoordinatorSteppedDown, events.MemberLeft),
    "on proposal": (events.RoundSealed,),
}
_Step = tuple[float | None, Act]
"""What is done so long after the one before; None: when a leader steps down."""


def _draw(fault: InjectedFault) -> random.Random:
    return random.Random(f"{fault.who} {fault.how!r}")


# --- moments -------------------------------------------------------------------------------------


def _arm(kinds: tuple[type[object], ...], word: str, target: Target, fault: InjectedFault) -> str:
    """Wait for a moment; the node that it is of is hit."""
    draw, world = _draw(fault), target.world
    left = draw.choice([0, 0, 0, 1])

    def look(process: Process, said: object) -> None:
        nonlocal left
        if target.is_healed or not isinstance(said, kinds):
            return
        if isinstance(said, events.CoordinatorStarted) and not world.starts:
            return  # the first one of all is not elected
        if left:
            left -= 1
            return
        world.listeners.remove(look)
        leading = process if process.leader is not None else _leading(target)
        _hit(target, leading or process, draw, f"{word}: ")

    world.listeners.append(look)
    return ""  # so far nothing is done


def _beset(target: Target, fault: InjectedFault) -> str:
    """Hit the present leader."""
    leading = _leading(target)
    if leading is not None:
        _hit(target, leading, _draw(fault), "")
    return ""


def _leading(target: Target) -> Process | None:
    process = target.world.processes[target.host] if target.world.host is not None else None
    return process if process is not None and process.is_alive else None


def _hit(target: Target, leading: Process, draw: random.Random, when: str) -> None:
    """Do a few things in a row; the first ones before what was just sent has arrived, or after."""
    steps = iter(_any(target, draw) if draw.random() < 0.4 else _script(target, draw))

    def go_on() -> None:
        delay_s, act = next(steps, (0.0, None))
        if act is None:
            return
        if delay_s is None:
            _at_parting(target, partial(do, act))
            go_on()
        else:
            target.world.later(delay_s, inject, act)

    def do(act: Act, process: Process | None = None) -> None:
        if target.is_healed:
            return
        if process is None:
            process = leading if leading.leader is not None else _leading(target) or leading
        did = act(target, process, draw)
        if did:
            target.tell(f"{when}{did}")

    def inject(act: Act) -> None:
        do(act)
        go_on()

    go_on()


def _any(target: Target, draw: random.Random) -> list[_Step]:
    """Return some things in any order."""
    return [(_soon(target, draw), draw.choice(ACTS)) for _ in range(draw.choice([1, 1, 2, 3, 4]))]


def _script(target: Target, draw: random.Random) -> list[_Step]:
    """Return links to cut first, a leader that steps down then, and links to cut as it does.

    Which nodes hear of which matters then, for as long as a lease.
    """
    lease_s = target.world.config.lease_s
    steps: list[_Step] = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        if draw.random() < 0.8:
            steps.append((_soon(target, draw), draw.choice(LAYOUTS)))
        wait_s = lease_s * 1.3 * draw.random() if draw.random() < 0.7 else _soon(target, draw)
        change = draw.choice(CHANGES)
        steps.append((wait_s, change))
        is_told = change in {leave, depose} and draw.random() < 0.7
        layout = swap if draw.random() < 0.5 else draw.choice(LAYOUTS)
        if is_told:  # before it does what it is armed for
            steps[-1:] = [(wait_s, nothing), (None, layout), (0.0, change)]
        else:
            steps.append((_soon(target, draw), layout))
        if draw.random() < 0.4:
            steps.append((lease_s * 1.2 * draw.random(), draw.choice((*LAYOUTS, heal, heal))))
    return steps


def _soon(target: Target, draw: random.Random) -> float:
    """Return no time, or how long a message is under way, or a little longer."""
    latency_s, config = target.world.latency_s, target.world.config
    short = [0.0, 0.0, 0.5 * latency_s, 1.5 * latency_s, 2.5 * latency_s, 0.01, 0.1]
    return draw.choice([*short, config.beat_interval_s, config.lease_s * draw.random()])


def _at_parting(target: Target, act: Callable[[Process], None]) -> None:
    """Do something when a leader steps down, before any node hears of it."""
    world = target.world

    def look(process: Process, said: object) -> None:
        if isinstance(said, events.CoordinatorSteppedDown):
            world.listeners.remove(look)
            world.later(0.0, act, process)

    world.listeners.append(look)


# --- faults that wait for nothing -----------------------------------------------------------------


def _part(target: Target, fault: InjectedFault) -> str:
    """Cut any two nodes off from each other; all others are reached by both."""
    draw, names = _draw(fault), sorted(target.world.processes)
    if len(names) < 2:
        return ""
    one, other = draw.sample(names, 2)
    if draw.random() < 0.3:
        return cut(target, draw, [(one, other)], f"cut {one} to {other}")
    return cut(target, draw, both(one, other), f"part {one} and {other}")


def _slowly(target: Target, fault: InjectedFault) -> str:
    """Let the kernel of a node take long to kill."""
    draw = _draw(fault)
    if draw.random() < 0.5:
        seconds = draw.choice(KILLS_S)
        for each in target.world.every_process:
            let_kills_take(target, each, seconds)
        return f"kills take {seconds} s"
    return slow_kill(target, target.world.processes[target.pick(fault, spare_host=False)], draw)


def _lull(target: Target, fault: InjectedFault) -> str:
    """Let time pass: what is armed may still be met."""
    del target, fault
    return ""


AIMED_FAULTS: dict[str, Callable[[Target, InjectedFault], str]] = {
    **{word: partial(_arm, kinds, word) for word, kinds in _MOMENTS.items()},
    "beset": _beset,
    "lull": _lull,
    "part": _part,
    "slow kill": _slowly,
}
assert sorted(AIMED_FAULTS) == sorted(AIMED), "every kind that is drawn can be done"
