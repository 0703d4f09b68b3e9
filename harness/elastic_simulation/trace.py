"""One simulated run, told again: a line for each thing that happened, a column for each node.

A line of a node's column begins with what it is: `>n1` said to another node, `|` told to the agent,
`*` a fact. A line across all columns is what was done to the world. Beats and extended leases are
left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elastic_simulation.world import World
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.consensus.records import Configuration, Record, Term
from pytest_elastic.rendezvous.model import Assignment, Failure, Node
from pytest_elastic.wire import Value, kind_of

__all__ = ["QUIET", "described", "told_again"]

_WIDTH = 34
# What a line does not need to say, because it never differs or is said by the line before.
QUIET = frozenset(
    {
        "settings",
        "run_id",
        "max_restarts",
        "incarnation",
        "pid",
        "traceback",
    }
)


def told_again(world: World, said: Sequence[tuple[float, str]]) -> list[str]:
    """Return the lines of a run; the world must have kept its messages."""
    rows: list[tuple[float, int, str, str]] = [(at, 0, "", f"--- {text}") for at, text in said]
    for at, source, target, message in world.sent:
        if not isinstance(message, m.Heartbeat):
            rows.append((at, 3, source, f">{target} {described(message)}"))
    rows += [(at, 1, name, f"* {described(event)}") for at, name, event in world.events]
    for process in world.every_process:
        for at, notice in process.agent.timed_notices:
            if not isinstance(notice, ports.LeaseExtended):
                rows.append((at, 2, process.name, f"| {described(notice)}"))
    rows.sort(key=lambda row: row[:2])
    columns = {name: place for place, name in enumerate(_in_order(world))}
    head = "time".rjust(9) + "  " + "".join(name.ljust(_WIDTH) for name in columns)
    return [head.rstrip(), *(_line(row, columns) for row in rows)]


def _in_order(world: World) -> list[str]:
    return list(dict.fromkeys(process.name for process in world.every_process))


def _line(row: tuple[float, int, str, str], columns: Mapping[str, int]) -> str:
    at, _, name, text = row
    return f"{at:9.4f}  " + " " * (_WIDTH * columns.get(name, 0)) + text


def described(value: Value, quiet: frozenset[str] = QUIET) -> str:
    """Return a value as one line: its name in snake case, and its fields that are not `quiet`."""
    kind = kind_of(type(value))
    fields = [
        f"{name}={_shown(getattr(value, name))}"
        for name in value.__struct_fields__
        if name not in quiet and getattr(value, name) not in (None, (), "", {})
    ]
    return " ".join([kind, *fields])


def _shown(value: object) -> str:
    match value:
        case Node(name=name):
            return name
        case Failure(node=node, rank=rank, exit_code=code):
            return f"{node}/rank{rank}/{code}"
        case m.LeaderAddress():
            return f"{value.name}@{_shown(value.term)}"
        case Term():
            return f"{value.counter}.{value.node.partition('/')[0]}"
        case Configuration():
            return f"[{','.join(voter.partition('/')[0] for voter in value.voters)}]"
        case Record():
            what = f"round {value.round}" if value.end is None else f"end {value.end.result}"
            return f"{value.number}({what} {_shown(value.configuration)})"
        case m.RecordDecided():
            return f"{value.number}@{value.store_address}:{value.store_port}"
        case Assignment():
            roster = ",".join(entry.name for entry in value.roster)
            return f"{value.round}[{roster}]@{value.store_address}:{value.store_port}"
        case list() | tuple():
            return ",".join(_shown(item) for item in value)
        case dict() if "rank" in value:
            return f"{value['node']}/rank{value['rank']}/{value['exit_code']}"
        case dict():
            return ",".join(f"{key}:{_shown(item)}" for key, item in value.items())
        case float():
            return f"{value:g}"
        case str() if " " in value:
            return f"'{value}'"
        case _:
            return str(value)
