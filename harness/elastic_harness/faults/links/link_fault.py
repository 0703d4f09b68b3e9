"""What faults of links have in common: a policy laid over links, proven by what it did itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, ClassVar, Final

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from elastic_harness.cluster.cluster import GATEWAY, having
from elastic_harness.faults.context import (
    PROOF_S,
    Evidence,
    FaultContext,
    FaultImpossible,
    Steps,
    Waits,
    wait_for_proof,
)
from elastic_harness.faults.fault import Fault
from elastic_harness.finding import Finding
from elastic_harness.network import partitions
from elastic_harness.network.link_model import LinkPolicy, Pair
from elastic_harness.network.traffic import CLASSES, check_class, port_class
from elastic_harness.scenario.actions import CheckedScenario
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.fields import Select
from elastic_harness.scenario.selectors import SelectionEmpty, Selector, resolve_nodes
from pytest_elastic.errors import UsageError

__all__ = [
    "LinkFault",
    "SomeLinks",
    "TrafficClass",
    "ends_of",
    "ends_with",
    "two_sides",
]

# How far apart the looks at the counters of many links come: this costs nothing with 64 nodes.
_SLOWEST_LOOK_S: Final = 1.0
# Classes of traffic that are quiet while steps are taken.
_STORES: Final = ("rendezvous", "store")

Names = tuple[str, ...]


def _traffic(value: object) -> object:
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return port_class(value)
        if isinstance(value, str):
            return check_class(value)
    except UsageError as error:
        raise ValueError(error.message) from error
    raise ValueError(f"{value!r} is no traffic: {', '.join(CLASSES)}, or a port")


# A class of what passes over links: its name, or a port.
TrafficClass = Annotated[
    str,
    BeforeValidator(_traffic),
    PlainSerializer(lambda name: name),
    WithJsonSchema({"type": ["string", "integer"], "examples": [*CLASSES, "port:29400"]}),
]


class _OfLinks(Fault):
    """A fault whose selectors mean ends of links."""

    knows_gateway: ClassVar[bool] = True
    sides: ClassVar[tuple[str, ...]] = ("between", "from", "to")

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        yield from super().findings(scenario)
        if len(scenario.nodes) < 2 and not scenario.spec.proxies:
            yield Finding("one node alone has no links: two or more are expected")
            return
        ends = [(name, each) for name, each in self.selectors() if name in self.sides]
        if len(ends) != 2:
            return
        (_, left), (name, right) = ends
        nodes = scenario.nodes
        why = _why_none_opposite(left, right, nodes) or _why_none_opposite(right, left, nodes)
        if name == "between":
            why = why or _why_both(left, right) or _why_both(right, left)
        if why is not None:
            yield Finding(why, (name,))


def _why_none_opposite(side: Selector, opposite: Selector, nodes: Names) -> str | None:
    """Say why `others` on one side is empty, or return None."""
    if not any(term.kind == "others" for term in side.terms):
        return None
    kinds = {term.kind for term in opposite.terms}
    if "others" in kinds:
        return "`others` on both sides is empty: name the nodes of one side"
    is_all = "all" in kinds or {term.name for term in opposite.terms} >= set(nodes)
    if is_all and not opposite.exclude:
        return f"`{opposite}` is all nodes: none is left for `others`"
    return None


def _why_both(one: Selector, other: Selector) -> str | None:
    """Say why a node is on both sides, whatever the run looks like, or return None."""
    if one.exclude or other.exclude:
        return None
    across = [term for term in other.terms if term.kind != "gateway"]
    if across and any(term.kind == "all" for term in one.terms):
        return f"`{one}` is all nodes, `{other}` too: no node has a link to itself (try `others`)"
    fixed = {"rank", "rank host", "newest", "store host", "majority"}  # two majorities meet
    both = sorted({str(term) for term in one.terms if term.kind in fixed} & set(map(str, across)))
    if both:
        return f"{', '.join(both)} is on both sides: no node has a link to itself"
    return None


class LinkFault(_OfLinks):
    """A policy laid over links for a while."""

    layer = "network"
    capability: ClassVar[str | None] = "network"
    is_healable: ClassVar[bool] = True
    traffic: TrafficClass | None = None

    def policy(self) -> LinkPolicy:
        """Return what is laid over the links."""
        raise NotImplementedError

    @property
    def proof_s(self) -> float:
        """How long it may take until the job notices."""
        return PROOF_S

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from context.links.impose(id, targets.links, self.policy(), traffic=self.traffic)
        acted = yield from wait_for_proof(
            context,
            lambda: _read(context, targets.links, id),
            within_s=self.proof_s,
            slowest_look_s=_SLOWEST_LOOK_S,
        )
        if acted:
            return self._evidence(acted, len(targets.links))
        what = f"nothing of {self.traffic}" if self.traffic else "nothing"
        quiet = " (a round talks to its stores while it forms)" if self.traffic in _STORES else ""
        raise FaultImpossible(
            f"in force, but {what} that it could act on was sent over these links{quiet}"
        )

    def _evidence(self, acted: Mapping[str, Mapping[str, int]], links: int) -> Evidence:
        total: dict[str, int] = {}
        for kinds in acted.values():
            for kind, number in kinds.items():
                total[kind] = total.get(kind, 0) + number
        what = f" of {self.traffic}" if self.traffic else ""
        counted = ", ".join(f"{number} {kind}" for kind, number in total.items())
        return Evidence(
            text=f"packets{what} on {len(acted)} of {links} links: {counted}",
            facts={"packets": total, "by_link": {link: dict(each) for link, each in acted.items()}},
        )

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from context.links.lift(id)
        return "links as before"


def _read(
    context: FaultContext, links: tuple[Pair, ...], owner: str
) -> Waits[dict[str, dict[str, int]]]:
    """Read what the policy of `owner` has done to packets, by link and kind."""
    network = having(context.cluster.network, context.cluster.capabilities["network"])
    counts = (yield from network.counters()).links
    found = {
        f"{source}->{target}": dict(counts[source, target].by_owner.get(owner, {}))
        for source, target in links
        if (source, target) in counts
    }
    return {link: kinds for link, kinds in found.items() if kinds}


class SomeLinks(_OfLinks):
    """Links by their ends: all of some nodes, those from some to others, or every link."""

    node: Select | None = None
    from_: Select | None = Field(default=None, alias="from")
    to: Select | None = None

    @model_validator(mode="after")
    def _ends_fit(self) -> SomeLinks:
        if (self.from_ is None) != (self.to is None):
            raise ValueError("`from` and `to` belong together: sender and receiver")
        if self.node is not None and self.from_ is not None:
            raise ValueError("`node` means all links of a node: keep it, or `from` and `to`")
        return self

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        links = self._links(situation, stream)
        if not links:
            up = ", ".join(node.name for node in situation.nodes) or "none is"
            raise SelectionEmpty(
                f"there is no such link between nodes that are up: {up} (a trigger "
                "`when: {event: node_started, count: 2}` waits until so many have started)"
            )
        return Targets(links=links)

    def _links(self, situation: Situation, stream: str) -> tuple[Pair, ...]:
        if self.node is not None:
            chosen = set(ends_of(self.node, situation, stream=stream))
            everything = partitions.everything(ends_with(situation, chosen))
            return tuple(pair for pair in everything if chosen & set(pair))
        if self.from_ is None or self.to is None:
            return partitions.everything(tuple(each.name for each in situation.nodes))
        return partitions.one_way(*two_sides(situation, stream, self.from_, self.to))


def ends_of(
    selector: Selector, situation: Situation, *, stream: str, apart_from: Names | None = None
) -> Names:
    """Return the selected nodes, by name, and the gateway; raises SelectionEmpty if none."""
    nodes = selector.without_gateway()
    found: Names = ()
    if nodes is not None:
        chosen = resolve_nodes(nodes, situation, stream=stream, apart_from=apart_from)
        found = tuple(node.name for node in chosen)
    return (*found, GATEWAY) if selector.means_gateway else found


def ends_with(situation: Situation, named: Collection[str]) -> Names:
    """Return the ends of all links that a fault is about: nodes, and the gateway if it is named."""
    nodes = tuple(node.name for node in situation.nodes)
    return (*nodes, GATEWAY) if GATEWAY in named else nodes


def two_sides(
    situation: Situation, stream: str, left: Selector, right: Selector
) -> tuple[Names, Names]:
    """Return the nodes of both sides, either of which may be `others`: other than the other."""

    def names(selector: Selector, side: str, apart_from: Names | None = None) -> Names:
        return ends_of(selector, situation, stream=f"{stream}:{side}", apart_from=apart_from)

    if any(term.kind == "others" for term in left.terms):
        others = names(right, "to")
        return names(left, "from", others), others
    ones = names(left, "from")
    return ones, names(right, "to", ones)
