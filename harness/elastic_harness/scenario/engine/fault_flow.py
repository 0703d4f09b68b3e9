"""The timeline's entries on their way: waiting, fired, in force, healed. A part of the engine.

Pure, like the engine that owns it: it is told the time and what was seen, and puts commands. It
knows nothing of clauses, of ranks that are held, or of when a run is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from elastic_harness.faults.evidence import Evidence
from elastic_harness.history.events import (
    FaultEffective,
    FaultHealed,
    FaultIneffective,
)
from elastic_harness.scenario.actions import CheckNow, HealEntries
from elastic_harness.scenario.engine.conditions import watch
from elastic_harness.scenario.engine.holds import why_past
from elastic_harness.scenario.engine.messages import (
    ArmHold,
    EngineCommand,
    Fire,
    Heal,
    Judge,
    RecordEvent,
)
from elastic_harness.scenario.engine.observed import ObservedRun
from elastic_harness.scenario.engine.situation import Targets
from elastic_harness.scenario.engine.timeline import (
    EntryPhase,
    EntryState,
    expand,
    first_that_acts,
)
from elastic_harness.scenario.model import storm_of
from elastic_harness.scenario.planning.planner import (
    PinnedTargets,
    Plan,
    PlannedEntry,
    has_choice,
    is_of_storm,
)
from elastic_harness.scenario.selectors import SelectionEmpty
from pytest_elastic.events.model import Event, Record

if TYPE_CHECKING:
    from elastic_harness.faults.registry import FaultRegistry

__all__ = ["FaultFlow"]


class FaultFlow:
    """The entries of one run.

    `put` takes commands. `resolved` is what each entry hit whose words leave a choice, for a
    replay. `is_open`: the timeline is a running test's, which says itself what is healed; what it
    does not, stays until the end.
    """

    def __init__(
        self,
        plan: Plan,
        catalog: FaultRegistry,
        run: ObservedRun,
        *,
        put: Callable[[EngineCommand], None],
        is_open: bool,
    ) -> None:
        self._plan = plan
        self._catalog = catalog
        self._run = run
        self._put = put
        self._is_a_test = self._is_open = is_open
        self.entries: list[EntryState] = []
        self.resolved: dict[str, PinnedTargets] = {}

    # --- what there is -------------------------------------------------------------------------

    def add(self, planned: PlannedEntry, now: float) -> Sequence[EntryState]:
        """Take an entry in; returns its firings."""
        spec = planned.entry.action
        action = self._catalog.read(spec.name, spec.value)
        states = expand(planned, action, now)
        for state in states:
            if state.step is not None:
                state.is_armed = True
                state.asked_at = self._run.step_of(state.step.rank)
                self._put(ArmHold(entry_id=state.id, step=state.step.step, rank=state.step.rank))
            if planned.entry.when is not None:
                state.watcher = watch(planned.entry.when, now)
            self.entries.append(state)
        return states

    def named(self, name: str) -> list[EntryState]:
        """Return the firings of an entry, or the one of that very id."""
        return [entry for entry in self.entries if name in {entry.name, entry.id}]

    def entry(self, entry_id: str) -> EntryState:
        """Return the one firing of this id."""
        found = next((entry for entry in self.entries if entry.id == entry_id), None)
        assert found is not None, f"no entry is called {entry_id!r}"
        return found

    def shift(self, seconds: float) -> None:
        """Move everything that is due: time stood still for so long."""
        for entry in self.entries:
            entry.due_at = None if entry.due_at is None else entry.due_at + seconds
            entry.heal_at = None if entry.heal_at is None else entry.heal_at + seconds

    # --- what is seen --------------------------------------------------------------------------

    def see(self, record: Record) -> None:
        """Let a record set off what waits for it, and heal what waits for it to be healed."""
        for entry in self.entries:
            if entry.phase is EntryPhase.WAITING and entry.watcher is not None:
                entry.evidence = entry.watcher.see(record, self._run)
            if entry.heal_watcher is None or entry.phase is not EntryPhase.IN_FORCE:
                continue
            if entry.heal_watcher.see(record, self._run):
                self.heal(entry, "schedule")

    def on_held(self, pid: int, rank: int, step: int) -> None:
        """Note for each entry pinned here that its moment has come, or that it is past."""
        found = self._run.worlds.worker_of(pid)
        for entry in self.entries:
            pinned = entry.step
            if entry.phase is not EntryPhase.WAITING or pinned is None or pinned.rank != rank:
                continue
            if pinned.step > step or not self._is_round(pinned.round, pid):
                continue
            past = found and why_past(*found, pinned, step, asked_at=entry.asked_at)
            if past:
                self._fail(entry, f"it never fired: {past}")
            else:
                late = "" if pinned.step == step else f", asked for {pinned.step}"
                entry.evidence = f"rank {rank} is held after step {step}{late}"

    def _is_round(self, ordinal: int | None, pid: int) -> bool:
        if ordinal is None:
            return True
        found = self._run.worlds.worker_of(pid)
        return found is not None and found[0].ordinal == ordinal

    def on_in_force(self, entry: EntryState, now: float, *, needs_job: bool) -> None:
        """A fault acts from now on."""
        if entry.phase is not EntryPhase.FIRED:
            return
        entry.become(EntryPhase.IN_FORCE)
        entry.in_force_at = now
        entry.proof_needs_job = needs_job
        if entry.entry.for_s is not None:
            entry.heal_at = now + entry.entry.for_s
        elif entry.entry.until is not None and not isinstance(entry.entry.until, str):
            entry.heal_watcher = watch(entry.entry.until, now)

    def on_proved(self, entry: EntryState, evidence: Evidence | str, now: float) -> None:
        """A fault was seen to act."""
        self.on_in_force(entry, now, needs_job=False)
        if entry.proved is None:
            entry.proved = True
            entry.proved_at = now
            found = Evidence.of(evidence)
            self._put_fact(FaultEffective(id=entry.id, evidence=found.text, facts=found.facts))

    def on_failed(self, entry: EntryState, reason: str, *, is_crash: bool) -> None:
        """A fault could not be injected, or did nothing."""
        if entry.proved is None:
            self._run.take_excuses_back(entry.id)
        if entry.phase is EntryPhase.FIRED:
            entry.become(EntryPhase.FAILED)
        elif entry.proved is not None:
            return
        entry.proved = False
        # Its author wants to hear of a crash, wherever the fault may do nothing.
        self._say_ineffective(entry, reason, is_optional=entry.is_optional and not is_crash)

    def on_undone(self, entry: EntryState, now: float) -> None:
        """A fault is undone."""
        if entry.phase in {EntryPhase.FIRED, EntryPhase.IN_FORCE}:
            entry.become(EntryPhase.HEALING)
        if entry.phase is EntryPhase.HEALING:
            entry.become(EntryPhase.HEALED)
            entry.healed_at = now
            self._run.note_undone(entry.id)
            self._put_fact(FaultHealed(id=entry.id, by=entry.healed_by))

    def on_judged(self, entry: EntryState, now: float) -> None:
        """What a `check` asked for has been judged: it is over, whatever came out."""
        if entry.phase is EntryPhase.FIRED:
            self._finish_own(entry, now)

    # --- what is due ---------------------------------------------------------------------------

    def do_what_is_due(self, now: float) -> None:
        """Fire and heal everything that is due.

        One thing may make another due, but each entry moves on a few times at most, so this ends.
        """
        while any([self._fire_due(now), self._heal_due(now)]):
            pass

    def _fire_due(self, now: float) -> bool:
        moved = False
        for entry in self.entries:
            if entry.phase is not EntryPhase.WAITING:
                continue
            if entry.entry.after is not None and entry.due_at is None:
                moved |= self._follow(entry)
            if entry.is_over:
                continue
            is_due = entry.due_at is not None and now >= entry.due_at
            if entry.evidence is not None or is_due:
                self._fire(entry, now)
                moved = True
        return moved

    def _follow(self, entry: EntryState) -> bool:
        """Find out when an entry that waits for another is due, or that it never will be."""
        after = entry.entry.after
        assert after is not None, "only entries with `after` follow another"
        several = self.named(after.id)
        leader = first_that_acts(several) if several else None
        if (
            leader is None
            or leader.never_acts
            or (leader.action.starts_nodes and leader.proved is False)
        ):
            self.skip(entry, f"it waits for {after.id}, which never took effect")
            return True
        start = leader.healed_at if after.healed else leader.effective_at
        if start is None:
            return False
        entry.due_at = start + after.delay_s
        return True

    def _heal_due(self, now: float) -> bool:
        due = [
            entry
            for entry in self.entries
            if entry.phase is EntryPhase.IN_FORCE
            and entry.heal_at is not None
            and now >= entry.heal_at
        ]
        for entry in due:
            self.heal(entry, "schedule")
        return bool(due)

    # --- firing and healing --------------------------------------------------------------------

    def _fire(self, entry: EntryState, now: float) -> None:
        entry.fired_at = now
        if entry.action.is_own:
            self._do_own(entry, now)
            return
        if self._run.have_launchers_that_count_ended:
            self.skip(entry, "the job had ended")
            return
        if is_of_storm(entry.name) and self._run.is_done:
            self.skip(entry, "all ranks had finished")  # a node that comes back finds no job
            return
        try:
            targets = self._targets(entry)
        except SelectionEmpty as error:
            self._fail(entry, error.message)
            return
        entry.become(EntryPhase.FIRED)
        if has_choice(entry.action):
            self.resolved[entry.id] = PinnedTargets.of(targets)
        entry.hit = entry.action.exempt_nodes(targets)
        if not entry.action.is_healable or (self._stays(entry) and not self._is_open):
            self._excuse(entry)
        for node in targets.nodes if entry.action.makes_kernel_kill else ():
            self._run.endanger(node.name, entry.id)
        spec = entry.entry.action
        self._put_fact(entry.fact_of_firing(targets))
        self._put(Fire(entry_id=entry.id, action=spec.name, value=spec.value, targets=targets))

    def _stays(self, entry: EntryState) -> bool:
        """Tell whether a fault is in force until the end, unless an entry heals it before."""
        spec = entry.entry
        if spec.until is not None or spec.for_s is not None:
            return spec.until == "end"
        return self._is_a_test and not any(
            other.phase is EntryPhase.WAITING and entry in self._chosen_by(other)
            for other in self.entries
        )

    def _excuse(self, entry: EntryState) -> None:
        for node in entry.hit:
            self._run.excuse(node, entry.id)

    def close_timeline(self) -> None:
        """Note that nothing is added any more: what no entry heals stays as it is.

        So what becomes of the launchers that it has hit says nothing about the job.
        """
        self._is_open = False
        for entry in self.entries:
            if entry.can_be_healed and self._stays(entry):
                self._excuse(entry)

    def _targets(self, entry: EntryState) -> Targets:
        """Return an entry's targets: those of the plan if it is a replay's, else by its words."""
        situation = self._run.situation(self._plan.seed)
        pinned = self._plan.targets.get(entry.id)
        if pinned is not None:
            return pinned.find(situation)
        return entry.action.resolve(situation, stream=f"select:{entry.id}")

    def _do_own(self, entry: EntryState, now: float) -> None:
        """Do what is the engine's own business: a check, or healing others."""
        if isinstance(entry.action, CheckNow):
            entry.become(EntryPhase.FIRED)
            self._put(Judge(entry_id=entry.id, clauses=entry.action.clauses))
            return
        chosen = self._chosen_by(entry)
        if not any(other.can_be_healed or other.was_undone for other in chosen):
            wanted = entry.entry.action.value
            self._fail(entry, f"heal: {wanted}: nothing of that was ever in force")
            return
        for other in reversed(chosen):
            if other.can_be_healed:
                self.heal(other, "action")
        self._finish_own(entry, now)

    def _chosen_by(self, entry: EntryState) -> list[EntryState]:
        """Return the entries that an entry is to heal; none if it does something else."""
        if not isinstance(entry.action, HealEntries):
            return []
        names = entry.action.ids
        return [
            other
            for other in self.entries
            if "all" in names or other.name in names or other.id in names
        ]

    def _finish_own(self, entry: EntryState, now: float) -> None:
        entry.in_force_at = entry.healed_at = now
        entry.become(EntryPhase.HEALED)

    def heal(self, entry: EntryState, by: str) -> None:
        """Order that an entry be undone."""
        entry.become(EntryPhase.HEALING)
        entry.heal_at = None
        entry.heal_watcher = None
        entry.healed_by = by
        self._put(Heal(entry_id=entry.id))

    def heal_everything(self) -> None:
        """Undo what can be undone, the newest first, save what is to stay until the end."""
        for entry in reversed(self.entries):
            if entry.can_be_healed and not self._stays(entry):
                self.heal(entry, "schedule")

    @property
    def still_in_force(self) -> str:
        """What is being done to the job right now, to be put behind a sentence."""
        found = [f"{e.id} ({e.entry.action.name})" for e in self.entries if e.can_be_healed]
        return f"; still in force: {', '.join(found)}" if found else ""

    @property
    def is_healing(self) -> bool:
        """Tell whether an order to heal is still being carried out."""
        return any(entry.phase is EntryPhase.HEALING for entry in self.entries)

    # --- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Say of each entry that never fired, or was never seen to act, why that is so."""
        for entry in self.entries:
            if entry.phase is EntryPhase.WAITING:
                self.skip(entry, self._why_never(entry))
            elif entry.proved is None and not entry.is_over:
                entry.proved = False
                why = "the run ended before it was seen to act"
                self._say_ineffective(entry, why, is_optional=entry.is_optional)
        several: dict[str, list[EntryState]] = {}
        for entry in self.entries:
            if is_of_storm(entry.name):
                several.setdefault(storm_of(entry.name), []).append(entry)
            elif entry.entry.every is not None and not entry.entry.optional:
                several.setdefault(entry.name, []).append(entry)
        for name, entries in several.items():
            if not any(entry.proved or entry.is_done for entry in entries):
                reason = f"none of its {len(entries)} faults took effect before the job ended"
                self._put_fact(FaultIneffective(id=name, reason=reason))

    def _why_never(self, entry: EntryState) -> str:
        if entry.watcher is not None:
            return (
                f"{entry.entry.when} was not seen; last seen: {entry.watcher.last_seen(self._run)}"
            )
        if entry.step is not None:
            return (
                f"rank {entry.step.rank} was not seen to complete step {entry.step.step}; "
                f"last seen: {self._run.describe()}"
            )
        return "the run was over before its time"

    def _fail(self, entry: EntryState, reason: str) -> None:
        entry.become(EntryPhase.FAILED)
        entry.proved = False
        self._say_ineffective(entry, reason, is_optional=entry.is_optional)

    def skip(self, entry: EntryState, reason: str) -> None:
        """Give an entry up whose trigger cannot come any more."""
        entry.become(EntryPhase.SKIPPED)
        if not entry.is_optional:
            self._put_fact(FaultIneffective(id=entry.id, reason=f"it never fired: {reason}"))

    def refuse(self, entry: EntryState) -> None:
        """Give up an entry that was added when the run was over; heals are left to the teardown."""
        if not any(other.can_be_healed or other.was_undone for other in self._chosen_by(entry)):
            self.skip(entry, "the run was over when it was asked for")

    def _say_ineffective(self, entry: EntryState, reason: str, *, is_optional: bool) -> None:
        """Record that a fault did nothing; of an optional one that is a fact and no error."""
        self._put_fact(FaultIneffective(id=entry.id, reason=reason, is_optional=is_optional))

    def _put_fact(self, event: Event) -> None:
        self._put(RecordEvent(source="fault", event=event))
