"""Which faults there are, by the names that scenarios call them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from elastic_harness.faults.built_in import BUILT_IN
from elastic_harness.faults.fault import Fault
from elastic_harness.scenario.timeline import CHECK_ACTION, HEAL_ACTION, OWN_ACTIONS
from pytest_elastic.errors import UsageError

__all__ = ["FaultRegistry", "built_in_faults"]


class FaultRegistry:
    """The catalog of faults that scenarios are read with; more may be added before that."""

    def __init__(self, faults: Iterable[type[Fault]] = ()) -> None:
        self._faults: dict[str, type[Fault]] = {}
        for fault in faults:
            self.add(fault)

    def add(self, fault: type[Fault]) -> None:
        """Make a fault known under its name; raises UsageError if that is taken."""
        if fault.name in OWN_ACTIONS or fault.name in self._faults:
            raise UsageError(f"a fault is called {fault.name!r} already: choose another name")
        self._faults[fault.name] = fault

    def names(self) -> tuple[str, ...]:
        """Return every name an entry's action may have."""
        return (*self._faults, *OWN_ACTIONS)

    def parse(self, name: str, value: object) -> Fault:
        """Return the fault that an entry asks for; raises pydantic's ValidationError."""
        if name not in self._faults:
            raise UsageError(f"there is no fault {name!r}: known are {', '.join(self.names())}")
        return self._faults[name].model_validate(value)

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


def built_in_faults() -> FaultRegistry:
    """Return a registry of the faults that come with the harness."""
    return FaultRegistry(BUILT_IN)
