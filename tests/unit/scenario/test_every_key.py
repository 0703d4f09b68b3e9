"""Every key of a scenario, every parameter of every fault, with garbage: refused or harmless."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from elastic_harness.faults.registry import built_in_faults
from elastic_harness.finding import AstPath, ScenarioError
from elastic_harness.scenario.reading.schema import json_schema

from pytest_elastic.errors import UsageError
from tests.unit.faults.examples import EXAMPLES
from tests.unit.scenario.test_loader import load

# A scenario in which every key stands that there is, but for the parameters of faults.
EVERY_KEY: dict[str, Any] = {
    "version": 1,
    "id": "every-key",
    "title": "Everything at once",
    "job": {
        "command": ["python", "train.py"],
        "args": ["--steps=4"],
        "env": {"A": "1"},
        "nproc_per_node": 2,
        "max_restarts": 3,
        "launcher": "pytest-elastic",
        "options": ["--shutdown-timeout=2"],
        "rdzv": {"backend": "c10d", "store_host": "n2", "conf": {"lease": 5}},
        "observe": {"step": "step (\\d+)"},
        "working_copy": {"leave_out": ["checkpoints"]},
    },
    "nodes": {"initial": 2, "min": 1, "max": 3},
    "seed": 3,
    "requires": ["network"],
    "limit": "50s",
    "timeline": [
        {"at": "1s", "id": "a", "pause": "rank 0", "for": "1s", "optional": True},
        {"at": {"step": 3, "rank": 1, "round": 1}, "id": "b", "pause": "rank 1", "until": "end"},
        {"when": {"event": "round_sealed", "node": "n1", "count": 2, "round": 2}, "heal": "b"},
        {"when": {"log": "x", "node": "n1", "by": "rank 1"}, "check": ["ranks"]},
        {"when": {"stable": {"world_size": 4, "steps": 2}}, "kill": "rank 1"},
        {"when": {"progress": {"steps": 3}}, "kill": "rank 0"},
        {"when": {"round": 2}, "kill": "rank 0"},
        {"when": {"world_size": 2}, "kill": "rank 0"},
        {"when": {"writing": "*.pt", "step": 2, "node": "n1", "path": "/tmp"}, "kill": "rank 0"},
        {"after": "a + 1s", "kill": "rank 0"},
        {"every": {"mtbf": "5s", "max": 2}, "kill": "rank 0"},
    ],
    "storm": {"seed": 1, "faults": ["worker"], "max": 2, "over": "5s", "exclude": ["n1"]},
    "proxies": {"db": {"upstream": "127.0.0.1:99", "listen": 700, "enabled": False}},
    "expect": {
        "always": [{"budget": "off"}],
        "never": ["split_brain"],
        "sometimes": [{"event": "round_sealed"}],
        "eventually": [{"round": 2, "within": "9s", "after": "a"}],
        "finally": [{"restarts": {"at_least": 1, "at_most": 2}, "within": "3s"}],
    },
    "marks": ["slow"],
}
GARBAGE: tuple[Any, ...] = (None, True, -7, 5.5, "¿", [[]], {"¿": 1})
# A union of two forms: they exclude each other, so that no scenario has both.
LEFT_OUT = {"script", "module", "endpoints", "steps", "matrix"}


def paths(data: object, path: AstPath = ()) -> Iterator[AstPath]:
    """Yield the place of every value."""
    items = data.items() if isinstance(data, dict) else ()
    for key, item in [*items, *(enumerate(data) if isinstance(data, list) else ())]:
        yield (*path, key)
        yield from paths(item, (*path, key))


def changed(path: AstPath, value: object) -> str:
    """Return the scenario as text, a line for each key, with another value at one place."""
    data = copy.deepcopy(EVERY_KEY)
    place: Any = data
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return json.dumps(data, indent=1, ensure_ascii=False)


def findings(text: str) -> list[str]:
    """Return what is wrong with how a text is refused; reading it is right, too."""
    try:
        load(text)
    except ScenarioError as error:
        foreign = ("Input should", "Value error", "validation", "Traceback")
        return [
            str(each)
            for each in error.findings
            if any(word in each.message for word in foreign) or not each.message
        ]
    return []


def test_the_scenario_has_every_key_there_is() -> None:
    """One that is added to the schema is gone through below, or this fails."""
    known = {key for path in paths(EVERY_KEY) for key in path if isinstance(key, str)}
    schema = json_schema(built_in_faults())
    wanted = set(schema["properties"])
    for name, definition in schema["$defs"].items():
        if name not in {"Entry", "Eventually", "Bursts"}:
            wanted |= set(definition.get("properties", ()))
    assert wanted - known - LEFT_OUT - set(built_in_faults().names) == set()


def test_garbage_anywhere_is_an_error_of_ours_or_none() -> None:
    """Never a traceback, and never the words of the library that reads them."""
    assert load(json.dumps(EVERY_KEY))
    found = {}
    for path in paths(EVERY_KEY):
        for value in GARBAGE:
            try:
                wrong = findings(changed(path, value))
            except Exception as error:  # noqa: BLE001 (whatever it is: it is what is looked for)
                wrong = [f"{type(error).__name__}: {error}"]
            if wrong:
                found[f"{path}: {value!r}"] = wrong
    assert found == {}


def test_garbage_in_every_parameter_of_every_fault_is_refused() -> None:
    """In files as in Python, which parses the same values."""
    faults = built_in_faults()
    found = {}
    for name, example in EXAMPLES.items():
        fault = faults.parse(example.action, example.value)
        for field, info in type(fault).model_fields.items():
            key = info.alias or field
            for value in ({"¿": 1}, [[]], "¿¿", -7, object()):
                try:
                    faults.parse(example.action, {**fault.describe(), key: value})
                except (ValueError, UsageError):
                    continue  # pydantic's is one, and read_entry translates it
                except Exception as error:  # noqa: BLE001 (as above)
                    found[f"{name} {key}: {value!r}"] = f"{type(error).__name__}: {error}"
                else:
                    if not (value == "¿¿" and key in {"message", "proxy", "file", "command"}):
                        found[f"{name} {key}: {value!r}"] = "accepted"
    assert found == {}
    named = {each.action for each in EXAMPLES.values()}
    assert {each.name for each in faults if not each.is_own} == named
