"""Who is a quorum, since when, and for how long that allows a coordinator to decide."""

from __future__ import annotations

import itertools

import pytest

from pytest_elastic.rendezvous.mandate import GrantedMandate, MembersMandate, mandate_for
from pytest_elastic.rendezvous.model import Electorate, RosterEntry, Settings
from pytest_elastic.rendezvous.quorum import agreed_since, has_quorum


def electorate(*names: str, coordinator: str = "") -> Electorate:
    """Return an electorate of nodes that are called like their incarnations."""
    members = tuple(RosterEntry(name=n, incarnation=n, address=n, slots=1, port=1) for n in names)
    return Electorate(term=1, round=1, coordinator=coordinator or names[0], members=members)


def settings(quorum: str = "majority") -> Settings:
    """Return settings with a lease of 5 s and a beat each second."""
    return Settings(run_id="r", min_nodes=1, max_nodes=9, max_restarts=0, quorum=quorum)


@pytest.mark.parametrize(
    ("present", "is_one"),
    [("ab", True), ("bc", True), ("a", False), ("abc", True), ("", False), ("xyz", False)],
)
def test_more_than_half_of_three(present: str, is_one: bool) -> None:  # noqa: FBT001
    """Whoever they are."""
    assert has_quorum(electorate("a", "b", "c"), set(present)) == is_one


@pytest.mark.parametrize(("present", "is_one"), [("ab", True), ("cd", False), ("bcd", True)])
def test_half_is_enough_with_the_coordinator(present: str, is_one: bool) -> None:  # noqa: FBT001
    """A tie has one winner."""
    assert has_quorum(electorate("a", "b", "c", "d"), set(present)) == is_one


def test_the_excused_do_not_count() -> None:
    """Two of five have left: two of three are enough; a coordinator that left breaks no tie."""
    five = electorate("a", "b", "c", "d", "e")
    assert has_quorum(five, {"a", "b"}, {"d", "e"})
    assert not has_quorum(five, {"a", "b"})
    assert has_quorum(electorate("a", "b"), {"b"}, {"a"})
    assert not has_quorum(electorate("a", "b", "c"), {"b"}, {"a"})
    assert not has_quorum(electorate("a"), {"a"}, {"a"})


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_any_two_quorums_have_a_member_in_common(count: int) -> None:
    """Also when one side excuses a node that has left, and the other does not know of it."""
    names = [chr(ord("a") + number) for number in range(count)]
    every = [set(each) for n in range(count + 1) for each in itertools.combinations(names, n)]
    roster = electorate(*names)
    for left in [set[str](), *({name} for name in names)]:
        # Who has left is in no quorum from then on.
        informed = [s for s in every if not s & left and has_quorum(roster, s, left)]
        ignorant = [s for s in every if not s & left and has_quorum(roster, s)]
        for one, other in itertools.product(informed, ignorant + informed):
            assert one & other, f"{one} and {other} of {names}, without {left}"


def test_since_when_a_quorum_has_agreed() -> None:
    """The time of the last one that is needed."""
    heard = {"a": 9.0, "b": 7.0, "c": 3.0, "d": 1.0}
    assert agreed_since(electorate("a", "b", "c"), heard) == 7.0
    assert agreed_since(electorate("a", "b", "c", "d"), heard) == 7.0  # a decided it
    assert agreed_since(electorate("a", "b", "c", "d", coordinator="d"), heard) == 3.0
    assert agreed_since(electorate("a", "b", "c", "d"), heard, {"a"}) == 3.0
    assert agreed_since(electorate("c", "d", "e"), heard) == 1.0
    assert agreed_since(electorate("x", "y"), heard) == float("-inf")


def test_a_mandate_of_members_ends_a_lease_after_a_quorum_was_heard() -> None:
    """It moves on with the quorum, and not with one member alone."""
    mandate = MembersMandate(settings())
    assert mandate.until(100.0) == float("inf")  # nothing was ever committed
    mandate.rest_on([electorate("a", "b", "c")])
    mandate.hear("a", 100.0)
    assert mandate.until(100.0) == float("-inf")
    mandate.hear("b", 99.0)
    assert mandate.until(100.2) == 104.0
    mandate.hear("a", 103.0)
    assert mandate.until(103.0) == 104.0
    mandate.hear("c", 103.5)
    assert mandate.until(103.9) == 108.0


def test_a_mandate_looks_again_before_it_ends() -> None:
    """It counts only now and then, but never ends on an old count."""
    mandate = MembersMandate(settings())
    mandate.rest_on([electorate("a", "b", "c")])
    for name in "abc":
        mandate.hear(name, 100.0)
    assert mandate.until(104.95) == 105.0
    for name in "abc":
        mandate.hear(name, 104.9)
    assert mandate.until(105.0) == 109.9


def test_other_mandates() -> None:
    """One that needs nobody, and one that somebody outside grants."""
    unlimited = mandate_for(settings("coordinator"))
    assert unlimited.until(5.0) == float("inf")
    assert unlimited.allows(set())
    granted = GrantedMandate(until=7.0)
    granted.extend(9.0)
    assert granted.until(5.0) == 9.0


def test_of_whom_all_have_left_nobody_is_needed() -> None:
    """Storm 86072482: nobody else could ever have a quorum of them."""
    mandate = MembersMandate(settings())
    mandate.rest_on([electorate("a", "b")])
    mandate.excuse("a")
    assert mandate.until(5.0) < 5.0
    assert not mandate.allows({"new"})
    mandate.excuse("b")
    assert mandate.until(5.0) == float("inf")
    assert mandate.allows({"new"})
