"""Chance, by name: one number, and a stream of draws for each thing that draws.

Streams are independent of each other, so that adding a draw in one place moves nothing elsewhere.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

__all__ = ["Seed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """The number from which all chance of a run comes."""

    value: int

    def stream(self, name: str) -> random.Random:
        """Return a fresh stream for `name`; the same name always gives the same draws."""
        digest = hashlib.sha256(f"{self.value}:{name}".encode()).digest()
        return random.Random(int.from_bytes(digest[:8], "big"))
