"""From a scenario and a seed to a plan: everything that chance decides before the run.

The same scenario and seed give the same plan, byte for byte. `plan.json` is the plan written down;
read back, it is run again as it was, whatever has become of the scenario file since. A storm is
drawn here, rank by rank and node by node. What selectors such as `random` mean in a timeline is
decided when the fault fires, from the plan's seed and the entry's name; once it has been, the plan
names their targets, and a replay hits the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import msgspec

from elastic_harness.faults.recipe import Recipe
from elastic_harness.faults.recipes import RECIPES
from elastic_harness.scenario.actions import PlannedAction
from elastic_harness.scenario.engine.situation import Situation, Targets
from elastic_harness.scenario.model import Clause, Entry, Expect, Scenario, storm_of
from elastic_harness.scenario.planning.seed import Seed
from elastic_harness.scenario.planning.storm import draw_storm
from elastic_harness.scenario.selectors import SelectionEmpty
from elastic_harness.scenario.triggers import AfterEntry
from pytest_elastic.errors import UsageError

__all__ = [
    "FORMAT",
    "PinnedTargets",
    "Plan",
    "PlannedEntry",
    "decode_plan",
    "encode_plan",
    "has_choice",
    "is_of_storm",
    "make_plan",
    "plan_entry",
]

FORMAT: Final = 2
# A mean time between failures must not turn into a moment: two faults closer than this are one.
MIN_BETWEEN_S: Final = 0.1
# A rank or a node by name means the same whatever the run looks like.
_CONCRETE = frozenset({"rank", "node", "gateway"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedTargets:
    """What a fault was aimed at, without what only that run had: by rank and name, not by pid.

    What a selector such as `random` or `majority` means depends on the run at the moment when the
    fault fires. A plan that is read back carries what it meant then, and means that again.
    """

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
    """Tell whether an action's targets depend on more than its own words."""
    selectors = action.selectors()
    terms = [term for _, each in selectors for term in (*each.terms, *each.exclude)]
    return not terms or any(term.kind not in _CONCRETE for term in terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEntry:
    """One entry with its name; `delays_s` are the draws of `every`, one before each firing."""

    id: str
    entry: Entry
    delays_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A scenario with everything chance decides.

    `scenario` has, beside its own timeline, no entry of the storm: those are the last of `entries`.
    `targets` are what entries are to hit, by the id of the firing, when the plan is a replay's.
    """

    scenario: Scenario
    seed: Seed
    entries: tuple[PlannedEntry, ...] = ()
    targets: Mapping[str, PinnedTargets] = field(default_factory=dict)

    @property
    def storm_ids(self) -> tuple[str, ...]:
        """The entries that a storm's chance has drawn."""
        return tuple(each.id for each in self.entries if is_of_storm(each.id))


def is_of_storm(id: str) -> bool:
    """Tell whether a storm's chance has drawn the entry: no other one may be called so."""
    return storm_of(id) not in ("", id)


def make_plan(scenario: Scenario, seed: int, recipes: Sequence[Recipe] = RECIPES) -> Plan:
    """Make the plan of a run: the scenario's own seed beats the one given.

    `recipes` are how a storm draws its faults.

    Raises UsageError when two entries have one id, or an entry waits for one that is not there.
    """
    chosen = Seed(value=scenario.seed if scenario.seed is not None else seed)
    return _plan(scenario, chosen, draw_storm(scenario, chosen, recipes))


def _plan(scenario: Scenario, seed: Seed, storm: tuple[Entry, ...]) -> Plan:
    entries = tuple(
        plan_entry(entry, f"entry-{number}", seed)
        for number, entry in enumerate((*scenario.timeline, *storm), start=1)
    )
    _check_names(entries)
    return Plan(scenario=_with_end(scenario), seed=seed, entries=entries)


def _with_end(scenario: Scenario) -> Scenario:
    """After a storm the job must succeed, and have got on, unless the scenario says otherwise."""
    if scenario.storm is None:
        return scenario
    said = {clause.name for clause in scenario.expect.finally_}
    added = [
        clause
        for clause in (Clause(name="job", expected="succeeded"), Clause(name="recovered"))
        if clause.name not in said
    ]
    expect: Expect = scenario.expect
    expect = expect.model_copy(update={"finally_": (*expect.finally_, *added)})
    return scenario.model_copy(update={"expect": expect})


def plan_entry(entry: Entry, default_id: str, seed: Seed) -> PlannedEntry:
    """Give an entry its name and its draws."""
    name = entry.id or default_id
    delays: tuple[float, ...] = ()
    if entry.every is not None:
        stream = seed.stream(f"every:{name}")
        rate = 1 / entry.every.mtbf
        delays = tuple(
            round(max(stream.expovariate(rate), MIN_BETWEEN_S), 3) for _ in range(entry.every.max)
        )
    return PlannedEntry(id=name, entry=entry, delays_s=delays)


def encode_plan(plan: Plan, *, targets: Mapping[str, PinnedTargets] | None = None) -> str:
    """Return the text of plan.json; `targets` are what a run of it has hit, where that was open."""
    pinned = {**plan.targets, **(targets or {})}
    storm = [each.entry for each in plan.entries[len(plan.scenario.timeline) :]]
    data = {
        "format": FORMAT,
        "seed": plan.seed.value,
        "scenario": plan.scenario.model_dump(mode="json", by_alias=True, exclude_none=True),
        "storm": [entry.model_dump(mode="json", by_alias=True) for entry in storm],
        "draws": {each.id: list(each.delays_s) for each in plan.entries if each.delays_s},
        "targets": {
            name: {key: value for key, value in asdict(pinned[name]).items() if value}
            for name in sorted(pinned)
        },
    }
    return json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def decode_plan(text: str) -> Plan:
    """Read plan.json back; raises UsageError for what is none, or is of another format."""
    try:
        data: Any = json.loads(text)
        if data["format"] != FORMAT:
            raise UsageError(
                f"cannot replay a plan of format {data['format']}: {FORMAT} is expected"
            )
        scenario = Scenario.model_validate(data["scenario"])
        seed = Seed(value=int(data["seed"]))
        storm = tuple(Entry.model_validate(each) for each in data["storm"])
        plan = _plan(scenario, seed, storm)
        draws = data["draws"]
        targets = msgspec.convert(data["targets"], dict[str, PinnedTargets])
    except (AttributeError, KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise UsageError(
            f"cannot replay this plan: it is not a plan.json of ours ({error})"
        ) from error
    entries = tuple(
        PlannedEntry(
            id=each.id, entry=each.entry, delays_s=tuple(draws.get(each.id, each.delays_s))
        )
        for each in plan.entries
    )
    return Plan(scenario=plan.scenario, seed=seed, entries=entries, targets=targets)


def _check_names(entries: tuple[PlannedEntry, ...]) -> None:
    names = [each.id for each in entries]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two entries of the timeline have the id {name!r}: make them differ")
    for each in entries:
        waits_for: AfterEntry | None = each.entry.after
        if waits_for is not None and waits_for.id not in names:
            raise UsageError(f"entry {each.id!r} waits for {waits_for.id!r}, which does not exist")
