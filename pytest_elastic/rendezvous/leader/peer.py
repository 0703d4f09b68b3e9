"""What the parts of a leader share: their surroundings, members, and what becomes of these."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from pytest_elastic.rendezvous.consensus.records import Term
from pytest_elastic.rendezvous.consensus.replication import Replication
from pytest_elastic.rendezvous.leases import GrantedLease
from pytest_elastic.rendezvous.machine import Part, Shared
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.wire import Value

__all__ = [
    "Change",
    "Departed",
    "Here",
    "LeaderPart",
    "LeaderShared",
    "Peer",
    "Standing",
    "Suspected",
    "Went",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderShared(Shared):
    """What all parts of a leader have in common; `own` is the node that it runs on."""

    own: Node
    term: Term
    replication: Replication


class LeaderPart(Part):
    """A part of a leader."""

    def __init__(self, shared: LeaderShared) -> None:
        super().__init__(shared)
        self._own = shared.own
        self._term = shared.term
        self._replication = shared.replication

    def _is_own(self, peer: Peer) -> bool:
        """Tell whether a peer is the leader's own node, which needs no lease."""
        return peer.node.incarnation == self._own.incarnation


class Standing(Enum):
    """What a member has to do with rounds."""

    # There is one object of each; Enum hashes by name, in Python, at every look into a set.
    __hash__ = object.__hash__

    WAITING = "waiting"
    """In no round, or all workers of its last one are gone."""

    PROPOSED = "proposed"
    """In the roster of a round that is not started: no worker runs."""

    RUNNING = "running"
    """It was told to start: its workers run, or are being stopped."""

    SUCCEEDED = "succeeded"
    """Its workers all ended with status 0, in a round that goes on."""


@dataclass(slots=True, kw_only=True)
class Peer:
    """What the leader knows about one member.

    `round` is the newest one it was in the roster of. `connection` is None while it is suspect, and
    `lost_contact` says why.
    `inherited_until`: it has not come to this leader yet, and its workers may run until then
    under the one before (R11); None: it has come.
    `leaves_by`: it announced that it leaves, and its workers have until then; `leave_reason` why.
    """

    node: Node
    connection: int | None
    lease: GrantedLease
    came_at: float
    standing: Standing = Standing.WAITING
    round: int = 0
    leaves_by: float | None = None
    leave_reason: str = ""
    lost_contact: str = ""
    inherited_until: float | None = None

    @property
    def is_suspect(self) -> bool:
        """Its connection ended; whether it is lost is not known yet."""
        return self.connection is None

    @property
    def is_leaving(self) -> bool:
        """It announced that it leaves (R4)."""
        return self.leaves_by is not None

    @property
    def has_workers(self) -> bool:
        """Workers of a round may be running there."""
        return self.standing is Standing.RUNNING

    @property
    def is_ready(self) -> bool:
        """It can be in the next round."""
        return self.standing is Standing.WAITING and not self.is_suspect and self.leaves_by is None


class Here(Value):
    """A node was admitted; or `is_back`: it must be told again what it may have missed."""

    peer: Peer
    is_back: bool


class Suspected(Value):
    """A member's connection ended."""

    peer: Peer


Departed = Literal["lost", "left", "evicted"]


class Went(Value):
    """A member is a member no more. `safe_at`: its workers may run until then; None: they do not.

    `may_return`: its agent may still be alive, and ask. `how`: it was lost, it left, or it was
    evicted: alive, but not doing in time what it was told.
    """

    peer: Peer
    reason: str
    safe_at: float | None
    may_return: bool
    how: Departed


Change = Here | Suspected | Went
