"""What every fault is: parameters, whom it hits, how it is injected, proven and healed.

A fault is a frozen pydantic model: its fields are the parameters that a scenario may give. The
class says what it is called there, what it needs, and on which layer it acts; its docstring says
what it stands for and what it does not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pydantic import model_validator

from elastic_harness.faults.context import FaultContext, Steps
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.fields import ScenarioModel
from elastic_harness.scenario.selectors import Selector, Term
from pytest_elastic.errors import UsageError

__all__ = ["LAYERS", "Fault", "with_exclude"]

LAYERS: Final = ("worker", "agent", "node", "network", "store", "resource", "gpu")


class Fault(ScenarioModel):
    """One fault with its parameters.

    `name` is the action's name in scenarios. `shorthand` is the field that a bare value stands for
    (`kill: rank 1`). `layer` is one of `LAYERS`. `proof` says in a few words what shows that it
    acted. `capability` is what a cluster must have for it; where that depends on the parameters,
    `needs` decides and `sometimes_needs` says when. `is_healable` tells whether there is anything
    to undo, `knows_gateway` whether its selectors may mean the cluster's gateway. `pauses`: it
    stops processes, which finish what they were about to do when it is healed. `disturbs` is False
    for one that only looks.

    The docstring is read by people who choose a fault, in `docs/faults.md`: its first sentence says
    what happens, "Stands for" what that is like in the real world, and "Does not stand for" what
    nobody should conclude from it.
    """

    name: ClassVar[str]
    layer: ClassVar[str]
    proof: ClassVar[str] = ""
    capability: ClassVar[str | None] = None
    sometimes_needs: ClassVar[str] = ""
    shorthand: ClassVar[str | None] = None
    is_healable: ClassVar[bool] = False
    pauses: ClassVar[bool] = False
    disturbs: ClassVar[bool] = True
    knows_gateway: ClassVar[bool] = False

    @property
    def needs(self) -> str | None:
        """The capability that a cluster must have for this, with these parameters."""
        return self.capability

    def launch_environ(self, folder: str) -> Mapping[str, str]:
        """Return variables that every launcher must be started with for this to be possible.

        `folder` is the run's own, for files that processes of the job read; most need nothing.
        """
        return {}

    @abstractmethod
    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        """Return whom it hits now; raises SelectionEmpty when that is nobody."""

    @abstractmethod
    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        """Do it, step by step; returns what proves that it acted, raises FaultImpossible if not.

        What proves it is this fault's own doing (`Evidence`), and not a symptom that something else
        may cause. A limit that no process has met, or a rule that nothing matched, is no proof.
        """

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        """Undo it, step by step; harmless when it is undone already or never was done."""
        yield from ()
        return "nothing to undo"

    def excuses(self, targets: Targets) -> tuple[str, ...]:
        """Return the nodes whose launcher's end says nothing about the job any more.

        For a fault that can be healed this counts only if it is to stay until the end.
        """
        return ()

    def selectors(self) -> tuple[tuple[str, Selector], ...]:
        """Return its selectors with the names of their parameters."""
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
        if isinstance(value, (Mapping, cls)):
            return value
        if cls.shorthand is None:
            fields = ", ".join(cls.model_fields)
            raise ValueError(f"`{cls.name}` needs keys and values, of: {fields}")
        return {cls.shorthand: value}


def with_exclude(selector: Selector, exclude: Selector | None) -> Selector:
    """Return a selector with `exclude` added; raises UsageError when that has one of its own."""
    if exclude is None:
        return selector
    if exclude.exclude:
        raise UsageError("`exclude` cannot have an `exclude` of its own")
    terms: tuple[Term, ...] = (*selector.exclude, *exclude.terms)
    return Selector(terms=selector.terms, exclude=terms)
