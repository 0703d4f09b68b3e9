"""Changes of a history that no judge can notice, and why: docs/verdicts.md sums it up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from elastic_harness.history.events import (
    NodeStopped,
    ParametersHashed,
    RunEnded,
    StepCompleted,
)

from pytest_elastic.events.model import Record, RoundSealed

__all__ = ["UNSEEN", "Unseen", "reason_unseen"]


def _always(records: Sequence[Record], place: int) -> bool:
    return True


def _is_its_last_step(records: Sequence[Record], place: int) -> bool:
    """Tell whether a worker said no more of its steps, nor of what became of them."""
    own = records[place].event
    assert isinstance(own, StepCompleted)
    return not any(
        isinstance(each.event, StepCompleted | ParametersHashed) and each.event.pid == own.pid
        for each in records[place + 1 :]
    )


def _is_the_only_round(records: Sequence[Record], place: int) -> bool:
    return sum(isinstance(each.event, RoundSealed) for each in records) == 1


def _is_on_a_lost_node(records: Sequence[Record], place: int) -> bool:
    """Tell whether the node of a record was lost later, while the run went on."""
    for each in records[place + 1 :]:
        if isinstance(each.event, RunEnded):
            return False
        if isinstance(each.event, NodeStopped) and each.node == records[place].node:
            return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Kinds of changes, as patterns, and why they are not noticed; maybe of some records only."""

    whats: tuple[str, ...]
    why: str
    holds: Callable[[Sequence[Record], int], bool] = _always


UNSEEN: Final[tuple[Unseen, ...]] = (
    Unseen(
        whats=("edit run_started.*", "edit clause_planned.is_optional", "edit fault_planned.*"),
        why="what was asked is what the history says that was asked",
    ),
    Unseen(
        whats=("edit clause_planned.key", "move clause_planned"),
        why="the key of a clause that a checker judges is its name, and the order is for people",
    ),
    Unseen(
        whats=("early run_started", "late run_closed"),
        why="nothing that is judged counts from the harness's own first and last moment",
    ),
    Unseen(
        whats=("drop step_completed", "move step_completed", "edit step_completed.step"),
        why="how far a worker came is known from itself alone, unless it hashed its parameters",
        holds=_is_its_last_step,
    ),
    Unseen(
        whats=("edit worker_hello.start_time", "edit node_started.incarnation"),
        why="no verdict depends on it: a process is known by its pid while it lives",
    ),
    Unseen(
        whats=("* group_formed", "edit group_formed.world_size"),
        why="our launcher names the round, so that groups are asked about their nonce only",
    ),
    Unseen(
        whats=("* worker_exited", "edit worker_exited.exit_code"),
        why="of a worker that said hello, its own words and the kernel's count",
    ),
    Unseen(
        whats=("drop worker_finished",),
        why="a worker may end without its interpreter's last words (`os._exit`)",
    ),
    Unseen(
        whats=("move round_*", "move workers_started"),
        why="launchers and workers speak on different connections: their order is not known",
    ),
    Unseen(
        whats=("drop round_ended", "edit round_ended.*", "edit round_sealed.node"),
        why="a coordinator may be lost with what it was about to say, and another one goes on",
    ),
    Unseen(
        whats=("drop round_sealed",),
        why="launchers that say nothing of sealing are judged, too",
        holds=_is_the_only_round,
    ),
    Unseen(
        whats=("repeat fault_effective", "repeat fault_healed", "move fault_effective"),
        why="it says the same again, or as much of the same fault a little later",
    ),
    Unseen(
        whats=("repeat resume_observed",),
        why="the probe says again where a worker resumes if its first guess was wrong",
    ),
    Unseen(
        whats=("drop fault_healed", "move fault_healed"),
        why="whether a fault is healed at all is the scenario's choice",
    ),
    Unseen(
        whats=("drop workers_started", "drop worker_gone"),
        why="a node that is lost takes along what it had not said yet, and its workers",
        holds=_is_on_a_lost_node,
    ),
)


def reason_unseen(what: str, records: Sequence[Record], place: int) -> str:
    """Return why a change of a record cannot be noticed, "" if it has to be."""
    for each in UNSEEN:
        if any(fnmatchcase(what, pattern) for pattern in each.whats) and each.holds(records, place):
            return each.why
    return ""
