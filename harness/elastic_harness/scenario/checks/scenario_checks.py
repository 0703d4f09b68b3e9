"""What can be known to be wrong with a scenario before it runs: names that lead nowhere.

Works on the tree that YAML and Python share; each finding names the place by its path.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from elastic_harness.cluster.cluster import CAPABILITIES
from elastic_harness.faults.recipe import Recipe, known_draws, needs_of, usable
from elastic_harness.faults.recipes import NOT_DRAWN, RECIPES
from elastic_harness.history import events as harness_events
from elastic_harness.history.checkers.library import STANDARD
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.history.parameters import did_you_mean
from elastic_harness.scenario.checks.clause_checks import check_clauses, why_no_world, worlds_of
from elastic_harness.scenario.checks.finding import Finding
from elastic_harness.scenario.checks.launch_checks import check_launch
from elastic_harness.scenario.checks.place_checks import check_places
from elastic_harness.scenario.checks.target_checks import check_targets
from elastic_harness.scenario.engine.timeline import CHECK_ACTION, HEAL_ACTION, OWN_ACTIONS
from elastic_harness.scenario.fields import format_duration
from elastic_harness.scenario.model import (
    ActionCatalog,
    Clause,
    PlannedAction,
    Scenario,
    read_check,
)
from elastic_harness.scenario.planning.storm import STORM_ID, sketch_of
from elastic_harness.scenario.reading.yaml_tree import AstPath
from elastic_harness.scenario.stage.speakers import rank_of
from elastic_harness.scenario.triggers import AfterEntry, EventCondition, WritingCondition
from pytest_elastic.events.model import EVENT_KINDS

__all__ = ["check_scenario", "known_nodes", "needed_capabilities"]

assert harness_events.RunEnded.kind in EVENT_KINDS, "importing the harness's events registers them"


# Fields of events whose values are compared with what YAML says.
_PLAIN: Mapping[str, type] = {"int": int, "str": str, "bool": bool}
_WORDS: Mapping[type, str] = {int: "a whole number", str: "text", bool: "true or false"}


def known_nodes(scenario: Scenario, actions: Sequence[PlannedAction | None]) -> tuple[str, ...]:
    """Return every node name that a run can have: those at the start, and those that join."""
    names = list(scenario.initial_nodes)
    for action in actions:
        joining = getattr(action, "nodes", None) if getattr(action, "name", "") == "join" else None
        if isinstance(joining, int):
            names += [f"n{len(names) + i}" for i in range(1, joining + 1)]
        else:
            names += [name for name in joining or () if name not in names]
    return tuple(names)


def needed_capabilities(scenario: Scenario, catalog: ActionCatalog) -> tuple[str, ...]:
    """Return what a cluster must be able to do: what is asked for, and what the faults need."""
    needs = dict.fromkeys(scenario.requires)
    if scenario.job.rdzv.endpoints:
        needs["names"] = None  # where all nodes have one name, nobody knows which endpoint is whose
    for entry in scenario.timeline:
        if isinstance(entry.when, WritingCondition):
            needs["disk_faults"] = None
        if entry.action.name not in OWN_ACTIONS:
            need = catalog.parse(entry.action.name, entry.action.value).needs
            if need is not None:
                needs[need] = None
    if scenario.storm is not None:
        needs.update(dict.fromkeys(needs_of(catalog.recipes, scenario.storm.faults)))
    return tuple(needs)


def check_scenario(
    scenario: Scenario,
    actions: Sequence[PlannedAction | None],
    recipes: Sequence[Recipe] = RECIPES,
    *,
    folders: Collection[str] = (),
    drawn: Collection[str] = (),
    checkers: Registry = STANDARD,
) -> Iterator[Finding]:
    """Yield what is impossible; `actions` are the timeline's, None for `heal`.

    `folders` are absolute paths of what the harness shares with the nodes; `drawn` are the ids of
    entries that a Python test's storm has drawn.
    """
    nodes = known_nodes(scenario, actions)
    yield from _check_requires(scenario)
    yield from _check_ids(scenario, drawn)
    yield from _check_heals(scenario, actions)
    yield from _check_waits_for_heals(scenario, actions)
    yield from _check_conditions(scenario, nodes)
    yield from _check_storm(scenario, recipes)
    yield from check_targets(scenario, actions, nodes)
    yield from check_places(scenario, actions, folders)
    yield from check_launch(scenario)
    yield from check_clauses(scenario, nodes, checkers)
    rdzv = scenario.job.rdzv
    yield from _check_host(scenario, rdzv.store_host, ("job", "rdzv", "store_host"))
    for index, name in enumerate(rdzv.endpoints):
        yield from _check_host(scenario, name, ("job", "rdzv", "endpoints", index))


def _check_host(scenario: Scenario, name: str | None, path: AstPath) -> Iterator[Finding]:
    if name is not None and name not in scenario.initial_nodes:
        yield Finding(
            path=path,
            message=f"no node called {name!r} is there at the start",
            suggestion=did_you_mean(name, scenario.initial_nodes),
        )


def _check_storm(scenario: Scenario, recipes: Sequence[Recipe]) -> Iterator[Finding]:
    storm = scenario.storm
    if storm is None:
        return
    known, sketch = known_draws(recipes), sketch_of(storm, scenario)
    for index, name in enumerate(storm.faults):
        if name not in known:
            why = NOT_DRAWN.get(name)
            yield Finding(
                path=("storm", "faults", index),
                message=f"nobody knows how to draw {name!r}{f': {why}' if why else ''}",
                suggestion=None if why else did_you_mean(name, known),
            )
        elif not usable(recipes, [name], sketch):
            yield Finding(
                path=("storm", "faults", index),
                message=(
                    f"there is nothing to draw {name!r} for: of {len(sketch.all_nodes)} nodes "
                    f"{len(sketch.nodes)} may be hit, and there are {len(sketch.proxies)} proxies"
                ),
            )
        if name in storm.faults[:index]:
            yield Finding(path=("storm", "faults", index), message=f"{name!r} stands here twice")
    if storm.steps is None and storm.over > scenario.limit:
        yield Finding(
            path=("storm", "over"),
            message=f"the run is over by then: `limit` is {format_duration(scenario.limit)}",
        )
    if {"over", "steps"} <= storm.model_fields_set:
        yield Finding(
            path=("storm", "steps"),
            message="`over` and `steps` both say when faults come: keep one of them",
        )
    for index, name in enumerate(storm.exclude):
        if name != "store host" and name not in scenario.initial_nodes:
            yield Finding(
                path=("storm", "exclude", index),
                message=f"no node called {name!r} is there at the start",
                suggestion=did_you_mean(name, ("store host", *scenario.initial_nodes)),
            )
    if scenario.job.max_restarts < storm.max:
        yield Finding(
            path=("storm",),
            message=(
                f"a storm of up to {storm.max} faults can use up the {scenario.job.max_restarts} "
                f"restarts of this job: give it `max_restarts: {storm.max}` or more"
            ),
        )


def _check_requires(scenario: Scenario) -> Iterator[Finding]:
    for index, name in enumerate(scenario.requires):
        if name not in CAPABILITIES:
            yield Finding(
                path=("requires", index),
                message=f"no cluster has a capability {name!r}",
                suggestion=did_you_mean(name, CAPABILITIES),
            )


def _check_ids(scenario: Scenario, drawn: Collection[str]) -> Iterator[Finding]:
    ids: list[str] = []
    for index, entry in enumerate(scenario.timeline):
        if entry.id is not None and entry.id in ids:
            yield Finding(
                path=("timeline", index, "id"),
                message=f"another entry has the id {entry.id!r} already",
            )
        why = _why_no_id(entry.id, index) if entry.id and entry.id not in drawn else None
        if why is not None:
            yield Finding(path=("timeline", index, "id"), message=why)
        ids.append(entry.id or "")
    known = [each for each in ids if each]
    for index, entry in enumerate(scenario.timeline):
        if entry.after is not None and entry.after.id not in known:
            yield _unknown_id(("timeline", index, "after"), entry.after.id, known)
        if entry.after is not None and entry.id == entry.after.id:
            yield Finding(path=("timeline", index, "after"), message="it waits for itself")
    for index, clause in enumerate(scenario.expect.eventually):
        if clause.after is not None and clause.after.id not in known:
            yield _unknown_id(("expect", "eventually", index, "after"), clause.after.id, known)


def _why_no_id(id: str, index: int) -> str | None:
    """Say why an entry cannot be called so: names that mean something else."""
    if id == "all":
        return "`all` means every entry where one is healed: choose another id"
    found = re.fullmatch(r"entry-(\d+)", id)
    if found is not None and int(found[1]) != index + 1:
        return f"{id!r} is what another entry is called that has no id: choose another id"
    if re.fullmatch(rf"{STORM_ID}(-\d+)?", id):
        return f"{id!r} is what an entry of a storm is called: choose another id"
    return None


def _unknown_id(path: AstPath, id: str, known: Collection[str]) -> Finding:
    return Finding(
        path=path,
        message=f"no entry of the timeline has the id {id!r}",
        suggestion=did_you_mean(id, known),
    )


def _check_heals(scenario: Scenario, actions: Sequence[PlannedAction | None]) -> Iterator[Finding]:
    ids = [entry.id for entry in scenario.timeline if entry.id]
    final = _final(scenario, actions)
    for index, (entry, action) in enumerate(zip(scenario.timeline, actions, strict=True)):
        here: AstPath = ("timeline", index)
        if entry.action.name == HEAL_ACTION:
            yield from _check_heal(entry.action.value, entry.id, ids, final, (*here, HEAL_ACTION))
        elif entry.action.name == CHECK_ACTION and not read_check(entry.action.value):
            yield Finding(path=(*here, CHECK_ACTION), message="a check has one clause or more")
        elif entry.for_s is None and entry.until is None:
            continue
        elif action is None or not action.is_healable:
            key = "for" if entry.for_s is not None else "until"
            yield Finding(
                path=(*here, key),
                message=f"`{entry.action.name}` cannot be undone, so it cannot have `{key}`",
                is_key=True,
            )


def _check_heal(
    wanted: object,
    own_id: str | None,
    ids: Sequence[str],
    final: Mapping[str | None, str],
    path: AstPath,
) -> Iterator[Finding]:
    """Find what an entry cannot heal."""
    names = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
    if not names or not all(isinstance(name, str) for name in names):
        yield Finding(
            path=path, message=f"`heal` takes ids of entries, or `all`, and not {wanted!r}"
        )
        return
    for name in map(str, names):
        if name == own_id:
            yield Finding(path=path, message="it heals itself")
        elif name in final:
            yield Finding(path=path, message=f"`{final[name]}` cannot be undone")
        elif name != "all" and name not in ids:
            yield _unknown_id(path, str(name), ids)


def _final(scenario: Scenario, actions: Sequence[PlannedAction | None]) -> Mapping[str | None, str]:
    """Return the entries that cannot be undone, by id, with what they do."""
    return {
        entry.id: entry.action.name
        for entry, action in zip(scenario.timeline, actions, strict=True)
        if action is not None and not action.is_healable
    }


def _check_waits_for_heals(
    scenario: Scenario, actions: Sequence[PlannedAction | None]
) -> Iterator[Finding]:
    """Find what waits for the heal of something that cannot be undone."""
    final = _final(scenario, actions)
    waiting: list[tuple[AstPath, AfterEntry | None]] = [
        (("timeline", index, "after"), entry.after) for index, entry in enumerate(scenario.timeline)
    ]
    waiting += [
        (("expect", "eventually", index, "after"), clause.after)
        for index, clause in enumerate(scenario.expect.eventually)
    ]
    for path, after in waiting:
        if after is not None and after.healed and after.id in final:
            yield Finding(
                path=path,
                message=f"`{final[after.id]}` cannot be undone, so `{after.id}.healed` never comes",
            )


def _check_conditions(scenario: Scenario, nodes: tuple[str, ...]) -> Iterator[Finding]:
    largest = min(scenario.nodes.max, len(nodes)) * scenario.job.nproc_per_node
    worlds = worlds_of(scenario, nodes)
    for path, condition in _conditions(scenario):
        node = getattr(condition, "node", None)
        if node is not None and node not in nodes:
            yield Finding(
                path=(*path, "node"),
                message=f"there is no node {node!r}",
                suggestion=did_you_mean(node, nodes),
            )
        if isinstance(condition, EventCondition):
            yield from _check_event(path, condition)
            continue
        rank = rank_of(getattr(condition, "by", None))
        if rank is not None and rank >= largest:
            yield Finding(
                path=(*path, "by"),
                message=f"there is no rank {rank}: the largest world has {largest} ranks",
            )
        size = getattr(getattr(condition, "stable", condition), "world_size", None)
        why = why_no_world(size, worlds) if isinstance(size, int) else None
        if why is not None:
            inner = ("stable",) if hasattr(condition, "stable") else ()
            yield Finding(path=(*path, *inner, "world_size"), message=why)
    for index, clause in enumerate(scenario.expect.eventually):
        if clause.within > scenario.limit:
            yield Finding(
                path=("expect", "eventually", index, "within"),
                message=f"the run is over by then: `limit` is {format_duration(scenario.limit)}",
            )


def _check_event(path: AstPath, condition: EventCondition) -> Iterator[Finding]:
    kind = EVENT_KINDS.get(condition.event)
    if kind is None:
        yield Finding(
            path=(*path, "event"),
            message=f"there is no event {condition.event!r}",
            suggestion=did_you_mean(condition.event, EVENT_KINDS),
        )
        return
    types = {each.name: str(each.type) for each in dataclasses.fields(kind)}
    fields = list(types)
    for name, value in condition.fields.items():
        wanted = _PLAIN.get(types.get(name, ""))
        if wanted is not None and type(value) is not wanted:
            yield Finding(
                path=(*path, name),
                message=f"{name!r} of the event {condition.event} is never {value!r}: "
                f"{_WORDS[wanted]} is expected",
            )
        if name not in fields:
            yield Finding(
                path=(*path, name),
                message=f"the event {condition.event} has no field {name!r}",
                suggestion=did_you_mean(name, [*fields, "node", "count"]),
                is_key=True,
            )


def _conditions(scenario: Scenario) -> Iterator[tuple[AstPath, object]]:
    for index, entry in enumerate(scenario.timeline):
        if entry.when is not None:
            yield ("timeline", index, "when"), entry.when
        if entry.until is not None and not isinstance(entry.until, str):
            yield ("timeline", index, "until"), entry.until
    for index, clause in enumerate(scenario.expect.eventually):
        yield ("expect", "eventually", index), clause.condition
    for bucket, witnesses in (
        ("sometimes", scenario.expect.sometimes),
        ("never", scenario.expect.never),
    ):
        for index, witness in enumerate(witnesses):
            if not isinstance(witness, Clause):
                yield ("expect", bucket, index), witness
