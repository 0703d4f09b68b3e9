"""How far two states are apart that are not the same to the bit, by their sketches.

A state is divided into blocks of tensors. One norm over all of them would hide that a small tensor
is quite another one beside a large one that is right, so each block is compared by itself, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["UNKNOWN", "Distance", "distance"]

# Rounding is a larger share of a small tensor: of the norm of its block so many times as much is
# allowed. Measured in 60 steps: 1e-8 of the whole and 6e-7 of a bias; dropout anew: 2e-2 of a head.
_OF_A_BLOCK = 1000
# Beside so large a norm of what differs a float32 cannot tell a difference: a bias of zeros whose
# gradient is zero but for rounding is no other bias.
_FLOAT32 = 1e-7


@dataclass(frozen=True, slots=True)
class Distance:
    """The norm of the difference as a part of the norm: of all values, and of the worst block.

    inf: not known.
    """

    of_all: float
    of_block: float = 0.0

    @property
    def worst(self) -> float:
        """Return the larger of the two."""
        return max(self.of_all, self.of_block)

    def is_within(self, tolerance: float) -> bool:
        """Tell whether rounding may have made it, for somebody who allows a relative `tolerance`.

        In a block of tensors by itself, a thousand times as much is allowed.
        """
        return self.of_all <= tolerance and self.of_block <= _OF_A_BLOCK * tolerance

    def __str__(self) -> str:
        """Return it as words that follow a sentence; "" where it is not known."""
        if math.isinf(self.of_all):
            return ""
        said = f", by {self.of_all:.2g} (relative)"
        if self.of_block > _OF_A_BLOCK * self.of_all:
            some = "wholly" if math.isinf(self.of_block) else f"by {self.of_block:.2g}"
            said += f" of all, and some of the tensors {some}"
        return said


UNKNOWN = Distance(math.inf)


def distance(
    one: Sequence[float], other: Sequence[float], norm: float | None, norms: Sequence[float]
) -> Distance:
    """Return how far the sketch of one state is from the `other`'s, that has a `norm`.

    `norms` are those of its blocks, which take turns in a sketch; none where only all are known.
    """
    if len(one) != len(other) or not one or not norm:
        return UNKNOWN
    of_all = math.dist(one, other) / norm
    if math.isnan(of_all):
        return UNKNOWN
    blocks = [
        (math.dist(one[block :: len(norms)], other[block :: len(norms)]), of_it)
        for block, of_it in enumerate(norms)
    ]
    # What never changes (a mask of -1e9) says nothing about what can be told of the others.
    of_changed = math.hypot(*(of_it for apart, of_it in blocks if apart)) or norm
    seen = [each for each in blocks if each[0] > _FLOAT32 * of_changed]
    return Distance(of_all, max((a / of_it if of_it else math.inf for a, of_it in seen), default=0))
