"""The member by itself, where others than its coordinator tell it how the job ends (R10)."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.member_phases import Link
from pytest_elastic.rendezvous.parting import GIVE_UP_S
from tests.unit.rendezvous.test_member import FOUND, ROSTER, SETTINGS, Bench, following

MAJORITY = dataclasses.replace(SETTINGS, quorum="majority")


def spared(bench: Bench) -> Bench:
    """Have a member welcomed under term 4, and told that it is a spare of round 7."""
    bench.give(v.Start(), FOUND, v.Connected())
    bench.give(m.Welcome(term=4, name="n2", coordinator="n1", incarnation="i1"))
    bench.give(m.SpareNotice(term=4, round=7, reason="full", restarts_used=0, roster=ROSTER))
    return bench


@pytest.mark.parametrize(
    ("term", "incarnation", "link"),
    [(4, "i9", Link.RESTING), (4, "i1", Link.JOINED), (5, "i9", Link.JOINED)],
)
def test_a_spare_that_was_told_of_an_end_obeys_who_told_it_or_a_later_term(
    term: int, incarnation: str, link: Link
) -> None:
    """A host that has come back begins under the first term, and another job."""
    bench = spared(Bench(MAJORITY))
    bench.give(m.JobEnding(term=4, result="failed", reason="x"), v.ConnectionLost(reason="cut"))
    bench.give(v.Connected())
    bench.give(m.Welcome(term=term, name="n2", coordinator="n9", incarnation=incarnation))
    assert bench.member.link is link


@pytest.mark.parametrize(("term", "link"), [(3, Link.JOINED), (4, Link.OVER)])
def test_a_spare_hears_of_an_end_that_holds_whomever_it_has_come_to(term: int, link: Link) -> None:
    """Under its term there was another coordinator; under a later one, that knows better."""
    bench = spared(Bench(MAJORITY))
    bench.give(v.EndHeard(ending=m.JobEnding(term=term, result="failed", reason="x")))
    assert bench.member.link is link


def test_a_member_of_a_round_hears_of_the_end_from_its_coordinator_alone() -> None:
    """It has one, and a lease of it: whoever says something else may be of another job."""
    bench = following()
    bench.give(v.EndHeard(ending=m.JobEnding(term=4, result="failed", reason="x")))
    assert not bench.member.has_ended


def test_a_node_that_was_never_taken_in_holds_no_announcement() -> None:
    """It has the address of somebody whom a member asks, and nothing else to do with the job."""
    bench = Bench(MAJORITY)
    ending = m.JobEnding(term=4, result="failed", reason="x")
    bench.give(v.Start(), v.EndHeard(ending=ending, holds=False))
    assert bench.member.ending is None


def test_a_founder_that_has_given_way_gives_up_after_the_join_timeout() -> None:
    """Its own coordinator decides no more, so there is somebody to wait for, and an end to that."""
    bench = Bench()
    bench.give(v.Start(), dataclasses.replace(FOUND, is_here=True, incarnation="i2"))
    bench.give(v.Connected())
    bench.give(m.Welcome(term=4, name="n2", coordinator="n2", incarnation="i2"))
    bench.give(m.StepDown(term=4, reason="only 1 of 2 endpoints can be reached"))
    until = bench.now + SETTINGS.join_timeout_s
    while bench.now < until:
        bench.pass_time(bench.now + 1.0)
        if bench.member.link is Link.SEEKING:
            bench.give(v.CoordinatorNotFound(reason="no majority of endpoints answers"))
    bench.pass_time(until + 2.0)
    assert bench.member.link is Link.OVER


@pytest.mark.parametrize(("term", "ends"), [(5, False), (4, True)])
def test_who_is_told_that_somebody_was_elected_ends_by_no_older_announcement(
    term: int, *, ends: bool
) -> None:
    """Storm 9954: whom a quorum elected knew of no end, and may need this node."""
    bench = following()
    bench.give(m.JobEnding(term=4, result="failed", reason="x"), v.ConnectionLost(reason="cut"))
    place = m.Place(term=term, name="n3", incarnation="i3", address="n3", port=3)
    bench.give(v.Announced(place=place))
    until = bench.now + 3 * (SETTINGS.lease_s + GIVE_UP_S)
    while bench.now < until and bench.member.link is not Link.OVER:
        bench.pass_time(bench.now + 0.5)
        if bench.member.link is Link.DIALING:
            bench.give(v.DialFailed(outcome=v.Outcome.SILENT, reason="no answer"))
        elif bench.member.link is Link.SEEKING:
            bench.give(v.CoordinatorNotFound(reason="no answer"))
    assert bench.member.has_ended is ends
