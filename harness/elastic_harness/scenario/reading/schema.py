"""The JSON Schema of scenario files: what editors complete, and `pytest-elastic schema` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elastic_harness.history.checkers.library import STANDARD
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.scenario.actions import CHECK
from elastic_harness.scenario.model import TRIGGER_KEYS, Scenario

if TYPE_CHECKING:
    from elastic_harness.faults.registry import FaultRegistry

__all__ = ["json_schema"]


def json_schema(faults: FaultRegistry, checkers: Registry = STANDARD) -> dict[str, Any]:
    """Return the JSON Schema of a scenario file, for editors and for `pytest-elastic schema`."""
    schema = Scenario.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    actions = {name: dict(faults.schema(name)) for name in sorted(faults.names)}
    for action in actions.values():
        for part in (action, *action.get("anyOf", ())):
            definitions.update(part.pop("$defs", {}))
    clause = {"$ref": "#/$defs/Clause"}
    several = {"type": "array", "items": clause}
    actions[CHECK] = {"description": actions[CHECK]["description"], "anyOf": [clause, several]}
    definitions["Entry"] = _entry_schema(definitions["Entry"], actions)
    definitions["Eventually"] = _eventually_schema(definitions["Eventually"], definitions)
    definitions["Clause"] = _clause_schema(checkers, definitions["Clause"]["description"])
    definitions["Nodes"]["required"] = []
    definitions["Nodes"] = {
        "anyOf": [
            {"type": "integer", "minimum": 1},
            {"type": "string", "pattern": r"^\d+:\d+$", "description": "MIN:MAX"},
            {
                **definitions["Nodes"],
                "anyOf": [{"required": ["initial"]}, {"required": ["min", "max"]}],
            },
        ]
    }
    copy = definitions["WorkingCopy"]
    definitions["WorkingCopy"] = {"anyOf": [{"type": "boolean"}, copy]}
    steps = definitions["Progress"]
    definitions["Progress"] = {"anyOf": [steps["properties"]["steps"], steps]}
    del definitions["Action"]
    schema["properties"]["matrix"] = {
        "description": "One scenario for each combination: paths (job.max_restarts) with values.",
        "type": "object",
        "additionalProperties": {"type": "array", "minItems": 1},
    }
    schema["patternProperties"] = {"^x-": {}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _entry_schema(entry: dict[str, Any], actions: Mapping[str, Any]) -> dict[str, Any]:
    """Describe an entry as it is written: the action under its own name."""
    properties = {key: item for key, item in entry["properties"].items() if key != "action"}
    return {
        **entry,
        "properties": {**properties, **actions},
        "required": [],
        "allOf": [
            {"oneOf": [{"required": [key]} for key in TRIGGER_KEYS]},
            {"oneOf": [{"required": [name]} for name in actions]},
        ],
    }


def _eventually_schema(
    clause: dict[str, Any], definitions: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Describe a clause as it is written: a condition's keys beside `within` and `after`."""
    own = {key: item for key, item in clause["properties"].items() if key != "condition"}
    forms = []
    for choice in clause["properties"]["condition"]["oneOf"]:
        condition = definitions[choice["$ref"].rpartition("/")[2]]
        forms.append(
            {
                **condition,
                "properties": {**condition["properties"], **own},
                "required": [*condition.get("required", ()), "within"],
            }
        )
    return {"description": clause["description"], "oneOf": forms}


_DURATION: Mapping[str, Any] = {"type": ["number", "string"], "description": "10s, 500ms, 2min"}


def _clause_schema(checkers: Registry, description: str) -> dict[str, Any]:
    """Describe a clause as it is written: a checker's name, alone or with what is expected."""
    known = {name: checkers.schema(name) for name in sorted(checkers.names)}
    return {
        "description": description,
        "anyOf": [
            {"enum": list(known)},
            {
                "type": "object",
                "properties": {**known, "within": _DURATION},
                "additionalProperties": False,
            },
        ],
    }
