"""Who is a quorum, since when, and which record may be decided."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from pytest_elastic.rendezvous.consensus.records import Configuration, Term
from tests.unit.rendezvous.samples import leader_address, record_of


def configuration(voters: str, *, tie_breaker: str = "") -> Configuration:
    """Return the configuration of voters with names of one letter; the first one breaks ties."""
    return Configuration(voters=tuple(voters), tie_breaker=tie_breaker or voters[0])


@pytest.mark.parametrize(
    ("present", "is_one"),
    [("ab", True), ("bc", True), ("a", False), ("abc", True), ("", False), ("xyz", False)],
)
def test_more_than_half_of_three(present: str, is_one: bool) -> None:  # noqa: FBT001
    """Whichever they are."""
    assert configuration("abc").has_quorum(set(present)) == is_one


def test_who_does_not_vote_breaks_no_tie() -> None:
    """A leader that leaves proposes a configuration without itself."""
    assert not configuration("ab", tie_breaker="c").has_quorum({"a", "c"})
    assert configuration("ab", tie_breaker="c").has_quorum({"a", "b"})


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("tie_breaker", ["a", "z"])
def test_any_two_quorums_have_a_voter_in_common(count: int, tie_breaker: str) -> None:
    """Also where nobody breaks ties."""
    names = "abcdef"[:count]
    voters = configuration(names, tie_breaker=tie_breaker)
    every = [set(each) for n in range(count + 1) for each in itertools.combinations(names, n)]
    quorums = [each for each in every if voters.has_quorum(each)]
    assert all(one & other for one, other in itertools.product(quorums, quorums))
    assert set(names) in quorums


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_when_no_quorum_is_left_for_the_others(count: int) -> None:
    """Exactly when those who never agree leave none."""
    names = "abcde"[:count]
    voters = configuration(names)
    for number in range(count + 1):
        for refusing in itertools.combinations(names, number):
            rest = set(names) - set(refusing)
            assert voters.could_have_quorum(refusing) is voters.has_quorum(rest)


def test_since_when_a_quorum_has_agreed() -> None:
    """The time of the last one that is needed."""
    heard = {"a": 9.0, "b": 7.0, "c": 3.0, "d": 1.0}
    assert configuration("abc").agreed_since(heard) == 7.0
    assert configuration("abcd").agreed_since(heard) == 7.0  # a breaks the tie
    assert configuration("abcd", tie_breaker="d").agreed_since(heard) == 3.0
    assert configuration("abcd", tie_breaker="z").agreed_since(heard) == 3.0
    assert configuration("cde").agreed_since(heard) == 1.0
    assert configuration("xy").agreed_since(heard) == float("-inf")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_since_when_is_when_the_voters_heard_by_then_became_a_quorum(count: int) -> None:
    """For any order in which they were heard, and any who breaks ties."""
    names = "abcde"[:count]
    for order in itertools.permutations(range(count)):
        heard = {name: float(at) for name, at in zip(names, order, strict=True)}
        for tie_breaker in [*names, "z"]:
            voters = configuration(names, tie_breaker=tie_breaker)
            since = voters.agreed_since(heard)
            assert voters.has_quorum([name for name, at in heard.items() if at >= since])
            assert not voters.has_quorum([name for name, at in heard.items() if at > since])


def test_a_record_may_be_decided_unless_a_quorum_of_either_configuration_is_out_of_reach() -> None:
    """Both majorities are needed (joint consensus)."""
    base = record_of(1, *"abc")
    pending = record_of(2, *"cdefg")
    assert pending.may_be_decided(base, "ad")
    assert not pending.may_be_decided(base, "ab"), "no majority of the base is left"
    assert not pending.may_be_decided(base, "def"), "no majority of its own is left"


def test_a_record_that_is_proposed_again_is_the_same_one_and_goes_before_its_former_self() -> None:
    """Its identity stays, its rank grows with the term."""
    first = record_of(4, "a", "b", counter=2)
    again = first.under(Term(5, "b"))
    assert again.identity == first.identity
    assert again.rank > first.rank
    assert replace(first, number=5).rank > first.rank
    assert replace(first, number=5).identity != first.identity


def test_a_leader_of_a_job_that_runs_goes_before_one_of_a_higher_term_that_founds() -> None:
    """Between equals, the higher term leads."""
    runs, founds = leader_address("a", 1), leader_address("b", 9, is_founding=True)
    assert runs.goes_before(founds)
    assert not founds.goes_before(runs)
    assert leader_address("b", 2).goes_before(runs)
    assert not runs.goes_before(leader_address("b", 2))
