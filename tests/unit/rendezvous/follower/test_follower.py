"""The follower by itself: one input, the commands it gives."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import NO_TERM, Term
from pytest_elastic.rendezvous.follower.connection import CONNECTION_ALLOWED, ConnectionPhase
from pytest_elastic.rendezvous.follower.follower import Follower
from pytest_elastic.rendezvous.follower.worker_group import GROUP_ALLOWED, GroupPhase
from tests.unit.rendezvous.follower.bench import (
    ACCEPTED,
    APPEND,
    FOUND,
    NODE,
    ROUND,
    SETTINGS,
    STARTED,
    TERM,
    Bench,
    append_end,
    following,
    joined,
    over,
    running,
)
from tests.unit.rendezvous.samples import FOUNDING, leader_address

RESUMED = replace(ACCEPTED, resumed=True)


def test_it_looks_for_the_leader_dials_it_and_asks_to_join() -> None:
    """Each step follows the answer to the one before."""
    bench = Bench()
    bench.give(v.Start())
    assert [type(command) for command in bench.taken()] == [v.FindLeader]
    bench.give(FOUND)
    assert [type(command) for command in bench.taken()] == [v.Dial]
    bench.give(v.Connected())
    (request,) = bench.said()
    assert isinstance(request, m.JoinRequest)
    assert (request.resumes_round, request.term) == (0, NO_TERM)
    assert request.meant_for == "n1"


def test_the_first_beat_follows_the_acceptance_at_once() -> None:
    """The lease of the first round must not wait for a beat interval."""
    bench = Bench()
    bench.give(v.Start(), FOUND, v.Connected())
    bench.commands.clear()
    bench.give(ACCEPTED)
    assert bench.commands == [v.Send(message=m.Heartbeat(count=1, echo=0))]


def test_a_record_is_accepted_and_its_start_starts_workers_with_their_lease() -> None:
    """The keeper knows its deadline before there is anything to kill."""
    bench = joined()
    bench.give(APPEND)
    assert bench.said() == [m.RecordAccepted(term=TERM, number=7)]
    bench.give(STARTED)
    lease, start = bench.told()
    assert lease == ports.LeaseExtended(until=105.0)
    assert isinstance(start, ports.StartWorkers)
    assert start.assignment.group_rank == 1
    assert start.assignment.store_port == 99
    assert (start.assignment.restart_count, start.assignment.max_restarts) == (1, 1)


def test_a_decided_round_without_a_store_starts_nothing() -> None:
    """To be decided says who may go on; to be started, that no worker of before can run."""
    bench = joined()
    bench.give(APPEND, replace(STARTED, store_address="", store_port=0))
    bench.expect(group=GroupPhase.ACCEPTED)
    bench.give(STARTED)
    bench.expect(group=GroupPhase.RUNNING)


@pytest.mark.parametrize(
    "term", [Term(3, "n1"), Term(4, "n0"), Term(4, "n3"), Term(5, "n1")], ids=str
)
@pytest.mark.parametrize(
    "order",
    [
        replace(APPEND, record=replace(ROUND, number=9, round=9)),
        m.RecordDecided(term=TERM, number=7, store_address="x", store_port=1),
        m.StopRound(term=TERM, round=7, grace_s=1.0, reason=""),
        m.Dismissed(term=TERM, reason="", is_final=False),
        m.Dismissed(term=TERM, reason="", is_final=True),
        m.LeaderResigned(term=TERM, reason=""),
        m.Standby(term=TERM, number=9, round=8, reason="", restarts_used=1, roster=()),
        m.DialPeers(term=TERM, number=1, peers=ROUND.roster),
        append_end(),
    ],
    ids=lambda order: type(order).__name__,
)
def test_orders_of_another_term_change_nothing(order: m.StopRound, term: Term) -> None:
    """The leader that this node has joined gives orders under its own."""
    bench = running()
    bench.give(replace(order, term=term))
    assert bench.taken() == []
    bench.expect(ConnectionPhase.JOINED, GroupPhase.RUNNING)


def test_orders_before_the_acceptance_change_nothing() -> None:
    """The process at that address may say anything, in any order."""
    bench = Bench()
    bench.give(v.Start(), FOUND, v.Connected())
    bench.taken()
    bench.give(APPEND, STARTED, append_end(), m.StopRound(term=TERM, round=0, grace_s=0, reason=""))
    assert bench.taken() == []
    bench.expect(ConnectionPhase.JOINING, GroupPhase.NONE)


def test_what_was_never_accepted_is_not_decided() -> None:
    """Neither a round nor the end: another record, or none."""
    bench = joined()
    bench.give(STARTED)
    assert bench.taken() == []
    bench.give(APPEND)
    bench.taken()
    bench.give(replace(STARTED, number=8), replace(STARTED, number=6))
    assert bench.taken() == []
    bench.expect(ConnectionPhase.JOINED, GroupPhase.ACCEPTED)


def test_an_acceptance_of_an_older_term_is_not_believed() -> None:
    """A leader with an older term than this node has obeyed was replaced."""
    bench = running()
    bench.give(v.ConnectionLost(reason="reset"), v.Connected())
    bench.give(replace(RESUMED, term=Term(3, "n9"), leader="n9"))
    bench.expect(ConnectionPhase.RESTING)


def test_with_contact_lost_it_holds_dials_again_and_resumes() -> None:
    """SIGSTOP first, then the network; the join request names the round it stands by."""
    bench = running()
    bench.give(v.ConnectionLost(reason="reset"))
    hold, dial = bench.taken()
    assert isinstance(hold, v.Notify)
    assert isinstance(hold.notice, ports.HoldWorkers)
    assert dial == v.Dial(address="n1", port=1)
    bench.give(v.Connected())
    (request,) = bench.said()
    assert isinstance(request, m.JoinRequest)
    assert (request.resumes_round, request.term) == (7, TERM)
    bench.give(RESUMED)
    assert bench.told()[-1] == ports.ReleaseWorkers(round=7)


def test_it_fences_at_the_deadline_it_told_the_keeper() -> None:
    """Both look at the same moment; the first one kills."""
    bench = running()
    bench.pass_time(until=104.74)
    assert not bench.told()
    bench.pass_time(until=104.76)
    assert [type(notice) for notice in bench.told()] == [ports.Fence]


def test_after_fencing_it_joins_as_a_newcomer_and_not_before_all_is_dead() -> None:
    """A join request that resumes nothing is a promise that nothing runs."""
    bench = running()
    bench.pass_time(until=106.0)
    assert not [c for c in bench.taken() if isinstance(c, v.Dial | v.FindLeader)]
    bench.give(ports.WorkersGone(round=7))
    assert [type(command) for command in bench.taken()] == [v.FindLeader]
    bench.give(FOUND, v.Connected())
    request = bench.said()[-1]
    assert isinstance(request, m.JoinRequest)
    assert (request.resumes_round, request.number, request.restarts_used) == (0, 7, 1)


def test_whom_it_looked_for_when_it_began_to_fence_is_not_dialled() -> None:
    """A join request that resumes the round would be answered by it, and start it once more."""
    bench = running(replace(SETTINGS, quorum="granted"))
    bench.give(m.LeaderResigned(term=TERM, reason="n1 left", left=True))
    while bench.follower.group is not GroupPhase.FENCING:
        wake = bench.follower.wake_at()
        assert wake is not None
        bench.pass_time(wake)
        assert bench.now < 110.0, "its lease has ended"
        if bench.follower.connection is ConnectionPhase.SEEKING and bench.now < 104.0:
            bench.give(v.LeaderNotFound(reason="nobody is named"))
    bench.taken()
    bench.give(v.LeaderFound(leader=leader_address("n3", 5)))
    bench.pass_time(bench.now + 1.0)
    assert not [each for each in bench.taken() if isinstance(each, v.Dial | v.FindLeader)]
    bench.give(ports.WorkersGone(round=7))
    bench.expect(ConnectionPhase.SEEKING)


def test_a_tombstone_of_the_leader_ends_the_search() -> None:
    """Its keeper says that its agent has ended: without succession the job is lost."""
    bench = running()
    bench.give(v.ConnectionLost(reason="reset"))
    bench.taken()
    bench.give(v.DialFailed(reason="tombstone", outcome=v.Outcome.TOMBSTONE))
    last = over(bench)
    assert last.result == "lost"
    assert "lost n1 (n1:1)" in last.reason


@pytest.mark.parametrize("outcome", [v.Outcome.REFUSED, v.Outcome.SILENT])
def test_a_port_that_refuses_proves_nothing(outcome: v.Outcome) -> None:
    """The leader may be behind a firewall for a moment."""
    bench = running()
    bench.give(v.ConnectionLost(reason="reset"), v.DialFailed(reason="x", outcome=outcome))
    bench.expect(ConnectionPhase.RESTING, GroupPhase.RUNNING)


def test_a_node_that_never_joined_gives_up_after_the_join_timeout() -> None:
    """It names the last problem."""
    bench = Bench()
    bench.give(v.Start())
    while bench.follower.connection is not ConnectionPhase.OVER:
        bench.give(v.LeaderNotFound(reason="connection refused"), after_s=1.0)
        bench.pass_time(until=bench.now + 0.2)
        assert bench.now < 200.0
    last = over(bench)
    assert last.result == "lost"
    assert "no leader was reached within 60 s (connection refused)" in last.reason
    assert 160.0 <= bench.now < 162.0


def test_a_node_that_gives_up_names_the_address_that_did_not_answer() -> None:
    """Behind a firewall the endpoint may answer, and the leader not."""
    bench = Bench()
    bench.give(v.Start())
    silent = v.DialFailed(reason="no answer within 5 s", outcome=v.Outcome.SILENT)
    while bench.follower.connection is not ConnectionPhase.OVER:
        bench.give(FOUND, silent, after_s=1.0)
        bench.pass_time(until=bench.now + 0.2)
        assert bench.now < 200.0
    assert "(n1 (n1:1): no answer within 5 s)" in over(bench).reason


def test_a_driver_that_breaks_its_promise_to_answer_is_not_waited_for_for_ever() -> None:
    """Lookups, dials and join requests have a deadline here too."""
    bench = Bench()
    bench.give(v.Start())
    bench.pass_time(until=107.0)
    bench.expect(ConnectionPhase.SEEKING)  # asked again
    assert len([c for c in bench.taken() if isinstance(c, v.FindLeader)]) == 2
    bench.give(FOUND)
    bench.pass_time(until=120.0)  # the dial is given up, and the leader looked for again
    asked = [type(c) for c in bench.taken() if isinstance(c, v.Hangup | v.FindLeader)]
    assert asked[:2] == [v.Hangup, v.FindLeader]
    bench.give(FOUND, v.Connected())
    bench.pass_time(until=bench.now + 12.0)
    asked = [type(c) for c in bench.taken() if isinstance(c, v.Hangup | v.FindLeader)]
    assert asked[:2] == [v.Hangup, v.FindLeader]


def test_a_repeated_record_is_accepted_again_and_a_repeated_start_starts_nothing_twice() -> None:
    """What is said again after a reconnection harms nothing."""
    bench = joined()
    bench.give(APPEND, APPEND)
    assert bench.said() == 2 * [m.RecordAccepted(term=TERM, number=7)]
    bench.give(STARTED, APPEND, STARTED)
    assert len([each for each in bench.told() if isinstance(each, ports.StartWorkers)]) == 1


def test_with_workers_it_is_in_no_other_round() -> None:
    """Those of the round before have to be gone first, whatever a leader says."""
    bench = running()
    next_round = replace(ROUND, number=8, round=8)
    bench.give(m.AppendRecord(term=TERM, record=next_round, base=ROUND))
    assert bench.taken() == []
    bench.give(m.StopRound(term=TERM, round=7, grace_s=0, reason="n3 came"))
    bench.give(ports.WorkersGone(round=7))
    bench.taken()
    bench.give(m.AppendRecord(term=TERM, record=next_round, base=ROUND))
    assert bench.said() == [m.RecordAccepted(term=TERM, number=8)]
    bench.expect(group=GroupPhase.ACCEPTED)


def test_a_round_is_started_as_the_record_that_made_it_says() -> None:
    """The process at a leader's address might name others later: no failure of ours."""
    bench = joined()
    without = replace(ROUND, number=8, roster=ROUND.roster[:1])
    bench.give(APPEND, m.AppendRecord(term=TERM, record=without, base=FOUNDING))
    bench.give(replace(STARTED, number=8))
    (start,) = (each for each in bench.told() if isinstance(each, ports.StartWorkers))
    assert start.assignment.roster == ROUND.roster


def test_a_round_is_never_started_twice() -> None:
    """However often it is proposed again after its workers are gone."""
    bench = running()
    bench.give(m.StopRound(term=TERM, round=7, grace_s=0, reason="n3 came"))
    bench.give(ports.WorkersGone(round=7))
    bench.taken()
    again = replace(ROUND, number=8)
    bench.give(m.AppendRecord(term=TERM, record=again, base=ROUND), replace(STARTED, number=8))
    assert not bench.told()
    bench.expect(group=GroupPhase.GONE)


def test_an_old_record_is_not_accepted_again() -> None:
    """What was proposed before the newest one was withdrawn, or is decided and followed."""
    bench = joined()
    bench.give(APPEND)
    bench.taken()
    bench.give(m.AppendRecord(term=TERM, record=replace(ROUND, number=6, round=6), base=FOUNDING))
    assert bench.taken() == []


def test_the_store_of_a_round_is_opened_by_group_rank_0_alone() -> None:
    """This node is rank 1 of round 7, and rank 0 of round 8."""
    bench = joined()
    bench.give(APPEND)
    assert not bench.told()
    alone = replace(ROUND, number=8, round=8, roster=ROUND.roster[1:])
    bench.give(m.AppendRecord(term=TERM, record=alone, base=FOUNDING))
    assert bench.told() == [ports.OpenStore(round=8, world_size=1)]
    bench.give(ports.StoreOpened(round=7, address="x", port=5))
    assert not bench.said()
    bench.give(ports.StoreOpened(round=8, address="x", port=5))
    assert bench.said() == [ports.StoreOpened(round=8, address="x", port=5)]


def test_after_the_last_word_nothing_is_said_or_done() -> None:
    """The machine is finished, whatever still arrives."""
    bench = running()
    bench.give(append_end(result="succeeded"), m.RecordDecided(term=TERM, number=8))
    assert over(bench).result == "succeeded"
    bench.give(STARTED, v.TimePassed(), ports.WorkersGone(round=7), after_s=100.0)
    assert bench.taken() == []
    assert bench.follower.wake_at() is None


def test_its_own_leader_needs_no_lease() -> None:
    """In one process, nothing can come between them: no deadline, and no loss by silence."""
    bench = Bench()
    here = v.LeaderFound(leader=leader_address("n2", 4))
    term = here.leader.term
    bench.give(v.Start(), here, v.Connected())
    bench.give(replace(ACCEPTED, term=term, leader="n2"))
    record = replace(ROUND, term=term, origin=term)
    bench.give(m.AppendRecord(term=term, record=record, base=FOUNDING))
    bench.give(replace(STARTED, term=term))
    assert ports.LeaseExtended(until=None) in bench.told()
    bench.pass_time(until=1000.0)
    bench.expect(group=GroupPhase.RUNNING)


def test_a_spare_knows_how_many_restarts_were_used() -> None:
    """It may be the only one that is left of the job, and joins who serves the endpoint again."""
    bench = joined()
    bench.give(m.Standby(term=TERM, number=7, round=7, reason="full", restarts_used=1, roster=()))
    bench.taken()
    bench.give(v.ConnectionLost(reason="reset"), v.Connected())
    (request,) = bench.said()
    assert isinstance(request, m.JoinRequest)
    assert (request.number, request.restarts_used) == (7, 1)


def test_a_leader_that_is_named_under_less_than_was_promised_is_told_so_once_a_lease() -> None:
    """It was elected without this voter, which binds no lower term; it stands again (Raft 5.1)."""
    bench = following()
    bench.give(m.LeaderResigned(term=TERM, reason="x", higher=9))
    request = m.Question(run_id="r", term=Term(9, "n3"), is_pre_vote=False)
    bench.give(v.Asked(connection=1, question=request))
    bench.taken()
    dials = []
    until = bench.now + 2.5 * SETTINGS.lease_s
    while bench.now < until:
        if bench.follower.connection is ConnectionPhase.SEEKING:
            bench.give(v.LeaderFound(leader=leader_address("n1", 8)))
        if bench.follower.connection is ConnectionPhase.DIALING:
            dials.append(bench.now)
            bench.give(v.Connected())
            requests = [each for each in bench.said() if isinstance(each, m.JoinRequest)]
            assert [each.term for each in requests] == [Term(9, "n3")]
            bench.give(v.ConnectionLost(reason="it leads no more"))
        bench.pass_time(bench.now + 0.1)
        bench.give(ports.WorkersGone(round=7))
    assert 2 <= len(dials) <= 3
    assert all(later - earlier >= SETTINGS.lease_s for earlier, later in itertools.pairwise(dials))


def test_a_follower_in_contact_turns_to_nobody() -> None:
    """Its leader says itself when it leads no more (R15)."""
    bench = following()
    for counter in (1, 5, 2**40):
        bench.give(v.LeaderHeard(leader=leader_address("evil", counter)))
    assert not bench.taken()
    bench.give(v.ConnectionLost(reason="reset"))
    bench.taken()
    bench.give(v.LeaderHeard(leader=leader_address("n3", 5)))
    assert v.Hangup() in bench.taken()


def test_without_succession_no_word_moves_a_node_that_has_lost_its_leader() -> None:
    """No other node can be elected, and the endpoint names the node that serves it again."""
    bench = running()
    bench.give(v.ConnectionLost(reason="reset"))
    bench.taken()
    bench.give(v.LeaderHeard(leader=leader_address("n3", 5)))
    assert not bench.taken()


@pytest.mark.parametrize("phase", ConnectionPhase)
def test_only_listed_changes_of_the_connection_are_possible(phase: ConnectionPhase) -> None:
    """Anything else is a bug, and leaves everything as it was."""
    for target in set(ConnectionPhase) - CONNECTION_ALLOWED[phase]:
        follower = Follower(node=NODE, settings=SETTINGS)
        follower._connection.phase = phase
        with pytest.raises(AssertionError, match="cannot go"):
            follower._connection.become(target)
        assert follower.connection is phase


@pytest.mark.parametrize("phase", GroupPhase)
def test_only_listed_changes_of_the_worker_group_are_possible(phase: GroupPhase) -> None:
    """Anything else is a bug, and leaves everything as it was."""
    for target in set(GroupPhase) - GROUP_ALLOWED[phase]:
        follower = Follower(node=NODE, settings=SETTINGS)
        follower._group.phase = phase
        with pytest.raises(AssertionError, match="cannot go"):
            follower._group.become(target)
        assert follower.group is phase
