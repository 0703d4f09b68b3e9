"""What a probe's lines mean: from the words of a worker to events.

The probe says `{"say": "step", ...}` with what it knows of itself; its pid and its rank are known
from the connection. Nonsense raises KeyError, TypeError or ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_harness.history.events import (
    GroupFormed,
    ParametersHashed,
    RankHeld,
    RankReleased,
    ResumeObserved,
    SamplesDrawn,
    SamplesUnseen,
    StepCompleted,
    WorkerFinished,
    WorkerHello,
    WorkerRaised,
)
from pytest_elastic.events.model import Event

__all__ = ["event_from", "hello_from"]


def hello_from(said: Mapping[str, Any], pid: int, start_time: int) -> WorkerHello:
    """Return the hello of the process that the kernel says is at the other end."""
    return WorkerHello(
        pid=pid,
        start_time=start_time,
        rank=said["rank"],
        local_rank=said["local_rank"],
        group_rank=said["group_rank"],
        world_size=said["world_size"],
        restart_count=said["restart_count"],
        max_restarts=said["max_restarts"],
        master_addr=said["master_addr"],
        master_port=said["master_port"],
        run_id=said["run_id"],
        round=said["round"],
        argv=tuple(said["argv"]),
    )


def event_from(said: Mapping[str, Any], worker: WorkerHello, skew_s: float) -> Event | None:
    """Return what a probe's line says as an event; raises KeyError or TypeError for nonsense."""
    pid, rank = worker.pid, worker.rank
    match said["say"]:
        case "step":
            return StepCompleted(
                pid=pid,
                rank=rank,
                count=said["count"],
                step=said["step"],
                step_source=said["source"],
                began_at=said["began_at"] + skew_s,
                learning_rate=said.get("lr"),
            )
        case "resume":
            return ResumeObserved(pid=pid, rank=rank, step=said["step"])
        case "group":
            return GroupFormed(
                pid=pid, rank=rank, world_size=said["world_size"], nonce=said["nonce"]
            )
        case "held":
            return RankHeld(pid=pid, rank=rank, step=said["step"])
        case "released":
            return RankReleased(pid=pid, rank=rank, step=said["step"])
        case "samples":
            return SamplesDrawn(
                pid=pid,
                rank=rank,
                count=said["count"],
                step=said["step"],
                loader=said["loader"],
                size=said["size"],
                epoch=said["epoch"],
                batches=tuple(tuple(batch) for batch in said["batches"]),
                epoch_source=said["epoch_source"],
            )
        case "unseen":
            return SamplesUnseen(pid=pid, rank=rank, loader=said["loader"], reason=said["reason"])
        case "hash":
            return _state_from(said, worker)
        case "raised":
            return WorkerRaised(
                pid=pid,
                rank=rank,
                error=str(said["error"]),
                message=str(said["message"]),
                frames=tuple(map(str, said["frames"])),
                thread=str(said["thread"]),
            )
        case "finished":
            return WorkerFinished(pid=pid, rank=rank, dropped=said["dropped"])
        case _:
            return None


def _state_from(said: Mapping[str, Any], worker: WorkerHello) -> ParametersHashed:
    """Return what a training ended with: of what came before `reason`, if there is one."""
    return ParametersHashed(
        pid=worker.pid,
        rank=worker.rank,
        step=said["step"],
        digest=said["digest"],
        reason=said["reason"],
        norm=said.get("norm"),
        sketch=tuple(said.get("sketch", ())),
        is_finite=said.get("is_finite", True),
        optimizer=said.get("optimizer"),
        optimizer_norm=said.get("optimizer_norm"),
        optimizer_sketch=tuple(said.get("optimizer_sketch", ())),
        lr=tuple(said.get("lr", ())),
        sharded=tuple(said.get("sharded", ())),
        random=dict(said.get("random", {})),
        losses=tuple(said.get("losses", ())),
    )
