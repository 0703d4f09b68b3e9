"""What can be known to be wrong with a scenario before it runs: names that lead nowhere.

Works on the tree that YAML and Python share; each finding names the place by its path.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from elastic_harness.cluster.cluster import CAPABILITIES
from elastic_harness.faults.recipe import Recipe, known_draws, needs_of, usable
from elastic_harness.faults.recipes import NOT_DRAWN, RECIPES
from elastic_harness.history import events as harness_events
from elastic_harness.history.parameters import did_you_mean
from elastic_harness.scenario.fields import format_duration
from elastic_harness.scenario.launchers import launcher_named
from elastic_harness.scenario.model import ActionCatalog, Clause, PlannedAction, Scenario
from elastic_harness.scenario.storm import sketch_of
from elastic_harness.scenario.timeline import HEAL_ACTION, OWN_ACTIONS
from elastic_harness.scenario.triggers import AfterEntry, EventCondition
from elastic_harness.scenario.yaml_tree import AstPath
from pytest_elastic.errors import UsageError
from pytest_elastic.events.model import EVENT_KINDS
from pytest_elastic.rdzv_conf import parse_rdzv_conf

__all__ = ["Finding", "check_proxies", "check_scenario", "known_nodes", "needed_capabilities"]

assert harness_events.RunEnded.kind in EVENT_KINDS, "importing the harness's events registers them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that can never work, and where; `is_key` marks the key rather than the value."""

    path: AstPath
    message: str
    suggestion: str | None = None
    is_key: bool = False


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
) -> Iterator[Finding]:
    """Yield what is impossible; `actions` are the timeline's, None for `heal`."""
    nodes = known_nodes(scenario, actions)
    yield from _check_requires(scenario)
    yield from _check_ids(scenario)
    yield from _check_heals(scenario, actions)
    yield from _check_waits_for_heals(scenario, actions)
    yield from _check_selectors(scenario, actions, nodes)
    yield from _check_conditions(scenario, nodes)
    yield from check_proxies(scenario, actions)
    yield from _check_storm(scenario, recipes)
    yield from _check_launch(scenario)
    yield from _check_clauses(scenario, nodes)
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


def _check_launch(scenario: Scenario) -> Iterator[Finding]:
    """Find what no launcher would take."""
    job = scenario.job
    if job.launcher is not None:
        try:
            launcher_named(job.launcher)
        except UsageError as error:
            yield Finding(path=("job", "launcher"), message=error.message)
    if job.rdzv.backend != "c10d":
        return  # whose settings are its own business
    for key, value in job.rdzv.conf.items():
        try:
            parse_rdzv_conf(f"{key}={value}")
        except UsageError as error:
            yield Finding(
                path=("job", "rdzv", "conf", key),
                message=error.message.replace("--rdzv-conf", "`conf`", 1),
            )


def _check_clauses(scenario: Scenario, nodes: tuple[str, ...]) -> Iterator[Finding]:
    """Find clauses about nodes that no run can have."""
    expect = scenario.expect
    buckets = (
        ("always", expect.always),
        ("never", expect.never),
        ("sometimes", expect.sometimes),
        ("finally", expect.finally_),
    )
    for bucket, clauses in buckets:
        for index, clause in enumerate(clauses):
            if not isinstance(clause, Clause) or not isinstance(clause.expected, Mapping):
                continue
            here: AstPath = ("expect", bucket, index, clause.name)
            named = {"node": clause.expected.get("node")}
            if clause.name == "exit_codes":
                named = {name: name for name in clause.expected if name != "expected"}
            for key, name in named.items():
                if isinstance(name, str) and name not in nodes:
                    yield Finding(
                        path=(*here, key),
                        message=f"there is no node {name!r}",
                        suggestion=did_you_mean(name, nodes),
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


def check_proxies(scenario: Scenario, actions: Sequence[PlannedAction | None]) -> Iterator[Finding]:
    """Yield what is done to proxies that the scenario does not have."""
    for index, (entry, action) in enumerate(zip(scenario.timeline, actions, strict=True)):
        proxy = getattr(action, "proxy", None)
        if isinstance(proxy, str) and proxy not in scenario.proxies:
            known = list(scenario.proxies)
            yield Finding(
                path=("timeline", index, entry.action.name, "proxy"),
                message=f"the scenario has no proxy {proxy!r} (`proxies:`)",
                suggestion=did_you_mean(proxy, known) if known else None,
            )


def _check_requires(scenario: Scenario) -> Iterator[Finding]:
    for index, name in enumerate(scenario.requires):
        if name not in CAPABILITIES:
            yield Finding(
                path=("requires", index),
                message=f"no cluster has a capability {name!r}",
                suggestion=did_you_mean(name, CAPABILITIES),
            )


def _check_ids(scenario: Scenario) -> Iterator[Finding]:
    ids: list[str] = []
    for index, entry in enumerate(scenario.timeline):
        if entry.id is not None and entry.id in ids:
            yield Finding(
                path=("timeline", index, "id"),
                message=f"another entry has the id {entry.id!r} already",
            )
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


def _unknown_id(path: AstPath, id: str, known: Collection[str]) -> Finding:
    return Finding(
        path=path,
        message=f"no entry of the timeline has the id {id!r}",
        suggestion=did_you_mean(id, known),
    )


def _check_heals(scenario: Scenario, actions: Sequence[PlannedAction | None]) -> Iterator[Finding]:
    ids = [entry.id for entry in scenario.timeline if entry.id]
    for index, (entry, action) in enumerate(zip(scenario.timeline, actions, strict=True)):
        here: AstPath = ("timeline", index)
        if entry.action.name == HEAL_ACTION:
            wanted = entry.action.value
            for name in [wanted] if isinstance(wanted, str) else wanted or [None]:
                if name != "all" and name not in ids:
                    yield _unknown_id((*here, HEAL_ACTION), str(name), ids)
        elif entry.for_s is None and entry.until is None:
            continue
        elif action is None or not action.is_healable:
            key = "for" if entry.for_s is not None else "until"
            yield Finding(
                path=(*here, key),
                message=f"`{entry.action.name}` cannot be undone, so it cannot have `{key}`",
                is_key=True,
            )


def _check_waits_for_heals(
    scenario: Scenario, actions: Sequence[PlannedAction | None]
) -> Iterator[Finding]:
    """Find what waits for the heal of something that cannot be undone."""
    final = {
        entry.id: entry.action.name
        for entry, action in zip(scenario.timeline, actions, strict=True)
        if action is not None and not action.is_healable
    }
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


def _check_selectors(
    scenario: Scenario, actions: Sequence[PlannedAction | None], nodes: tuple[str, ...]
) -> Iterator[Finding]:
    per_node = scenario.job.nproc_per_node
    largest = min(scenario.nodes.max, len(nodes)) * per_node
    for index, (entry, action) in enumerate(zip(scenario.timeline, actions, strict=True)):
        here: AstPath = ("timeline", index, entry.action.name)
        for parameter, selector in action.selectors() if action is not None else ():
            why = selector.impossible(node_names=nodes, largest_world=largest)
            if selector.means_gateway and action is not None:
                why = _why_no_gateway(scenario, action)
            if why is not None:
                yield Finding(path=(*here, parameter), message=why)
        for pair in getattr(action, "pairs", None) or ():
            for name in pair:
                if name not in nodes and not (name == "gateway" and scenario.proxies):
                    yield Finding(
                        path=(*here, "pairs"),
                        message=f"there is no node {name!r}: the nodes are {', '.join(nodes)}",
                    )
        at = entry.at
        if isinstance(at, float) and at >= scenario.limit:
            yield Finding(
                path=("timeline", index, "at"),
                message=f"the run is over by then: `limit` is {format_duration(scenario.limit)}",
            )
        if at is not None and not isinstance(at, float) and at.rank >= largest:
            yield Finding(
                path=("timeline", index, "at", "rank"),
                message=f"there is no rank {at.rank}: the largest world has {largest} ranks",
            )


def _why_no_gateway(scenario: Scenario, action: PlannedAction) -> str | None:
    if not getattr(action, "knows_gateway", False):
        return "the gateway is no node: only what is done to links can mean it"
    if not scenario.proxies:
        return "nothing lives at the gateway of this scenario: it has no `proxies`"
    return None


def _check_conditions(scenario: Scenario, nodes: tuple[str, ...]) -> Iterator[Finding]:
    largest = min(scenario.nodes.max, len(nodes)) * scenario.job.nproc_per_node
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
        size = getattr(getattr(condition, "stable", condition), "world_size", None)
        if isinstance(size, int) and size > largest:
            inner = ("stable",) if hasattr(condition, "stable") else ()
            yield Finding(
                path=(*path, *inner, "world_size"),
                message=f"there is no world of {size}: the largest has {largest} ranks",
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
    fields = [each.name for each in dataclasses.fields(kind)]
    for name in condition.fields:
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
