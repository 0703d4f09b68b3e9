"""What becomes of members, as the membership tells it to the rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_elastic.rendezvous.peer import Peer

__all__ = ["Back", "Came", "Change", "Departed", "Suspected", "Went"]

Departed = Literal["lost", "left", "evicted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """A node was admitted: it waits for a round."""

    peer: Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """A member has a new connection, and must be told again what it may have missed."""

    peer: Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspected:
    """A member's connection ended."""

    peer: Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Went:
    """A member is a member no more. `safe_at`: its workers may run until then; None: they do not.

    `may_return`: its agent may still be alive, and ask. `how`: it was lost, it left, or it was
    evicted: alive, but not doing in time what it was told.
    """

    peer: Peer
    reason: str
    safe_at: float | None
    may_return: bool
    how: Departed


Change = Came | Back | Suspected | Went
