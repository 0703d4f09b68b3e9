"""What has become of the connections that a fault opened from a node, as a value."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Visits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """So many connections were `wanted`, and so many of them have come so far.

    `taken` are those whose every byte the other side's kernel has acknowledged, or that the other
    side has closed: of one that says nothing, that it was accepted. `closed` are those that the
    other side has ended since, `answered` those that it has said something on. `refusal` is what
    the newest one that came to nothing met with, "" if none did.
    """

    wanted: int = 0
    taken: int = 0
    closed: int = 0
    answered: int = 0
    refusal: str = ""
