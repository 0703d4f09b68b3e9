"""One entry of the timeline as it runs: its phases, and what it waits for.

    WAITING ──▶ FIRED ──▶ IN_FORCE ──▶ HEALING ──▶ HEALED
       │          ├──────────────────────▲
       ├──▶ SKIPPED
       └──▶ FAILED ◀── FIRED

WAITING: its trigger has not come. FIRED: the runner injects it. IN_FORCE: it acts (and stays so to
the end where there is nothing to heal). FAILED: it could not be injected, or had no target.
SKIPPED: its trigger cannot come any more.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from elastic_harness.history.events import FaultFired
from elastic_harness.scenario.actions import PlannedAction
from elastic_harness.scenario.engine.conditions import Watcher
from elastic_harness.scenario.engine.situation import Targets
from elastic_harness.scenario.model import Entry
from elastic_harness.scenario.planning.planner import PlannedEntry
from elastic_harness.scenario.triggers import AtStep

__all__ = [
    "ALLOWED",
    "EntryPhase",
    "EntryState",
    "expand",
    "first_that_acts",
]


class EntryPhase(enum.Enum):
    """Where an entry is in its life."""

    WAITING = "waiting"
    FIRED = "fired"
    IN_FORCE = "in force"
    HEALING = "healing"
    HEALED = "healed"
    FAILED = "failed"
    SKIPPED = "skipped"


ALLOWED: Final[Mapping[EntryPhase, frozenset[EntryPhase]]] = {
    EntryPhase.WAITING: frozenset({
        EntryPhase.FIRED, EntryPhase.FAILED, EntryPhase.SKIPPED, EntryPhase.HEALED,
    }),
    # A check is over once it has been judged.
    EntryPhase.FIRED: frozenset({
        EntryPhase.IN_FORCE, EntryPhase.FAILED, EntryPhase.HEALING, EntryPhase.HEALED,
    }),
    EntryPhase.IN_FORCE: frozenset({EntryPhase.HEALING}),
    EntryPhase.HEALING: frozenset({EntryPhase.HEALED}),
    EntryPhase.HEALED: frozenset(),
    EntryPhase.FAILED: frozenset(),
    EntryPhase.SKIPPED: frozenset(),
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class EntryState:
    """What the engine knows about one firing. `proved` is None until it is known either way.

    `due_at` is set for triggers of time, `watcher` for those of a condition, `heal_watcher` while
    an `until` is waited for. `hit` are the nodes whose launcher's end it may be to blame for.
    `writers_held_on` are the nodes on which writers are held for it, since `writer_held_at`.
    `is_armed`: a rank is, or would be, held for it; `asked_at` is the worker (pid) that had the
    rank then, and the step that it had done.
    """

    id: str
    name: str
    entry: Entry
    action: PlannedAction
    is_optional: bool
    is_armed: bool = False
    asked_at: tuple[int, int] | None = None
    phase: EntryPhase = EntryPhase.WAITING
    due_at: float | None = None
    watcher: Watcher | None = None
    evidence: str | None = None
    fired_at: float | None = None
    in_force_at: float | None = None
    proved_at: float | None = None
    healed_at: float | None = None
    proved: bool | None = None
    proof_needs_job: bool = False
    heal_at: float | None = None
    heal_watcher: Watcher | None = None
    healed_by: str = "teardown"
    hit: tuple[str, ...] = ()
    writers_held_on: set[str] = field(default_factory=set)
    writer_held_at: float | None = None

    @property
    def step(self) -> AtStep | None:
        """The step it is pinned to, if it is."""
        return self.entry.at if isinstance(self.entry.at, AtStep) else None

    def fact_of_firing(self, targets: Targets) -> FaultFired:
        """Return what is recorded of a fault that fires, and of what its class declares."""
        return FaultFired(
            id=self.id,
            fault=self.entry.action.name,
            targets=tuple(sorted(targets.describe())),
            parameters=self.action.describe(),
            nodes=tuple(node.name for node in targets.nodes),
            workers=tuple((each.node, each.rank, each.process.pid) for each in targets.workers),
            links=targets.links,
            pauses=self.action.pauses,
            disturbs=self.action.disturbs,
            may_end_launchers=self.hit,
        )

    @property
    def is_over(self) -> bool:
        """Tell whether it will never act (again)."""
        return self.phase is EntryPhase.HEALED or self.never_acts

    @property
    def never_acts(self) -> bool:
        """Tell whether it was given up before it took effect."""
        return self.phase in {EntryPhase.FAILED, EntryPhase.SKIPPED}

    @property
    def is_done(self) -> bool:
        """Tell whether a check was made, or others were healed: nothing proves that but itself."""
        return self.action.is_own and self.in_force_at is not None

    @property
    def effective_at(self) -> float | None:
        """When it began to act: for one that starts nodes, when they were seen to be up."""
        return self.proved_at if self.action.starts_nodes else self.in_force_at

    @property
    def holds_rank(self) -> bool:
        """Tell whether a rank held for it must stay held."""
        if self.phase is EntryPhase.FIRED:
            return True
        return (
            self.phase is EntryPhase.IN_FORCE and self.proved is None and not self.proof_needs_job
        )

    @property
    def is_settled(self) -> bool:
        """Tell whether nothing more is to come of it by itself, save the automatic heal."""
        if self.is_over:
            return True
        return (
            self.phase is EntryPhase.IN_FORCE
            and self.proved is not None
            and self.heal_at is None
            and self.heal_watcher is None
        )

    @property
    def can_be_healed(self) -> bool:
        """Tell whether there is, or may be, something to undo."""
        is_out = self.phase in {EntryPhase.FIRED, EntryPhase.IN_FORCE}
        return is_out and self.action.is_healable

    @property
    def was_undone(self) -> bool:
        """Tell whether it was in force and is healed, or about to be: once more is harmless."""
        is_gone = self.phase in {EntryPhase.HEALING, EntryPhase.HEALED}
        return is_gone and self.action.is_healable

    def become(self, phase: EntryPhase) -> None:
        """Change the phase; what the table does not list is a bug."""
        assert phase in ALLOWED[self.phase], f"{self.id}: {self.phase} does not become {phase}"
        self.phase = phase


def first_that_acts(entries: Sequence[EntryState]) -> EntryState:
    """Return the first firing of an entry that acts, or may yet; the first one, if none does."""
    return next((entry for entry in entries if not entry.never_acts), entries[0])


def expand(planned: PlannedEntry, action: PlannedAction, started_at: float) -> list[EntryState]:
    """Return the firings of an entry: one, or one for each draw of `every`.

    Each of a repeated entry is optional, as the job may be over before it, or not have begun; at
    least one must take effect.
    """
    entry = planned.entry
    if entry.every is None:
        due = started_at + entry.at if isinstance(entry.at, float) else None
        state = EntryState(
            id=planned.id, name=planned.id, entry=entry, action=action,
            is_optional=entry.optional, due_at=due,
        )  # fmt: skip
        return [state]
    states: list[EntryState] = []
    due = started_at
    for number, delay_s in enumerate(planned.delays_s, start=1):
        due += delay_s
        states.append(
            EntryState(
                id=f"{planned.id}#{number}",
                name=planned.id,
                entry=entry,
                action=action,
                is_optional=True,
                due_at=due,
            )
        )
    return states
