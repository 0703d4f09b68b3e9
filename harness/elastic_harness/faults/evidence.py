"""What shows that a fault acted: a sentence for people, and the facts that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Evidence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What shows that a fault acted; `facts` are JSON values.

    Facts belong to this very fault: counters of its own layer, an order that a worker has
    acknowledged and the exit status that followed, an errno that a process was given.
    """

    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, said: Evidence | str) -> Evidence:
        """Return evidence; a fault may return a mere sentence."""
        return said if isinstance(said, Evidence) else cls(text=str(said))
