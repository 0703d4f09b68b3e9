"""The follower by itself, where it is told how the job ends, and its leader is lost (R10)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import Term
from pytest_elastic.rendezvous.follower.connection import ConnectionPhase
from tests.unit.rendezvous.follower.bench import (
    ACCEPTED,
    ROUND,
    SETTINGS,
    TERM,
    Bench,
    append_end,
    end_record,
    following,
    joined,
    over,
    running,
)
from tests.unit.rendezvous.samples import leader_address

GIVE_UP_S = 4.0


def lose(bench: Bench, for_s: float) -> None:
    """Let nobody answer for a time."""
    until = bench.now + for_s
    while bench.now < until and bench.follower.connection is not ConnectionPhase.OVER:
        match bench.follower.connection:
            case ConnectionPhase.DIALING:
                bench.give(v.DialFailed(outcome=v.Outcome.SILENT, reason="no answer"))
            case ConnectionPhase.SEEKING:
                bench.give(v.LeaderNotFound(reason="no answer"))
        bench.pass_time(bench.now + 0.5)


def has_ended(bench: Bench) -> bool:
    """Tell whether the follower has ended as it was told."""
    return bench.follower.has_ended


def status(bench: Bench) -> m.Answer:
    """Return what the follower says to who asks what it knows."""
    asked = v.Asked(connection=1, question=m.Question(run_id="r"))
    (answer,) = (
        command.message
        for command in bench.follower.step(asked, bench.now)
        if isinstance(command, v.SendTo)
    )
    assert isinstance(answer, m.Answer)
    return answer


def test_an_end_that_is_accepted_is_no_end_as_long_as_its_leader_is_there() -> None:
    """It may not be decided: too few may have accepted it."""
    bench = following()
    bench.give(append_end())
    assert bench.said() == [m.RecordAccepted(term=TERM, number=8)]
    assert bench.follower.ending is not None
    assert not has_ended(bench)
    assert (status(bench).has_end, status(bench).base) == (True, None)
    bench.give(m.RecordDecided(term=TERM, number=8, unaware=("n9",)))
    assert has_ended(bench)
    assert status(bench).base == end_record()


def test_who_has_accepted_an_end_and_finds_nobody_goes_by_it() -> None:
    """After its lease and four seconds; then it stays for those who may ask."""
    bench = following()
    bench.give(append_end(), v.ConnectionLost(reason="cut"))
    bench.taken()
    lose(bench, SETTINGS.lease_s + GIVE_UP_S - 0.5)
    assert not has_ended(bench)
    lose(bench, 1.0)
    assert has_ended(bench)
    (notice,) = (each for each in bench.told() if isinstance(each, ports.JobOver))
    assert notice.result == "failed"
    assert status(bench).base == end_record()
    bench.pass_time(bench.now + SETTINGS.linger_s - 0.5)
    assert not bench.taken()
    bench.pass_time(bench.now + 1.0)
    assert bench.taken() == [v.Released()]


def test_an_accepted_end_that_a_successor_does_not_know_is_void() -> None:
    """A quorum has elected it without the end, and goes on."""
    bench = following()
    bench.give(append_end(), v.ConnectionLost(reason="cut"))
    bench.give(v.LeaderHeard(leader=leader_address("n3", 5)))
    bench.pass_time(bench.now)
    bench.give(v.Connected())
    term = Term(5, "n3")
    accepted = replace(ACCEPTED, term=term, leader="n3", resumed=True)
    again = m.AppendRecord(term=term, record=ROUND.under(term), base=ROUND)
    bench.give(accepted, again)
    bench.expect(ConnectionPhase.JOINED)
    assert bench.follower.ending is None
    lose(bench, SETTINGS.lease_s / 2)
    assert not has_ended(bench)


@pytest.mark.parametrize(("is_founding", "ends"), [(False, False), (True, True)])
def test_an_end_is_heard_from_others_unless_a_leader_of_the_job_is_there(
    *, is_founding: bool, ends: bool
) -> None:
    """In contact with one that has decided nothing, those of its own job know better."""
    bench = joined(replace(SETTINGS, quorum="majority"))
    if is_founding:
        bench = Bench(replace(SETTINGS, quorum="majority"))
        found = v.LeaderFound(leader=leader_address("n1", 4, is_founding=True))
        bench.give(v.Start(), found, v.Connected(), replace(ACCEPTED, is_founding=True))
    bench.give(v.EndHeard(record=end_record()))
    assert bench.follower.connection is (ConnectionPhase.OVER if ends else ConnectionPhase.JOINED)


def test_who_has_lost_its_leader_ends_as_others_say() -> None:
    """They were asked by their incarnations, and say what is decided; of a round, nothing ends.

    Somebody else may have missed it too, and reach nobody but this node: it stays for a while.
    """
    bench = following()
    bench.give(v.ConnectionLost(reason="cut"), v.EndHeard(record=ROUND))
    assert not has_ended(bench)
    bench.give(v.EndHeard(record=end_record(result="succeeded")))
    *_, last = bench.taken()
    assert isinstance(last, v.Notify)
    assert isinstance(last.notice, ports.JobOver)
    assert last.notice.result == "succeeded"
    assert status(bench).base == end_record(result="succeeded")
    bench.pass_time(bench.now + SETTINGS.linger_s - 0.1)
    assert v.Released() not in bench.taken()
    bench.pass_time(bench.now + 0.2)
    assert v.Released() in bench.taken()


def test_who_has_accepted_an_end_joins_no_new_job() -> None:
    """A host that has come back begins another one; decided or not, nothing follows an end."""
    bench = joined(replace(SETTINGS, quorum="majority"))
    bench.give(append_end(), v.ConnectionLost(reason="cut"), v.Connected())
    bench.give(replace(ACCEPTED, term=Term(9, "n1b"), is_founding=True))
    bench.expect(ConnectionPhase.RESTING)


def test_without_succession_losing_the_leader_after_the_end_is_that_end() -> None:
    """Nobody else could decide otherwise."""
    bench = running()
    bench.give(append_end(), v.ConnectionLost(reason="cut"))
    assert over(bench).result == "failed"


def test_a_founder_that_has_given_way_gives_up_after_the_join_timeout() -> None:
    """Its own leader decides no more, so there is somebody to wait for, and an end to that."""
    bench = Bench(replace(SETTINGS, quorum="majority", endpoints="a:1,b:1"))
    here = v.LeaderFound(leader=leader_address("n2", 4, is_founding=True))
    term = here.leader.term
    bench.give(v.Start(), here, v.Connected())
    accepted = replace(ACCEPTED, term=term, leader="n2", is_founding=True)
    bench.give(accepted, m.LeaderResigned(term=term, reason="n1 leads, under term 5"))
    until = bench.now + SETTINGS.join_timeout_s
    lose(bench, SETTINGS.join_timeout_s - 1.0)
    assert bench.follower.connection is not ConnectionPhase.OVER
    lose(bench, until - bench.now + 2.0)
    bench.expect(ConnectionPhase.OVER)
