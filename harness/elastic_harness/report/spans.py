"""A history as lanes of spans: what the timeline page and the trace both draw."""

from __future__ import annotations

from dataclasses import dataclass

from elastic_harness.history.events import (
    FaultFired,
    FaultHealed,
    NodeStarted,
    NodeStopped,
    RankHeld,
    RankReleased,
)
from elastic_harness.history.history import History
from elastic_harness.history.worlds import WorkerView, World
from pytest_elastic.rendezvous.model import natural_key

__all__ = ["Lane", "Span", "end_of", "fault_spans", "lanes", "round_spans"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took from `start` to `end` (on the history's clock)."""

    start: float
    end: float
    label: str
    detail: str
    kind: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One line of the drawing: a node, or a worker's place on it."""

    node: str
    name: str
    spans: tuple[Span, ...]


def end_of(history: History) -> float:
    """Return when the last thing happened."""
    return max((entry.at for entry in history), default=history.start)


def round_spans(history: History) -> list[Span]:
    """Return one span for each round: from its first hello to its last worker's end."""
    end = end_of(history)
    return [
        Span(
            start=world.started_at,
            end=world.ended_at or end,
            label=f"round {world.number}",
            detail=_round_detail(world),
            kind="round",
            seq=min(worker.hello_seq for worker in world.workers.values()),
        )
        for world in history.worlds.rounds
    ]


def fault_spans(history: History) -> list[Span]:
    """Return one span for each fault: until it was healed, or a moment where nothing is healed."""
    healed = {entry.event.id: entry.at for entry in reversed(history.of_kind(FaultHealed))}
    spans = []
    for entry in history.of_kind(FaultFired):
        event = entry.event
        where = ", ".join(event.targets)
        spans.append(
            Span(
                start=entry.at,
                end=max(healed.get(event.id, entry.at), entry.at),
                label=event.id,
                detail=f"{event.fault} {where}".strip(),
                kind="fault",
                seq=entry.seq,
            )
        )
    return spans


def lanes(history: History) -> list[Lane]:
    """Return the lanes: for each node its own, then one for each local rank."""
    end = end_of(history)
    names = list(history.by_node())
    for world in history.worlds.rounds:
        names += [node for node in world.nodes if node not in names]
    found: list[Lane] = []
    for node in sorted(names, key=natural_key):
        found.append(Lane(node=node, name=node, spans=tuple(_node_spans(history, node, end))))
        found += _worker_lanes(history, node, end)
    return found


def _node_spans(history: History, node: str, end: float) -> list[Span]:
    stops = [entry for entry in history.of_kind(NodeStopped) if entry.node == node]
    spans = []
    for entry in history.of_kind(NodeStarted):
        if entry.node != node:
            continue
        stop = next((each for each in stops if each.at >= entry.at), None)
        spans.append(
            Span(
                start=entry.at,
                end=stop.at if stop is not None else end,
                label=f"{node} ({entry.event.incarnation})",
                detail=f"{entry.event.address}, ended by {stop.event.cause if stop else 'the end'}",
                kind="node",
                seq=entry.seq,
            )
        )
    return spans


def _worker_lanes(history: History, node: str, end: float) -> list[Lane]:
    places: dict[int, list[Span]] = {}
    for world in history.worlds.rounds:
        for worker in world.workers.values():
            if worker.node != node:
                continue
            steps = (
                f"steps {worker.first_step} to {worker.last_step}" if worker.steps else "no step"
            )
            spans = places.setdefault(worker.local_rank, [])
            spans.append(
                Span(
                    start=worker.hello_at,
                    end=worker.gone_at or end,
                    label=f"rank {worker.rank}",
                    detail=f"round {world.number}, pid {worker.pid}, {steps}",
                    kind="worker",
                    seq=worker.hello_seq,
                )
            )
            spans += _steps(world, worker)
            spans += _holds(history, worker, end)
    return [
        Lane(node=node, name=f"local rank {place}", spans=tuple(spans))
        for place, spans in sorted(places.items())
    ]


def _steps(world: World, worker: WorkerView) -> list[Span]:
    """Return a worker's steps; when the work of its first one began is not known.

    What comes before the first step ends is start-up (imports, process group, checkpoint) too, so
    that the first step is a mark at its end.
    """
    return [
        Span(
            start=step.began_at if index else step.at,
            end=step.at,
            label=f"step {step.count if step.step is None else step.step}",
            detail=f"rank {worker.rank}, round {world.number}, by {step.source}",
            kind="step",
            seq=step.seq,
        )
        for index, step in enumerate(worker.steps)
    ]


def _holds(history: History, worker: WorkerView, end: float) -> list[Span]:
    """Return where a worker was held: until it was released, or was gone, or the run's end."""
    pid = worker.pid
    last = end if worker.gone_at is None else worker.gone_at
    released = [entry for entry in history.of_kind(RankReleased) if entry.event.pid == pid]
    spans = []
    for entry in history.of_kind(RankHeld):
        if entry.event.pid != pid:
            continue
        until = next((each.at for each in released if each.seq > entry.seq), last)
        spans.append(
            Span(
                start=entry.at,
                end=max(entry.at, min(until, last)),
                label="held",
                detail=f"rank {entry.event.rank} held at step {entry.event.step}",
                kind="hold",
                seq=entry.seq,
            )
        )
    return spans


def _round_detail(world: World) -> str:
    restarts = "" if world.restart_count is None else f", restart {world.restart_count}"
    return f"{len(world.workers)} of {world.world_size} ranks on {', '.join(world.nodes)}{restarts}"
