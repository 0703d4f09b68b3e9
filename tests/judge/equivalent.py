"""Changes of the judges' source that make no difference, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["EQUIVALENT", "Equivalent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalent:
    """A change that no test can notice: the lines before and after, with single spaces."""

    file: str
    old: str
    new: str
    why: str


EQUIVALENT: Final[tuple[Equivalent, ...]] = ()
