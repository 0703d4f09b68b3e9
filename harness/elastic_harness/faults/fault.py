"""What every fault is: parameters, targets, how it is injected, proven and healed.

A fault is a frozen pydantic model: its fields are the parameters that a scenario may give. The
class says what it is called there, what it needs, and on which layer it acts; its docstring says
what it stands for and what it does not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Final

from elastic_harness.faults.context import FaultContext, Steps
from elastic_harness.finding import Finding
from elastic_harness.scenario.actions import CheckedScenario, PlannedAction
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.selectors import Selector, Term
from pytest_elastic.errors import UsageError

__all__ = ["LAYERS", "Fault", "with_exclude"]

LAYERS: Final = ("worker", "agent", "node", "network", "store", "resource", "gpu")


class Fault(PlannedAction):
    """One fault with its parameters.

    `name` is the action's name in scenarios. `shorthand` is the field that a bare value stands for
    (`kill: rank 1`). `layer` is one of `LAYERS`. `proof` says in a few words what shows that it
    acted. `capability` is what a cluster must have for it; where that depends on the parameters,
    `needs` decides and `sometimes_needs` says when. `may_end_launchers`: those of the nodes that it
    is aimed at. `knows_gateway` tells whether its selectors may
    mean the cluster's gateway, `sides` which of them may be `others`: other than one of the rest.
    What the engine knows beside that is in `PlannedAction`.

    The docstring is read by people who choose a fault, in `docs/faults.md`: its first sentence says
    what happens, "Stands for" what that is like in the real world, and "Does not stand for" what
    must not be concluded from it.
    """

    layer: ClassVar[str]
    proof: ClassVar[str] = ""
    capability: ClassVar[str | None] = None
    sometimes_needs: ClassVar[str] = ""
    may_end_launchers: ClassVar[bool] = False
    knows_gateway: ClassVar[bool] = False
    sides: ClassVar[tuple[str, ...]] = ()

    @property
    def needs(self) -> str | None:
        return self.capability

    def exempt_nodes(self, targets: Targets) -> tuple[str, ...]:
        return tuple(node.name for node in targets.nodes) if self.may_end_launchers else ()

    @abstractmethod
    def resolve(self, situation: Situation, *, stream: str) -> Targets:
        """Return its targets now; raises SelectionEmpty if there are none."""

    @abstractmethod
    def inject(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        """Do it, step by step; returns what proves that it acted, raises FaultImpossible if not.

        What proves it is this fault's own doing (`Evidence`), and not a symptom that something else
        may cause. A limit that no process has met, or a rule that nothing matched, is no proof.
        """

    def heal(self, context: FaultContext, targets: Targets, *, id: str) -> Steps:
        """Undo it, step by step; harmless when it is undone already or never was done."""
        yield from ()
        return "nothing to undo"

    def findings(self, scenario: CheckedScenario) -> Iterator[Finding]:
        """Yield selectors that are empty in every run. An override yields them too."""
        selectors = self.selectors()
        has_sides = sum(name in self.sides for name, _ in selectors) > 1
        for name, selector in selectors:
            why = self._why_nobody(name, selector, scenario)
            is_others = any(term.kind == "others" for term in selector.terms)
            if why is None and is_others and not (has_sides and name in self.sides):
                why = "`others` needs another side here"
            if why is not None:
                yield Finding(why, (name,))

    def _why_nobody(self, name: str, selector: Selector, scenario: CheckedScenario) -> str | None:
        if selector.means_gateway:
            if not self.knows_gateway:
                return "the gateway is no node: only what is done to links can mean it"
            if not scenario.spec.proxies:
                return "nothing lives at the gateway of this scenario: it has no `proxies`"
        exclude = getattr(self, "exclude", None) if name != "exclude" else None
        excluded = exclude.terms if isinstance(exclude, Selector) else ()
        nodes, largest = scenario.nodes, scenario.largest_world
        return selector.impossible(node_names=nodes, largest_world=largest) or selector.empty(
            node_names=nodes,
            largest_world=largest,
            excluded=excluded,
            are_workers=name == "worker",
        )


def with_exclude(selector: Selector, exclude: Selector | None) -> Selector:
    """Return a selector with `exclude` added; raises UsageError when that has one of its own."""
    if exclude is None:
        return selector
    if exclude.exclude:
        raise UsageError("`exclude` cannot have an `exclude` of its own")
    terms: tuple[Term, ...] = (*selector.exclude, *exclude.terms)
    return Selector(terms=selector.terms, exclude=terms)
