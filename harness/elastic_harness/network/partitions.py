"""Shapes of partitions: which directed links a broken network has lost.

Each function takes node names and returns the (source, destination) pairs that are cut, in a fixed
order. Nothing is cut here: the pairs are given to a policy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from elastic_harness.network.link_model import Pair
from pytest_elastic.errors import UsageError

__all__ = [
    "between",
    "bridge",
    "custom",
    "everything",
    "halves",
    "isolate",
    "one_way",
    "ring",
]


def everything(nodes: Sequence[str]) -> tuple[Pair, ...]:
    """Cut every link there is."""
    return tuple((source, target) for source in nodes for target in nodes if source != target)


def between(left: Iterable[str], right: Iterable[str]) -> tuple[Pair, ...]:
    """Cut two groups of nodes off from each other, in both directions."""
    ones, others = list(left), list(right)
    both = [name for name in ones if name in others]
    if both:
        raise UsageError(
            f"cannot cut nodes off from each other: {', '.join(both)} is on both sides"
        )
    return one_way(ones, others) + one_way(others, ones)


def one_way(sources: Iterable[str], targets: Iterable[str]) -> tuple[Pair, ...]:
    """Cut what `sources` send to `targets`; the way back stays open."""
    heard = list(targets)
    return tuple((source, target) for source in sources for target in heard if source != target)


def isolate(nodes: Sequence[str], alone: Collection[str]) -> tuple[Pair, ...]:
    """Cut each of `alone` off from all nodes, each other included."""
    _require_known(nodes, alone)
    return tuple(pair for pair in everything(nodes) if pair[0] in alone or pair[1] in alone)


def halves(nodes: Sequence[str]) -> tuple[Pair, ...]:
    """Cut the first half off from the second; of an odd number, the first half is the smaller."""
    middle = len(nodes) // 2
    return between(nodes[:middle], nodes[middle:])


def ring(nodes: Sequence[str]) -> tuple[Pair, ...]:
    """Leave each node only its two neighbours, in the order given and closed to a ring."""
    count = len(nodes)
    return tuple(
        (nodes[one], nodes[other])
        for one in range(count)
        for other in range(count)
        if one != other and (one - other) % count not in {1, count - 1}
    )


def bridge(nodes: Sequence[str], middle: str) -> tuple[Pair, ...]:
    """Cut the nodes into halves that both still reach `middle`, and only through it each other."""
    _require_known(nodes, (middle,))
    return halves([name for name in nodes if name != middle])


def custom(nodes: Sequence[str], pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Cut exactly these links, after checking that they exist; each counts once."""
    chosen = list(dict.fromkeys(pairs))
    _require_known(nodes, [name for pair in chosen for name in pair])
    for source, target in chosen:
        if source == target:
            raise UsageError(f"cannot cut the link from '{source}' to itself: there is none")
    return tuple(chosen)


def _require_known(nodes: Sequence[str], names: Iterable[str]) -> None:
    unknown = sorted({name for name in names if name not in nodes})
    if unknown:
        raise UsageError(
            f"cannot cut off {', '.join(unknown)}: no such node",
            hint=f"the nodes are {', '.join(nodes)}",
        )
