"""A process of a played world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PlayedProcess"]


@dataclass(slots=True)
class PlayedProcess:
    """Its state as in /proc, the signals it ignores, and what its probe was told and has said.

    `answers` are by whose order it was.
    """

    state: str = "S"
    ignores: set[int] = field(default_factory=set)
    orders: list[Mapping[str, Any]] = field(default_factory=list)
    has_probe: bool = True
    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    exit_code: int | None = None
    ended_at: float = 0.0
    steps: int = 0
