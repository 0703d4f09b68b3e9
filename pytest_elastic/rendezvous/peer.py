"""One member, as the coordinator sees it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pytest_elastic.rendezvous.liveness import GrantedLease
from pytest_elastic.rendezvous.model import Node, RosterEntry

__all__ = ["Peer", "Standing"]


class Standing(Enum):
    """What a member has to do with rounds."""

    # There is one object of each; Enum hashes by name, in Python, at every look into a set.
    __hash__ = object.__hash__

    WAITING = "waiting"
    """In no round, or all workers of its last one are gone."""

    SEALED = "sealed"
    """In the roster of a sealed round that is not committed: no worker has started."""

    RUNNING = "running"
    """The commit was sent: its workers run, or are being stopped."""

    SUCCEEDED = "succeeded"
    """Its workers all ended with status 0, in a round that goes on."""


@dataclass(slots=True, kw_only=True)
class Peer:
    """What the coordinator knows about one member.

    `round` is the newest one it was sealed into. `connection` is None while it is suspect, and
    `lost_contact` says why.
    `inherited_until`: it has not come to this coordinator yet, and its workers may run until then
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
        """Its connection ended, and its fate is not known yet."""
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
        """It can be sealed into a round."""
        return self.standing is Standing.WAITING and not self.is_suspect and self.leaves_by is None

    def as_entry(self) -> RosterEntry:
        """Return the member as a line of a roster."""
        return self.node.as_entry()
