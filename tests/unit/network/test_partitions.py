"""Which links each shape of partition cuts."""

from __future__ import annotations

import pytest
from elastic_harness.network import partitions

from pytest_elastic.errors import UsageError

NODES = ("n1", "n2", "n3", "n4", "n5")


def test_isolation_cuts_a_node_off_in_both_directions() -> None:
    """The others still reach each other."""
    assert partitions.isolate(NODES[:3], ["n2"]) == (
        ("n1", "n2"),
        ("n2", "n1"),
        ("n2", "n3"),
        ("n3", "n2"),
    )


def test_halves_cut_every_link_between_them_and_none_within() -> None:
    """Of five nodes, the first two are one side."""
    cut = set(partitions.halves(NODES))
    assert len(cut) == 2 * 2 * 3
    assert not cut & {("n1", "n2"), ("n3", "n4"), ("n5", "n3")}


def test_one_way_leaves_the_way_back() -> None:
    """Deafness is not dumbness, and nobody is cut off from itself."""
    assert partitions.one_way(["n1", "n2"], ["n2"]) == (("n1", "n2"),)


def test_a_ring_leaves_two_neighbours() -> None:
    """Each node keeps two neighbours, each of which keeps it."""
    cut = set(partitions.ring(NODES))
    for node in NODES:
        kept = {other for other in NODES if other != node and (node, other) not in cut}
        assert len(kept) == 2
        assert all((other, node) not in cut for other in kept)
    assert partitions.ring(NODES[:3]) == ()


def test_a_bridge_is_reached_from_both_sides() -> None:
    """Only through the middle do the halves still know each other."""
    cut = set(partitions.bridge(NODES, "n3"))
    assert not any("n3" in pair for pair in cut)
    assert cut == set(partitions.halves(["n1", "n2", "n4", "n5"]))


def test_custom_pairs_are_checked_and_counted_once() -> None:
    """What does not exist cannot be cut."""
    assert partitions.custom(NODES, [("n1", "n2"), ("n1", "n2")]) == (("n1", "n2"),)
    with pytest.raises(UsageError, match="cannot cut off n9: no such node"):
        partitions.custom(NODES, [("n1", "n9")])
    with pytest.raises(UsageError, match="from 'n1' to itself"):
        partitions.custom(NODES, [("n1", "n1")])


def test_nobody_is_on_both_sides() -> None:
    """Two groups that are cut off from each other have no node in common."""
    with pytest.raises(UsageError, match="n2 is on both sides"):
        partitions.between(["n1", "n2"], ["n2", "n3"])
