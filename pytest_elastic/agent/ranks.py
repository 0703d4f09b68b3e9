"""Which worker has which rank: pure arithmetic on a decided roster.

Group ranks are indices in the roster; ranks count workers node by node in that order, so that the
workers of a node have consecutive ranks. Role ranks count likewise among the nodes of one role.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_elastic.rendezvous.model import Assignment
from pytest_elastic.wire import Value

__all__ = ["WorkerRanks", "worker_ranks", "world_size"]


class WorkerRanks(Value):
    """Where one worker stands in its round; every number as torchrun defines it."""

    rank: int
    local_rank: int
    group_rank: int
    role_rank: int
    role: str
    local_world_size: int
    world_size: int
    group_world_size: int
    role_world_size: int


def world_size(assignment: Assignment) -> int:
    """Return how many workers the round has."""
    return sum(entry.slots for entry in assignment.roster)


def worker_ranks(assignment: Assignment) -> Sequence[WorkerRanks]:
    """Return the ranks of this node's workers, by local rank."""
    roster = assignment.roster
    own = roster[assignment.group_rank]
    before = roster[: assignment.group_rank]
    first_rank = sum(entry.slots for entry in before)
    first_role_rank = sum(entry.slots for entry in before if entry.role == own.role)
    role_size = sum(entry.slots for entry in roster if entry.role == own.role)
    return tuple(
        WorkerRanks(
            rank=first_rank + local_rank,
            local_rank=local_rank,
            group_rank=assignment.group_rank,
            role_rank=first_role_rank + local_rank,
            role=own.role,
            local_world_size=own.slots,
            world_size=world_size(assignment),
            group_world_size=len(roster),
            role_world_size=role_size,
        )
        for local_rank in range(own.slots)
    )
