"""The scenario engine: fires faults when their triggers come, and judges what must come to hold.

A pure machine. The runner feeds it every record of the history, the time, and what became of the
faults it ordered; it answers with commands. It owns no process and reads no clock.

The run has three phases. INJECTING: entries fire and heal; clauses of `eventually` are open.
QUIESCENT: nothing is left to come, everything that can be healed is being (save what is `until:
end`), and the job is let go to its end; clauses of `finally` with a `within` count from here.
ENDED: a verdict on every clause is in. The run ends when all launchers that count have ended (one
that a fault ended does not), when a clause can no longer be met, or at the limit.

An entry pinned to a step holds its rank there: `ArmHold` at the start, `ReleaseHold` once the fault
has been proven, or is known to have done nothing, or only the running job can show that it acts.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from typing_extensions import assert_never

from elastic_harness.cluster.process import ProcessRef
from elastic_harness.history.checkers.library import STANDARD
from elastic_harness.history.checkers.registry import Registry
from elastic_harness.history.events import (
    ClauseJudged,
    FaultPlanned,
    RankHeld,
    RankReleased,
    WorkerGone,
)
from elastic_harness.history.verdict import Verdict, invalid
from elastic_harness.scenario.actions import CheckNow
from elastic_harness.scenario.engine.clauses import (
    Bucket,
    ClauseState,
    from_eventually,
    from_expect,
)
from elastic_harness.scenario.engine.fault_flow import FaultFlow
from elastic_harness.scenario.engine.holds import HOLD_LIMIT_S, HeldRank, Holds
from elastic_harness.scenario.engine.messages import (
    ClauseAdded,
    ClausesJudged,
    DisarmHold,
    EndRun,
    EngineCommand,
    EngineInput,
    EntryAdded,
    FaultFailed,
    FaultInForce,
    FaultProved,
    FaultUndone,
    HoldWriting,
    LaunchersExited,
    RecordEvent,
    RecordSeen,
    ReleaseHold,
    ReleaseWriting,
    RunStopped,
    TimelineClosed,
    TimePassed,
    TimeStoodStill,
    WakeAt,
    WatchLog,
)
from elastic_harness.scenario.engine.observed import LauncherView, ObservedRun
from elastic_harness.scenario.engine.timeline import (
    EntryPhase,
    EntryState,
)
from elastic_harness.scenario.fields import format_duration
from elastic_harness.scenario.model import Entry
from elastic_harness.scenario.planning.planned_clauses import (
    planned_checks,
    planned_clauses,
    text_of,
)
from elastic_harness.scenario.planning.planner import PinnedTargets, Plan, PlannedEntry, plan_entry
from elastic_harness.scenario.triggers import LogCondition, WritingCondition
from pytest_elastic.errors import UsageError
from pytest_elastic.events.model import Record

if TYPE_CHECKING:
    from elastic_harness.faults.registry import FaultRegistry

__all__ = ["EngineMachine", "RunPhase"]

# After the last launcher that counts has ended, what is still on its way (lines of output are read
# every 50 ms) is waited for this long.
END_GRACE_S: Final = 0.3


class RunPhase(enum.Enum):
    """Where the run is."""

    INJECTING = "injecting"
    QUIESCENT = "quiescent"
    ENDED = "ended"


_ALLOWED: Final[Mapping[RunPhase, frozenset[RunPhase]]] = {
    RunPhase.INJECTING: frozenset({RunPhase.QUIESCENT, RunPhase.ENDED}),
    # A test may add to a timeline that seemed to be over.
    RunPhase.QUIESCENT: frozenset({RunPhase.INJECTING, RunPhase.ENDED}),
    RunPhase.ENDED: frozenset(),
}


class EngineMachine:
    """One run of one plan. The first input of any kind starts its clock.

    With `is_open` the timeline may still grow (a Python test): nothing is healed automatically that
    has no time of its own, and the run is not quiescent until `TimelineClosed`. `patience`
    multiplies the times that something is waited for, and nothing else; `checkers` are those that
    a `check` or a clause may name.
    """

    def __init__(
        self,
        plan: Plan,
        catalog: FaultRegistry,
        *,
        is_open: bool = False,
        patience: float = 1.0,
        checkers: Registry = STANDARD,
    ) -> None:
        self._plan = plan
        self._is_open = is_open
        self._patience = patience
        self._checkers = checkers
        self._limit_s = plan.scenario.limit * patience
        self._run = ObservedRun(store_host=plan.scenario.store_host)
        self._clauses = from_expect(plan.scenario.expect, patience=patience)
        self._holds = Holds()
        self._phase = RunPhase.INJECTING
        self._started_at: float | None = None
        self._quiescent_at: float | None = None
        self._end_at: float | None = None
        self._are_launchers_gone = False
        self._woken_at: float | None = None
        self._out: list[EngineCommand] = []
        self._flow = FaultFlow(plan, catalog, self._run, put=self._put, is_open=is_open)

    # --- what others may look at ---------------------------------------------------------------

    @property
    def phase(self) -> RunPhase:
        """Where the run is."""
        return self._phase

    @property
    def entries(self) -> tuple[EntryState, ...]:
        """The timeline as it stands; to be read only."""
        return tuple(self._flow.entries)

    @property
    def resolved(self) -> Mapping[str, PinnedTargets]:
        """The targets of entries whose words leave a choice: what a replay must be told."""
        return dict(self._flow.resolved)

    @property
    def clauses(self) -> tuple[ClauseState, ...]:
        """The clauses it judges, as they stand; to be read only."""
        return tuple(self._clauses)

    @property
    def run(self) -> ObservedRun:
        """What it has seen of the run; to be read only."""
        return self._run

    # --- step ----------------------------------------------------------------------------------

    def step(self, input: EngineInput, now: float) -> tuple[EngineCommand, ...]:
        """Take one input and return what is to be done, in order."""
        if self._phase is RunPhase.ENDED:
            return self._after_the_end(input, now)
        if self._started_at is None:
            self._start(now)
        flow = self._flow
        match input:
            case RecordSeen(record=record):
                self._on_record(record, now)
            case TimePassed():
                self._woken_at = None
            case FaultInForce(entry_id=entry_id, proof_needs_job=needs_job):
                flow.on_in_force(flow.entry(entry_id), now, needs_job=needs_job)
            case FaultProved(entry_id=entry_id, evidence=evidence):
                flow.on_proved(flow.entry(entry_id), evidence, now)
            case FaultFailed(entry_id=entry_id, reason=reason, is_crash=is_crash):
                flow.on_failed(flow.entry(entry_id), reason, is_crash=is_crash)
                if is_crash:  # what comes of the job now says nothing
                    self._end("aborted", f"{entry_id}: {reason}", now)
                    return self._take_out()
            case FaultUndone(entry_id=entry_id):
                flow.on_undone(flow.entry(entry_id), now)
            case ClausesJudged(entry_id=entry_id, verdicts=verdicts):
                self._on_judged(flow.entry(entry_id), verdicts, now)
            case LaunchersExited(exit_codes=exit_codes):
                self._on_launchers_exited(exit_codes, now)
            case EntryAdded(entry=entry):
                self._on_entry_added(entry, now)
            case ClauseAdded(key=key, clause=clause):
                state = from_eventually(key, clause, Bucket.WAIT, patience=self._patience)
                self._add_clause(state, now)
            case RunStopped(reason=reason):
                self._end("stopped", reason, now)
                return self._take_out()
            case TimeStoodStill(seconds=seconds):
                self._shift(seconds)
            case TimelineClosed():
                self._is_open = False
                flow.close_timeline()
            case _:
                assert_never(input)
        self._look_around(now)
        return self._take_out()

    def _after_the_end(self, input: EngineInput, now: float) -> tuple[EngineCommand, ...]:
        """Order nothing more; record what the teardown heals, and what is asked for too late.

        A clause that is asked for now is never judged, and who waits for it is told so.
        """
        match input:
            case FaultUndone(entry_id=entry_id):
                self._flow.on_undone(self._flow.entry(entry_id), now)
            case EntryAdded(entry=entry):
                for state in self._on_entry_added(entry, now):
                    self._flow.refuse(state)
            case _:
                pass
        return tuple(each for each in self._take_out() if isinstance(each, RecordEvent))

    # --- start ---------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        self._started_at = now
        scenario = self._plan.scenario
        for clause in planned_clauses(scenario, self._checkers, is_open=self._is_open):
            self._put(RecordEvent(source="engine", event=clause))
        for planned in self._plan.entries:
            self._add_entry(planned, now)
        states, self._clauses = self._clauses, []
        for state in states:
            self._add_clause(state, now)

    def _on_entry_added(self, entry: Entry, now: float) -> Sequence[EntryState]:
        default_id = f"entry-{len({state.name for state in self._flow.entries}) + 1}"
        planned = plan_entry(entry, default_id, self._plan.seed)
        if any(state.name == planned.id for state in self._flow.entries):
            raise UsageError(f"the timeline has an entry {planned.id!r} already: choose another id")
        if self._phase is RunPhase.QUIESCENT:
            self._become(RunPhase.INJECTING)
        return self._add_entry(planned, now)

    def _add_entry(self, planned: PlannedEntry, now: float) -> Sequence[EntryState]:
        states = self._flow.add(planned, now)
        for state in states:
            self._record_planned(state)
            if planned.entry.when is not None:
                self._watch_log(planned.entry.when)
            if planned.entry.until is not None:
                self._watch_log(planned.entry.until)
        return states

    def _record_planned(self, state: EntryState) -> None:
        name = state.entry.action.name
        if isinstance(state.action, CheckNow):
            for clause in planned_checks(state.id, state.entry, self._checkers):
                self._put(RecordEvent(source="engine", event=clause))
        elif not state.action.is_own:
            planned = FaultPlanned(id=state.id, fault=name, is_optional=state.is_optional)
            self._put(RecordEvent(source="engine", event=planned))

    def _add_clause(self, clause: ClauseState, now: float) -> None:
        self._watch_log(clause.condition)
        if clause.after is None:
            clause.begin(now)
        self._clauses.append(clause)

    def _watch_log(self, condition: object) -> None:
        if isinstance(condition, LogCondition):
            self._put(WatchLog(pattern=condition.log, node=condition.node))

    # --- records -------------------------------------------------------------------------------

    def _on_record(self, record: Record, now: float) -> None:
        self._run.observe(record)
        match record.event:
            case RankHeld(pid=pid, rank=rank, step=step):
                self._holds.add(HeldRank(pid=pid, rank=rank, step=step, since=now))
                self._flow.on_held(pid, rank, step)
            case WorkerGone(pid=pid) | RankReleased(pid=pid):
                self._holds.forget(pid)
            case _:
                pass
        self._flow.see(record)
        self._follow_entries()
        for clause in self._clauses:
            self._tell(clause, decided=clause.see(record, self._run, now))

    def _on_judged(
        self, entry: EntryState, verdicts: Sequence[tuple[str, Verdict]], now: float
    ) -> None:
        """Take what a `check` has found as clauses of its own; one that is unmet ends the run."""
        for number, (text, verdict) in enumerate(verdicts):
            clause = ClauseState(
                key=f"{entry.id}[{number}]", bucket=Bucket.CHECK, text=text, verdict=verdict
            )
            self._clauses.append(clause)
            self._tell(clause, decided=True)
        self._flow.on_judged(entry, now)

    # --- what follows from the state and the time ----------------------------------------------

    def _look_around(self, now: float) -> None:
        """Do everything that is due, and see what follows."""
        self._flow.do_what_is_due(now)
        self._follow_entries()
        for clause in self._clauses:
            self._tell(clause, decided=clause.see(None, self._run, now))
        self._release_holds(now)
        self._hold_writers(now)
        if self._end_if_over(now):
            return
        self._become_quiescent(now)
        self._ask_to_be_woken(now)

    def _follow_entries(self) -> None:
        for clause in self._clauses:
            if clause.after is not None:
                clause.follow(self._flow.named(clause.after.id))

    def _tell(self, clause: ClauseState, *, decided: bool) -> None:
        if decided and clause.verdict is not None:
            self._put_verdict(clause.key, clause.text, clause.verdict)

    def _put_verdict(self, key: str, text: str, verdict: Verdict) -> None:
        event = ClauseJudged(
            key=key,
            text=text,
            outcome=verdict.outcome.value,
            reason=verdict.reason,
            proof=verdict.events,
        )
        self._put(RecordEvent(source="engine", event=event))

    def _hold_writers(self, now: float) -> None:
        """Hold writers for entries that wait for one, and let them go once the fault has acted."""
        for entry in self._flow.entries:
            asked = entry.entry.when
            if not isinstance(asked, WritingCondition):
                continue
            if entry.phase is EntryPhase.WAITING and self._is_step_done(asked.step):
                for node in sorted(set(self._run.nodes) - entry.writers_held_on):
                    if asked.node in (None, node) and node in self._run.launchers:
                        entry.writers_held_on.add(node)
                        self._put(HoldWriting(entry_id=entry.id, node=node, condition=asked))
            elif entry.phase is not EntryPhase.WAITING:
                entry.writer_held_at = entry.writer_held_at or now
                is_late = now >= entry.writer_held_at + HOLD_LIMIT_S
                if is_late or not entry.holds_rank:
                    self._release_writers(entry)

    def _is_step_done(self, step: int | None) -> bool:
        if step is None:
            return True
        last = self._run.world.last_step if self._run.world is not None else None
        return last is not None and last >= step

    def _release_writers(self, entry: EntryState) -> None:
        asked = entry.entry.when
        assert isinstance(asked, WritingCondition), "only those hold writers"
        for node in sorted(entry.writers_held_on):
            self._put(ReleaseWriting(entry_id=entry.id, node=node, condition=asked))
        entry.writers_held_on.clear()

    def _release_holds(self, now: float) -> None:
        for entry in self._flow.entries:
            if entry.is_armed and entry.phase is not EntryPhase.WAITING and not entry.holds_rank:
                entry.is_armed = False
                self._put(DisarmHold(entry_id=entry.id))
        for held in self._holds.release(self._flow.entries, now):
            self._put(ReleaseHold(pid=held.pid, rank=held.rank, step=held.step))

    def _become_quiescent(self, now: float) -> None:
        """Once nothing is left to come, heal what can be healed and let the job go to its end."""
        if self._phase is RunPhase.QUIESCENT:
            if self._quiescent_at is None and not self._flow.is_healing:
                self._quiescent_at = now
            return
        if self._is_open or not all(entry.is_settled for entry in self._flow.entries):
            return
        # A clause that waits for an entry can only begin with the heal that comes now, if at all.
        if any(
            clause.bucket is Bucket.EVENTUALLY and clause.verdict is None
            for clause in self._clauses
            if clause.base is not None
        ):
            return
        self._become(RunPhase.QUIESCENT)
        self._flow.heal_everything()
        if not self._flow.is_healing:
            self._quiescent_at = now

    # --- end -----------------------------------------------------------------------------------

    def _on_launchers_exited(self, exit_codes: Mapping[str, int], now: float) -> None:
        for node, exit_code in exit_codes.items():
            launcher = self._run.launchers.setdefault(
                node, LauncherView(process=ProcessRef(node=node, pid=0))
            )
            if launcher.exit_code is None:
                launcher.exit_code = exit_code
        self._are_launchers_gone = True
        self._end_at = now

    def _end_if_over(self, now: float) -> bool:
        """End the run if it is over, and say why; tell whether it was."""
        assert self._started_at is not None, "an engine that steps has started"
        is_limit = now >= self._started_at + self._limit_s
        for clause in self._clauses:
            self._tell(clause, decided=clause.expire(now, self._run, is_last=is_limit))
            # What a test waits for is its own business.
            if clause.is_unmet and clause.bucket is not Bucket.WAIT:
                self._end("unmet", clause.verdict.reason if clause.verdict else "", now)
                return True
        if not self._is_job_over():
            self._end_at = None
        elif self._end_at is None:
            self._end_at = now + END_GRACE_S
        if self._end_at is not None and now >= self._end_at:
            self._end(self._run.outcome, "all launchers that count have ended", now)
            return True
        if (late := self._late_clauses(now)) is not None:
            self._end("unmet", late, now)
            return True
        if is_limit:
            limit = format_duration(self._limit_s)
            where = f"{self._run.describe()}{self._flow.still_in_force}"
            self._end("limit", f"the job did not end within {limit}: {where}", now)
            return True
        return False

    def _is_job_over(self) -> bool:
        """Tell whether no launcher is left whose end is worth waiting for.

        That is so when all launchers that count have ended; or, where faults have ended them all,
        when none runs and no fault is about to start one again.
        """
        if self._are_launchers_gone or self._run.have_launchers_that_count_ended:
            return True
        is_busy = any(
            entry.phase is EntryPhase.FIRED
            or (entry.phase is EntryPhase.IN_FORCE and entry.proved is None)
            for entry in self._flow.entries
        )
        return self._run.have_all_launchers_ended and not is_busy

    def _late_clauses(self, now: float) -> str | None:
        """Judge what the job should have ended for by now; return what is wrong, if it has not."""
        if self._quiescent_at is None:
            return None
        late: list[str] = []
        for index, clause in enumerate(self._plan.scenario.expect.finally_):
            allowed_s = None if clause.within is None else clause.within * self._patience
            if allowed_s is not None and now >= self._quiescent_at + allowed_s:
                within = format_duration(allowed_s)
                why = f"the job had not ended {within} after the last heal"
                late.append(f"finally {clause}: {why}")
                text = text_of(clause, self._checkers)
                self._put_verdict(f"finally[{index}]", text, invalid(why))
        return late[0] if late else None

    def _end(self, outcome: str, reason: str, now: float) -> None:
        self._become(RunPhase.ENDED)
        self._flow.close()
        why = "the job ended" if self._is_job_over() else "the run was over"
        for clause in self._clauses:
            was_open = clause.verdict is None
            clause.close(self._run, why, is_cut=outcome == "unmet")
            self._tell(clause, decided=was_open)
        for held in self._holds.release((), now):
            self._put(ReleaseHold(pid=held.pid, rank=held.rank, step=held.step))
        for entry in self._flow.entries:
            if entry.writers_held_on:
                self._release_writers(entry)
        codes, ended = self._run.exit_codes, self._run.ended_by_faults
        self._put(EndRun(outcome=outcome, reason=reason, exit_codes=codes, ended_by_faults=ended))

    # --- a debugger ----------------------------------------------------------------------------

    def _shift(self, seconds: float) -> None:
        """Move every moment that a deadline is counted from, or that is waited for."""
        assert self._started_at is not None, "an engine that steps has started"
        self._started_at += seconds
        self._quiescent_at = None if self._quiescent_at is None else self._quiescent_at + seconds
        self._end_at = None if self._end_at is None else self._end_at + seconds
        self._woken_at = None
        self._flow.shift(seconds)
        self._holds.shift(seconds)
        for clause in self._clauses:
            if clause.base is not None:
                clause.base += seconds

    # --- small things --------------------------------------------------------------------------

    def _become(self, phase: RunPhase) -> None:
        assert phase in _ALLOWED[self._phase], f"{self._phase} does not become {phase}"
        self._phase = phase
        self._quiescent_at = None

    def _ask_to_be_woken(self, now: float) -> None:
        assert self._started_at is not None, "an engine that steps has started"
        times = [self._started_at + self._limit_s, self._end_at, self._holds.deadline()]
        times += [e.due_at for e in self._flow.entries if e.phase is EntryPhase.WAITING]
        times += [e.heal_at for e in self._flow.entries if e.phase is EntryPhase.IN_FORCE]
        times += [clause.watched_until for clause in self._clauses]
        if self._quiescent_at is not None:
            finals = self._plan.scenario.expect.finally_
            withins = [each.within * self._patience for each in finals if each.within is not None]
            times += [self._quiescent_at + within for within in withins]
        earliest = max(min(at for at in times if at is not None), now)
        if earliest != self._woken_at:
            self._woken_at = earliest
            self._put(WakeAt(at=earliest))

    def _put(self, command: EngineCommand) -> None:
        self._out.append(command)

    def _take_out(self) -> tuple[EngineCommand, ...]:
        out, self._out = tuple(self._out), []
        return out
