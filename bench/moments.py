"""Where the time of a recovery goes, read off its history.

On a busy machine a wall time says little: what was waited for by rule (a lease, a start gate, a
candidate's turn) and what was work (forking, gloo's own start) are told apart here.
"""

from __future__ import annotations

from collections.abc import Mapping

from elastic_harness.history.events import GroupFormed, WorkerHello
from elastic_harness.history.history import History
from elastic_harness.history.worlds import World

from pytest_elastic.events import model as events

__all__ = ["moments"]


def moments(history: History, fired: float, back: World) -> Mapping[str, float]:
    """Return what came when, in seconds after the fault, up to the group of `back`; in order.

    Empty for launchers that state no events of their own.
    """
    found: dict[str, list[float]] = {}
    for entry in history:
        if entry.at <= fired or entry.at > (back.progressed_at or fired):
            continue
        name = _name_of(entry.event, back)
        if name is not None:
            found.setdefault(name, []).append(entry.at - fired)
    first = {"elected", "sealed"}
    ends = {name: min(at) if name in first else max(at) for name, at in found.items()}
    return dict(sorted(ends.items(), key=lambda item: item[1])) if "sealed" in ends else {}


def _name_of(event: events.Event, back: World) -> str | None:
    """Return what an event is called here: once for the job, or when the last node is there."""
    match event:
        case events.WorkersStopped():
            return "workers stopped"
        case events.CoordinatorStarted():
            return "elected"
        case events.RoundSealed(round=round_) if round_ == back.round:
            return "sealed"
        case events.RoundCommitted(round=round_) if round_ == back.round:
            return "committed"
        case events.WorkersStarted(round=round_) if round_ == back.round:
            return "started"
        case WorkerHello(round=round_) if round_ == back.round:
            return "said hello"
        case GroupFormed() if back.round is not None:
            return "group formed"
        case _:
            return None
