"""A node that is to leave: it says so, votes while it is needed, and takes its leader with it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import Term
from pytest_elastic.rendezvous.follower.connection import ConnectionPhase
from pytest_elastic.rendezvous.follower.worker_group import GroupPhase
from tests.unit.rendezvous.follower.bench import (
    ACCEPTED,
    FOUND,
    MAJORITY,
    SETTINGS,
    TERM,
    Bench,
    following,
    joined,
    over,
    running,
)
from tests.unit.rendezvous.samples import leader_address

DRAIN = ports.DrainRequested(reason="SIGTERM", grace_s=5.0)
OWN = v.LeaderFound(leader=leader_address("n2", 4))


def leaving() -> Bench:
    """Return a node that has lost contact to its own leader, and whose lease has ended."""
    bench = Bench(MAJORITY)
    accepted = replace(ACCEPTED, term=OWN.leader.term, leader="n2")
    bench.give(v.Start(), OWN, v.Connected(), accepted, DRAIN)
    bench.give(v.ConnectionLost(reason="reset"))
    bench.pass_time(bench.now + SETTINGS.lease_s + 2.0)
    return bench


def test_it_dials_its_own_leader_again_after_its_lease() -> None:
    """Others need that one: alone, the node would leave it behind without anybody to hand over."""
    bench = leaving()
    bench.expect(ConnectionPhase.SEEKING)
    bench.give(OWN)
    bench.expect(ConnectionPhase.DIALING)


def test_it_goes_alone_when_no_leader_is_found_here_any_more() -> None:
    """It did not hear its own leader resign: their connection had ended before."""
    bench = leaving()
    bench.expect(ConnectionPhase.SEEKING)
    bench.give(v.LeaderNotFound(reason="no endpoint names a leader"))
    bench.expect(ConnectionPhase.OVER)


def test_it_goes_alone_when_its_own_leader_has_resigned() -> None:
    """That has handed over, or would be the first to be found."""
    bench = Bench(MAJORITY)
    accepted = replace(ACCEPTED, term=OWN.leader.term, leader="n2")
    bench.give(v.Start(), OWN, v.Connected(), accepted, DRAIN)
    resigned = m.LeaderResigned(term=OWN.leader.term, reason="n2 left", left=True, successor="n3")
    bench.give(resigned)
    bench.expect(ConnectionPhase.OVER)


def test_it_takes_a_leader_with_it_that_it_has_not_found_yet() -> None:
    """Else that would go on without a node, and its agent with it."""
    bench = Bench(MAJORITY)
    bench.give(v.Start(), DRAIN)
    bench.expect(ConnectionPhase.OVER)
    (handed_over,) = (each for each in bench.taken() if isinstance(each, v.HandOver))
    assert "SIGTERM" in handed_over.reason


def test_without_succession_there_is_nothing_to_hand_over() -> None:
    """The job ends with its leader, and the others say so."""
    bench = Bench()
    bench.give(v.Start(), DRAIN)
    assert not [command for command in bench.taken() if isinstance(command, v.HandOver)]
    bench.expect(ConnectionPhase.OVER)


def test_who_leaves_says_so_once_and_again_when_it_is_taken_in() -> None:
    """What was said into a broken connection may be lost."""
    bench = following()
    bench.give(DRAIN, DRAIN)
    assert bench.said() == [DRAIN]
    bench.give(v.ConnectionLost(reason="reset"), v.Connected())
    bench.taken()
    bench.give(replace(ACCEPTED, resumed=True))
    assert DRAIN in bench.said()


def test_who_was_let_go_with_its_workers_done_says_that_they_are_gone() -> None:
    """Storm 101220: its group had succeeded, and it is told to stop."""
    bench = running()
    bench.give(ports.GroupSucceeded(round=7), DRAIN)
    bench.give(m.StopRound(term=TERM, round=7, grace_s=1.0, reason="n3 was lost"))
    bench.taken()
    bench.give(ports.WorkersGone(round=7))
    assert ports.WorkersGone(round=7) in bench.said()
    bench.expect(group=GroupPhase.GONE)


def test_who_leaves_votes_until_a_record_leaves_it_out() -> None:
    """Others may need it to elect somebody, should its leader be lost before."""
    bench = following()
    long = ports.DrainRequested(reason="SIGTERM", grace_s=30.0)
    bench.give(long, v.ConnectionLost(reason="cut"))
    bench.give(ports.WorkersGone(round=7))
    until = bench.now + SETTINGS.lease_s + 1.0
    while bench.now < until:
        if bench.follower.connection is ConnectionPhase.DIALING:
            bench.give(v.DialFailed(outcome=v.Outcome.SILENT, reason="no answer"))
        elif bench.follower.connection is ConnectionPhase.SEEKING:
            bench.give(v.LeaderNotFound(reason="no answer"))
        bench.pass_time(bench.now + 0.5)
    request = m.Question(run_id="r", term=Term(9, "n3"), is_pre_vote=False)
    bench.taken()
    bench.give(v.Asked(connection=1, question=request))
    answers = [each.message for each in bench.taken() if isinstance(each, v.SendTo)]
    assert [isinstance(each, m.Answer) and each.is_granted for each in answers] == [True]


@pytest.mark.parametrize("quorum", ["coordinator", "majority"])
def test_who_is_let_go_has_left(quorum: str) -> None:
    """And need not stay for anybody."""
    bench = joined(replace(SETTINGS, quorum=quorum))
    bench.give(DRAIN, m.Dismissed(term=TERM, reason="SIGTERM", is_final=True))
    commands = bench.taken()
    results = [
        each.notice.result
        for each in commands
        if isinstance(each, v.Notify) and isinstance(each.notice, ports.JobOver)
    ]
    assert results == ["drained"]
    assert v.Released() in commands


def test_who_is_evicted_kills_its_workers_and_comes_back_without_its_round() -> None:
    """The others go on: nothing of it may run when it asks to join again."""
    bench = following()
    bench.give(m.Dismissed(term=TERM, reason="too slow", is_final=False))
    assert [type(each) for each in bench.told()] == [ports.Fence]
    bench.pass_time(bench.now + 1.0)
    assert not [each for each in bench.taken() if isinstance(each, v.Dial | v.FindLeader)]
    bench.give(ports.WorkersGone(round=7))
    bench.pass_time(bench.now + 1.0)
    bench.give(FOUND, v.Connected())
    requests = [each for each in bench.said() if isinstance(each, m.JoinRequest)]
    assert [each.resumes_round for each in requests] == [0]


def test_the_last_word_of_one_that_leaves_is_that_it_has_left() -> None:
    """Also where the job ended meanwhile."""
    bench = running()
    bench.give(DRAIN, v.ConnectionLost(reason="reset"), ports.WorkersGone(round=7))
    bench.pass_time(bench.now + SETTINGS.lease_s + 5.0)
    assert over(bench).result == "drained"
