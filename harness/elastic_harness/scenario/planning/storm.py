"""A storm: the faults of a scenario that chance draws, as entries of its timeline.

Everything is drawn before the run, down to the rank and the node: what cannot be hit when its
moment comes (a rank that an earlier fault has taken away) is left out then, and said.

The first entry waits for the job's first step and asks whether the job is in order; the others
follow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from elastic_harness.faults.recipe import JobShape, Recipe, choose, draw_plan
from elastic_harness.faults.recipes import RECIPES
from elastic_harness.scenario.model import STORM_ID, Entry, Scenario, Storm, storm_id
from elastic_harness.scenario.planning.seed import Seed

__all__ = ["draw_entries", "draw_storm", "shape_of"]

_STORE_HOST: Final = "store host"


def draw_storm(
    scenario: Scenario, seed: Seed, recipes: Sequence[Recipe] = RECIPES
) -> tuple[Entry, ...]:
    """Return the entries of a scenario's storm; none if it has no storm."""
    if scenario.storm is None:
        return ()
    return draw_entries(scenario.storm, scenario, seed, recipes=recipes)


def shape_of(storm: Storm, scenario: Scenario) -> JobShape:
    """Return what a storm may aim at in a job."""
    return JobShape.of(
        scenario.nodes.initial,
        scenario.job.nproc_per_node,
        exclude=_spared(storm, scenario),
        proxies=scenario.proxies,
    )


def draw_entries(
    storm: Storm,
    scenario: Scenario,
    seed: Seed,
    *,
    name: str = STORM_ID,
    recipes: Sequence[Recipe] = RECIPES,
) -> tuple[Entry, ...]:
    """Draw the entries of a storm that is called `name`; raises UsageError for unknown kinds."""
    chosen = seed if storm.seed is None else Seed(value=storm.seed)
    job = shape_of(storm, scenario)
    drawn = draw_plan(
        chosen.stream(name),
        choose(recipes, storm.faults, job, exclude=_spared(storm, scenario)),
        job,
        seconds=storm.over,
        steps=storm.steps,
        max_faults=storm.max,
    )
    return tuple(Entry.model_validate(each) for each in _as_timeline(drawn, storm_id(name)))


def _spared(storm: Storm, scenario: Scenario) -> list[str]:
    return [scenario.store_host if each == _STORE_HOST else each for each in storm.exclude]


def _as_timeline(drawn: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    begin = {"id": name, "when": {"progress": {"steps": 1}}, "check": ["ranks", "agreement"]}
    entries: list[dict[str, Any]] = [begin]
    for number, entry in enumerate(drawn, start=1):
        data = {"id": f"{name}-{number}", **entry, "optional": True}
        if isinstance(data.get("at"), str):
            data["after"] = f"{name} + {data.pop('at')}"
        entries.append(data)
    return entries
