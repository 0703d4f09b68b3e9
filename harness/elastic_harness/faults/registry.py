"""Which faults there are, by the names that scenarios call them, and how chance draws them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from elastic_harness.faults.built_in import BUILT_IN
from elastic_harness.faults.fault import LAYERS, Fault
from elastic_harness.faults.recipe import Recipe
from elastic_harness.faults.recipes import RECIPES
from elastic_harness.registry import Registry
from elastic_harness.scenario.actions import CheckNow, HealEntries, PlannedAction
from pytest_elastic.errors import UsageError

__all__ = ["FaultRegistry", "built_in_faults"]


class FaultRegistry(Registry[type[PlannedAction]]):
    """What entries may do: faults, to which users add theirs, and `heal` and `check`.

    `recipes` are how storms draw the faults that they may draw, in the order of registration.
    """

    kind: ClassVar[str] = "fault"

    def __init__(self) -> None:
        super().__init__()
        self._known = {each.name: each for each in (HealEntries, CheckNow)}
        self.recipes: tuple[Recipe, ...] = ()

    def add(self, new: type[PlannedAction], *, recipes: Sequence[Recipe] = ()) -> None:
        """Make a fault known under its name, and how storms draw it, if they may.

        Raises UsageError if the name is taken, or it is no fault.
        """
        if (lack := _what_lacks(new)) is not None:
            raise UsageError(f"cannot register {new!r} as a fault: {lack}")
        for recipe in recipes:
            if recipe.fault != new.name:
                raise UsageError(
                    f"cannot register a recipe of {recipe.fault!r} with the fault {new.name!r}"
                )
        super().add(new)
        self.recipes += tuple(recipes)

    def read(self, name: str, value: object) -> PlannedAction:
        """Return what an entry does; raises pydantic's ValidationError, or UsageError."""
        return self.find(name).model_validate(value)

    def parse(self, name: str, value: object) -> Fault:
        """Return the fault that an entry asks for; raises what `read` does."""
        fault = self.read(name, value)
        assert isinstance(fault, Fault), f"{name} is the engine's own"
        return fault

    def shorthand(self, name: str) -> str | None:
        """Return the parameter that a bare value stands for, if there is one."""
        return self._known[name].shorthand if name in self._known else None

    def schema(self, name: str) -> Mapping[str, Any]:
        """Return the JSON Schema of what stands behind a name, shorthand included."""
        found = self.find(name)
        schema = found.model_json_schema(by_alias=True)
        if found.shorthand is None:
            return schema
        short = schema["properties"].get(found.shorthand, {})
        if found.is_own:  # keys would say no more
            return {**short, "description": schema.get("description", "")}
        return {"description": schema.get("description", ""), "anyOf": [short, schema]}


def _what_lacks(fault: object) -> str | None:
    """Say what a class lacks to be a fault that scenarios can use and pages can show."""
    if not (isinstance(fault, type) and issubclass(fault, Fault)):
        return "a subclass of elastic_harness.faults.fault.Fault is expected"
    if inspect.isabstract(fault):
        return f"it does not say how to {' and '.join(sorted(fault.__abstractmethods__))}"
    name = getattr(fault, "name", None)
    if not isinstance(name, str) or re.fullmatch(r"[a-z][a-z0-9_]*", name) is None:
        return f"its `name` is {name!r}, and a word in small letters is expected"
    if getattr(fault, "layer", None) not in LAYERS:
        return f"its `layer` is one of {', '.join(LAYERS)}"
    if not fault.__doc__:
        return "its docstring says what it does, and what it stands for"
    if fault.shorthand is not None and fault.shorthand not in fault.model_fields:
        return f"its `shorthand` {fault.shorthand!r} is none of its fields"
    return None


def built_in_faults() -> FaultRegistry:
    """Return a registry of the faults that come with the harness."""
    registry = FaultRegistry()
    for fault in BUILT_IN:
        registry.add(fault, recipes=[each for each in RECIPES if each.fault == fault.name])
    return registry
