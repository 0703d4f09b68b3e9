"""What can be known to be wrong with a scenario before it runs: names that lead nowhere.

Works on the tree that YAML and Python share. What is wrong with a fault or a clause by itself, or
with its use here, they say themselves; this is about what ties them together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin

import msgspec

from elastic_harness.cluster.cluster import CAPABILITIES
from elastic_harness.faults.recipe import Recipe, known_draws, needs_of, usable
from elastic_harness.faults.recipes import NOT_DRAWN, RECIPES
from elastic_harness.finding import AstPath, Finding, did_you_mean
from elastic_harness.history import events as harness_events
from elastic_harness.history.checkers.library import STANDARD
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.scenario.actions import CheckedScenario, CheckNow, HealEntries
from elastic_harness.scenario.checks.clause_checks import check_clauses
from elastic_harness.scenario.checks.launch_checks import check_launch
from elastic_harness.scenario.job_spec import RENDEZVOUS, environ_name
from elastic_harness.scenario.model import Scenario, storm_of
from elastic_harness.scenario.planning.storm import shape_of
from elastic_harness.scenario.stage.log_source import rank_of
from elastic_harness.scenario.triggers import AfterEntry, EventCondition, WritingCondition
from pytest_elastic.events.model import EVENT_KINDS

if TYPE_CHECKING:
    from elastic_harness.faults.registry import FaultRegistry

__all__ = ["check_scenario", "needed_capabilities"]

assert harness_events.RunEnded.kind in EVENT_KINDS, "importing the harness's events registers them"


_WORDS: Mapping[object, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Mapping: "a mapping",
    NoneType: "null",
    Any: "anything",
    Ellipsis: "...",
}
_STORE_HOST: Final = "store host"


def needed_capabilities(scenario: Scenario, faults: FaultRegistry) -> tuple[str, ...]:
    """Return what a cluster must be able to do: what is asked for, and what the faults need."""
    needs = dict.fromkeys(scenario.requires)
    if scenario.job.rdzv.endpoints:
        needs["names"] = None  # where all nodes have one name, endpoints cannot be told apart
    if scenario.proxies:
        needs["gateway"] = None
    if scenario.nodes.resources or scenario.nodes.labels:
        needs["placement"] = None
    for entry in scenario.timeline:
        if isinstance(entry.when, WritingCondition):
            needs["disk_faults"] = None
        need = faults.read(entry.action.name, entry.action.value).needs
        if need is not None:
            needs[need] = None
    if scenario.storm is not None:
        needs.update(dict.fromkeys(needs_of(faults.recipes, scenario.storm.faults)))
    return tuple(needs)


def check_scenario(
    checked: CheckedScenario,
    recipes: Sequence[Recipe] = RECIPES,
    *,
    drawn: Collection[str] = (),
    checkers: Registry = STANDARD,
    may_grow: bool = False,
) -> Iterator[Finding]:
    """Yield what is impossible; `drawn` are ids of entries that a Python test's storm has drawn.

    `may_grow`: a running test may add entries, and heal others.
    """
    scenario = checked.spec
    for index, name in enumerate(scenario.requires):
        if name not in CAPABILITIES:
            yield Finding(
                f"no cluster has a capability {name!r}",
                ("requires", index),
                suggestion=did_you_mean(name, CAPABILITIES),
            )
    yield from _check_ids(scenario, drawn)
    yield from _check_entries(checked)
    yield from _check_waits(checked)
    if not may_grow:
        yield from _check_heals(checked)
    yield from _check_conditions(checked)
    yield from _check_storm(checked, recipes)
    yield from _check_proxies(checked)
    yield from check_launch(scenario)
    yield from check_clauses(checked, checkers)
    rdzv = scenario.job.rdzv
    if rdzv.store_host is not None:
        yield from _not_at_the_start(scenario, rdzv.store_host, "job", "rdzv", "store_host")
    for index, name in enumerate(rdzv.endpoints):
        yield from _not_at_the_start(scenario, name, "job", "rdzv", "endpoints", index)


def _not_at_the_start(
    scenario: Scenario, name: str, *path: str | int, others: tuple[str, ...] = ()
) -> Iterator[Finding]:
    known = (*others, *scenario.initial_nodes)
    if name not in known:
        yield Finding(
            f"no node called {name!r} is there at the start",
            path,
            suggestion=did_you_mean(name, known),
        )


def _check_ids(scenario: Scenario, drawn: Collection[str]) -> Iterator[Finding]:
    ids: list[str] = []
    for index, entry in enumerate(scenario.timeline):
        if entry.id is not None and entry.id in ids:
            yield Finding(
                f"another entry has the id {entry.id!r} already", ("timeline", index, "id")
            )
        why = _why_no_id(entry.id, index) if entry.id and entry.id not in drawn else None
        if why is not None:
            yield Finding(f"{why}: choose another id", ("timeline", index, "id"))
        ids.append(entry.id or "")


def _why_no_id(id: str, index: int) -> str | None:
    """Say why an entry cannot be called so: names that mean something else."""
    if id == "all":
        return "`all` means every entry where one is healed"
    found = re.fullmatch(r"entry-(\d+)", id)
    if found is not None and int(found[1]) != index + 1:
        return f"{id!r} is what another entry is called that has no id"
    if storm_of(id):
        return f"{id!r} is what an entry of a storm is called"
    return None


def _check_entries(checked: CheckedScenario) -> Iterator[Finding]:
    """Find what an entry's own keys, and what it does, cannot have here."""
    for index, entry in enumerate(checked.spec.timeline):
        here: AstPath = ("timeline", index)
        action = checked.actions[index]
        for each in action.findings(checked):
            yield each.below(*here, entry.action.name)
        if isinstance(entry.at, float):
            yield from checked.too_late(entry.at, *here, "at")
        elif entry.at is not None:
            yield from checked.no_rank(entry.at.rank, *here, "at", "rank")
        if action.is_healable:
            hint = "until the end of the run: `until: end`"
            yield from checked.too_late(entry.for_s, *here, "for", suggestion=hint)
        for key, value in (("for", entry.for_s), ("until", entry.until)):
            if value is not None and not action.is_healable and not isinstance(action, CheckNow):
                yield Finding(
                    f"`{entry.action.name}` cannot be undone, so it cannot have `{key}`",
                    (*here, key),
                    is_key=True,
                )


def _check_waits(checked: CheckedScenario) -> Iterator[Finding]:
    """Find what waits for an entry that there is not, or for the heal of one that has none."""
    waiting: list[tuple[AstPath, str | None, AfterEntry | None]] = [
        (("timeline", index, "after"), entry.id, entry.after)
        for index, entry in enumerate(checked.spec.timeline)
    ]
    waiting += [
        (("expect", "eventually", index, "after"), None, clause.after)
        for index, clause in enumerate(checked.spec.expect.eventually)
    ]
    waits_for = {id: after.id for _, id, after in waiting if id is not None and after is not None}
    in_circles: set[str] = set()
    for path, own_id, after in waiting:
        if after is None:
            continue
        yield from checked.no_entry(after.id, *path)
        if own_id is not None and own_id not in in_circles:
            circle = _circle(own_id, waits_for)
            in_circles.update(circle)
            if circle:
                through = f", by way of {', '.join(circle[1:])}" if circle[1:] else ""
                yield Finding(f"it waits for itself{through}", path)
        if after.healed and (final := checked.final_entries.get(after.id)) is not None:
            yield Finding(f"`{final}` cannot be undone, so `{after.id}.healed` never comes", path)


def _check_heals(checked: CheckedScenario) -> Iterator[Finding]:
    """Find what waits for a heal that comes only once nothing is left to come."""
    healed = {
        id for action in checked.actions if isinstance(action, HealEntries) for id in action.ids
    }
    lasting = {
        entry.id
        for entry, action in zip(checked.spec.timeline, checked.actions, strict=True)
        if action.is_healable
        and entry.for_s is None
        and entry.until in (None, "end")
        and entry.id not in healed
    }
    for index, entry in enumerate(checked.spec.timeline):
        after = entry.after
        if after is not None and after.healed and after.id in lasting and "all" not in healed:
            yield Finding(
                f"nothing heals {after.id} before this entry has come, which waits for that: "
                f"give {after.id} a `for` or `until`, or heal it",
                ("timeline", index, "after"),
            )


def _circle(id: str, waits_for: Mapping[str, str]) -> list[str]:
    """Return the entries that wait for one another, from this one on; none if it is not of them."""
    chain = [id]
    while (following := waits_for.get(chain[-1])) is not None and following not in chain:
        chain.append(following)
    return chain if following == id else []


def _check_conditions(checked: CheckedScenario) -> Iterator[Finding]:
    for path, condition in checked.spec.conditions:
        yield from checked.no_node(getattr(condition, "node", None), *path, "node")
        if isinstance(condition, EventCondition):
            yield from _check_event(path, condition)
            continue
        yield from checked.no_rank(rank_of(getattr(condition, "by", None)), *path, "by")
        stable = getattr(condition, "stable", None)
        inner = ("stable",) if stable is not None else ()
        size = getattr(stable or condition, "world_size", None)
        yield from checked.no_world(size, *path, *inner, "world_size")
    for index, clause in enumerate(checked.spec.expect.eventually):
        path = ("expect", "eventually", index, "within")
        yield from checked.too_late(clause.within, *path, is_in=True)


def _check_event(path: AstPath, condition: EventCondition) -> Iterator[Finding]:
    kind = EVENT_KINDS.get(condition.event)
    if kind is None:
        yield Finding(
            f"there is no event {condition.event!r}",
            (*path, "event"),
            suggestion=did_you_mean(condition.event, EVENT_KINDS),
        )
        return
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for name, value in condition.fields.items():
        if name not in types:
            yield Finding(
                f"the event {condition.event} has no field {name!r}",
                (*path, name),
                suggestion=did_you_mean(name, [*types, "node", "count"]),
                is_key=True,
            )
            continue
        try:
            msgspec.convert(value, types[name])
        except msgspec.ValidationError:
            yield Finding(
                f"{name!r} of the event {condition.event} is never {value!r}: "
                f"{_in_words(types[name])} is expected",
                (*path, name),
            )


def _in_words(type_: object) -> str:
    """Return what values of a field's type are called in YAML."""
    if isinstance(type_, UnionType):
        return " or ".join(map(_in_words, get_args(type_)))
    if get_origin(type_) is tuple:
        return f"a list [{', '.join(map(_in_words, get_args(type_)))}]"
    return _WORDS[get_origin(type_) or type_]


def _check_storm(checked: CheckedScenario, recipes: Sequence[Recipe]) -> Iterator[Finding]:
    scenario, storm = checked.spec, checked.spec.storm
    if storm is None:
        return
    known, job = known_draws(recipes), shape_of(storm, scenario)
    for index, name in enumerate(storm.faults):
        here: AstPath = ("storm", "faults", index)
        if name not in known:
            why = NOT_DRAWN.get(name)
            yield Finding(
                f"{name!r} cannot be drawn{f': {why}' if why else ''}",
                here,
                suggestion=None if why else did_you_mean(name, known),
            )
        elif not usable(recipes, [name], job):
            yield Finding(
                f"there is nothing to draw {name!r} for: of {len(job.all_nodes)} nodes "
                f"{len(job.nodes)} may be hit, and there are {len(job.proxies)} proxies",
                here,
            )
        if name in storm.faults[:index]:
            yield Finding(f"{name!r} stands here twice", here)
    if storm.steps is None:
        yield from checked.too_late(storm.over, "storm", "over", is_in=True)
    if {"over", "steps"} <= storm.model_fields_set:
        yield Finding(
            "`over` and `steps` both say when faults come: keep one of them", ("storm", "steps")
        )
    for index, name in enumerate(storm.exclude):
        yield from _not_at_the_start(
            scenario, name, "storm", "exclude", index, others=(_STORE_HOST,)
        )
    if scenario.job.max_restarts < storm.max:
        yield Finding(
            f"a storm of up to {storm.max} faults can use up the {scenario.job.max_restarts} "
            f"restarts of this job: give it `max_restarts: {storm.max}` or more",
            ("storm",),
        )


def _check_proxies(checked: CheckedScenario) -> Iterator[Finding]:
    """Find proxies that lead to no node, or that are in each other's way."""
    ports: dict[int, str] = {}
    variables: dict[str, str] = {}
    proxies = checked.spec.proxies
    through = [name for name, spec in proxies.items() if spec.upstream == RENDEZVOUS]
    if len(through) > 1:
        yield Finding(
            "the rendezvous endpoint is reached through one proxy, not several",
            ("proxies", through[1]),
        )
    for name, spec in proxies.items():
        host = spec.upstream.rpartition(":")[0]
        if re.fullmatch(r"n[1-9]\d*", host):
            yield from checked.no_node(host, "proxies", name)
        if spec.listen and spec.listen in ports:
            yield Finding(
                f"proxy {ports[spec.listen]!r} listens at port {spec.listen} already",
                ("proxies", name, "listen"),
            )
        ports.setdefault(spec.listen, name)
        variable = environ_name(name)
        if variable in variables:
            yield Finding(
                f"jobs would find it as {variable}, as {variables[variable]!r} already",
                ("proxies", name),
                is_key=True,
            )
        variables.setdefault(variable, name)
