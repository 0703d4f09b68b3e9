"""What a job needs from whoever describes it: how its run is started, and how storms are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from elastic_harness.scenario.model import Entry, Storm
from elastic_harness.session import OpenRun

__all__ = ["Starter", "StormDrawer"]


class Starter(Protocol):
    """Starts the run of a job whose timeline begins with some entries."""

    def __call__(self, entries: Sequence[Entry]) -> OpenRun:
        """Return the run, started."""


class StormDrawer(Protocol):
    """Draws the faults of a storm that is called so, as entries of a timeline."""

    def __call__(self, storm: Storm, name: str) -> Sequence[Entry]:
        """Return them; raises UsageError for what cannot be drawn."""
