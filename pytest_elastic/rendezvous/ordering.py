"""In what order nodes get their ranks (R9).

Ranks are positions in the roster: contiguous, the same for everybody, and as steady as can be.
Survivors keep their order. A node that comes back under its old name takes its old place. Whoever
is new goes behind all survivors, so that rank 0, from which training code usually broadcasts its
state, is a survivor whenever there is one. Nodes pinned by `--node-rank` come first, in the order
of their numbers, which are an order and not ranks: gaps are allowed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from pytest_elastic.rendezvous.model import Node

__all__ = ["natural_key", "rank_order"]

_DIGITS = re.compile(r"(\d+)")


@functools.lru_cache(maxsize=1024)  # a job's nodes are put in order again and again
def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which n2 comes before n10."""
    return tuple(
        (0, int(part), part) if part.isdecimal() else (1, 0, part)
        for part in _DIGITS.split(name)
        if part
    )


def rank_order(nodes: Iterable[Node], previous: Sequence[str]) -> tuple[Node, ...]:
    """Return `nodes` in rank order, given the names of the last committed roster in its order."""
    places = {name: place for place, name in enumerate(previous)}
    behind = len(places)

    def key(node: Node) -> tuple[int, int, int, tuple[tuple[int, int, str], ...], str]:
        return (
            0 if node.pinned is not None else 1,
            node.pinned if node.pinned is not None else 0,
            places.get(node.name, behind),
            natural_key(node.name),
            node.incarnation,
        )

    return tuple(sorted(nodes, key=key))
