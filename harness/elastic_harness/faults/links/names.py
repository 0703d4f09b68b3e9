"""Names that some nodes take for something else."""

from __future__ import annotations

import ipaddress
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, model_validator

from elastic_harness.cluster.cluster import having
from elastic_harness.faults.context import (
    Evidence,
    FaultContext,
    FaultImpossible,
    Steps,
    Waits,
    wait_for_proof,
)
from elastic_harness.faults.fault import Fault
from elastic_harness.faults.links.link_fault import two_sides
from elastic_harness.network.names import NameChange
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.fields import Seconds, Select
from elastic_harness.scenario.selectors import SelectionEmpty
from pytest_elastic.errors import UsageError

__all__ = ["ConfuseNames"]


def _address(value: str) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError as error:
        raise ValueError(f"{value!r} is no IPv4 address, such as 10.77.0.99") from error


class ConfuseNames(Fault):
    """Some nodes take the names of others for something else: wrong, missing or slow to find.

    `node` is where lookups are changed, `of` the nodes whose names are changed, and exactly one of
    `wrong` (an IPv4 address), `missing: true` and `slow` (how long a lookup takes, at most 25s)
    says how. What is connected stays so: only new lookups notice. Of several that change one name
    of one node the last is right; each heals its own. Stands for a stale /etc/hosts, a DNS record
    that has gone or points elsewhere, a name service under load. Does not stand for: names that
    resolvers keep in caches of their own, IPv6 answers.
    """

    name = "names"
    layer = "network"
    proof = "a process of the node asked for such a name, and was given this fault's answer"
    capability: ClassVar[str | None] = "names"
    is_healable: ClassVar[bool] = True
    sides: ClassVar[tuple[str, ...]] = ("node", "of")

    node: Select
    of: Select
    wrong: Annotated[str, AfterValidator(_address)] | None = None
    missing: bool = False
    slow: Seconds | None = Field(default=None)

    @model_validator(mode="after")
    def _one_way(self) -> ConfuseNames:
        given = [key for key in ("wrong", "missing", "slow") if getattr(self, key)]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"`names` has exactly one of wrong, missing and slow: found {found}")
        names = [{str(t) for t in side.terms if t.kind == "node"} for side in (self.node, self.of)]
        if both := sorted(names[0] & names[1]):
            raise ValueError(f"{', '.join(both)} would be confused about its own name")
        try:
            self._change()
        except UsageError as error:
            raise ValueError(error.message) from error
        return self

    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        confused, about = two_sides(situation, stream, self.node, self.of)
        links = tuple((node, name) for node in confused for name in about)
        if not links:
            raise SelectionEmpty("no node is there to be confused about another's name")
        return Targets(links=links)

    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        for node in dict.fromkeys(node for node, _ in targets.links):
            about = [name for other, name in targets.links if other == node]
            shown = yield from context.names.change(id, node, dict.fromkeys(about, self._change()))
            if still := [name for name in about if name in shown]:
                raise FaultImpossible(f"{node} still reads {shown[still[0]]} for {still[0]}")
        asked = yield from wait_for_proof(context, lambda: _lookups(context, targets, id))
        if not asked:
            raise FaultImpossible("in force, but no process of these nodes looked up these names")
        text = ", ".join(
            f"{node} asked for {name} ({number}x)"
            for node, names in asked.items()
            for name, number in names.items()
        )
        return Evidence(
            text=f"{text}, and the answer is {self._answer}",
            facts={"asked": asked, "answer": self._answer},
        )

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        yield from context.names.restore(id)
        return "names as before"

    @property
    def _answer(self) -> str:
        if self.slow is not None:
            return f"{self.slow:g} s late"
        return self.wrong or "that there is no such name"

    def _change(self) -> NameChange:
        return NameChange(
            address=self.wrong,
            is_missing=self.missing,
            slow_s=0.0 if self.slow is None else self.slow,
        )


def _lookups(
    context: FaultContext, targets: Targets, owner: str
) -> Waits[dict[str, dict[str, int]]]:
    """Return how often processes have asked for the names that `owner` lies about, by node."""
    service = having(context.cluster.names, context.cluster.capabilities["names"])
    asked = {}
    for node in dict.fromkeys(node for node, _ in targets.links):
        if names := (yield from service.asked(node)).get(owner):
            asked[node] = dict(names)
    return asked
