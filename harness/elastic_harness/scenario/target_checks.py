"""Whom entries of the timeline mean, and through which proxies: what no run can have.

Pure. Each finding names the place by its path in the tree that YAML and Python share.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from elastic_harness.history.parameters import did_you_mean
from elastic_harness.network.proxied import RENDEZVOUS, environ_name
from elastic_harness.scenario.fields import format_duration
from elastic_harness.scenario.finding import Finding
from elastic_harness.scenario.model import PlannedAction, Scenario
from elastic_harness.scenario.selectors import Selector
from elastic_harness.scenario.yaml_tree import AstPath

__all__ = ["check_targets"]

_MOST_NODES = 250
# In a ring of three, everybody is everybody's neighbour.
_NODES_OF_SHAPE = {"ring": 4, "halves": 2}
# Parameters with another one beside them, which `others` can be other than.
_SIDES = frozenset({"from", "to", "between", "node", "of"})


def check_targets(
    scenario: Scenario, actions: Sequence[PlannedAction | None], nodes: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield what is aimed at nobody; `actions` are the timeline's, `nodes` all there can be."""
    yield from _check_selectors(scenario, actions, nodes)
    yield from _check_proxies(scenario, actions)
    yield from _check_proxy_ends(scenario, nodes)
    yield from _check_joins(scenario, actions)
    yield from _check_durations(scenario, actions)


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
            exclude = getattr(action, "exclude", None) if parameter != "exclude" else None
            excluded = exclude.terms if isinstance(exclude, Selector) else ()
            why = why or selector.empty(node_names=nodes, largest_world=largest, excluded=excluded)
            if why is None and (parameter not in _SIDES or not _has_two_sides(action)):
                why = _why_no_others(selector)
            if why is not None:
                yield Finding(path=(*here, parameter), message=why)
        for pair in getattr(action, "pairs", None) or ():
            for name in pair:
                if name not in nodes and not (name == "gateway" and scenario.proxies):
                    yield Finding(
                        path=(*here, "pairs"),
                        message=f"there is no node {name!r}: the nodes are {', '.join(nodes)}",
                    )
        if (needed := _NODES_OF_SHAPE.get(str(getattr(action, "shape", "")), 0)) > len(nodes):
            yield Finding(
                path=here, message=f"of fewer than {needed} nodes, this shape cuts no link"
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


def _has_two_sides(action: PlannedAction | None) -> bool:
    return len(action.selectors() if action is not None else ()) > 1


def _why_no_others(selector: Selector) -> str | None:
    if any(term.kind == "others" for term in selector.terms):
        return "`others` has nobody to be other than here"
    return None


def _why_no_gateway(scenario: Scenario, action: PlannedAction) -> str | None:
    if not getattr(action, "knows_gateway", False):
        return "the gateway is no node: only what is done to links can mean it"
    if not scenario.proxies:
        return "nothing lives at the gateway of this scenario: it has no `proxies`"
    return None


def _check_proxies(
    scenario: Scenario, actions: Sequence[PlannedAction | None]
) -> Iterator[Finding]:
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


def _check_proxy_ends(scenario: Scenario, nodes: Sequence[str]) -> Iterator[Finding]:
    """Find proxies that lead to no node, or that are in each other's way."""
    ports: dict[int, str] = {}
    variables: dict[str, str] = {}
    through = [name for name, spec in scenario.proxies.items() if spec.upstream == RENDEZVOUS]
    if len(through) > 1:
        yield Finding(
            path=("proxies", through[1]),
            message="the rendezvous endpoint is reached through one proxy, not several",
        )
    for name, spec in scenario.proxies.items():
        here: AstPath = ("proxies", name)
        host = spec.upstream.rpartition(":")[0]
        if re.fullmatch(r"n[1-9]\d*", host) and host not in nodes:
            yield Finding(
                path=here,
                message=f"there is no node {host!r}",
                suggestion=did_you_mean(host, nodes),
            )
        if spec.listen and spec.listen in ports:
            yield Finding(
                path=(*here, "listen"),
                message=f"proxy {ports[spec.listen]!r} listens at port {spec.listen} already",
            )
        ports.setdefault(spec.listen, name)
        variable = environ_name(name)
        if variable in variables:
            yield Finding(
                path=here,
                message=f"jobs would find it as {variable}, as {variables[variable]!r} already",
                is_key=True,
            )
        variables.setdefault(variable, name)


def _check_joins(scenario: Scenario, actions: Sequence[PlannedAction | None]) -> Iterator[Finding]:
    """Find nodes that cannot join: there from the start, named twice, too many."""
    total = len(scenario.initial_nodes)
    for index, action in enumerate(actions):
        if getattr(action, "name", "") != "join":
            continue
        joining = getattr(action, "nodes", 0)
        total += joining if isinstance(joining, int) else len(joining)
        path: AstPath = ("timeline", index, "join")
        if total > _MOST_NODES:
            yield Finding(
                path=path, message=f"a run has {_MOST_NODES} nodes at most, and here it has {total}"
            )


def _check_durations(
    scenario: Scenario, actions: Sequence[PlannedAction | None]
) -> Iterator[Finding]:
    """Find what takes longer than the run."""
    for index, action in enumerate(actions):
        for key in ("notice", "downtime"):
            seconds = getattr(action, key, None)
            if isinstance(seconds, float) and seconds >= scenario.limit:
                yield Finding(
                    path=("timeline", index, getattr(action, "name", ""), key),
                    message=f"the run is over by then: `limit` is "
                    f"{format_duration(scenario.limit)}",
                )
