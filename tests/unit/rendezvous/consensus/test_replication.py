"""What a leader proposes, when that is decided, and until when it may lead."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_elastic.rendezvous.consensus.records import Record, Term
from pytest_elastic.rendezvous.consensus.replication import Recovered, Replication
from tests.unit.rendezvous.samples import SETTINGS, record_of, settings_with

TERM = Term(2, "a")


def leads(*names: str, adopted: Record | None = None, quorum: str = "majority") -> Replication:
    """Return what node `a` was elected with, at 100 s, of a job whose base is a round of these."""
    replication = Replication(
        settings_with(quorum), "a", recovered_with(record_of(1, *names), adopted), 100.0
    )
    if adopted is None:  # what it found is decided, as always a moment later
        replication.pending = None
    return replication


def recovered_with(
    base: Record, adopted: Record | None, seats: Mapping[str, str] | None = None
) -> Recovered:
    """Return what a leader begins with."""
    return Recovered(
        term=TERM,
        base=base,
        record=adopted or base,
        started=None,
        contact_at=100.0,
        seats=seats or {},
    )


def proposes(replication: Replication, *names: str) -> Record:
    """Propose a round of these nodes."""
    configuration = replication.configuration_of(names)
    return replication.propose(101.0, round=2, configuration=configuration)


def has_quorums(replication: Replication) -> bool:
    """Tell whether the pending record can be decided."""
    return replication.has_quorums


def test_a_record_is_decided_by_a_majority_of_its_base_and_one_of_its_own() -> None:
    """Neither alone is enough (joint consensus)."""
    replication = leads(*"abc")
    number = proposes(replication, *"cdefg").number
    for name in "defg":
        replication.take_acceptance(name, number)
    assert not has_quorums(replication), "nobody of the base has accepted it"
    replication.take_acceptance("a", number)
    replication.take_acceptance("b", number)
    assert has_quorums(replication)
    other = leads(*"abc")
    number = proposes(other, *"cdefg").number
    for name in "abc":
        other.take_acceptance(name, number)
    assert not has_quorums(other), "one of five of its own has accepted it"


def test_an_acceptance_of_another_record_does_not_count() -> None:
    """One that was withdrawn had a lower number."""
    replication = leads(*"abc")
    first = proposes(replication, *"abc")
    replication.withdraw()
    second = proposes(replication, *"abc")
    assert second.number > first.number
    for name in "abc":
        replication.take_acceptance(name, first.number)
    assert not has_quorums(replication)
    for name in "ab":
        replication.take_acceptance(name, second.number)
    assert has_quorums(replication)
    assert replication.settle() == replication.base == second
    assert replication.pending is None


def test_what_was_adopted_is_proposed_again_and_never_withdrawn() -> None:
    """It may be decided already."""
    found = record_of(2, *"bcd")
    replication = leads(*"abc", adopted=found)
    assert replication.newest == found.under(TERM)
    with pytest.raises(AssertionError, match="may be decided already"):
        replication.withdraw()


def test_without_succession_only_the_leader_votes() -> None:
    """Whichever nodes are in the round."""
    configuration = leads("a", quorum="coordinator").configuration_of(["b", "c"])
    assert tuple(configuration.voters) == ("a",)


def test_a_leader_that_leaves_breaks_no_tie_of_those_it_leaves_behind() -> None:
    """The first of them does."""
    configuration = leads(*"abc").configuration_of(["b", "c"])
    assert configuration.tie_breaker == "b"


def test_a_lease_ends_a_lease_after_a_quorum_was_heard() -> None:
    """It moves on with the quorum, and not with one voter alone."""
    replication = leads(*"abc")
    replication.hear("a", 100.0)
    assert replication.leads_until(100.0) == float("-inf")
    replication.hear("b", 99.0)
    assert replication.leads_until(100.2) == 104.0
    replication.hear("a", 103.0)
    assert replication.leads_until(103.0) == 104.0
    replication.hear("c", 103.5)
    assert replication.leads_until(103.9) == 108.0


def test_a_lease_is_looked_at_again_before_it_ends() -> None:
    """It is counted only now and then, but never ends on an old count."""
    replication = leads(*"abc")
    for name in "abc":
        replication.hear(name, 100.0)
    assert replication.leads_until(104.95) == 105.0
    for name in "abc":
        replication.hear(name, 104.9)
    assert replication.leads_until(105.0) == 109.9


def test_the_lease_of_an_adopted_record_rests_on_both_configurations() -> None:
    """Either may elect somebody else."""
    replication = leads(*"abc", adopted=record_of(2, *"cde", node="c"))
    for name in "ab":
        replication.hear(name, 100.0)
    assert replication.leads_until(100.0) == float("-inf")
    for name in "cd":
        replication.hear(name, 99.0)
    assert replication.leads_until(100.2) == 104.0


def test_the_lease_rests_on_those_whom_a_leader_leaves_behind_too() -> None:
    """They elect without it, and need not have heard of what rested on its own vote."""
    replication = leads(*"abc")
    proposes(replication, *"bc")
    replication.hear("a", 101.0)
    replication.hear("b", 101.0)
    assert replication.leads_until(101.0) == 106.0, "b breaks the tie"
    other = leads(*"abc")
    proposes(other, *"bc")
    other.hear("a", 101.0)
    other.hear("c", 101.0)
    assert other.leads_until(101.0) == float("-inf")


def test_other_leases() -> None:
    """One that needs nobody, one that somebody outside grants, and none after the decided end."""
    assert leads("a", quorum="coordinator").leads_until(1e9) == float("inf")
    assert leads("a").leads_until(1e9) < 1e9, "our own voter may elect somebody else"
    granted = leads("a", quorum="granted")
    granted.extend(109.0)
    assert granted.leads_until(105.0) == 109.0
    over = leads(*"abc")
    over.conclude()
    assert over.leads_until(1e9) == float("inf")


def test_where_a_key_grants_a_record_is_decided_when_it_is_written_down() -> None:
    """Once asked for, and never by those who have accepted it."""
    replication = leads("a", quorum="granted")
    number = proposes(replication, "a", "b").number
    for name in "ab":
        replication.take_acceptance(name, number)
    assert not has_quorums(replication)
    assert replication.must_be_written()
    assert not replication.must_be_written(), "it was asked for"
    replication.take_written(number)
    assert has_quorums(replication)


def test_hosts_of_endpoints_accept_the_first_record_in_their_seats() -> None:
    """Only the incarnation that has voted for the leader counts for its seat."""
    base = record_of(0, "host of 1", "host of 2", "host of 3")
    seats = {"a": "host of 1", "b": "host of 2"}
    replication = Replication(SETTINGS, "a", recovered_with(base, None, seats), 100.0)
    number = proposes(replication, "a", "b").number
    replication.take_acceptance("a", number)
    replication.take_acceptance("b again", number)
    assert not has_quorums(replication)
    replication.take_acceptance("b", number)
    assert has_quorums(replication)
