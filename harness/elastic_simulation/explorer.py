"""Every order of things in a small world: what runs draw by chance, tried one by one.

An execution is a sequence of choices. Whenever more than one thing may come next (things that are
due within a moment of each other: a message on each connection, a timer, a vote, a worker that
ends; or a fault, while there is one left), one is chosen. Worlds cannot be copied, so each
execution runs from the start: it makes the choices it was given, then the first of each up to the
depth, then goes on by itself and must become well. Every other choice that it came by is an
execution of its own, unless the state there has been seen before.

The order of one connection stays; a thing that is put off is late, never early. With a bound on
deviations (choices that are not the first), executions can be deep.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from elastic_simulation.checks import Violation, Watch
from elastic_simulation.process import Direction, Pipe, Process
from elastic_simulation.random_faults.health import health_of, seems_over
from elastic_simulation.random_faults.plan_run import finish_what_is_done
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import world_class
from pytest_elastic.rendezvous.settings import Settings
from pytest_elastic.wire import Value

__all__ = ["SITUATIONS", "Exploration", "Found", "Situation", "explore", "play"]

# Things within this of each other may come in any order: more than a message takes, less than a
# beat. At most so many are looked at.
_MOMENT_S = 0.012
_WIDTH = 4
_QUIET_S = 20.0
_WELL_S = 2.0


class _Seen(Exception):
    """A state was reached from which everything has been tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Where an exploration begins: `begin` makes a world and says what has just happened.

    `faults` may happen at any choice, each as often as `at_most` allows together; a name is a
    method of `World` that takes a node.
    """

    what: str
    begin: Callable[[_Choosing], None]
    nodes: str = "2:3"
    quorum: str = "coordinator"
    faults: Sequence[tuple[str, str]] = ()
    at_most: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A sequence of choices that broke a promise."""

    choices: tuple[int, ...]
    message: str


@dataclass(slots=True, kw_only=True)
class Exploration:
    """What was tried: executions, and states that differ; and what was found."""

    executions: int = 0
    states: int = 0
    is_complete: bool = True
    found: list[Found] = field(default_factory=list)


class _Choosing(World):
    """A world in which the explorer chooses what comes next; of either core."""

    def __init__(
        self,
        situation: Situation,
        choices: Sequence[int],
        *,
        depth: int,
        keeps: bool,
        is_new: Callable[[_Choosing, int], bool] = lambda *_: True,
    ) -> None:
        super().__init__(
            _settings_of(situation),
            checks_wire=False,
            keeps_messages=keeps,
        )
        self.trail: list[int] = []
        """How many options there were at each choice."""
        self._choices = tuple(choices)
        self._depth = depth
        self._is_new = is_new
        self._situation = situation
        self._faults_left = situation.at_most
        self.is_choosing = False
        self.said: list[tuple[float, str]] = []

    def run(self, seconds: float) -> None:
        """Let time pass, with a choice wherever more than one thing may come next."""
        end = self.time + seconds
        while self._queue and self._queue[0][0] <= end:
            self._next()
        self.time = max(self.time, end)

    def _next(self) -> None:
        if not self.is_choosing:
            super()._next()
            return
        first = max(self._queue[0][0], self.time)
        due = [
            entry for entry in heapq.nsmallest(_WIDTH, self._queue) if entry[0] <= first + _MOMENT_S
        ]
        faults = self._faults() if self._faults_left else []
        number = self._choose(len(due) + len(faults))
        if number >= len(due):
            self._faults_left -= 1
            self._inject(*faults[number - len(due)])
            return
        self._queue.remove(due[number])
        heapq.heapify(self._queue)
        at, _, act, arguments = due[number]
        self.time = max(self.time, at)
        act(*arguments)
        if self.is_changed:
            self.is_changed = False
            for watch in self.watchers:
                watch()

    def _choose(self, options: int) -> int:
        place = len(self.trail)
        if options == 1 or place >= self._depth:
            self.is_choosing = options == 1
            return 0
        self.trail.append(options)
        if place < len(self._choices):
            return self._choices[place] % options
        if not self._is_new(self, sum(each > 0 for each in self._choices)):
            raise _Seen
        return 0

    def _faults(self) -> list[tuple[str, str]]:
        return [
            (what, name) for what, name in self._situation.faults if self.processes[name].is_alive
        ]

    def _inject(self, what: str, name: str) -> None:
        self.said.append((self.time, f"{what} {name}"))
        getattr(self, what)(name)


# --- situations ----------------------------------------------------------------------------------


def _started(world: _Choosing, names: Iterable[str]) -> None:
    for number, name in enumerate(names):
        world.run(0.07 * number)  # beats of different nodes fall apart
        world.start(name)


def _form(world: _Choosing, *names: str) -> None:
    _started(world, names)
    world.run_until(lambda: world.all_run(*names), within_s=5.0)
    world.run(0.5)


def _forming(world: _Choosing) -> None:
    world.start("n1")
    world.run(0.07)
    world.is_choosing = True
    world.start("n2", "n3")


def _restarting(world: _Choosing) -> None:
    _form(world, "n1", "n2", "n3")
    world.is_choosing = True
    world.fail("n2")


def _losing(world: _Choosing) -> None:
    _form(world, "n1", "n2", "n3")
    world.is_choosing = True
    world.crash("n3")


def _joining(world: _Choosing) -> None:
    _form(world, "n1", "n2")
    world.start("n3")
    world.run(0.15)
    world.is_choosing = True
    world.fail("n2")


def _leaving(world: _Choosing) -> None:
    _form(world, "n1", "n2", "n3")
    world.is_choosing = True
    world.agent("n3").drain(grace_s=1.0, takes_s=0.02)
    world.fail("n2")


def _ending(world: _Choosing) -> None:
    _form(world, "n1", "n2", "n3")
    world.is_choosing = True
    for name in ("n1", "n2", "n3"):
        world.agent(name).succeed()


def _following(world: _Choosing) -> None:
    _form(world, "n1", "n2", "n3")
    world.is_choosing = True
    world.crash("n1")


_ONE_OF_TWO = (("break_connection", "n2"), ("crash", "n3"), ("kill_agent", "n2"))
SITUATIONS: dict[str, Situation] = {
    "forming": Situation(what="the first round is formed", begin=_forming, faults=_ONE_OF_TWO),
    "restarting": Situation(what="a worker of n2 failed", begin=_restarting, faults=_ONE_OF_TWO),
    "losing": Situation(
        what="n3 crashed", begin=_losing, faults=(("break_connection", "n2"), ("fail", "n2"))
    ),
    "joining": Situation(what="n3 came, and a worker of n2 failed", begin=_joining),
    "leaving": Situation(what="n3 leaves, and a worker of n2 failed", begin=_leaving),
    "ending": Situation(
        what="all groups succeeded", begin=_ending, faults=(("break_connection", "n2"),)
    ),
    "following": Situation(
        what="the coordinator crashed, and n2 and n3 are about to vote",
        begin=_following,
        quorum="majority",
        faults=(("kill_agent", "n3"),),
    ),
}


# --- exploring -----------------------------------------------------------------------------------


def _chosen(situation: Situation, choices: Sequence[int], **named: Any) -> _Choosing:  # noqa: ANN401
    """Return a world of the core that was chosen, in which the explorer chooses what comes next."""
    config = _settings_of(situation)
    kind = type("_Chosen", (_Choosing, world_class(config)), {})
    world = kind(situation, choices, **named)
    assert isinstance(world, _Choosing), "it was made to be one"
    return world


def _settings_of(situation: Situation) -> Settings:
    return settings(situation.nodes, last_call_s=0.2, min_round_s=0.2, quorum=situation.quorum)


def play(
    situation: Situation, choices: Sequence[int]
) -> tuple[World, Sequence[tuple[float, str]], str]:
    """Make these choices, and go on by time; return the world, its faults, what is wrong or ""."""
    world = _chosen(situation, choices, depth=len(choices), keeps=True)
    return world, world.said, _execute(world, situation)


def _execute(world: _Choosing, situation: Situation) -> str:
    """Run to the end and judge; return what is wrong, or ""."""
    watch = Watch(world)
    watch.worker_failures = 8  # as many as any situation could have
    try:
        situation.begin(world)
        return _judge(world, watch)
    except _Seen:
        return ""
    except Exception as error:  # noqa: BLE001 (a machine that crashes is a finding)
        kind = "" if isinstance(error, Violation) else f"{type(error).__name__}: "
        return f"{kind}{error}"


def _judge(world: World, watch: Watch) -> str:
    deadline, well_since = world.time + 2 * _QUIET_S, float("inf")
    problem: str | None = "it was never looked at"
    while world.time < deadline:
        world.run(0.25)
        finish_what_is_done(world)
        problem = health_of(world).problem
        well_since = min(well_since, world.time) if problem is None else float("inf")
        if problem is None and (seems_over(world) or world.time >= well_since + _WELL_S):
            break
    watch.judge_ends()
    return f"{_QUIET_S:g} s later: {problem}" if problem is not None else ""


def explore(
    situation: Situation,
    *,
    depth: int,
    deviations: int | None = None,
    max_executions: int = 1_000_000,
) -> Exploration:
    """Try every sequence of up to `depth` choices, of which `deviations` are not the first."""
    result = Exploration()
    seen: set[tuple[int, int]] = set()

    def is_new(world: _Choosing, made: int) -> bool:
        state = (_state_of(world), made if deviations is not None else 0)
        is_so = state not in seen
        seen.add(state)
        return is_so

    frontier: list[tuple[int, ...]] = [()]
    while frontier:
        if result.executions >= max_executions:
            result.is_complete = False
            break
        choices = frontier.pop()
        result.executions += 1
        world = _chosen(situation, choices, depth=depth, keeps=False, is_new=is_new)
        message = _execute(world, situation)
        if message:
            result.found.append(Found(choices=choices, message=message))
        if deviations is not None and sum(each > 0 for each in choices) >= deviations:
            continue
        for place in range(len(choices), len(world.trail)):
            first = (*choices, *(0 for _ in range(place - len(choices))))
            frontier += [(*first, number) for number in range(1, world.trail[place])]
    result.states = len(seen)
    return result


# --- states --------------------------------------------------------------------------------------


def _state_of(world: _Choosing) -> int:
    """Return a number that is the same, to 10 ms, for worlds in which the same can happen."""
    seen: dict[int, int] = {}
    queue = sorted(
        (round(max(at, world.time) - world.time, 2), repr(_frozen((act, arguments), seen)))
        for at, _, act, arguments in world._queue  # noqa: SLF001 (a world of our own)
    )
    processes = tuple(_frozen(p, seen) for p in world.every_process)
    return hash((repr(processes), tuple(queue), world._faults_left))  # noqa: SLF001


_SKIPPED = frozenset({"world", "timed_notices", "stop_orders", "failures", "_settings", "settings"})


def _frozen(value: object, seen: dict[int, int]) -> object:
    match value:
        case None | bool() | int() | str() | bytes():
            return value
        case float():
            return round(value, 2)  # some milliseconds more or less are the same state
        case Enum():
            return value.name
        case list() | tuple() | deque():
            return tuple(_frozen(item, seen) for item in value)
        case set() | frozenset():
            return tuple(sorted(map(repr, (_frozen(item, seen) for item in value))))
        case dict():
            return tuple((repr(_frozen(k, seen)), _frozen(v, seen)) for k, v in value.items())
        case World():
            return "world"
        case partial():
            return ("partial", _frozen(value.func, seen), _frozen(value.args, seen))
        case MethodType():
            return (value.__func__.__qualname__, _frozen(value.__self__, seen))
        case FunctionType():
            cells = tuple(_frozen(cell.cell_contents, seen) for cell in value.__closure__ or ())
            return (value.__qualname__, cells)
        case _:
            return _frozen_object(value, seen)


def _frozen_object(value: object, seen: dict[int, int]) -> object:
    if id(value) in seen:
        return ("again", seen[id(value)])
    seen[id(value)] = len(seen)
    if isinstance(value, Pipe):
        return ("pipe", _frozen(value.up, seen), _frozen(value.down, seen))
    if isinstance(value, Direction):
        ends = (value.source.node.incarnation, value.target.node.incarnation)
        return (*ends, value.is_open, _frozen(value.items, seen))
    if isinstance(value, Value):
        own = [(name, getattr(value, name)) for name in value.__struct_fields__]
    elif is_dataclass(value):
        own = [(each.name, getattr(value, each.name, None)) for each in fields(value)]
    else:
        own = list(getattr(value, "__dict__", {}).items())
    name = value.node.incarnation if isinstance(value, Process) else type(value).__name__
    return (name, *((key, _frozen(each, seen)) for key, each in own if key not in _SKIPPED))
