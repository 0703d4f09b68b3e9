"""The deadlines that a step of a machine looked at: the nearest is when it wants to be woken."""

from __future__ import annotations

__all__ = ["Deadlines"]


class Deadlines:
    """Shared by the parts of a machine: whoever asks about a deadline is woken for it."""

    __slots__ = ("wake_at",)

    def __init__(self) -> None:
        self.wake_at: float | None = None
        """The nearest deadline that was looked at since `clear` and was not over; None: none."""

    def clear(self) -> None:
        """Forget what was looked at: a new look begins."""
        self.wake_at = None

    def are_ahead(self, now: float) -> bool:
        """Tell whether none of them is over yet."""
        return self.wake_at is None or now < self.wake_at

    def is_due(self, deadline: float, now: float) -> bool:
        """Tell whether a deadline has passed; if not, it is one to wake up for."""
        if now >= deadline:
            return True
        if self.wake_at is None or deadline < self.wake_at:
            self.wake_at = deadline
        return False
