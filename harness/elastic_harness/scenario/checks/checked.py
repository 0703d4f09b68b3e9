"""A scenario while it is checked, as faults and checkers see it in their `findings`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from elastic_harness.finding import Finding, did_you_mean
from elastic_harness.scenario.actions import PlannedAction
from elastic_harness.scenario.fields import format_duration
from elastic_harness.scenario.model import Entry, Scenario
from elastic_harness.scenario.planning.storm import STORM_ID

__all__ = ["CheckedScenario"]


@dataclass(frozen=True, kw_only=True)
class CheckedScenario:
    """What a scenario says (`spec`), and what follows from it before it runs.

    `actions` are the timeline's, one for each entry. `folders` are absolute paths of what the
    harness shares with the nodes.
    """

    spec: Scenario
    actions: Sequence[PlannedAction]
    folders: Sequence[str] = ()

    # What there can be

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Every node name that the run can have: those at the start, and those that join."""
        names = self.spec.initial_nodes
        for action in self.actions:
            names = (*names, *action.adds_nodes(names))
        return names

    @property
    def largest_world(self) -> int:
        """How many ranks there can be at once."""
        return min(self.spec.nodes.max, len(self.nodes)) * self.spec.job.nproc_per_node

    @property
    def worlds(self) -> range:
        """Every world size that the job can have."""
        per_node = self.spec.job.nproc_per_node
        return range(self.spec.nodes.min * per_node, self.largest_world + 1, per_node)

    @cached_property
    def final_entries(self) -> Mapping[str | None, str]:
        """The entries that cannot be undone, by id, with what they do."""
        pairs = zip(self.spec.timeline, self.actions, strict=True)
        return {
            entry.id: entry.action.name
            for entry, action in pairs
            if not action.is_healable and not action.is_own
        }

    def entry_of(self, action: PlannedAction) -> Entry:
        """Return the entry that does this very thing."""
        return self.spec.timeline[self._place_of(action)]

    def before(self, action: PlannedAction) -> Sequence[PlannedAction]:
        """Return what earlier entries do."""
        return self.actions[: self._place_of(action)]

    def _place_of(self, action: PlannedAction) -> int:
        return next(place for place, each in enumerate(self.actions) if each is action)

    # What there cannot be: one finding, or none

    def no_node(self, name: object, *path: str | int) -> Iterator[Finding]:
        """Find a name that no node has."""
        if isinstance(name, str) and name not in self.nodes:
            yield Finding(
                f"there is no node {name!r}", path, suggestion=did_you_mean(name, self.nodes)
            )

    def no_rank(self, rank: int | None, *path: str | int) -> Iterator[Finding]:
        """Find a rank that no world has."""
        if rank is not None and rank >= self.largest_world:
            yield Finding(
                f"there is no rank {rank}: the largest world has {self.largest_world} ranks", path
            )

    def no_world(self, size: object, *path: str | int) -> Iterator[Finding]:
        """Find a size that no world has."""
        worlds = self.worlds
        if not isinstance(size, int) or size in worlds:
            return
        why = f"each node has {worlds.step} ranks"
        if not worlds:
            why = "the job never has enough nodes"
        elif size > worlds[-1]:
            why = f"the largest has {worlds[-1]} ranks"
        elif size < worlds[0]:
            why = f"the smallest has {worlds[0]} ranks"
        yield Finding(f"there is no world of {size}: {why}", path)

    def too_late(self, seconds: object, *path: str | int, is_in: bool = False) -> Iterator[Finding]:
        """Find a moment after the run; with `is_in`, its very end is in time."""
        limit = self.spec.limit
        if isinstance(seconds, float) and (seconds > limit or (seconds == limit and not is_in)):
            yield Finding(f"the run is over by then: `limit` is {format_duration(limit)}", path)

    def no_entry(
        self, id: str, *path: str | int, known: Sequence[str] | None = None
    ) -> Iterator[Finding]:
        """Find an id that is none of those `known`: of the entries that say theirs, by default."""
        if known is None:
            known = [entry.id for entry in self.spec.timeline if entry.id]
        if id not in known:
            yield Finding(
                f"no entry of the timeline has the id {id!r}",
                path,
                suggestion=did_you_mean(id, known),
            )

    def no_firing(self, after: str | None, *path: str | int) -> Iterator[Finding]:
        """Find what a checker's `after` names and no run has: an entry, drawn or not.

        It is written `crash`, `crash.fired`, `crash.healed`, or `crash#2` of one that is repeated.
        """
        if after is None:
            return
        names = [
            each.id or f"entry-{place}" for place, each in enumerate(self.spec.timeline, start=1)
        ]
        if self.spec.storm is not None:
            names += [STORM_ID, *(f"{STORM_ID}-{n}" for n in range(1, self.spec.storm.max + 1))]
        id, _, moment = after.partition(".")
        if id.partition("#")[0] not in names or moment not in ("", "fired", "healed"):
            yield from self.no_entry(after, *path, known=names)
