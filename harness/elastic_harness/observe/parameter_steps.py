"""Which global step parameters are of, where no optimizer counts steps (plain SGD).

A worker that makes its first step says a digest of the parameters that it began with, and after
each step one of those that the step has left. A step is known by its digest where exactly one step
left such parameters. The first workers of all begin at step 0: steps are counted from where the
run began.
"""

from __future__ import annotations

from collections import defaultdict

__all__ = ["ParameterSteps"]


class ParameterSteps:
    """The digests of the parameters of all steps that were seen in a run, whichever worker said it.

    Whatever tells one worker of the first world from those of others is the `world` that it is of.
    """

    def __init__(self) -> None:
        self._steps: defaultdict[str, set[int]] = defaultdict(set)
        self._first_world: object = None
        self._began: set[int] = set()  # ranks of the first world

    def on_step(self, digest: str, step: int) -> None:
        """Note the parameters that a step has left."""
        self._steps[digest].add(step)

    def on_first_step(self, world: object, rank: int, digest: str) -> int | None:
        """Return how many steps were done before a worker's first one; None where that is unknown.

        A rank that its world has already had belongs to a later world, though nothing else tells.
        """
        if self._first_world is None:
            self._first_world = world
        known = self._steps[digest]
        is_first = world == self._first_world and rank not in self._began
        if is_first:
            self._began.add(rank)
            if not known or 0 in known:
                known.add(0)
                return 0
        return next(iter(known)) if len(known) == 1 else None
