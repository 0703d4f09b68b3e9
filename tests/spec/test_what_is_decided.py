"""R11, message by message: what is proposed, accepted, decided, adopted by a successor, or dropped.

These take the place of what the present core says of seals, electorates and endorsers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from elastic_simulation.checks import Watch
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import new_world

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.consensus.records import Configuration, Record, Term
from pytest_elastic.rendezvous.consensus.voter import Voter
from tests.spec.test_r11_succession import led, succeeding


def _appended(world: World) -> Iterator[m.AppendRecord]:
    """Yield what leaders have asked others to accept, in order."""
    messages: Iterator[object] = (message for _, _, _, message in world.sent)
    return (message for message in messages if isinstance(message, m.AppendRecord))


def _proposals(world: World) -> list[tuple[int, int, int, int]]:
    """Return the term of each proposal, the term and number of its record, and the round."""
    said = (
        (each.term.counter, each.record.origin.counter, each.record.number, each.record.round)
        for each in _appended(world)
    )
    return list(dict.fromkeys(said))


def _has_accepted(world: World, name: str, number: int) -> bool:
    said: Iterator[object] = (said for _, source, _, said in world.sent if source == name)
    return any(isinstance(each, m.RecordAccepted) and each.number == number for each in said)


def _wait_for(world: World, number: int, *names: str) -> None:
    """Let time pass until these have accepted the record of a number."""
    world.run_until(lambda: all(_has_accepted(world, name, number) for name in names), 4.0)


def _crash(world: World, names: Sequence[str]) -> None:
    for name in names:
        world.crash(name)


# --- adopting ------------------------------------------------------------------------------------


def test_r11_a_record_that_one_survivor_has_accepted_is_proposed_again() -> None:
    """It may be decided: the successor decides it under its own term, and then goes on."""
    world = led("n1", "n2", "n3")
    world.agent("n1").opens_stores = False
    world.fail("n2")
    world.run_until(lambda: world.seals()[-1].round == 2, within_s=2.0)
    world.cut("n1", "n2")
    _wait_for(world, 2, "n3")
    world.crash("n1")
    world.reform("n2", "n3", within_s=6.0)
    assert _proposals(world) == [(1, 1, 1, 1), (1, 1, 2, 2), (2, 1, 2, 2), (2, 2, 3, 3)]
    assert world.restarts("n2") == 1  # what the adopted round cost; the loss of n1 is free


def test_r11_a_start_that_one_has_seen_counts() -> None:
    """n3 starts its workers, n2 does not hear that the record is decided."""
    world = led("n1", "n2", "n3")
    world.fail("n3")
    _wait_for(world, 2, "n2")
    world.cut("n1", "n2")
    world.run_until(lambda: world.round_of("n3") == 2, within_s=2.0)
    world.kill_agent("n1")
    world.reform("n2", "n3", within_s=5.0)
    assert world.round_of("n2") == 3
    assert world.restarts("n2") == 1


def test_r11_a_pending_round_of_which_members_are_dead_is_decided_and_followed() -> None:
    """Quorums are enough to decide; all of a roster are needed to start it."""
    world = led("n1", "n2", "n3", "n4", "n5", config=succeeding("2:5"))
    world.agent("n1").opens_stores = False
    world.fail("n2")
    _wait_for(world, 2, "n2", "n3", "n4", "n5")
    _crash(world, ("n1", "n5"))
    world.reform("n2", "n3", "n4", within_s=6.0)
    assert _proposals(world)[-2:] == [(2, 1, 2, 2), (2, 2, 3, 3)]
    assert all(assignment.round != 2 for _, assignment in world.starts)


def test_r11_what_no_majority_can_have_accepted_is_dropped() -> None:
    """One of five has, and all of the new nodes are dead with the leader: it is not waited for."""
    old, new = ("n1", "n2", "n3", "n4", "n5"), ("n6", "n7", "n8", "n9", "n10")
    world = led(*old, config=succeeding("3:10"))
    world.agent("n1").opens_stores = False
    world.start(*new)
    world.run_until(lambda: world.seals()[-1].round == 2, within_s=4.0)
    for name in ("n2", "n3", "n4"):
        world.cut("n1", name)
    _wait_for(world, 2, "n5", *new)
    _crash(world, ("n1", *new))
    world.reform("n2", "n3", "n4", "n5", within_s=8.0)
    assert (2, 1, 2, 2) not in _proposals(world)


def test_r11_what_may_be_decided_is_waited_for() -> None:
    """As above, but three of five have accepted it: only a majority of the new ones could tell."""
    old, new = ("n1", "n2", "n3", "n4", "n5"), ("n6", "n7", "n8", "n9", "n10", "n11")
    world = led(*old, config=succeeding("3:11"))
    world.agent("n1").opens_stores = False
    world.start(*new)
    world.run_until(lambda: world.seals()[-1].round == 2, within_s=4.0)
    for name in ("n2", "n3"):
        world.cut("n1", name)
    _wait_for(world, 2, "n4", "n5", *new)
    world.crash("n1")
    for name in new:
        world.isolate(name, [other for other in (*old, *new) if other != name])
    world.run(8.0)
    assert not any(world.agent(name).is_running for name in (*old[1:], *new))
    world.heal()
    world.reform(*old[1:], *new, within_s=8.0)
    assert _proposals(world)[-2:] == [(2, 1, 2, 2), (2, 2, 3, 3)]


def test_r11_a_majority_of_a_pending_round_alone_elects_no_leader() -> None:
    """Two of a round of three out of five; the leader goes on with the others of the five."""
    world = led("n1", "n2", "n3", "n4", "n5", config=succeeding("2:5"))
    world.agent("n1").opens_stores = False
    for one in ("n4", "n5"):
        world.isolate(one, ["n1", "n2", "n3"])
    _wait_for(world, 2, "n2", "n3")
    world.heal()
    for one in ("n2", "n3"):
        world.isolate(one, ["n1", "n4", "n5"])
    world.agent("n1").opens_stores = True
    world.run_until(lambda: world.all_run("n1", "n4", "n5"), within_s=8.0)
    world.run(5.0)
    assert {term for term, *_ in _proposals(world)} == {1}
    assert not world.agent("n2").is_running
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n4", "n5", "n2", "n3"), within_s=8.0)


def test_r11_a_leader_that_lives_withdraws_what_it_has_not_counted() -> None:
    """The next proposal has a higher number, and so has its round."""
    world = led("n1", "n2", "n3", config=succeeding("2:3"))
    world.agent("n1").opens_stores = False
    world.fail("n2")
    _wait_for(world, 2, "n2", "n3")
    world.crash("n3")
    world.agent("n1").opens_stores = True
    world.reform("n1", "n2", within_s=5.0)
    numbers = [(number, round_) for _, _, number, round_ in _proposals(world)]
    assert numbers == sorted(set(numbers))
    assert world.round_of("n1") == numbers[-1][1] > 2


# --- the configuration changes only by a record --------------------------------------------------


def test_r11_a_node_that_leaves_votes_until_a_record_leaves_it_out() -> None:
    """The leader itself: the same round without it, decided before it resigns."""
    world = led("n1", "n2", "n3", config=succeeding("1:3"))
    world.agent("n1").drain(grace_s=5.0, takes_s=0.1)
    world.run_until(lambda: world.over("n1") is not None, within_s=2.0)
    without = [each.record for each in _appended(world) if each.record.number == 2]
    assert {tuple(record.configuration.voters) for record in without} == {("n2/2", "n3/3")}
    assert {record.round for record in without} == {1}
    resigned: list[object] = [said for *_, said in world.sent]
    orders = [said for said in resigned if isinstance(said, m.LeaderResigned)]
    assert {(order.left, order.successor) for order in orders} == {(True, "n2/2")}
    world.reform("n2", "n3", within_s=2.0)


def test_r11_a_record_without_lost_members_costs_no_round() -> None:
    """A node without workers leaves: those that run are not stopped for it."""
    world = led("n1", "n2", "n3", config=succeeding("1:3"))
    world.agent("n3").succeed()
    world.run(0.1)
    world.agent("n3").drain(grace_s=5.0)
    world.run_until(lambda: world.over("n3") is not None, within_s=1.0)
    assert [world.agent(name).is_running for name in ("n1", "n2")] == [True, True]
    assert len(world.seals()) == 1


# --- the end is a record -------------------------------------------------------------------------


def test_r11_an_end_that_was_accepted_is_decided_by_the_successor() -> None:
    """All have accepted it, and its leader is lost before it says that it is decided."""
    world = led("n1", "n2", "n3")
    for name in ("n1", "n2", "n3"):
        world.agent(name).succeed()
    _wait_for(world, 2, "n2", "n3")
    world.crash("n1")
    world.run_until(lambda: world.over("n2") is not None, within_s=6.0)
    world.run_until(lambda: world.over("n3") is not None, within_s=6.0)
    assert [event.result for event in _ends(world)] == ["succeeded", "succeeded"]


def _ends(world: World) -> list[events.JobEnded]:
    every = (event for _, _, event in world.events)
    return [event for event in every if isinstance(event, events.JobEnded)]


def test_r11_nothing_that_ran_is_lost_with_the_founder_of_a_round_that_never_started() -> None:
    """The only host is lost as its first round is pending: the job begins anew where it is back."""
    world = new_world(settings("3:3", quorum="majority", last_call_s=0.2))
    Watch(world)
    world.start("n1")
    world.agent("n1").opens_stores = False
    world.start("n2", "n3")
    _wait_for(world, 1, "n2", "n3")
    assert not world.starts
    world.crash("n1")
    world.start("n1")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=15.0)


# --- what one voter promises ---------------------------------------------------------------------

_BASE = Record(
    term=Term(1, "n1/1"),
    origin=Term(1, "n1/1"),
    number=1,
    round=1,
    roster=(),
    configuration=Configuration(voters=("n1/1", "n2/2", "n3/3"), tie_breaker="n1/1"),
)


def test_r11_of_two_terms_with_one_counter_one_is_higher() -> None:
    """A voter that has promised it accepts nothing under the other one: one leader a term."""
    voter = Voter("n3/3")
    assert voter.accept(_BASE, _BASE)
    voter.vote(Term(2, "n2/2"), 10.0)
    assert not voter.may_follow(Term(2, "n1/1"))
    assert not voter.accept(_BASE.under(Term(2, "n1/1")), _BASE)
    assert voter.accept(_BASE.under(Term(2, "n2/2")), _BASE)
    assert voter.accept(_BASE.under(Term(2, "n3/3")), _BASE)


@pytest.mark.parametrize(
    ("voters", "tie_breaker", "agreeing", "is_quorum"),
    [
        ("abc", "a", "ab", True),
        ("abc", "a", "a", False),
        ("abcd", "a", "ab", True),
        ("abcd", "a", "cd", False),
        ("abcd", "x", "ab", False),
        ("ab", "a", "a", True),
        ("ab", "a", "b", False),
        ("a", "a", "a", True),
        ("a", "a", "b", False),
    ],
)
def test_r11_half_is_a_quorum_with_who_proposed_the_record(
    voters: str, tie_breaker: str, agreeing: str, *, is_quorum: bool
) -> None:
    """So any two quorums have a voter in common."""
    configuration = Configuration(voters=tuple(voters), tie_breaker=tie_breaker)
    assert configuration.has_quorum(agreeing) is is_quorum
    refusing = [voter for voter in voters if voter not in agreeing]
    assert configuration.could_have_quorum(refusing) is is_quorum
