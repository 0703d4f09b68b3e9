"""The order of ranks (R9)."""

from __future__ import annotations

import random

import pytest

from pytest_elastic.rendezvous.model import Node, natural_key, rank_order


def nodes(*names: str, **pinned: int) -> list[Node]:
    """Return nodes with these names, some of them pinned."""
    return [
        Node(
            name=name,
            incarnation=name,
            address="",
            port=0,
            slots=1,
            pinned=pinned.get(name),
        )
        for name in (*names, *pinned)
    ]


def order(given: list[Node], *previous: str) -> str:
    """Return the names in rank order, separated by spaces."""
    return " ".join(node.name for node in rank_order(given, previous))


@pytest.mark.parametrize(
    "names",
    [
        ["n1", "n2", "n10", "n11"],
        ["node9", "node10", "node10a", "node10b2", "node10b10"],
        ["1", "2", "a", "b"],
        ["rack2-host1", "rack2-host02", "rack10-host1"],
        ["n", "n1"],
    ],
)
def test_numbers_inside_names_count_as_numbers(names: list[str]) -> None:
    """As people sort, not as machines do."""
    shuffled = random.Random(1).sample(names, len(names))
    assert sorted(shuffled, key=natural_key) == names


def test_superscripts_and_other_digits_are_no_trap() -> None:
    """What looks like a number to Unicode and not to int is text."""
    assert natural_key("n²")
    assert natural_key("n٣")


@pytest.mark.parametrize(
    ("given", "previous", "expected"),
    [
        (["n3", "n1", "n2"], [], "n1 n2 n3"),
        (["n3", "n1"], ["n3", "n2", "n1"], "n3 n1"),
        (["n0", "n3", "n1"], ["n3", "n2", "n1"], "n3 n1 n0"),
        (["n2", "n1", "n3"], ["n3", "n2", "n1"], "n3 n2 n1"),
        (["n10", "n9", "n1"], ["n1"], "n1 n9 n10"),
    ],
)
def test_old_places_first_then_newcomers_by_name(
    given: list[str], previous: list[str], expected: str
) -> None:
    """Who was in the last roster keeps its place; the others go behind."""
    assert order(nodes(*given), *previous) == expected


def test_pinned_nodes_come_first_in_the_order_of_their_numbers() -> None:
    """Gaps are allowed, and two with the same number keep their old order."""
    given = nodes("x", a=7, b=2, c=7)
    assert order(given) == "b a c x"
    assert order(given, "c", "a", "b", "x") == "b c a x"


def test_the_order_does_not_depend_on_the_order_of_arrival() -> None:
    """Any permutation gives the same ranks."""
    given = nodes("n1", "n2", "n10", "m", z=4)
    expected = order(given, "n10", "m")
    for seed in range(20):
        assert order(random.Random(seed).sample(given, len(given)), "n10", "m") == expected
