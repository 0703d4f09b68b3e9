"""Figures as they are measured, one a line, and whether those that have a target reach it."""

from __future__ import annotations

import sys

__all__ = ["Figures"]


class Figures:
    """What was shown so far. `missed` are those that do not reach their targets."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def show(
        self,
        what: str,
        unit: str,
        value: float,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """Print a figure, and what it is to be if it has a target."""
        target = ""
        if at_most is not None:
            target = self._judge(what, f"at most {at_most:g}", is_reached=value <= at_most)
        if at_least is not None:
            target = self._judge(what, f"at least {at_least:g}", is_reached=value >= at_least)
        sys.stdout.write(f"{what:<64}{value:>10.3f} {unit:<4}{target}".rstrip() + "\n")
        sys.stdout.flush()

    def end(self) -> int:
        """Say which targets were missed; returns the exit code."""
        if self.missed:
            sys.stdout.write(f"\ntargets missed: {', '.join(self.missed)}\n")
        return 1 if self.missed else 0

    def _judge(self, what: str, target: str, *, is_reached: bool) -> str:
        if not is_reached:
            self.missed.append(what)
        return f"  ({target}{'' if is_reached else ': missed'})"
