"""Nodes that come: new ones, replacements, and those that come back from a reboot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field

from elastic_harness.faults.context import (
    Evidence,
    FaultContext,
    FaultImpossible,
    InForce,
    Sleep,
    Steps,
    within,
)
from elastic_harness.faults.fault import Fault
from elastic_harness.faults.nodes.node import NodeFault, end_nodes, names_of
from elastic_harness.finding import Finding
from elastic_harness.scenario.actions import CheckedScenario, PlannedAction
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.fields import Listed, Seconds
from elastic_harness.scenario.selectors import SelectionEmpty, Term
from pytest_elastic.rendezvous.model import natural_key

__all__ = ["JoinNodes", "RebootNode", "ReplaceNode"]

# A node starts in well under a second on a preloaded server; from a cold command in seconds.
_START_S: Final = 30.0
_MAX_NODES: Final = 250


def _count_or_names(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= _MAX_NODES:
        raise ValueError(f"1 to {_MAX_NODES} nodes can join, and not {value}")
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        return value
    for number, name in enumerate(names):
        if not re.fullmatch(r"n\d{1,3}", str(name)):
            raise ValueError(f"{name!r} is no name of a node: n4, for example")
        if name in names[:number]:
            raise ValueError(f"{name} is named twice")
    if not names:
        raise ValueError("no node is to join: how many, or which?")
    return names


class JoinNodes(Fault):
    """Nodes that were not there start, and their launchers join the job.

    Stands for capacity that comes (back): an autoscaler, a spot market. `nodes` is how many, with
    fresh names, or a list of names. Does not stand for: a slow image pull, a cold file cache.
    """

    name = "join"
    layer = "node"
    proof = "the cluster started the nodes and their launchers by this order, and they are up"
    shorthand: ClassVar[str | None] = "nodes"
    starts_nodes: ClassVar[bool] = True

    nodes: Annotated[
        Annotated[int, Field(ge=1)] | Listed[str], BeforeValidator(_count_or_names)
    ] = Field(default=1)
    stagger: Seconds = 0.0

    def adds_nodes(self, there: Sequence[str]) -> tuple[str, ...]:
        if isinstance(self.nodes, int):
            return tuple(f"n{len(there) + number}" for number in range(1, self.nodes + 1))
        return tuple(name for name in self.nodes if name not in there)

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        initial, earlier = scenario.spec.initial_nodes, list(scenario.before(self))
        joins = [each for each in (*earlier, self) if isinstance(each, JoinNodes)]
        total = len(initial) + sum(
            each.nodes if isinstance(each.nodes, int) else len(each.nodes) for each in joins
        )
        if total > _MAX_NODES:
            yield Finding(f"a run has {_MAX_NODES} nodes at most, and here it has {total}")
        entry = scenario.entry_of(self)
        if isinstance(self.nodes, int) or entry.optional or scenario.spec.storm is not None:
            return
        known = {n for each in joins[:-1] if not isinstance(each.nodes, int) for n in each.nodes}
        for name in self.nodes:
            why = "is there from the start" if name in initial else ""
            if not why and name in known:
                why = "joins in an earlier entry already"
            if not why and entry.every is not None and entry.every.max > 1:
                why = "would join more than once"
            if why and not _may_end(scenario, name, nodes=True):
                stays = "no fault takes it away: choose another name, or say how many"
                if _may_end(scenario, name, nodes=False):
                    stays = (
                        f"stays up without its launcher: `reboot: {name}` starts that again, "
                        f"`replace: {name}` with an empty disk"
                    )
                yield Finding(f"{name} {why}, and {stays}", ("nodes",))

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        up = {node.name: node for node in situation.nodes}
        if isinstance(self.nodes, int):
            used = {*situation.used_names, *up}
            fresh = (f"n{i}" for i in range(1, _MAX_NODES + 1))
            names = [name for name in fresh if name not in used][: max(self.nodes, 0)]
        else:
            names = sorted(self.nodes, key=natural_key)
        if there := [name for name in names if name in up]:
            idle = [name for name in there if up[name].launcher is None]
            hint = f", without its launcher: `reboot: {idle[0]}` starts that again" if idle else ""
            raise SelectionEmpty(f"{', '.join(there)} cannot join: it is up already{hint}")
        if not names:
            raise SelectionEmpty("no node is to join")
        return Targets(new_nodes=tuple(names))

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield InForce.NEEDS_JOB  # starting takes a while, and delays nothing else
        starts = {}
        for number, name in enumerate(targets.new_nodes):
            if number:
                yield Sleep(seconds=self.stagger)
            starts[name] = context.launchers.start_node(name, keep_disk=False)
        for name, start in starts.items():
            yield from within(start, _START_S, f"starting {name}")
        # Some may be gone again by now, by other faults; not all of them.
        up = [name for name in targets.new_nodes if name in context.cluster.nodes]
        if not up:
            raise FaultImpossible(f"none of {', '.join(targets.new_nodes)} is up")
        return Evidence(text=f"{', '.join(up)} up", facts={"up": up})


def _may_end(scenario: CheckedScenario, name: str, *, nodes: bool) -> bool:
    """Tell whether some fault may end this node, or (`nodes` False) at least its launcher."""

    def terms(action: PlannedAction) -> list[Term]:
        return [term for key, each in action.selectors() if key == "node" for term in each.terms]

    return any(
        any(term.kind != "node" or term.name == name for term in terms(action))
        for action in scenario.actions
        if isinstance(action, Fault)
        and (action.takes_nodes_away if nodes else action.layer == "agent")
    )


class ReplaceNode(NodeFault):
    """A node dies and another one of the same name, with an empty disk, takes its place.

    Stands for a controller that replaces a broken machine or pod (a StatefulSet). `by` is how the
    old one dies. Does not stand for: a new address under the old name.
    """

    name = "replace"
    takes_nodes_away: ClassVar[bool] = True
    starts_nodes: ClassVar[bool] = True
    proof = "the cluster ended the node by this order, and one of its name is up again"
    sometimes_needs = "network (`by: power_cut`)"

    by: Literal["crash", "power_cut"] = "crash"
    downtime: Seconds = 0.0

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        yield from super().findings(scenario)
        yield from scenario.too_late(self.downtime, "downtime")

    @property
    def needs(self) -> str | None:
        return "network" if self.by == "power_cut" else None

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        cluster = context.cluster
        end = cluster.crash_node if self.by == "crash" else cluster.power_cut
        yield from end_nodes(context, targets.nodes, end)
        return (yield from _start_again(context, targets, self.downtime, keep_disk=False))


class RebootNode(NodeFault):
    """A node dies and comes back with what was on its disks.

    Stands for a crash with a reboot, an unattended kernel upgrade. Does not stand for: a disk that
    loses what was not written out, a machine whose address changes.
    """

    name = "reboot"
    takes_nodes_away: ClassVar[bool] = True
    starts_nodes: ClassVar[bool] = True
    proof = "the cluster ended the node by this order, and it is up again"

    downtime: Seconds = 1.0

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        yield from super().findings(scenario)
        yield from scenario.too_late(self.downtime, "downtime")

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from end_nodes(context, targets.nodes, context.cluster.crash_node)
        return (yield from _start_again(context, targets, self.downtime, keep_disk=True))


def _start_again(
    context: FaultContext, targets: Targets, downtime_s: float, *, keep_disk: bool
) -> Steps:
    yield InForce.NEEDS_JOB  # the old one is gone: what is left takes a while
    yield Sleep(seconds=downtime_s)
    starts = {
        node.name: context.launchers.start_node(node.name, keep_disk=keep_disk)
        for node in targets.nodes
    }
    for name, start in starts.items():
        yield from within(start, _START_S, f"starting {name} again")
    nodes = context.cluster.nodes
    if missing := [name for name in starts if name not in nodes]:
        raise FaultImpossible(f"did not come back: {', '.join(missing)}")
    return Evidence(
        text=f"{names_of(targets.nodes)} gone and back",
        facts={"ended": list(starts), "up": list(starts)},
    )
