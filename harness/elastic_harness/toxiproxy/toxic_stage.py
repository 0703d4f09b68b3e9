"""A toxic at work in one stream: what it is given, what it gives, and when.

Chunks and the stream's `Ending` are put in with `take` and come out of `give`, never earlier than
the toxic allows and always in order. A stage knows no socket and reads no clock: `now` is the
caller's, in seconds, `wake_at` says when asking again pays, and `has_room` is how a slow stage
slows its sender down.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from enum import Enum

__all__ = ["Ending", "Item", "Stage"]


class Ending(Enum):
    """The last item of a stream."""

    END = "end"  # the sender will send no more; the other direction goes on
    CLOSE = "close"  # a toxic or a broken socket ends the whole connection
    RESET = "reset"  # a toxic ends the whole connection, and both sides are to see a reset


Item = bytes | Ending


class Stage:
    """What all toxics have in common, and by itself the one that changes nothing.

    `attributes` may be replaced at any time with `change`.
    """

    # Bytes were lost under this toxic, so a connection must not go on once it is gone.
    closes_when_removed = False
    # Gives nothing but a reset, for which earlier bytes do not have to be read first.
    gives_only_resets = False

    def __init__(self, attributes: Mapping[str, int], chance: random.Random) -> None:
        self._attributes = attributes
        self._chance = chance
        self._held: deque[Item] = deque()
        self._is_over = False

    @property
    def has_room(self) -> bool:
        """Tell whether to put more in. Putting in more all the same is allowed, and kept."""
        return not self._held and not self._is_over

    def take(self, item: Item, now: float) -> None:
        """Put in a chunk, or the end, after which nothing may follow."""
        if not self._is_over:
            self._held.append(item)

    def give(self, now: float) -> Item | None:
        """Return the next item that may leave by `now`, or None."""
        return self._held.popleft() if self._held else None

    def wake_at(self) -> float | None:
        """Return when `give` will have something that it has not yet, if only time is missing."""
        return None

    def release(self, now: float) -> list[Item]:
        """Return everything that is held, in order, because the toxic is removed or changed."""
        items, self._held = list(self._held), deque()
        return items

    def change(self, attributes: Mapping[str, int], now: float) -> list[Item]:
        """Go on with other attributes; return what was held until now and may leave at once."""
        self._attributes = attributes
        return self.release(now)

    def _finish(self, ending: Ending) -> Ending:
        """End the stream from here: whatever is still put in is lost."""
        self._is_over = True
        self._held.clear()
        return ending
