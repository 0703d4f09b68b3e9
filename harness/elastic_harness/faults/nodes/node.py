"""Faults of whole nodes and of their agents: killed, crashed, cut off from power, reclaimed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final, Literal, TypeVar

from pydantic import Field

from elastic_harness.cluster.process import ProcessRef, is_running
from elastic_harness.faults.context import (
    IN_FORCE,
    Evidence,
    FaultContext,
    FaultImpossible,
    InForce,
    Proved,
    Sleep,
    Steps,
    Until,
    Waits,
)
from elastic_harness.faults.fault import Fault, with_exclude
from elastic_harness.faults.workers.worker import kill_each, see_end, send_to_each
from elastic_harness.finding import Finding
from elastic_harness.future import Future, gather
from elastic_harness.scenario.actions import CheckedScenario
from elastic_harness.scenario.engine.situation import NodeRef, Situation, Targets
from elastic_harness.scenario.fields import Seconds, Select
from elastic_harness.scenario.selectors import resolve_nodes
from pytest_elastic.errors import ElasticError
from pytest_elastic.exit_codes import exit_text

__all__ = [
    "CrashNode",
    "CutPower",
    "KillAgent",
    "LeaveNode",
    "NodeFault",
    "PreemptNode",
    "end_nodes",
    "is_all_down",
    "names_of",
    "read_each",
]

T = TypeVar("T")

_DEATH_S: Final = 5.0


class NodeFault(Fault):
    """A fault that hits nodes: `node` says which, `exclude` which not."""

    layer = "node"
    may_end_launchers: ClassVar[bool] = True
    shorthand: ClassVar[str | None] = "node"

    node: Select
    exclude: Select | None = None

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        chosen = with_exclude(self.node, self.exclude)
        return Targets(nodes=resolve_nodes(chosen, situation, stream=stream))


class KillAgent(NodeFault):
    """A node's launcher is killed (SIGKILL); its workers are not touched.

    Stands for an agent killed by the out-of-memory killer or by `kill -9`. Does not stand for: the
    end of a whole container, where the kernel takes the workers along.
    """

    name = "kill_agent"
    layer = "agent"
    proof = "SIGKILL was delivered, and the launcher has ended by it"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        killed = _launchers_of(context, targets.nodes)
        yield from kill_each(context, _as_called(killed))
        return Evidence(
            text=f"launcher on {names_of(targets.nodes)} gone",
            facts={"delivered": "SIGKILL", "nodes": list(killed)},
        )


class CrashNode(NodeFault):
    """All processes of a node die at once; its kernel lives on, and closes their connections.

    Stands for a container or cgroup that is killed, a reset by the platform with a clean network
    end. Does not stand for: the silence of a power cut, a disk that loses what was not written out.
    """

    name = "crash"
    takes_nodes_away: ClassVar[bool] = True
    proof = "the cluster ended the node by this order, and it is not up"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        ended = yield from end_nodes(context, targets.nodes, context.cluster.crash_node)
        yield IN_FORCE
        return Evidence(text=f"{', '.join(ended)} gone, sockets closed", facts={"ended": ended})


class CutPower(NodeFault):
    """A node goes silent, then dies: no FIN, no RST, nothing tells the others.

    Stands for a power failure, a kernel panic, a pulled cable that never comes back. Does not stand
    for: ARP entries that expire, a switch port that reports its link down.
    """

    name = "power_cut"
    takes_nodes_away: ClassVar[bool] = True
    capability = "network"
    proof = "the cluster silenced its links and ended it by this order, and it is not up"

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        ended = yield from end_nodes(context, targets.nodes, context.cluster.power_cut)
        yield IN_FORCE
        return Evidence(text=f"{', '.join(ended)} gone, in silence", facts={"ended": ended})


class PreemptNode(NodeFault):
    """A node's launcher gets SIGTERM, and `notice` later the node loses power, whatever it does.

    Stands for a spot instance that is reclaimed, a job that is pre-empted. `by` is how the node
    ends: `crash` kills all its processes, and closes their connections. Does not stand for: a
    platform that tells the program by an HTTP endpoint only.
    """

    name = "preempt"
    takes_nodes_away: ClassVar[bool] = True
    sometimes_needs = "network (`by: power_cut`)"
    proof = (
        "SIGTERM was delivered, and the launcher has left before the notice was over; or the node "
        "was up until then, and the cluster ended it by this order"
    )

    notice: Seconds = 30.0
    by: Literal["crash", "power_cut"] = "power_cut"

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        yield from super().findings(scenario)
        yield from scenario.too_late(self.notice, "notice")

    @property
    def needs(self) -> str | None:
        return "network" if self.by == "power_cut" else None

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        launchers = _launchers_of(context, targets.nodes)
        yield from send_to_each(context, _as_called(launchers), signal.SIGTERM)
        yield InForce.NEEDS_JOB  # to leave in order, workers take steps
        over_at = context.now() + self.notice

        def is_time() -> bool:
            return context.now() >= over_at or _have_left(context, launchers)

        yield Until(is_time, self.notice + 1, "a notice is over when its time has passed")
        if context.now() < over_at:
            codes = yield from _how_they_left(context, launchers)
            if None not in codes.values():
                # The run may end before the power goes: a launcher that left has obeyed.
                yield Proved(evidence=_evidence_of_leaving(codes))
            yield Sleep(seconds=max(over_at - context.now(), 0.0))
        cluster = context.cluster
        end = cluster.crash_node if self.by == "crash" else cluster.power_cut
        ended = yield from end_nodes(context, targets.nodes, end)
        return Evidence(
            text=f"{', '.join(ended)} gone, {self.notice:g} s after SIGTERM",
            facts={"delivered": "SIGTERM", "ended": ended},
        )


class LeaveNode(NodeFault):
    """A node's launcher gets SIGTERM and is given time to end; the node itself stays up.

    Stands for an operator or a scheduler that scales a job down with care. Does not stand for: a
    platform that takes the machine away afterwards (that is `preempt`).
    """

    name = "leave"
    layer = "agent"
    proof = "SIGTERM was delivered, and the launcher has ended, by no other signal"

    within: Seconds = Field(default=40.0, gt=0)

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        found = super().resolve(situation, stream=stream)
        names = {node.name for node in found.nodes}
        workers = tuple(each for each in situation.workers if each.node in names)
        return replace(found, peers=workers)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        launchers = _launchers_of(context, targets.nodes)
        yield from send_to_each(context, _as_called(launchers), signal.SIGTERM)
        yield InForce.NEEDS_JOB  # to leave in order, workers take steps
        try:
            yield Until(lambda: _have_left(context, launchers), self.within, "it stayed")
        except ElasticError as late:
            raise FaultImpossible((yield from self._who_stayed(context, targets))) from late
        return _evidence_of_leaving((yield from _how_they_left(context, launchers)))

    def _who_stayed(self, context: FaultContext, targets: Targets) -> Waits[str]:
        """Say which launchers stayed, what they seem to wait for, and what can be done."""
        stayed = [
            node for node in targets.nodes if context.launchers.launcher_of(node.name) is not None
        ]
        text = f"the launcher on {names_of(tuple(stayed))} had not ended {self.within:g} s after "
        names = {node.name for node in stayed}
        busy = []
        for worker in targets.peers:
            if worker.node in names:
                state = yield from context.cluster.state(worker.process)
                busy += [str(worker)] if is_running(state) else []
        if not busy:
            return f"{text}SIGTERM, though its workers had: its own log says what it waits for"
        return (
            f"{text}SIGTERM, and neither had {', '.join(busy)}: a worker that ignores SIGTERM is "
            "killed when the launcher's --shutdown-timeout (30 s) is over, so give that less or "
            "`within` more"
        )


def _how_they_left(
    context: FaultContext, launchers: Mapping[str, ProcessRef]
) -> Waits[Mapping[str, int | None]]:
    """Return how launchers have ended that were told to leave, by node, as far as it is known.

    Raises FaultImpossible for one that something else has ended.
    """
    codes: dict[str, int | None] = {}
    for name, launcher in launchers.items():
        otherwise = f"the launcher on {name} has not ended"
        code = codes[name] = yield from see_end(
            context, launcher, within_s=_DEATH_S, otherwise=otherwise
        )
        if code not in (None, -signal.SIGTERM) and code < 0:
            raise FaultImpossible(
                f"the launcher on {name} was told to leave, but it ended with {exit_text(code)}"
            )
    return codes


def _evidence_of_leaving(codes: Mapping[str, int | None]) -> Evidence:
    ends = ", ".join(f"{name} with {exit_text(code)}" for name, code in codes.items())
    return Evidence(
        text=f"launcher ended after SIGTERM: {ends}",
        facts={"delivered": "SIGTERM", "exit_codes": codes},
    )


def names_of(nodes: tuple[NodeRef, ...]) -> str:
    """Return the nodes' names as text."""
    return ", ".join(node.name for node in nodes)


def is_all_down(context: FaultContext, nodes: tuple[NodeRef, ...]) -> bool:
    """Tell whether none of the nodes runs."""
    return not any(node.name in context.cluster.nodes for node in nodes)


def read_each(
    context: FaultContext, nodes: Sequence[str], read: Callable[[str], Future[T]]
) -> Waits[dict[str, T]]:
    """Return what is read of each node that is up; raises FaultImpossible if none is."""
    found = {}
    for node in nodes:
        if node not in context.cluster.nodes:
            continue
        try:
            found[node] = yield from read(node)
        except ElasticError:
            if node in context.cluster.nodes:
                raise
    if not found:
        raise FaultImpossible(f"{', '.join(nodes)}: no such node is up any more")
    return found


def end_nodes(
    context: FaultContext, nodes: tuple[NodeRef, ...], end: Callable[[str], Future[None]]
) -> Waits[list[str]]:
    """End nodes with `end`, all at once, wait until they are gone, and return their names.

    Raises FaultImpossible for one that something else has ended before.
    """
    gone = tuple(node for node in nodes if node.name not in context.cluster.nodes)
    ends = {node.name: end(node.name) for node in nodes if node not in gone}
    if not ends:
        raise FaultImpossible(f"{names_of(nodes)}: no such node is up any more")
    yield from gather(ends.values())
    yield Until(
        condition=lambda: is_all_down(context, nodes),
        within_s=_DEATH_S,
        otherwise=lambda: (
            "still up: "
            + names_of(tuple(node for node in nodes if node.name in context.cluster.nodes))
        ),
    )
    if gone:
        raise FaultImpossible(f"{names_of(gone)} had gone before, by something else")
    return list(ends)


def _launchers_of(context: FaultContext, nodes: tuple[NodeRef, ...]) -> dict[str, ProcessRef]:
    """Return the launchers of nodes, by node; raises FaultImpossible where none runs."""
    found = {}
    for node in nodes:
        launcher = context.launchers.launcher_of(node.name)
        if launcher is None:
            raise FaultImpossible(f"no launcher runs on {node.name}")
        found[node.name] = launcher
    return found


def _as_called(launchers: Mapping[str, ProcessRef]) -> dict[str, ProcessRef]:
    return {f"the launcher on {name}": launcher for name, launcher in launchers.items()}


def _have_left(context: FaultContext, launchers: Mapping[str, ProcessRef]) -> bool:
    return all(context.launchers.launcher_of(name) is None for name in launchers)
