"""Whom a fault hit, written down so that a replay hits the same: by rank and name, not by pid.

What a selector such as `random` or `majority` means depends on the run at the moment when the fault
fires. A plan that is read back carries what it meant then, and means that again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic_harness.scenario.actions import PlannedAction
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.selectors import SelectionEmpty

__all__ = ["PinnedTargets", "has_choice"]

# A rank or a node by name means the same whatever the run looks like.
_CONCRETE = frozenset({"rank", "node", "gateway"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedTargets:
    """What a fault was aimed at, without what only that run had."""

    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    new_nodes: tuple[str, ...] = ()

    @classmethod
    def of(cls, targets: Targets) -> PinnedTargets:
        """Return what can be found again of some targets."""
        return cls(
            ranks=tuple(worker.rank for worker in targets.workers),
            nodes=tuple(node.name for node in targets.nodes),
            links=targets.links,
            new_nodes=targets.new_nodes,
        )

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> PinnedTargets:
        """Read what `as_data` has written; raises KeyError, TypeError or ValueError."""
        return cls(
            ranks=tuple(int(rank) for rank in data.get("ranks", ())),
            nodes=_texts(data.get("nodes", ())),
            links=tuple((str(source), str(to)) for source, to in data.get("links", ())),
            new_nodes=_texts(data.get("new_nodes", ())),
        )

    def as_data(self) -> dict[str, Any]:
        """Return plain data for plan.json."""
        data = {
            "ranks": list(self.ranks),
            "nodes": list(self.nodes),
            "links": [list(pair) for pair in self.links],
            "new_nodes": list(self.new_nodes),
        }
        return {key: value for key, value in data.items() if value}

    def find(self, situation: Situation) -> Targets:
        """Return the same targets in this run; raises SelectionEmpty for those that are missing."""
        workers = tuple(each for each in situation.workers if each.rank in self.ranks)
        nodes = tuple(each for each in situation.nodes if each.name in self.nodes)
        missing = [
            *(f"rank {r}" for r in self.ranks if r not in {each.rank for each in workers}),
            *(name for name in self.nodes if name not in {each.name for each in nodes}),
        ]
        if missing:
            raise SelectionEmpty(f"the plan's target {', '.join(missing)} is not there this time")
        return Targets(workers=workers, nodes=nodes, links=self.links, new_nodes=self.new_nodes)


def has_choice(action: PlannedAction) -> bool:
    """Tell whether whom an action hits depends on more than its own words."""
    selectors = action.selectors()
    terms = [term for _, each in selectors for term in (*each.terms, *each.exclude)]
    return not terms or any(term.kind not in _CONCRETE for term in terms)


def _texts(names: Iterable[object]) -> tuple[str, ...]:
    return tuple(str(name) for name in names)
