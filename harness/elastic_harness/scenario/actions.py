"""What an entry of a timeline does, as the engine sees it: a fault, or one of two acts of its own.

The engine heals (`heal: crash`) and judges (`check: [ranks]`) by itself; everything else is a
`Fault`. All are found by name in one registry (`faults.registry`).

What an entry does is known to be wrong, or not, before the run: each action, and each checker's
parameters, say in their `findings` what cannot be in the scenario around them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, WithJsonSchema, model_validator

from elastic_harness.finding import Finding, did_you_mean
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.fields import (
    Listed,
    ScenarioModel,
    format_duration,
    from_shorthand,
)
from elastic_harness.scenario.model import STORM_ID, Clause, Entry, Scenario
from elastic_harness.scenario.selectors import Selector

__all__ = [
    "CHECK",
    "HEAL",
    "CheckNow",
    "CheckedScenario",
    "HealEntries",
    "Parameters",
    "PlannedAction",
    "read_check",
]

HEAL = "heal"
CHECK = "check"


class Parameters(ScenarioModel):
    """What a scenario says behind the name of a fault or a checker."""

    def findings(self, scenario: CheckedScenario) -> Iterable[Finding]:
        """Return what is wrong with this use, as far as the scenario shows it.

        Paths begin at these parameters: `("node",)`. What is wrong with a value by itself, pydantic
        has found already.
        """
        return ()


class PlannedAction(Parameters):
    """What the engine must know of what an entry does: all of it pure.

    `name` is what scenarios call it, `shorthand` the field that a bare value stands for.
    `is_healable` tells whether there is anything to undo. `pauses`: it stops processes, which
    finish what they were about to do when it is healed. `disturbs` is False for one that only
    looks. `takes_nodes_away`: it ends nodes, which may start anew by the same name. `starts_nodes`:
    what follows it waits until they are up. `makes_kernel_kill`: while it is in force, the kernel
    may kill processes of the nodes that it hits. `is_own`: the engine does it, and nothing is
    injected.
    """

    name: ClassVar[str]
    shorthand: ClassVar[str | None] = None
    is_healable: ClassVar[bool] = False
    pauses: ClassVar[bool] = False
    disturbs: ClassVar[bool] = True
    takes_nodes_away: ClassVar[bool] = False
    starts_nodes: ClassVar[bool] = False
    makes_kernel_kill: ClassVar[bool] = False
    is_own: ClassVar[bool] = False

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 (as pydantic has it)
        # `exempt_nodes` was called `excuses` in 0.1: either is the other, also by `super()`.
        if "excuses" in vars(cls):
            warnings.warn(
                f"{cls.__name__}.excuses is called exempt_nodes; the old name is accepted up to "
                "release 0.2",
                DeprecationWarning,
                stacklevel=3,
            )
            setattr(cls, "exempt_nodes", vars(cls)["excuses"])  # noqa: B010
        elif "exempt_nodes" in vars(cls):
            setattr(cls, "excuses", vars(cls)["exempt_nodes"])  # noqa: B010
        super().__pydantic_init_subclass__(**kwargs)

    @property
    def needs(self) -> str | None:
        """The capability that a cluster must have for this, with these parameters."""
        return None

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        """Return its targets now; raises SelectionEmpty if there are none."""
        return Targets()

    def exempt_nodes(self, targets: Targets) -> tuple[str, ...]:
        """Return the nodes whose launcher's end says nothing about the job any more.

        For a fault that can be healed this counts only if it is to stay until the end.
        """
        return ()

    def adds_nodes(self, there: Sequence[str]) -> tuple[str, ...]:
        """Return the names of nodes that it starts, beside those that are `there`."""
        return ()

    def launch_environ(self, folder: str) -> Mapping[str, str]:
        """Return variables that every launcher must be started with for this to be possible.

        `folder` is the run's own, for files that processes of the job read; most need nothing.
        """
        return {}

    def selectors(self) -> tuple[tuple[str, Selector], ...]:
        """Return each selector it has, with the name of its parameter."""
        found: list[tuple[str, Selector]] = []
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            several = value if isinstance(value, tuple) else (value,)
            found += [(field.alias or name, each) for each in several if isinstance(each, Selector)]
        return tuple(found)

    def describe(self) -> Mapping[str, Any]:
        """Return the parameters as plain data."""
        data: dict[str, Any] = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return data

    @model_validator(mode="before")
    @classmethod
    def _from_shorthand(cls, value: object) -> object:
        try:
            return from_shorthand(cls, cls.shorthand, value)
        except ValueError as error:
            raise ValueError(f"`{cls.name}` {error}") from error


@dataclass(frozen=True, kw_only=True)
class CheckedScenario:
    """What a scenario says (`spec`), and what follows from it before it runs.

    `actions` are the timeline's, one for each entry. `folders` are absolute paths of what the
    harness shares with the nodes.
    """

    spec: Scenario
    actions: Sequence[PlannedAction]
    folders: Sequence[str] = ()

    # What there can be

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Every node name that the run can have: those at the start, and those that join."""
        names = self.spec.initial_nodes
        for action in self.actions:
            names = (*names, *action.adds_nodes(names))
        return names

    @property
    def largest_world(self) -> int:
        """How many ranks there can be at once."""
        return min(self.spec.nodes.max, len(self.nodes)) * self.spec.job.nproc_per_node

    @property
    def worlds(self) -> range:
        """Every world size that the job can have."""
        per_node = self.spec.job.nproc_per_node
        return range(self.spec.nodes.min * per_node, self.largest_world + 1, per_node)

    @cached_property
    def final_entries(self) -> Mapping[str | None, str]:
        """The entries that cannot be undone, by id, with what they do."""
        pairs = zip(self.spec.timeline, self.actions, strict=True)
        return {
            entry.id: entry.action.name
            for entry, action in pairs
            if not action.is_healable and not action.is_own
        }

    def entry_of(self, action: PlannedAction) -> Entry:
        """Return the entry that does this very thing."""
        return self.spec.timeline[self._place_of(action)]

    def before(self, action: PlannedAction) -> Sequence[PlannedAction]:
        """Return what earlier entries do."""
        return self.actions[: self._place_of(action)]

    def _place_of(self, action: PlannedAction) -> int:
        return next(place for place, each in enumerate(self.actions) if each is action)

    # What there cannot be: one finding, or none

    def no_node(self, name: object, *path: str | int) -> Iterator[Finding]:
        """Find a name that no node has."""
        if isinstance(name, str) and name not in self.nodes:
            yield Finding(
                f"there is no node {name!r}", path, suggestion=did_you_mean(name, self.nodes)
            )

    def no_rank(self, rank: int | None, *path: str | int) -> Iterator[Finding]:
        """Find a rank that no world has."""
        if rank is not None and rank >= self.largest_world:
            yield Finding(
                f"there is no rank {rank}: the largest world has {self.largest_world} ranks", path
            )

    def no_world(self, size: object, *path: str | int) -> Iterator[Finding]:
        """Find a size that no world has."""
        worlds = self.worlds
        if not isinstance(size, int) or size in worlds:
            return
        why = f"each node has {worlds.step} ranks"
        if not worlds:
            why = "the job never has enough nodes"
        elif size > worlds[-1]:
            why = f"the largest has {worlds[-1]} ranks"
        elif size < worlds[0]:
            why = f"the smallest has {worlds[0]} ranks"
        yield Finding(f"there is no world of {size}: {why}", path)

    def too_late(
        self,
        seconds: object,
        *path: str | int,
        is_in: bool = False,
        suggestion: str | None = None,
    ) -> Iterator[Finding]:
        """Find a moment after the run; with `is_in`, its very end is in time."""
        limit = self.spec.limit
        if isinstance(seconds, float) and (seconds > limit or (seconds == limit and not is_in)):
            why = f"the run is over by then: `limit` is {format_duration(limit)}"
            yield Finding(why, path, suggestion=suggestion)

    def no_entry(
        self, id: str, *path: str | int, known: Sequence[str] | None = None
    ) -> Iterator[Finding]:
        """Find an id that is none of those `known`: of the entries that say theirs, by default."""
        if known is None:
            known = [entry.id for entry in self.spec.timeline if entry.id]
        if id not in known:
            yield Finding(
                f"no entry of the timeline has the id {id!r}",
                path,
                suggestion=did_you_mean(id, known),
            )

    def no_firing(self, after: str | None, *path: str | int) -> Iterator[Finding]:
        """Find what a checker's `after` names and no run has: an entry, drawn or not.

        It is written `crash`, `crash.fired`, `crash.healed`, or `crash#2` of one that is repeated.
        """
        if after is None:
            return
        names = [
            each.id or f"entry-{place}" for place, each in enumerate(self.spec.timeline, start=1)
        ]
        if self.spec.storm is not None:
            names += [STORM_ID, *(f"{STORM_ID}-{n}" for n in range(1, self.spec.storm.max + 1))]
        id, _, moment = after.partition(".")
        name = id.partition("#")[0]
        if name not in names or moment not in ("", "fired", "healed"):
            yield from self.no_entry(after, *path, known=names)
        elif moment == "healed" and (final := self.final_entries.get(name)) is not None:
            yield Finding(f"`{final}` cannot be undone, so `{after}` never comes", path)


def _ids(value: object) -> object:
    names = value if isinstance(value, (list, tuple)) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"`heal` takes ids of entries, or `all`, and not {value!r}")
    return tuple(names)


class HealEntries(PlannedAction):
    """Heal an entry by its id, several, or `all`."""

    name = HEAL
    is_own: ClassVar[bool] = True
    shorthand: ClassVar[str | None] = "ids"

    ids: Annotated[
        Listed[str],
        BeforeValidator(_ids),
        WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}}),
    ]

    @model_validator(mode="before")
    @classmethod
    def _from_shorthand(cls, value: object) -> object:
        return value if isinstance(value, cls) else {"ids": value}

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        own = scenario.entry_of(self)
        final = scenario.final_entries
        for name in self.ids:
            if own.id is not None and name == own.id:
                yield Finding("it heals itself")
            elif name in final:
                yield Finding(f"`{final[name]}` cannot be undone")
            elif name != "all":
                yield from scenario.no_entry(name)


class CheckNow(PlannedAction):
    """One or more clauses of `finally` that must hold at this moment."""

    name = CHECK
    is_own: ClassVar[bool] = True
    shorthand: ClassVar[str | None] = "clauses"

    clauses: Listed[Clause]

    @model_validator(mode="before")
    @classmethod
    def _from_shorthand(cls, value: object) -> object:
        if isinstance(value, cls):
            return value
        return {"clauses": value if isinstance(value, (list, tuple)) else [value]}

    def findings(self, scenario: CheckedScenario) -> Iterable[Finding]:
        return () if self.clauses else (Finding("a check has one clause or more"),)


def read_check(value: object) -> tuple[Clause, ...]:
    """Return the clauses of a `check`, one or a list; raises pydantic's ValidationError."""
    return CheckNow.model_validate(value).clauses
