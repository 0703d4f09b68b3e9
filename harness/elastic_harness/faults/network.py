"""Faults of the links between nodes: cut in every shape, slowed, made lossy."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Annotated, ClassVar, Final

from pydantic import BeforeValidator, Field, model_validator

from elastic_harness.faults.context import (
    FaultContext,
    FaultImpossible,
    HealOrdered,
    InForce,
    Settled,
    Sleep,
    Steps,
    Wait,
)
from elastic_harness.faults.fault import Fault
from elastic_harness.network import partitions
from elastic_harness.network.link_model import (
    DropReason,
    LinkCounters,
    LinkMode,
    LinkPolicy,
    Pair,
)
from elastic_harness.scenario.fields import Fraction, Listed, Rate, Seconds, Select
from elastic_harness.scenario.selectors import SelectionEmpty, Selector, resolve_nodes
from elastic_harness.scenario.situation import NodeRef, Situation, Targets
from pytest_elastic.errors import UsageError

__all__ = ["Degrade", "Partition"]

_CLUSTER_S: Final = 15.0
# A job that says nothing for this long over a cut link does not notice the cut. Agents of any
# launcher in use beat every 5 s or more often.
_PROOF_S: Final = 15.0
_LOOK_S: Final = 0.1

Counts = Mapping[Pair, LinkCounters]
Names = tuple[str, ...]


def _mode(value: object) -> object:
    if isinstance(value, str) and value in {mode.value for mode in LinkMode}:
        return LinkMode(value)
    if isinstance(value, LinkMode):
        return value
    raise ValueError(f"{value!r} is no mode of a cut: drop, reject or hold")


class _LinkFault(Fault):
    """A policy laid over links for a while."""

    layer = "network"
    is_healable: ClassVar[bool] = True

    @property
    def needs(self) -> str | None:
        return "network"

    def policy(self) -> LinkPolicy:
        """Return what is laid over the links."""
        raise NotImplementedError

    def acted(self, before: LinkCounters, after: LinkCounters) -> int:
        """Return how many packets this fault has acted on, between two readings of one link."""
        raise NotImplementedError

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        ticket = context.impose(id, targets.links, self.policy())
        yield Settled(ticket=ticket, within_s=_CLUSTER_S, what="changing links")
        ticket.result()
        before = yield from _read(context)
        yield InForce.NEEDS_JOB
        deadline = context.now() + _PROOF_S
        while context.now() < deadline:
            try:
                yield Sleep(seconds=_LOOK_S)
            except HealOrdered:
                deadline = 0.0
            after = yield from _read(context)
            packets = sum(
                self.acted(before.get(pair, LinkCounters()), after.get(pair, LinkCounters()))
                for pair in targets.links
            )
            if packets > 0:
                return f"{packets} packets {self._verb} on {len(targets.links)} links"
        raise FaultImpossible("nothing was sent over these links: nobody can have noticed")

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        ticket = context.lift(id)
        yield Settled(ticket=ticket, within_s=_CLUSTER_S, what="healing links")
        ticket.result()
        return "links as before"

    _verb: ClassVar[str] = "affected"


def _read(context: FaultContext) -> Generator[Wait, None, Counts]:
    """Read the counters."""
    ticket = context.counters()
    yield Settled(ticket=ticket, within_s=_CLUSTER_S, what="reading the switch's counters")
    return ticket.result()


class Partition(_LinkFault):
    """Links between nodes are cut, in both directions or one.

    Exactly one shape: `isolate` (each of these alone), `split` (these from all others, not from
    each other), `between` (two groups from each other), `from` and `to` (one way), `bridge` (two
    halves that only see this node), `shape: halves` or `shape: ring`, or `pairs` of names. `mode`
    is what happens to packets: drop, reject (refused at once), hold (delivered when it heals).
    Stands for a broken switch, a wrong firewall rule, a lost route. Does not stand for: RDMA.
    """

    name = "partition"
    shorthand: ClassVar[str | None] = "isolate"
    _verb: ClassVar[str] = "stopped"

    isolate: Select | None = None
    split: Select | None = None
    between: Annotated[Listed[Select] | None, Field(min_length=2, max_length=2)] = None
    from_: Select | None = Field(default=None, alias="from")
    to: Select | None = None
    bridge: Select | None = None
    shape: Annotated[str | None, Field(pattern="^(halves|ring)$")] = None
    pairs: Listed[Annotated[Listed[str], Field(min_length=2, max_length=2)]] | None = None
    mode: Annotated[LinkMode, BeforeValidator(_mode)] = LinkMode.DROP

    @model_validator(mode="before")
    @classmethod
    def _from_shape(cls, value: object) -> object:
        return {"shape": value} if value in ("halves", "ring") else value

    @model_validator(mode="after")
    def _one_shape(self) -> Partition:
        shapes = ("isolate", "split", "between", "bridge", "shape", "pairs")
        given = [key for key in shapes if getattr(self, key) is not None]
        if self.from_ is not None or self.to is not None:
            if self.from_ is None or self.to is None:
                raise ValueError("`from` and `to` belong together: who is not heard by whom")
            given.append("from and to")
        if len(given) != 1:
            found = ", ".join(given) or "none"
            known = f"{', '.join(shapes)}, from and to"
            raise ValueError(f"`partition` has exactly one shape ({known}): found {found}")
        return self

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        try:
            links = self._links(situation, stream)
        except UsageError as error:
            raise SelectionEmpty(error.message) from error
        if not links:
            raise SelectionEmpty("no link between nodes that are up is cut by this partition")
        return Targets(links=links, nodes=self._cut_off(situation, stream))

    def excuses(self, targets: Targets) -> tuple[str, ...]:
        return tuple(node.name for node in targets.nodes)

    def policy(self) -> LinkPolicy:
        return LinkPolicy(up=False, mode=self.mode)

    def acted(self, before: LinkCounters, after: LinkCounters) -> int:
        if self.mode is LinkMode.HOLD:
            return (after.packets - before.packets) - (after.delivered - before.delivered)
        reason = DropReason.DOWN if self.mode is LinkMode.DROP else DropReason.REJECTED
        return after.dropped.get(reason, 0) - before.dropped.get(reason, 0)

    def _cut_off(self, situation: Situation, stream: str) -> tuple[NodeRef, ...]:
        """Return the nodes that the shape names as those cut off; a halved cluster has none."""
        for side, selector in (("isolate", self.isolate), ("split", self.split)):
            if selector is not None:
                return resolve_nodes(selector, situation, stream=f"{stream}:{side}")
        return ()

    def _links(self, situation: Situation, stream: str) -> tuple[Pair, ...]:
        nodes = tuple(node.name for node in situation.nodes)

        def names(selector: Selector, side: str, apart_from: Names | None = None) -> Names:
            found = resolve_nodes(
                selector, situation, stream=f"{stream}:{side}", apart_from=apart_from
            )
            return tuple(node.name for node in found)

        if self.isolate is not None:
            return partitions.isolate(nodes, names(self.isolate, "isolate"))
        if self.split is not None:
            ones = names(self.split, "split")
            return partitions.between(ones, [name for name in nodes if name not in ones])
        if self.bridge is not None:
            middle = names(self.bridge, "bridge")
            return partitions.bridge(nodes, middle[0])
        if self.pairs is not None:
            return partitions.custom(nodes, [(pair[0], pair[1]) for pair in self.pairs])
        if self.shape is not None:
            return partitions.halves(nodes) if self.shape == "halves" else partitions.ring(nodes)
        ones, others = self._two_sides(names)
        if self.between is not None:
            return partitions.between(ones, others)
        return partitions.one_way(ones, others)

    def _two_sides(self, names: Callable[..., Names]) -> tuple[Names, Names]:
        """Resolve two selectors, either of which may be `others`: other than the other side."""
        left, right = self.between if self.between is not None else (self.from_, self.to)
        assert left is not None, "checked when it was read"
        assert right is not None, "checked when it was read"
        if any(term.kind == "others" for term in left.terms):
            others = names(right, "to")
            return names(left, "from", others), others
        ones = names(left, "from")
        return ones, names(right, "to", ones)


class Degrade(_LinkFault):
    """Links are slow, uneven or lossy, but they work.

    `node` (all links of these) or `from` and `to`; all links if nothing is said. Stands for a
    congested or long-distance network, a bad cable. Does not stand for: congestion that the job
    itself causes, RDMA fabrics.
    """

    name = "degrade"
    _verb: ClassVar[str] = "delayed or lost"

    node: Select | None = None
    from_: Select | None = Field(default=None, alias="from")
    to: Select | None = None
    latency: Seconds = 0.0
    jitter: Seconds = 0.0
    loss: Fraction = 0.0
    duplicate: Fraction = 0.0
    reorder: Fraction = 0.0
    rate: Rate | None = None

    @model_validator(mode="after")
    def _does_something(self) -> Degrade:
        if self.policy().is_transparent:
            raise ValueError("`degrade` needs one of latency, loss, duplicate, reorder and rate")
        if (self.from_ is None) != (self.to is None):
            raise ValueError("`from` and `to` belong together: whose packets to whom")
        if self.node is not None and self.from_ is not None:
            raise ValueError("`node` means all links of a node: keep it, or `from` and `to`")
        return self

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        nodes = tuple(node.name for node in situation.nodes)
        links = partitions.everything(nodes)
        if self.node is not None:
            chosen = {n.name for n in resolve_nodes(self.node, situation, stream=stream)}
            links = tuple(pair for pair in links if chosen & set(pair))
        elif self.from_ is not None and self.to is not None:
            sources = resolve_nodes(self.from_, situation, stream=f"{stream}:from")
            names = tuple(node.name for node in sources)
            targets = resolve_nodes(self.to, situation, stream=f"{stream}:to", apart_from=names)
            links = partitions.one_way(names, [node.name for node in targets])
        if not links:
            raise SelectionEmpty("there is no link between nodes that are up")
        return Targets(links=links)

    def policy(self) -> LinkPolicy:
        try:
            return LinkPolicy(
                latency_s=self.latency,
                jitter_s=self.jitter,
                loss=self.loss,
                duplicate=self.duplicate,
                reorder=self.reorder,
                rate_bytes_per_s=None if self.rate is None else self.rate / 8,
            )
        except UsageError as error:
            raise ValueError(error.message) from error

    def acted(self, before: LinkCounters, after: LinkCounters) -> int:
        if self.latency or self.rate is not None:
            return after.packets - before.packets
        if self.loss:
            return after.dropped.get(DropReason.LOST, 0) - before.dropped.get(DropReason.LOST, 0)
        if self.duplicate:
            return (after.delivered - before.delivered) - (after.packets - before.packets)
        return after.packets - before.packets
