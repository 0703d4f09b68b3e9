"""Each recovery of a run as a waterfall: how long after the fault each of its phases ended.

A recovery leads from one round to the next. Its phases are read from the history; one of which the
history has no record (another launcher than ours, a fault that had no proof, a round that never
came that far) is there without a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from elastic_harness.history.events import FaultEffective, FaultFired, GroupFormed, RunEnded
from elastic_harness.history.history import Entry, History
from elastic_harness.history.worlds import World
from pytest_elastic.events.model import (
    DrainStarted,
    Event,
    LeaseLost,
    MemberLost,
    RoundSealed,
    StopOrdered,
    WorkerExited,
    WorkersHeld,
    WorkersStopped,
)

__all__ = ["Phase", "Recovery", "recoveries"]

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase: when it was over, by which record; both None where no record says it."""

    name: str
    at: float | None = None
    seq: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What led from a round to the next; `to_round` is None where no round followed.

    `start` is when the fault was injected, or, where a round ended without one, when the launcher
    noticed that it had to end.
    """

    from_round: int
    to_round: int | None
    start: float
    phases: tuple[Phase, ...]

    @property
    def length(self) -> float:
        """The seconds from the start to the last phase that is known."""
        return max((each.at - self.start for each in self.phases if each.at is not None), default=0)

    @property
    def title(self) -> str:
        """The rounds that it led from and to, with the seconds that it took."""
        if self.to_round is None:
            return f"round {self.from_round}, and no other"
        return f"round {self.from_round} to round {self.to_round}, {self.length:.3f} s"

    def begin_of(self, phase: Phase) -> float:
        """Return when a phase began: when the one that was over last before it was."""
        if phase.at is None:
            return self.start
        earlier = (
            each.at
            for index, each in enumerate(self.phases)
            if each.at is not None and (each.at, index) < (phase.at, self.phases.index(phase))
        )
        return max(earlier, default=self.start)


def recoveries(history: History) -> list[Recovery]:
    """Return the recoveries of a run, in order."""
    worlds = history.worlds.rounds
    found = [
        _recovery(history, before, after)
        for before, after in pairwise(worlds)
        if before.run_id == after.run_id
    ]
    ended = history.last(RunEnded)
    if worlds and _was_broken(worlds[-1], float("inf") if ended is None else ended.at):
        found.append(_recovery(history, worlds[-1], None))
    return found


def _was_broken(world: World, end: float) -> bool:
    """Tell whether a worker of the last round was gone too early, before the run's end."""
    return any(
        worker.gone_at is not None and worker.gone_at < end and not worker.finished
        for worker in world.workers.values()
    )


def _recovery(history: History, before: World, after: World | None) -> Recovery:
    until = after.started_at if after is not None else float("inf")
    sealed = None if after is None else _sealed(history, before, after)
    noticed = _noticed(history, before, sealed.at if sealed is not None else until)
    limit = min(until, noticed.at) if noticed is not None else until
    # Of several faults of a round, the last one before the launcher noticed something.
    fired = _last(
        entry
        for entry in history.of_kind(FaultFired)
        if before.started_at <= entry.at <= limit and entry.event.disturbs
    )
    effective = None if fired is None else _effective(history, fired)
    stopped = _stopped(history, before, until)
    first = next((each.at for each in (fired, noticed, stopped) if each is not None), None)
    phases = (
        _phase("fault", fired, "none in this round" if fired is None else _words(fired.event)),
        _phase("effective", effective, "" if effective is None else effective.event.evidence),
        _phase("noticed", noticed, "" if noticed is None else _notice(noticed)),
        stopped,
        _phase("sealed", sealed, "" if sealed is None else ", ".join(sealed.event.roster)),
        *_formation(history, after),
    )
    return Recovery(
        from_round=before.number,
        to_round=None if after is None else after.number,
        start=first if first is not None else before.started_at,
        phases=phases,
    )


def _sealed(history: History, before: World, after: World) -> Entry[RoundSealed] | None:
    """Return the seal of a round: of several of its number, the last before its first worker."""
    return _last(
        entry
        for entry in history.of_kind(RoundSealed)
        if entry.event.round == after.round and before.started_at <= entry.at <= after.started_at
    )


def _noticed(history: History, world: World, until: float) -> Entry[Event] | None:
    """Return the launcher's first record that a round has to end."""
    nodes = set(world.nodes)
    exits = (e for e in history.of_kind(WorkerExited) if e.event.cause == "failed")
    of_round: tuple[Entry[StopOrdered | LeaseLost | WorkersHeld | WorkerExited], ...] = (
        *history.of_kind(StopOrdered),
        *history.of_kind(LeaseLost),
        *history.of_kind(WorkersHeld),
        *exits,
    )
    found: list[Entry[Event]] = [e for e in of_round if e.event.round == world.round]
    found += [e for e in history.of_kind(MemberLost) if e.event.member in nodes]
    found += [e for e in history.of_kind(DrainStarted) if e.node in nodes]
    inside = (entry for entry in found if world.started_at <= entry.at <= until)
    return min(inside, key=lambda entry: (entry.at, entry.seq), default=None)


def _notice(entry: Entry[Event]) -> str:
    match entry.event:
        case WorkerExited(rank=rank):
            return f"{entry.node}: rank {rank} failed"
        case MemberLost(member=member, cause=cause):
            return f"{entry.node}: lost {member} ({cause})"
        case StopOrdered(reason=reason) | LeaseLost(reason=reason) | WorkersHeld(reason=reason):
            return f"{entry.node}: {reason}"
        case DrainStarted(reason=reason):
            return f"{entry.node} drains: {reason}"
        case _:
            return entry.node


def _effective(history: History, fired: Entry[FaultFired]) -> Entry[FaultEffective] | None:
    return next(
        (
            entry
            for entry in history.of_kind(FaultEffective)
            if entry.event.id == fired.event.id and entry.seq > fired.seq
        ),
        None,
    )


def _stopped(history: History, before: World, until: float) -> Phase:
    """Return when the last worker of a round was gone, of those that were before the next one.

    The launcher's own word comes first, as it goes on by that: the harness sees it a little later.
    """
    gone = [
        worker
        for worker in before.workers.values()
        if worker.gone_at is not None and worker.gone_at <= until
    ]
    if not gone:
        return Phase(name="stopped")
    last = max(gone, key=lambda worker: worker.gone_at or 0.0)
    told = _last(
        entry
        for entry in history.of_kind(WorkersStopped)
        if entry.event.round == before.round and entry.node == last.node and entry.at <= until
    )
    at, seq = (told.at, told.seq) if told is not None else (last.gone_at, last.gone_seq)
    later = len(before.workers) - len(gone)
    detail = f"last: rank {last.rank} on {last.node}"
    if later:
        detail += f"; {later} of {len(before.workers)} workers were still there"
    return Phase(name="stopped", at=at, seq=seq, detail=detail)


def _formation(history: History, world: World | None) -> tuple[Phase, ...]:
    """Return the phases of the new round: each is over when its last rank has come that far."""
    spawned = group = step = None
    if world is not None and world.formed_at is not None:
        last = max(world.workers.values(), key=lambda worker: worker.hello_at)
        spawned = Phase(
            name="spawned", at=last.hello_at, seq=last.hello_seq, detail=f"last: rank {last.rank}"
        )
        group = _group(history, world)
    if world is not None and world.progressed_at is not None:
        slow = max(world.workers.values(), key=lambda worker: worker.steps[0].at)
        step = Phase(
            name="first step",
            at=world.progressed_at,
            seq=slow.steps[0].seq,
            detail=f"step {slow.first_step}, last: rank {slow.rank}",
        )
    return (
        spawned or Phase(name="spawned"),
        group or Phase(name="process group"),
        step or Phase(name="first step"),
    )


def _group(history: History, world: World) -> Phase | None:
    formed: dict[int, Entry[GroupFormed]] = {}
    for entry in history.of_kind(GroupFormed):
        formed.setdefault(entry.event.pid, entry)
    entries = [formed.get(worker.pid) for worker in world.workers.values()]
    known = [entry for entry in entries if entry is not None]
    if not known or len(known) < len(entries):
        return None
    last = max(known, key=lambda entry: entry.at)
    rank = last.event.rank
    return _phase("process group", last, f"last: rank {rank}; looked for when a step ends")


def _phase(name: str, entry: Entry[Event] | None, detail: str) -> Phase:
    if entry is None:
        return Phase(name=name, detail=detail)
    return Phase(name=name, at=entry.at, seq=entry.seq, detail=detail)


def _words(event: FaultFired) -> str:
    return f"{event.id}: {event.fault} {', '.join(event.targets)}".strip()


def _last(entries: Iterable[Entry[E]]) -> Entry[E] | None:
    return max(entries, key=lambda entry: (entry.at, entry.seq), default=None)
