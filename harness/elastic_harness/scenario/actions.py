"""What an entry of a timeline does, as the engine sees it: a fault, or one of two acts of its own.

The engine heals (`heal: crash`) and judges (`check: [ranks]`) by itself; everything else is a
`Fault`. All are found by name in one registry (`faults.registry`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, WithJsonSchema, model_validator

from elastic_harness.finding import Finding
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.fields import Listed, Parameters, from_shorthand
from elastic_harness.scenario.model import Clause
from elastic_harness.scenario.selectors import Selector

__all__ = ["CHECK", "HEAL", "CheckNow", "HealEntries", "PlannedAction", "read_check"]

HEAL = "heal"
CHECK = "check"


class PlannedAction(Parameters):
    """What the engine must know of what an entry does: all of it pure.

    `name` is what scenarios call it, `shorthand` the field that a bare value stands for.
    `is_healable` tells whether there is anything to undo. `pauses`: it stops processes, which
    finish what they were about to do when it is healed. `disturbs` is False for one that only
    looks. `takes_nodes_away`: it ends nodes, which may start anew by the same name. `is_own`: the
    engine does it, and nothing is injected.
    """

    name: ClassVar[str]
    shorthand: ClassVar[str | None] = None
    is_healable: ClassVar[bool] = False
    pauses: ClassVar[bool] = False
    disturbs: ClassVar[bool] = True
    takes_nodes_away: ClassVar[bool] = False
    is_own: ClassVar[bool] = False

    @property
    def needs(self) -> str | None:
        """The capability that a cluster must have for this, with these parameters."""
        return None

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        """Return whom it hits now; raises SelectionEmpty when that is nobody."""
        return Targets()

    def excuses(self, targets: Targets) -> tuple[str, ...]:
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

    def findings(self, scenario: Any) -> Iterator[Finding]:  # noqa: ANN401 (see `Parameters`)
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

    def findings(self, scenario: Any) -> Iterable[Finding]:  # noqa: ANN401 (see `Parameters`)
        return () if self.clauses else (Finding("a check has one clause or more"),)


def read_check(value: object) -> tuple[Clause, ...]:
    """Return the clauses of a `check`, one or a list; raises pydantic's ValidationError."""
    return CheckNow.model_validate(value).clauses
