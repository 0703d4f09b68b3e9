"""Cut links: in every shape, for good or flapping."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from elastic_harness.faults.links.link_fault import LinkFault, ends_of, ends_with, two_sides
from elastic_harness.finding import Finding
from elastic_harness.network import partitions
from elastic_harness.network.link_model import (
    Flap,
    LinkMode,
    LinkPolicy,
    Pair,
)
from elastic_harness.scenario.actions import CheckedScenario
from elastic_harness.scenario.engine.situation import NodeRef, Situation, Targets
from elastic_harness.scenario.fields import Listed, Seconds, Select
from elastic_harness.scenario.selectors import SelectionEmpty, Selector, resolve_nodes
from pytest_elastic.errors import UsageError

__all__ = ["FlapLinks", "Partition"]

# In a ring of three, all are neighbours.
_NODES_OF_SHAPE: Final = {"ring": 4, "halves": 2}


def _mode(value: object) -> object:
    if isinstance(value, str) and value in {mode.value for mode in LinkMode}:
        return LinkMode(value)
    if isinstance(value, LinkMode):
        return value
    raise ValueError(f"{value!r} is no mode of a cut: drop, reject or hold")


def _one_group(value: object) -> object:
    if isinstance(value, (list, tuple)) and any(isinstance(item, (list, tuple)) for item in value):
        sides = "[[n1, n2], [n3]]"
        if len(value) == 2:
            sides = _as_yaml(value)
        raise ValueError(
            "`split` is one group, cut off from all others: name one of the sides, or write "
            f"`between: {sides}`"
        )
    return value


def _as_yaml(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_as_yaml, value))}]"
    return str(value)


def _is_one(selector: Selector) -> bool:
    """Tell whether a selector means one node at most, whatever the run looks like."""
    several = {"all", "others", "minority", "majority"}
    return len(selector.terms) == 1 and not any(
        term.kind in several or (term.kind == "random" and term.number > 1)
        for term in selector.terms
    )


class Partition(LinkFault):
    """Links between nodes are cut, in both directions or one.

    Exactly one shape: `isolate` (each of these alone), `split` (these from all others, not from
    each other; `split: minority`), `between` (two groups from each other), `from` and `to` (one
    way), `bridge` (two halves that only see this node), `shape: halves` or `shape: ring`, or
    `pairs` of names. `mode` is what happens to packets: drop, reject (refused at once, by a reset
    or ICMP), hold (delivered when it heals). `traffic` cuts one class only: store, rendezvous,
    liveness, collectives, or a port. Partitions that overlap are cut together; each heals its own
    share. Stands for a broken switch, a wrong firewall rule, a lost route. Does not stand for: a
    node that has died (its processes go on), shared memory and NVLink between workers of a node,
    RDMA.
    """

    name = "partition"
    proof = "the switch dropped, rejected or held packets by this cut, not for another reason"
    may_end_launchers: ClassVar[bool] = True
    shorthand: ClassVar[str | None] = "isolate"

    isolate: Select | None = None
    split: Annotated[Select | None, BeforeValidator(_one_group)] = None
    between: Annotated[Listed[Select] | None, Field(min_length=2, max_length=2)] = None
    from_: Select | None = Field(default=None, alias="from")
    to: Select | None = None
    bridge: Select | None = None
    shape: Literal["halves", "ring"] | None = None
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
                raise ValueError("`from` and `to` belong together: sender and receiver")
            given.append("from and to")
        if len(given) != 1:
            found = ", ".join(given) or "none"
            known = f"{', '.join(shapes)}, from and to"
            raise ValueError(f"`partition` has exactly one shape ({known}): found {found}")
        if self.pairs is not None and not self.pairs:
            raise ValueError("`pairs` has one pair of nodes or more")
        for pair in self.pairs or ():
            if pair[0] == pair[1]:
                raise ValueError(f"{pair[0]} is on both sides: no node has a link to itself")
        if self.bridge is not None and not _is_one(self.bridge):
            raise ValueError(f"one node is the bridge, and `{self.bridge}` are several")
        if self.split is not None and any(t.kind == "all" for t in self.split.terms):
            raise ValueError("`split: all` leaves no other side: use `isolate`")
        left, right = self.between if self.between is not None else (self.from_, self.to)
        if left is not None and right is not None:
            names = [{str(t) for t in side.terms if t.kind == "node"} for side in (left, right)]
            if both := sorted(names[0] & names[1]):
                both_sides = ", ".join(both)
                raise ValueError(f"{both_sides} is on both sides: no node has a link to itself")
        return self

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        yield from super().findings(scenario)
        nodes = scenario.nodes
        for name in (name for pair in self.pairs or () for name in pair):
            if name not in nodes and not (name == "gateway" and scenario.spec.proxies):
                known = ", ".join(nodes)
                yield Finding(f"there is no node {name!r}: the nodes are {known}", ("pairs",))
        if (needed := _NODES_OF_SHAPE.get(self.shape or "", 0)) > len(nodes):
            yield Finding(f"of fewer than {needed} nodes, this shape cuts no link")
        group = self.split
        is_plain = group is not None and not group.exclude and not group.means_gateway
        if group is not None and is_plain and {term.name for term in group.terms} >= set(nodes):
            yield Finding(f"`{group}` is all nodes: no other side is left", ("split",))

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        try:
            links = self._links(situation, stream)
        except UsageError as error:
            raise SelectionEmpty(error.message) from error
        if not links:
            raise SelectionEmpty("no link between nodes that are up is cut by this partition")
        return Targets(links=links, nodes=self._cut_off(situation, stream))

    def policy(self) -> LinkPolicy:
        return LinkPolicy(up=False, mode=self.mode)

    def _cut_off(self, situation: Situation, stream: str) -> tuple[NodeRef, ...]:
        """Return the nodes that the shape names as those cut off; a halved cluster has none."""
        for side, selector in (("isolate", self.isolate), ("split", self.split)):
            if selector is not None:
                nodes = selector.without_gateway()
                if nodes is not None:
                    return resolve_nodes(nodes, situation, stream=f"{stream}:{side}")
        return ()

    def _links(self, situation: Situation, stream: str) -> tuple[Pair, ...]:
        nodes = tuple(node.name for node in situation.nodes)

        def names(selector: Selector, side: str) -> tuple[str, ...]:
            return ends_of(selector, situation, stream=f"{stream}:{side}")

        if self.isolate is not None:
            alone = names(self.isolate, "isolate")
            return partitions.isolate(ends_with(situation, alone), alone)
        if self.split is not None:
            ones = names(self.split, "split")
            return partitions.between(ones, [name for name in nodes if name not in ones])
        if self.bridge is not None:
            middle = names(self.bridge, "bridge")
            return partitions.bridge(nodes, middle[0])
        if self.pairs is not None:
            named = [name for pair in self.pairs for name in pair]
            pairs = [(pair[0], pair[1]) for pair in self.pairs]
            return partitions.custom(ends_with(situation, named), pairs)
        if self.shape is not None:
            return partitions.halves(nodes) if self.shape == "halves" else partitions.ring(nodes)
        left, right = self.between if self.between is not None else (self.from_, self.to)
        assert left is not None, "checked when it was read"
        assert right is not None, "checked when it was read"
        ones, others = two_sides(situation, stream, left, right)
        if self.between is not None:
            return partitions.between(ones, others)
        return partitions.one_way(ones, others)


class FlapLinks(Partition):
    """Links go down and up again and again, `down` and `up` at a time, down first.

    Which links and how they are cut is said as for `partition`. Stands for a loose cable, a switch
    port that renegotiates, routes that change to and fro. Does not stand for: an interface that
    goes down with its addresses (sockets stay bound), irregular outages (draw a storm).
    """

    name = "flap"
    proof = "the switch dropped, rejected or held packets by this flap, while it was down"
    may_end_launchers: ClassVar[bool] = False

    down: Seconds = 1.0
    up: Seconds = 1.0

    @model_validator(mode="after")
    def _flaps(self) -> FlapLinks:
        try:
            self.policy()
        except UsageError as error:
            raise ValueError(error.message) from error
        return self

    @property
    def proof_s(self) -> float:
        """Until the job has met a link that is down."""
        return super().proof_s + self.down + self.up

    def policy(self) -> LinkPolicy:
        return LinkPolicy(flaps=(Flap(down_s=self.down, up_s=self.up, mode=self.mode),))
