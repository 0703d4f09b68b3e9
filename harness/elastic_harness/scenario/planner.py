"""From a scenario and a seed to a plan: everything that chance decides before the run.

The same scenario and seed give the same plan, byte for byte. `plan.json` is the plan written down;
read back, it is run again as it was, whatever has become of the scenario file since. What selectors
such as `random` mean is decided when the fault fires, from the plan's seed and the entry's name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from elastic_harness.scenario.model import Entry, Scenario
from elastic_harness.scenario.seed import Seed
from elastic_harness.scenario.triggers import AfterEntry
from pytest_elastic.errors import UsageError

__all__ = [
    "FORMAT",
    "Plan",
    "PlannedEntry",
    "decode_plan",
    "encode_plan",
    "make_plan",
    "plan_entry",
]

FORMAT: Final = 1
# A mean time between failures must not turn into a moment: two faults closer than this are one.
MIN_BETWEEN_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEntry:
    """One entry with its name; `delays_s` are the draws of `every`, one before each firing."""

    id: str
    entry: Entry
    delays_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be run."""

    scenario: Scenario
    seed: Seed
    entries: tuple[PlannedEntry, ...]


def make_plan(scenario: Scenario, seed: int) -> Plan:
    """Draw what chance decides. `seed` holds where the scenario names none of its own.

    Raises UsageError when two entries have one id, or an entry waits for one that is not there.
    """
    chosen = Seed(value=scenario.seed if scenario.seed is not None else seed)
    entries = tuple(
        plan_entry(entry, f"entry-{number}", chosen)
        for number, entry in enumerate(scenario.timeline, start=1)
    )
    _check_names(entries)
    return Plan(scenario=scenario, seed=chosen, entries=entries)


def plan_entry(entry: Entry, default_id: str, seed: Seed) -> PlannedEntry:
    """Give an entry its name and its draws."""
    name = entry.id or default_id
    delays: tuple[float, ...] = ()
    if entry.every is not None:
        stream = seed.stream(f"every:{name}")
        rate = 1 / entry.every.mtbf
        delays = tuple(
            round(max(stream.expovariate(rate), MIN_BETWEEN_S), 3) for _ in range(entry.every.max)
        )
    return PlannedEntry(id=name, entry=entry, delays_s=delays)


def encode_plan(plan: Plan) -> str:
    """Return the text of plan.json."""
    data = {
        "format": FORMAT,
        "seed": plan.seed.value,
        "scenario": plan.scenario.model_dump(mode="json", by_alias=True, exclude_none=True),
        "draws": {each.id: list(each.delays_s) for each in plan.entries if each.delays_s},
    }
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def decode_plan(text: str) -> Plan:
    """Read plan.json back; raises UsageError for what is none, or is of another format."""
    try:
        data: Any = json.loads(text)
        if data["format"] != FORMAT:
            raise UsageError(
                f"cannot replay a plan of format {data['format']}: {FORMAT} is expected"
            )
        scenario = Scenario.model_validate(data["scenario"])
        plan = make_plan(scenario, int(data["seed"]))
        draws = data["draws"]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"cannot replay this plan: it is not a plan.json of ours ({error})"
        ) from error
    entries = tuple(
        PlannedEntry(
            id=each.id, entry=each.entry, delays_s=tuple(draws.get(each.id, each.delays_s))
        )
        for each in plan.entries
    )
    return Plan(scenario=scenario, seed=Seed(value=int(data["seed"])), entries=entries)


def _check_names(entries: tuple[PlannedEntry, ...]) -> None:
    names = [each.id for each in entries]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two entries of the timeline have the id {name!r}: make them differ")
    for each in entries:
        waits_for: AfterEntry | None = each.entry.after
        if waits_for is not None and waits_for.id not in names:
            raise UsageError(f"entry {each.id!r} waits for {waits_for.id!r}, which does not exist")
