"""Whom entries of the timeline mean, and through which proxies: what no run can have.

Pure. Each finding names the place by its path in the tree that YAML and Python share.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from elastic_harness.history.parameters import did_you_mean
from elastic_harness.scenario.checks.finding import Finding
from elastic_harness.scenario.fields import format_duration
from elastic_harness.scenario.model import PlannedAction, Scenario
from elastic_harness.scenario.reading.yaml_tree import AstPath
from elastic_harness.scenario.selectors import Selector
from elastic_harness.toxiproxy.proxied import RENDEZVOUS, environ_name

__all__ = ["check_targets"]

_MOST_NODES = 250
# In a ring of three, everybody is everybody's neighbour.
_NODES_OF_SHAPE = {"ring": 4, "halves": 2}
# Parameters with another one beside them, which `others` can be other than.
_SIDES = frozenset({"from", "to", "between", "node", "of"})
# After these a node of the same name can start.
_ENDING_NODES = frozenset({"crash", "power_cut", "preempt", "reboot", "replace"})
_ENDING_LAUNCHERS = frozenset({"kill_agent", "leave"})


def check_targets(
    scenario: Scenario, actions: Sequence[PlannedAction | None], nodes: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield what is aimed at nobody; `actions` are the timeline's, `nodes` all there can be."""
    yield from _check_selectors(scenario, actions, nodes)
    yield from _check_proxies(scenario, actions)
    yield from _check_proxy_ends(scenario, nodes)
    yield from _check_sides(scenario, actions, nodes)
    yield from _check_joins(scenario, actions)
    yield from _check_joins_of_those_up(scenario, actions)
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


def _check_sides(
    scenario: Scenario, actions: Sequence[PlannedAction | None], nodes: Sequence[str]
) -> Iterator[Finding]:
    """Find links that nobody has: two sides of the same nodes, nobody opposite, one node alone."""
    for index, (entry, action) in enumerate(zip(scenario.timeline, actions, strict=True)):
        here: AstPath = ("timeline", index, entry.action.name)
        if getattr(action, "knows_gateway", False) and len(nodes) < 2 and not scenario.proxies:
            yield Finding(
                path=here, message="one node alone has no links: two or more are expected"
            )
            continue
        named = action.selectors() if action is not None else ()
        for group in (each for name, each in named if name == "split" and not each.exclude):
            if not group.means_gateway and {term.name for term in group.terms} >= set(nodes):
                message = f"`{group}` is everybody: nobody is left to be split from"
                yield Finding(path=(*here, "split"), message=message)
        sides = [(name, each) for name, each in named if name in {"between", "from", "to"}]
        if len(sides) != 2:
            continue
        (_, left), (parameter, right) = sides
        why = _why_nobody_opposite(left, right, nodes) or _why_nobody_opposite(right, left, nodes)
        if parameter == "between":
            why = why or _why_both(left, right) or _why_both(right, left)
        if why is not None:
            yield Finding(path=(*here, parameter), message=why)


def _why_nobody_opposite(side: Selector, opposite: Selector, nodes: Sequence[str]) -> str | None:
    """Say why `others` on one side is nobody, or return None."""
    if not any(term.kind == "others" for term in side.terms):
        return None
    kinds = {term.kind for term in opposite.terms}
    if "others" in kinds:
        return "`others` on both sides is nobody: say who one of them is"
    is_everybody = "all" in kinds or {term.name for term in opposite.terms} >= set(nodes)
    if is_everybody and not opposite.exclude:
        return f"`{opposite}` is everybody: nobody is left for `others`"
    return None


def _why_both(one: Selector, other: Selector) -> str | None:
    """Say why somebody is on both sides, whatever the run looks like, or return None."""
    if one.exclude or other.exclude:
        return None
    across = [term for term in other.terms if term.kind != "gateway"]
    if across and any(term.kind == "all" for term in one.terms):
        return f"`{one}` is everybody, `{other}` too: nobody has a link to itself (try `others`)"
    fixed = {"rank", "rank host", "newest", "store host", "majority"}  # two majorities meet
    both = sorted({str(term) for term in one.terms if term.kind in fixed} & set(map(str, across)))
    if both:
        return f"{', '.join(both)} is on both sides: nobody has a link to itself"
    return None


def _check_joins_of_those_up(
    scenario: Scenario, actions: Sequence[PlannedAction | None]
) -> Iterator[Finding]:
    """Find nodes that cannot join because they are up, and nothing can have taken them away."""
    gone = _may_be_gone(scenario, actions)
    there = dict.fromkeys(scenario.initial_nodes, "is there from the start")
    for index, (entry, action) in enumerate(zip(scenario.timeline, actions, strict=True)):
        joining = getattr(action, "nodes", ()) if entry.action.name == "join" else ()
        for name in joining if isinstance(joining, tuple) else ():
            why = there.get(name)
            if why is None and entry.every is not None and entry.every.max > 1:
                why = "would join more than once"
            if why is not None and gone is not None and name not in gone and not entry.optional:
                stays = "no fault takes it away: choose another name, or say how many"
                if _may_lose_launcher(name, actions):
                    stays = (
                        f"stays up without its launcher: `reboot: {name}` starts that again, "
                        f"`replace: {name}` with an empty disk"
                    )
                yield Finding(
                    path=("timeline", index, "join", "nodes"), message=f"{name} {why}, and {stays}"
                )
            there.setdefault(name, "joins in an earlier entry already")


def _may_lose_launcher(name: str, actions: Sequence[PlannedAction | None]) -> bool:
    """Tell whether some fault can end the launcher of a node, and leaves the node itself up."""
    for action in actions:
        if action is None or getattr(action, "name", "") not in _ENDING_LAUNCHERS:
            continue
        terms = [term for key, each in action.selectors() if key == "node" for term in each.terms]
        if any(term.kind != "node" or term.name == name for term in terms):
            return True
    return False


def _may_be_gone(
    scenario: Scenario, actions: Sequence[PlannedAction | None]
) -> frozenset[str] | None:
    """Return the nodes that some fault can end; None: any of them."""
    if scenario.storm is not None:
        return None
    gone: set[str] = set()
    for action in actions:
        is_ours = type(action).__module__.startswith("elastic_harness.")
        if action is None or (is_ours and getattr(action, "name", "") not in _ENDING_NODES):
            continue
        terms = [term for name, each in action.selectors() if name == "node" for term in each.terms]
        if not is_ours or not all(term.kind == "node" for term in terms):
            return None
        gone |= {term.name for term in terms}
    return frozenset(gone)


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
