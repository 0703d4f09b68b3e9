"""What goes into the scenario engine and what comes out of it.

The runner feeds inputs and performs commands; it decides nothing. Commands name an entry of the
timeline by its id (entries without one are called `entry-N` by their place; a repeated entry fires
as `id#1`, `id#2` …).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic_harness.faults.evidence import Evidence
from elastic_harness.history.verdict import Verdict
from elastic_harness.scenario.engine.situation import Targets
from elastic_harness.scenario.model import Clause, Entry, Eventually
from elastic_harness.scenario.triggers import WritingCondition
from pytest_elastic.events.model import Event, Record

__all__ = [
    "ArmHold",
    "ClauseAdded",
    "ClausesJudged",
    "DisarmHold",
    "EndRun",
    "EngineCommand",
    "EngineInput",
    "EntryAdded",
    "FaultFailed",
    "FaultInForce",
    "FaultProved",
    "FaultUndone",
    "Fire",
    "Heal",
    "HoldWriting",
    "Judge",
    "LaunchersExited",
    "RecordEvent",
    "RecordSeen",
    "ReleaseHold",
    "ReleaseWriting",
    "RunStopped",
    "TimePassed",
    "TimeStoodStill",
    "TimelineClosed",
    "WakeAt",
    "WatchLog",
]


# --- inputs --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSeen:
    """Something happened: a record of the history, in the order of the history."""

    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """It is later than it was; given at start, and at the latest time asked for by `WakeAt`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInForce:
    """A fault acts from now on.

    A rank held for it goes on once the fault was also seen to act, or at once where only the
    running job can show that (packets that are dropped).
    """

    entry_id: str
    proof_needs_job: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultProved:
    """A fault was seen to have its effect."""

    entry_id: str
    evidence: Evidence | str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultFailed:
    """A fault could not be injected, or had no effect within its time; or its code crashed."""

    entry_id: str
    reason: str
    is_crash: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultUndone:
    """A fault was healed, by the engine's order."""

    entry_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClausesJudged:
    """What a `check` asked for has been judged by the history as it was: clause and verdict."""

    entry_id: str
    verdicts: tuple[tuple[str, Verdict], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchersExited:
    """No launcher runs any more, and every record that was on its way has been fed."""

    exit_codes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryAdded:
    """A running test adds an entry to the timeline; it must have an id that is not taken."""

    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseAdded:
    """A running test begins to wait for something.

    `key` is its name among `EngineMachine.clauses`.
    """

    key: str
    clause: Eventually


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeStoodStill:
    """The person at the terminal was in a debugger for so long: move every deadline by it.

    Meanwhile the engine was given the time at which that began.
    """

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineClosed:
    """Nothing will be added any more, and the job may end.

    A scenario file's timeline is closed from the start; a running test closes it when it waits for
    the end of the job. What is in force then, and is not healed by the timeline, stays so.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStopped:
    """The test that made the run is over, or wants it to be: end it as it stands."""

    reason: str


EngineInput = (
    RecordSeen
    | TimePassed
    | FaultInForce
    | FaultProved
    | FaultFailed
    | FaultUndone
    | ClausesJudged
    | LaunchersExited
    | EntryAdded
    | ClauseAdded
    | TimeStoodStill
    | TimelineClosed
    | RunStopped
)


# --- commands ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmHold:
    """Hold the worker of `rank` once it has completed global step `step`, until it is released.

    Stands for every worker of that rank, those of later worlds included, until disarmed.
    """

    entry_id: str
    step: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DisarmHold:
    """No rank needs to be held for this entry any more."""

    entry_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseHold:
    """Let a held worker go on."""

    pid: int
    rank: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldWriting:
    """Stop the next process that writes a matching file on a node; record a `WriterHeld`."""

    entry_id: str
    node: str
    condition: WritingCondition


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWriting:
    """Let writers on a node that are held for an entry go on, and hold no more."""

    entry_id: str
    node: str
    condition: WritingCondition


@dataclass(frozen=True, slots=True, kw_only=True)
class Fire:
    """Inject a fault: parse `action` and `value` with the catalog, aim it at `targets`."""

    entry_id: str
    action: str
    value: object
    targets: Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Heal:
    """Undo a fault."""

    entry_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Judge clauses by the history as it is now, and answer with `ClausesJudged`."""

    entry_id: str
    clauses: tuple[Clause, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLog:
    """Record a `LogMatched` with this very pattern for every line that it is found in."""

    pattern: str
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeAt:
    """Give `TimePassed` at this time; replaces an earlier one."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEvent:
    """Write an event into the history, and feed it back like any other record.

    `source` is as in `Record`.
    """

    source: str
    event: Event
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRun:
    """The run is over: heal what is left, end the launchers, judge.

    `outcome` is succeeded, failed, drained, limit, unmet (a clause cannot be met any more), stopped
    (its test has ended it) or aborted (a fault's code crashed). `ended_by_faults` are the
    nodes whose launcher a fault has ended.
    """

    outcome: str
    reason: str
    exit_codes: Mapping[str, int] = field(default_factory=dict)
    ended_by_faults: tuple[str, ...] = ()


EngineCommand = (
    ArmHold
    | DisarmHold
    | ReleaseHold
    | HoldWriting
    | ReleaseWriting
    | Fire
    | Heal
    | Judge
    | WatchLog
    | WakeAt
    | RecordEvent
    | EndRun
)
