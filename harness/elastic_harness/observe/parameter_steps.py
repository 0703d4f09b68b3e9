"""Which global step parameters are of, where no optimizer counts steps (plain SGD).

A worker says a digest of the parameters with which it begins, of those that each step has left, and
of those with which a step begins if something else has changed them in between. After how many
steps they were so is known where all that were seen say the same number; several numbers, or one
that nobody knows, make it unknown for good. Only the workers of the world that made the first step
of all are taken to begin at 0: steps are counted from where the run began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

__all__ = ["ParameterSteps"]


class ParameterSteps:
    """The digests of a run, whichever worker said them, with the steps that were done by then.

    A `world` is whatever tells the workers of one round from those of others.
    """

    def __init__(self) -> None:
        self._done: defaultdict[str, set[int | None]] = defaultdict(set)
        self._first_world: Hashable = None
        self._began: set[int] = set()  # ranks of the first world

    def on_step(self, world: Hashable, step: int | None, left: str | None) -> None:
        """Note that a step was made, whichever it was, and the parameters that it has left."""
        self._look_at(world)
        if left is not None:
            self._done[left].add(step)

    def on_change(self, digest: str, done: int) -> int | None:
        """Note what a step begins with that is not what the one before has left.

        Returns `done` again, or None if the parameters were like that after other steps: then they
        were put back, and the worker's count is no longer that of the training.
        """
        self._done[digest].add(done)
        return done if self._done[digest] == {done} else None

    def on_first_step(self, world: Hashable, rank: int, digest: str) -> int | None:
        """Return how many steps were done before a worker's first one; None where that is unknown.

        A rank that its world has already had belongs to a later world, though nothing else tells.
        """
        self._look_at(world)
        known = self._done[digest]
        if world == self._first_world and rank not in self._began:
            self._began.add(rank)
            if not known or 0 in known:
                known.add(0)
                return 0
        if len(known) == 1:
            return next(iter(known))
        known.add(None)
        return None

    def _look_at(self, world: Hashable) -> None:
        if self._first_world is None:
            self._first_world = world
