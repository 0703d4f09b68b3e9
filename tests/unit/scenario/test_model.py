"""The tree: what it takes, what it refuses, its JSON Schema, and what it costs to import."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from elastic_harness.faults.registry import built_in_faults
from elastic_harness.history.checkers.library import STANDARD
from elastic_harness.scenario.fields import (
    format_duration,
    parse_duration,
    parse_fraction,
    parse_rate,
)
from elastic_harness.scenario.model import Entry
from elastic_harness.scenario.reading.loader import read_clause, read_entry
from elastic_harness.scenario.reading.schema import json_schema

from pytest_elastic.errors import UsageError
from tests.unit.scenario.bench import scenario


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10.0), ("500ms", 0.5), ("2m", 120.0), ("1.5h", 5400.0), ("0s", 0.0), ("2 min", 120.0)],
)
def test_durations_have_units(text: str, seconds: float) -> None:
    """And are printed in a way that is read as the same."""
    assert parse_duration(text) == seconds
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("value", [10, True, "10", "-1s", "1 s 2", "s", None, float("nan"), -1.0])
def test_what_is_no_duration_is_refused(value: object) -> None:
    """A bare number could mean anything."""
    with pytest.raises(ValueError, match=r"unit|duration"):
        parse_duration(value)


def test_percentages_and_rates_have_units_too() -> None:
    """2 % is 0.02; 10mbit is ten million bits a second."""
    assert parse_fraction("2%") == 0.02
    assert parse_rate("10mbit") == 1e7
    assert parse_rate("1.5gbit/s") == 1.5e9
    for wrong in (2, "2", "101%", "%"):
        with pytest.raises(ValueError, match="percentage"):
            parse_fraction(wrong)
    for wrong in (2, "2", "10mb", "mbit"):
        with pytest.raises(ValueError, match="rate"):
            parse_rate(wrong)


def test_a_number_of_nodes_stands_for_all_three() -> None:
    """And `initial` alone for the other two."""
    for given, expected in ((3, (3, 3, 3)), ({"initial": 2, "max": 4}, (2, 2, 4))):
        nodes = scenario(nodes=given).nodes
        assert (nodes.initial, nodes.min, nodes.max) == expected


def test_python_reads_entries_and_clauses_by_the_same_tree() -> None:
    """With one sentence where something is wrong."""
    catalog = built_in_faults()
    entry = read_entry({"at": {"step": 22, "rank": 1}, "kill": "rank 1"}, catalog)
    assert entry == Entry.model_validate({"at": {"step": 22, "rank": 1}, "kill": "rank 1"})
    with pytest.raises(UsageError, match="no action is called 'kil': did you mean 'kill'"):
        read_entry({"at": "1s", "kil": "rank 1"}, catalog)
    with pytest.raises(UsageError, match="is not a signal"):
        read_entry({"at": "1s", "kill": {"worker": "rank 1", "signal": "SIGFOO"}}, catalog)
    with pytest.raises(UsageError, match=r"'latncy' \(did you mean 'latency'\?\)"):
        read_entry({"at": "1s", "degrade": {"node": "n2", "latncy": "30ms"}}, catalog)
    with pytest.raises(UsageError, match="10 has no unit"):
        read_clause({"round": 2, "within": 10})


def test_the_json_schema_names_every_fault_and_its_parameters() -> None:
    """An editor completes them."""
    schema = json_schema(built_in_faults())
    entry = schema["$defs"]["Entry"]["properties"]
    assert set(built_in_faults().names) < set(entry)
    assert "signal" in json.dumps(entry["kill"])
    assert schema["properties"]["matrix"]
    assert schema["patternProperties"] == {"^x-": {}}
    # Every reference leads somewhere: definitions of faults are carried along.
    text = json.dumps(schema)
    for name in {part.split('"')[0] for part in text.split("#/$defs/")[1:]}:
        assert name in schema["$defs"], name


def test_an_editor_completes_the_clauses_of_finally_and_of_check() -> None:
    """Every checker's name, and beside it `within`, wherever clauses may stand."""
    schema = json_schema(built_in_faults())
    definitions = schema["$defs"]
    for bucket in ("always", "never", "sometimes", "finally"):
        items = definitions["Expect"]["properties"][bucket]["items"]
        assert _offered(items, definitions) >= {*STANDARD.names, "within"}, bucket
    check = definitions["Entry"]["properties"]["check"]
    assert _offered(check, definitions) >= {*STANDARD.names, "within"}
    (several,) = (form for form in check["anyOf"] if form.get("type") == "array")
    assert _offered(several["items"], definitions) >= {*STANDARD.names, "within"}


def _offered(schema: dict[str, Any], definitions: dict[str, Any]) -> set[str]:
    """Return the keys that an editor offers where a schema holds."""
    if "$ref" in schema:
        return _offered(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return set(schema.get("properties", ())).union(
        *(_offered(each, definitions) for each in choices)
    )


def test_importing_the_package_costs_nothing() -> None:
    """Neither pydantic nor YAML is there until a scenario is read."""
    code = (
        "import sys, elastic_harness.scenario, elastic_harness.faults;"
        "print([m for m in ('pydantic', 'yaml', 'torch') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
