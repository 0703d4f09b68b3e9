"""A history in words: the moments worth a line, and how much each is worth.

Both the failure's strip and the timeline page are made of these. A moment is short enough for a
column; what it leaves out is in the history, under its seq.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from elastic_harness.history.events import (
    ClockCompared,
    FaultFired,
    FaultHealed,
    FaultIneffective,
    LogMatched,
    NodeStarted,
    NodeStopped,
    ParametersHashed,
    PoliciesSpread,
    ProcessExited,
    RankHeld,
    ResumeObserved,
    RunEnded,
    SamplesDrawn,
    StepCompleted,
    SurvivorFound,
    SwitchDropped,
    WorkerRaised,
)
from elastic_harness.history.history import Entry, History
from elastic_harness.history.worlds import WorkerView, World
from elastic_harness.report.cause import is_about_others, number_list, words_of
from pytest_elastic.events.codec import kind_of
from pytest_elastic.events.model import (
    AgentStalled,
    CoordinatorStarted,
    DrainStarted,
    Event,
    JobEnded,
    LeaseLost,
    MemberLost,
    RoundEnded,
    RoundSealed,
    WorkerExited,
)
from pytest_elastic.exit_codes import exit_text

__all__ = ["Moment", "moments", "where_it_stood"]

# Workers of a node that come or go within this time share a line.
_TOGETHER_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something worth telling.

    `node` is "" for the run itself; a higher `weight` is kept longer; `seqs` are the records it
    tells of.
    """

    at: float
    node: str
    text: str
    weight: int
    seqs: tuple[int, ...]


def moments(history: History, proof: Collection[int] = ()) -> list[Moment]:
    """Return the moments of a history in order of time; records that are `proof` have one each."""
    found = [moment for entry in history if (moment := _of_entry(entry)) is not None]
    for world in history.worlds.rounds:
        found += _of_world(world)
    told = {seq for moment in found for seq in moment.seqs}
    found += [_of_proof(history[seq]) for seq in sorted(proof) if seq not in told]
    return sorted(found, key=lambda each: (each.at, each.seqs))


def _of_proof(entry: Entry[Event]) -> Moment:
    match entry.event:
        case StepCompleted(rank=rank, step=step, count=count):
            text = f"rank {rank} did step {count if step is None else step}"
        case ResumeObserved(rank=rank, step=int(step)):
            text = f"rank {rank} resumed after step {step}"
        case SamplesDrawn(rank=rank, step=step):
            text = f"rank {rank} drew samples for step {step}"
        case ParametersHashed(rank=rank, digest=str(digest)):
            text = f"rank {rank} ended with {digest[:8]}"
        case event:
            text = kind_of(event).replace("_", " ")
    return Moment(at=entry.at, node=entry.node, text=text, weight=8, seqs=(entry.seq,))


def _of_entry(entry: Entry[Event]) -> Moment | None:
    told = _text_and_weight(entry.event)
    if told is None:
        return None
    text, weight = told
    # What was done to the job stands across all columns, whatever node it was aimed at.
    node = "" if entry.record.source in ("fault", "engine") else entry.node
    return Moment(at=entry.at, node=node, text=text, weight=weight, seqs=(entry.seq,))


def _text_and_weight(event: Event) -> tuple[str, int] | None:
    match event:
        case FaultFired(id=id, fault=fault, targets=targets):
            return f"! {id}: {_fault_words(id, fault, targets)}", 9
        case FaultIneffective(id=id, reason=reason):
            return f"! {id} had no effect: {reason}", 9
        case FaultHealed(id=id):
            return f"~ {id} healed", 7
        case NodeStarted(incarnation=incarnation):
            return ("up" if incarnation == 1 else f"up again ({incarnation})"), 2
        case NodeStopped(cause=cause):
            return f"down: {cause.replace('_', ' ')}", 8 if cause != "teardown" else 1
        case ProcessExited(role="launcher", exit_code=code):
            return f"launcher ended: {exit_text(code)}", 6
        case SurvivorFound(command=command):
            return f"left over: {command}", 9
        case ClockCompared(error_s=error_s):
            return f"times there are within {error_s * 1000:.1f} ms", 0
        case PoliciesSpread(within_s=within_s):
            return f"links of several machines changed within {within_s * 1000:.1f} ms", 0
        case SwitchDropped(packets=packets):
            return f"switch lost {packets} packets", 9
        case RankHeld(rank=rank, step=step):
            return f"rank {rank} held at step {step}", 3
        case LogMatched(line=line):
            return f"log: {line.strip()}", 4
        case WorkerRaised(rank=rank):
            words = words_of(event)
            return f"rank {rank} raised {words}", 3 if is_about_others(words) else 6
        case RunEnded(outcome=outcome):
            return f"run ended: {outcome}", 8
        case _:
            return _of_agent(event)


def _of_agent(event: Event) -> tuple[str, int] | None:
    match event:
        case RoundSealed(round=number, roster=roster):
            return f"sealed round {number}: {', '.join(roster)}", 4
        case RoundEnded(round=number, reason=reason):
            return f"round {number} ended: {reason}", 5
        case WorkerExited(rank=rank, cause="failed", exit_code=code):
            return f"rank {rank} failed: {exit_text(code)}", 7
        case CoordinatorStarted(term=term) if term > 1:
            return f"coordinator of term {term}", 6
        case MemberLost(member=member, cause=cause):
            return f"lost {member}: {cause}", 6
        case LeaseLost():
            return "lease lost, workers killed", 7
        case AgentStalled(stalled_s=stalled_s):
            return f"agent stood still for {stalled_s:.1f} s", 6
        case DrainStarted():
            return "draining", 6
        case JobEnded(result=result):
            return f"job {result}", 4
        case _:
            return None


def _fault_words(id: str, fault: str, targets: Iterable[str]) -> str:
    words = " ".join((fault.replace("_", " "), *targets))
    return words if fault != id else " ".join(targets) or fault


def _of_world(world: World) -> Iterator[Moment]:
    by_node: dict[str, list[WorkerView]] = {}
    for worker in sorted(world.workers.values(), key=lambda worker: worker.rank):
        by_node.setdefault(worker.node, []).append(worker)
    for node, workers in by_node.items():
        numbers = number_list([worker.rank for worker in workers])
        plural = "rank" if len(workers) == 1 else "ranks"
        yield Moment(
            at=max(worker.hello_at for worker in workers),
            node=node,
            text=f"round {world.number}: {plural} {numbers}",
            weight=5,
            seqs=tuple(worker.hello_seq for worker in workers),
        )
        yield from _goings(node, workers)
    if world.progressed_at is not None:
        last_in = max(world.workers.values(), key=lambda worker: worker.steps[0].at)
        first = min(worker.first_step or 0 for worker in world.workers.values())
        yield Moment(
            at=world.progressed_at,
            node=last_in.node,
            text=f"round {world.number}: step {first} done by all",
            weight=5,
            seqs=(last_in.steps[0].seq,),
        )


def _goings(node: str, workers: list[WorkerView]) -> Iterator[Moment]:
    """Yield how a node's workers went, those that went together as one."""
    gone = [worker for worker in workers if worker.gone_at is not None]
    gone.sort(key=lambda worker: (worker.finished, worker.gone_at or 0.0))
    group: list[WorkerView] = []
    for worker in [*gone, None]:
        is_next = worker is not None and (
            not group
            or (
                worker.finished == group[0].finished
                and (worker.gone_at or 0.0) - (group[0].gone_at or 0.0) <= _TOGETHER_S
            )
        )
        if is_next and worker is not None:
            group.append(worker)
            continue
        if group:
            yield _going(node, group)
        group = [worker] if worker is not None else []


def _going(node: str, group: list[WorkerView]) -> Moment:
    plural = "rank" if len(group) == 1 else "ranks"
    step = max((worker.last_step or 0 for worker in group), default=0)
    how = "ended" if group[0].finished else "gone"
    after = f" after step {step}" if step else ""
    return Moment(
        at=group[0].gone_at or 0.0,
        node=node,
        text=f"{plural} {number_list([worker.rank for worker in group])} {how}{after}",
        weight=3 if group[0].finished else 6,
        seqs=tuple(worker.gone_seq for worker in group if worker.gone_seq is not None),
    )


def where_it_stood(history: History) -> str:
    """Return how far the job had come, in one line."""
    world = history.worlds.current
    if world is None:
        return "no worker said hello"
    alive = sum(worker.is_alive for worker in world.workers.values())
    step = "no step done" if world.last_step is None else f"step {world.last_step}"
    return (
        f"round {world.ordinal} on {', '.join(world.nodes)}: {len(world.workers)} of "
        f"{world.world_size} ranks said hello, {alive} alive, {step}"
    )
