"""Which faults there are, by the names that scenarios call them, and how chance draws them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from elastic_harness.faults.built_in import BUILT_IN
from elastic_harness.faults.fault import LAYERS, Fault
from elastic_harness.faults.recipe import Recipe
from elastic_harness.faults.recipes import RECIPES
from elastic_harness.history.parameters import did_you_mean
from elastic_harness.scenario.engine.timeline import CHECK_ACTION, HEAL_ACTION, OWN_ACTIONS
from pytest_elastic.errors import UsageError

__all__ = ["FaultRegistry", "built_in_faults"]


class FaultRegistry:
    """The catalog of faults that scenarios are read with; more may be added before that."""

    def __init__(self, faults: Iterable[type[Fault]] = ()) -> None:
        self._faults: dict[str, type[Fault]] = {}
        self._recipes: list[Recipe] = []
        for fault in faults:
            self.add(fault)

    def add(self, fault: type[Fault], *, recipes: Sequence[Recipe] = ()) -> None:
        """Make a fault known under its name, and how storms draw it, if they may.

        Raises UsageError if the name is taken, or it is no fault.
        """
        if (problem := _problem_with(fault)) is not None:
            raise UsageError(f"cannot register {fault!r} as a fault: {problem}")
        if fault.name in OWN_ACTIONS or fault.name in self._faults:
            raise UsageError(f"a fault is called {fault.name!r} already: choose another name")
        for recipe in recipes:
            if recipe.fault != fault.name:
                raise UsageError(
                    f"cannot register a recipe of {recipe.fault!r} with the fault {fault.name!r}"
                )
        self._faults[fault.name] = fault
        self._recipes += recipes

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """How storms draw the faults that they may draw, in the order of registration."""
        return tuple(self._recipes)

    def names(self) -> tuple[str, ...]:
        """Return every name an entry's action may have."""
        return (*self._faults, *OWN_ACTIONS)

    def parse(self, name: str, value: object) -> Fault:
        """Return the fault that an entry asks for; raises pydantic's ValidationError."""
        if name not in self._faults:
            raise UsageError(f"there is no fault {name!r}", hint=did_you_mean(name, self.names()))
        return self._faults[name].model_validate(value)

    def shorthand(self, name: str) -> str | None:
        """Return the parameter of a fault that a bare value stands for, if there is one."""
        return self._faults[name].shorthand if name in self._faults else None

    def schema(self, name: str) -> Mapping[str, Any]:
        """Return the JSON Schema of a fault's value, shorthand included."""
        if name == HEAL_ACTION:
            return {"type": "string", "description": "Heal an entry by its id, or `all`."}
        if name == CHECK_ACTION:
            return {
                "type": ["string", "object", "array"],
                "description": "One or more clauses of `finally` that must hold at this moment.",
            }
        fault = self._faults[name]
        schema = fault.model_json_schema(by_alias=True)
        if fault.shorthand is None:
            return schema
        short = schema["properties"].get(fault.shorthand, {})
        return {"description": schema.get("description", ""), "anyOf": [short, schema]}


def _problem_with(fault: object) -> str | None:
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
