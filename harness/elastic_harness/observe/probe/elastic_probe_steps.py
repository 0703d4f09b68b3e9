# ruff: noqa: INP001 (a folder of PYTHONPATH, not a package)
"""Which global step a worker has done, by what its optimizer and its script say.

Three things can be known: how many steps this process has made (`count`), which global step the
newest one was (`step`), and how many were done before this process (`resumed`). An optimizer of
Adam's family says the second by itself; of others, the harness knows it by their parameters. A
script's own report (`report_step`, or a line that it prints) wins over that, and there are two
kinds of it: "20 steps are done, and I go on from there", before the first step, and "step 21 is
done", after it. They are told apart by the optimizer: a report before its first step is a start.
What stays uncertain is None.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `import typing` alone would cost more than all of this file
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StepCount"]


class StepCount:
    """The steps of one process; `has_optimizer` tells whether it has made an optimizer yet."""

    def __init__(self) -> None:
        self.count = 0
        self.step: int | None = None
        self.resumed: int | None = None
        self.has_optimizer: Callable[[], bool] = lambda: False
        self._reported: int | None = None  # the newest step that the script has reported
        self._start: int | None = None  # a report that was taken for the start
        self._is_placed = False  # `count` is matched with the global step
        self._is_guess = False  # the first report was taken for a step, without an optimizer

    @property
    def is_unplaced(self) -> bool:
        """Tell whether there was no step yet, and no word of how many were done before."""
        return self.count == 0 and self.resumed is None

    @property
    def is_reported(self) -> bool:
        """Tell whether the script counts for itself, as far as is known."""
        return self._reported is not None and not self._is_guess

    def on_start(self, step: int) -> None:
        """Take the script's word that `step` steps were done before this process."""
        if self.count == 0:
            self.resumed = step

    def on_report(self, step: int) -> bool:
        """Take the script's word that `step` steps are done; True if that was a step just now."""
        is_first = self._reported is None
        if is_first and self.count == 0:
            if step == 0 or (self.resumed is None and self.has_optimizer()):
                self._start = self.resumed = step
                return False
            if step == self.resumed:
                return False  # the same start in other words
            self._is_guess = self.resumed is None
            if self._start:
                # Steps without the optimizer's: then the first report may have been one as well.
                self.resumed, self._is_placed = None, True
        else:
            self._is_guess = False
        self._reported = step
        if not is_first or self.count == 0:
            self.count += 1
        else:
            self._is_placed = False
            if self.step == step:
                return False  # as the optimizer has said
        self._place(step)
        return True

    def on_optimizer(self, step: int | None) -> bool:
        """Note a step of the optimizer; False where the script counts for itself."""
        if self._is_guess:
            # So the script had reported where it resumes, before it made its optimizer.
            self.resumed, self._reported = self._reported, None
            self.count, self._is_guess, self._is_placed = 0, False, False
        if self._reported is not None:
            return False
        self.count += 1
        self._place(step)
        return True

    def _place(self, step: int | None) -> None:
        """Take the newest step's global number, and deduce where this process resumed.

        After more than one step of the optimizer that is not certain: the script may count
        something else. Then it stands only if the script said the same at its start.
        """
        self.step = step
        if step is None or self._is_placed:
            return
        self._is_placed = True
        before = step - self.count
        if before != self.resumed:
            self.resumed = before if self.count == 1 and before >= 0 else None
