"""A node that decides and is to leave: it goes by its own coordinator, or takes that with it."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.coordinator import Phase
from pytest_elastic.rendezvous.member import Link
from tests.unit.rendezvous.test_coordinator import Bench as CoordinatorBench
from tests.unit.rendezvous.test_member import COMMIT, FOUND, SEAL, SETTINGS, Bench

OWN = v.CoordinatorFound(address="n2", port=2, term=4, is_here=True, incarnation="i2")


def leaving() -> Bench:
    """Return a node that has lost contact to its own coordinator, and whose lease has ended."""
    bench = Bench(dataclasses.replace(SETTINGS, quorum="majority"))
    welcome = m.Welcome(term=4, name="n2", coordinator="n2", incarnation="i2")
    bench.give(v.Start(), OWN, v.Connected(), welcome)
    bench.give(ports.DrainRequested(reason="SIGTERM", grace_s=5.0))
    bench.give(v.ConnectionLost(reason="reset"))
    bench.pass_time(bench.now + SETTINGS.lease_s + 2.0)
    assert bench.member.link is Link.SEEKING
    return bench


def test_it_dials_its_own_coordinator_again_after_its_lease() -> None:
    """Others need that one: alone, the node would leave it behind without anybody to hand over."""
    bench = leaving()
    bench.give(OWN)
    assert bench.member.link is Link.DIALING


@pytest.mark.parametrize("answer", [FOUND, v.CoordinatorNotFound(reason="no store")])
def test_it_goes_alone_when_no_coordinator_is_here(answer: v.MemberInput) -> None:
    """Its own has stepped down, or it would be the first to be found."""
    bench = leaving()
    bench.give(answer)
    assert bench.member.link is Link.OVER


def test_it_takes_a_coordinator_with_it_that_it_has_not_found_yet() -> None:
    """Else that would go on without a node, and its agent with it."""
    bench = Bench(dataclasses.replace(SETTINGS, quorum="majority"))
    bench.give(v.Start(), ports.DrainRequested(reason="SIGTERM", grace_s=5.0))
    assert bench.member.link is Link.OVER
    assert v.HandOver(reason="left before taking part: SIGTERM") in bench.taken()


def test_without_succession_there_is_nothing_to_hand_over() -> None:
    """The job ends with its coordinator, and the others say so."""
    bench = Bench()
    bench.give(v.Start(), ports.DrainRequested(reason="SIGTERM", grace_s=5.0))
    assert not [command for command in bench.taken() if isinstance(command, v.HandOver)]


def test_a_coordinator_whose_node_has_left_names_who_follows() -> None:
    """And says that this node's voice counts no more."""
    bench = CoordinatorBench(2, 3, quorum="majority")
    bench.greet(1, 2, 3)
    bench.run_round(1, 2, 3)
    bench.give(v.HandOver(reason="left before taking part: SIGTERM"))
    said = [c.message for c in bench.commands if isinstance(c, v.SendTo)]
    orders = [message for message in said if isinstance(message, m.StepDown)]
    assert {(order.left, order.successor) for order in orders} == {("i1", "i2")}
    assert bench.machine.phase is Phase.DEPOSED


def test_a_coordinator_that_says_how_the_job_ends_stays_for_that() -> None:
    """The node may go: its member was told, and others may still ask."""
    bench = CoordinatorBench(1, 1, quorum="majority")
    bench.greet(1)
    bench.say(1, ports.GroupSucceeded(round=bench.run_round(1)))
    assert bench.machine.phase is Phase.ENDING
    bench.give(v.HandOver(reason="left: SIGTERM"))
    assert bench.machine.phase is Phase.ENDING


def test_who_was_let_go_and_is_told_to_stop_says_that_its_workers_are_gone() -> None:
    """Storm 101220: it had renounced its voice before, as its group had succeeded."""
    bench = Bench()
    bench.give(v.Start(), FOUND, v.Connected())
    bench.give(m.Welcome(term=4, name="n2", coordinator="n1", incarnation="i1"), SEAL, COMMIT)
    bench.give(ports.GroupSucceeded(round=7), ports.DrainRequested(reason="SIGTERM", grace_s=5.0))
    bench.give(m.StopOrder(term=4, round=7, grace_s=1.0, reason="n3 was lost"))
    bench.taken()
    bench.give(ports.WorkersGone(round=7))
    assert v.Send(message=ports.WorkersGone(round=7)) in bench.taken()


@pytest.mark.parametrize("has_workers", [True, False])
def test_who_leaves_votes_until_it_says_so_to_a_coordinator_that_it_has_heard(
    *, has_workers: bool
) -> None:
    """From then on it is not counted; before, others may need it to elect somebody."""
    bench = Bench(dataclasses.replace(SETTINGS, quorum="majority"))
    bench.give(v.Start(), FOUND, v.Connected())
    bench.give(m.Welcome(term=4, name="n2", coordinator="n1", incarnation="i1"), SEAL)
    if has_workers:
        bench.give(COMMIT)
    bench.give(ports.DrainRequested(reason="SIGTERM", grace_s=30.0), after_s=0.5)
    bench.give(ports.WorkersGone(round=7))
    said = [c.message for c in bench.commands if isinstance(c, v.Send)]
    assert ports.WorkersGone(round=7) not in said
    assert _refusal(bench) != "this node leaves"
    (count,) = {each.count for each in said[-2:] if isinstance(each, m.Beat)}  # sent at once
    bench.taken()
    bench.give(m.Beat(count=1, echo=count))
    said = [c.message for c in bench.taken() if isinstance(c, v.Send)]
    gone = ports.WorkersGone(round=7)
    assert (gone if has_workers else ports.DrainRequested(reason="SIGTERM", grace_s=30.0)) in said
    assert _refusal(bench) == "this node leaves"


def _refusal(bench: Bench) -> str:
    """Return why it would not vote for n1, "" if it would."""
    request = m.VoteRequest(run_id="r", term=9, candidate="i1", is_trial=True)
    asked = v.Asked(connection=1, question=request)
    (reply,) = bench.member.step(asked, bench.now)
    assert isinstance(reply, v.AnswerTo)
    assert isinstance(reply.message, m.VoteAnswer)
    return reply.message.reason
