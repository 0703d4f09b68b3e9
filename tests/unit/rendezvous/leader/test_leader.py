"""The leader by itself: many members at once, and members that misbehave."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import Term
from pytest_elastic.rendezvous.leader.state import LEADER_ALLOWED, LeaderPhase
from tests.unit.rendezvous.leader.bench import TERM, Bench, node, running
from tests.unit.rendezvous.samples import leader_address


def test_messages_per_node_and_round_do_not_grow_with_the_number_of_nodes() -> None:
    """Accepted, record, start, stop, and the question before a round: however many there are."""
    per_node = set()
    for count in (3, 30, 300):
        bench = Bench(count, count)
        numbers = range(1, count + 1)
        bench.join(*numbers)
        round_ = bench.run_round(*numbers)
        bench.now = 60.0
        bench.say(2, ports.WorkersGone(round=round_))
        to = Counter(c.connection for c in bench.commands if isinstance(c, v.SendTo))
        per_node.add(max(to.values()))
        assert len(bench.commands) < 8 * count
    assert per_node == {6}


def test_a_round_of_ten_thousand_nodes_is_started_and_stopped_in_seconds() -> None:
    """No step looks at all nodes unless it says something to all of them."""
    count = 10_000
    bench = Bench(count, count)
    numbers = range(1, count + 1)
    began = time.process_time()
    bench.join(*numbers)
    round_ = bench.run_round(*numbers)
    bench.now = 4.0
    for number in numbers:
        bench.say(number, m.Heartbeat(count=1, echo=0))
    bench.say(7, ports.WorkersGone(round=round_))
    for number in numbers:
        bench.say(number, ports.WorkersGone(round=round_))
    assert len(bench.sent(m.AppendRecord)) == 2 * count
    assert time.process_time() - began < 10.0


def test_a_member_that_never_says_whom_it_reaches_is_left_out_after_two_leases() -> None:
    """It beats, so that it is not lost; once it answers, it is in the next round."""
    bench = Bench(2, 3)
    bench.never_dials.add(3)
    bench.join(1, 2, 3)
    for second in range(1, 11):
        assert not bench.sent(m.AppendRecord)
        bench.now = float(second)
        bench.beat(1, 2, 3)
    assert sorted(bench.sent(m.AppendRecord)) == [1, 2]
    assert bench.emitted(events.PeersUnreached) == 1
    bench.run_round(1, 2)
    bench.never_dials.clear()
    while not bench.sent(m.StopRound) and bench.now < 60.0:
        bench.now += 1.0
        bench.beat(1, 2, 3)
    assert bench.sent(m.StopRound) == [1, 2]


def test_a_member_that_sends_orders_is_disconnected_and_asked() -> None:
    """A message that only a leader may send ends the connection of any other sender."""
    bench = running(1, 2, 3)
    bench.say(2, m.RecordDecided(term=TERM, number=1))
    assert v.Disconnect(connection=2) in bench.commands
    assert [c.node.name for c in bench.commands if isinstance(c, v.Ask)] == ["n2"]


def test_words_of_an_unknown_connection_are_not_heard() -> None:
    """Only members have a say."""
    bench = running(1, 2)
    bench.say(99, ports.WorkersGone(round=1))
    bench.say(99, m.Heartbeat(count=1, echo=0))
    bench.say(99, m.RecordAccepted(term=TERM, number=1))
    assert bench.commands == []


@pytest.mark.parametrize(
    "stale",
    [
        ports.WorkersGone(round=7),
        ports.GroupSucceeded(round=7),
        ports.GroupFailed(round=7, failures=()),
        ports.StoreOpened(round=1, address="a", port=5),
        m.RecordAccepted(term=TERM, number=1),
        m.RecordAccepted(term=TERM, number=99),
        m.PeersDialled(term=TERM, number=99, unreached={"i1": "silent"}),
    ],
    ids=repr,
)
def test_news_of_another_round_or_time_change_nothing(stale: m.Report) -> None:
    """What arrives late, twice or from nowhere is not believed."""
    bench = running(1, 2)
    bench.say(2, stale)
    assert bench.commands == []
    bench.expect(LeaderPhase.RUNNING)


@pytest.mark.parametrize("term", [Term(0, "i1"), Term(1, "i0"), Term(1, "i2"), Term(2, "i1")])
def test_an_acceptance_under_another_term_starts_no_round(term: Term) -> None:
    """The sender obeys another leader."""
    bench = Bench(2, 2)
    bench.join(1, 2)
    record = bench.accept(1).record
    bench.say(1, ports.StoreOpened(round=1, address="a", port=5))
    bench.say(2, m.RecordAccepted(term=term, number=record.number))
    bench.expect(LeaderPhase.STARTING)
    assert v.Disconnect(connection=2) in bench.commands


def test_a_store_that_another_than_group_rank_0_has_opened_starts_no_round() -> None:
    """All would be sent to an address of its choice."""
    bench = Bench(2, 2)
    bench.join(1, 2)
    bench.accept(1, 2)
    bench.say(2, ports.StoreOpened(round=1, address="b", port=6))
    bench.expect(LeaderPhase.STARTING)


def test_where_a_key_grants_nobody_is_told_to_start_or_to_end_before_that_is_written() -> None:
    """Who follows goes on with what stands there."""
    bench = Bench(1, 2, quorum="granted")
    bench.give(v.LeaseExtended(until=1000.0))
    bench.join(1, 2)
    bench.run_round(1, 2)
    (order,) = (each for each in bench.commands if isinstance(each, v.WriteRecord))
    bench.expect(LeaderPhase.STARTING)
    assert not bench.sent(m.RecordDecided)
    bench.give(v.RecordWritten(number=order.record.number))
    assert bench.sent(m.RecordDecided) == [1, 2]
    assert {each.store_port for each in bench.messages(m.RecordDecided)} == {5}
    bench.commands.clear()
    _ended(bench, 1, 2)
    bench.accept(1, 2)
    (order,) = (each for each in bench.commands if isinstance(each, v.WriteRecord))
    assert not bench.sent(m.RecordDecided)
    bench.give(v.RecordWritten(number=order.record.number))
    assert bench.sent(m.RecordDecided) == [1, 2]


def test_without_its_own_agent_the_leader_ends_the_job() -> None:
    """Nobody in its own process takes part any more: it cannot go on serving the others."""
    bench = running(1, 2)
    bench.give(v.PeerLost(connection=1, reason="the follower hung up"))
    assert bench.sent(m.StopRound) == [2]
    bench.say(2, ports.WorkersGone(round=1))
    bench.give(v.Answered(incarnation="i1", outcome=v.Outcome.REFUSED))
    (append,) = bench.messages(m.AppendRecord)
    assert append.record.end is not None
    assert append.record.end.result == "lost"


def test_whoever_was_given_up_and_came_back_may_follow_one_that_leaves() -> None:
    """It is a newcomer, and has its vote in the last round still; the other is out of reach."""
    bench = running(1, 2, 3, low=3, quorum="majority")
    bench.say(22, bench.request(2))
    bench.give(v.PeerLost(connection=3, reason="reset"))
    bench.say(1, ports.WorkersGone(round=1))
    bench.say(1, ports.DrainRequested(reason="SIGTERM", grace_s=5.0))
    bench.accept(1, 22)
    (resigned,) = bench.messages(m.LeaderResigned, to=22)
    assert (resigned.successor, resigned.left) == ("i2", True)
    bench.expect(LeaderPhase.DEPOSED)


def test_a_probe_that_is_answered_late_changes_nothing() -> None:
    """The suspect is back: whatever dialling it showed is out of date, but for a tombstone."""
    bench = running(1, 2)
    bench.give(v.PeerLost(connection=2, reason="reset"))
    bench.say(12, bench.request(2, resumes_round=1))
    bench.give(v.Answered(incarnation="i2", outcome=v.Outcome.REFUSED))
    assert bench.emitted(events.MemberLost) == 0
    bench.give(v.Answered(incarnation="i2", outcome=v.Outcome.TOMBSTONE))
    assert bench.emitted(events.MemberLost) == 1


def test_a_second_connection_of_a_member_replaces_the_first() -> None:
    """The member saw its connection end before the leader did."""
    bench = running(1, 2)
    bench.say(12, bench.request(2, resumes_round=1))
    assert v.Disconnect(connection=2) in bench.commands
    assert bench.sent(m.JoinAccepted) == [12]
    bench.give(v.PeerLost(connection=2, reason="closed"))
    bench.expect(LeaderPhase.RUNNING)
    assert not [c for c in bench.commands if isinstance(c, v.Ask)]


@pytest.mark.parametrize(
    ("resumes_round", "is_resumed"), [(1, True), (0, False), (2, None)], ids=repr
)
def test_with_workers_a_member_resumes_only_the_round_it_was_given(
    *, resumes_round: int, is_resumed: bool | None
) -> None:
    """Else it has fenced itself, and is a newcomer, or is to kill first."""
    bench = running(1, 2)
    bench.say(12, bench.request(2, resumes_round=resumes_round))
    assert [each.resumed for each in bench.messages(m.JoinAccepted)] == (
        [] if is_resumed is None else [is_resumed]
    )
    assert bool(bench.emitted(events.MemberLost)) is not bool(is_resumed)
    assert (12 in bench.refusals) is (is_resumed is None)


def test_a_join_request_that_is_meant_for_another_is_hung_up_on() -> None:
    """Nobody here has the promise that it gave."""
    bench = running(1, 2, low=2, quorum="majority")
    bench.say(9, bench.request(9, meant_for="i0", term=Term(7, "i0")))
    assert bench.commands == [v.Disconnect(connection=9)]


def _ended(bench: Bench, *numbers: int) -> None:
    """Let the workers of all succeed, and these accept the end."""
    for number in numbers:
        bench.say(number, ports.GroupSucceeded(round=1))
    bench.expect(LeaderPhase.ENDING)


def test_who_comes_after_finished_is_told_how_the_job_has_ended() -> None:
    """It waits for no node any more; one that comes while the agent stays is told."""
    bench = running(1, 2)
    _ended(bench, 1, 2)
    bench.accept(1, 2)
    assert bench.commands[-1] == v.Finished(result="succeeded")
    assert bench.machine.wake_at() is None
    bench.commands.clear()
    bench.join(3)
    accepted, append, decided = (c.message for c in bench.commands if isinstance(c, v.SendTo))
    assert isinstance(accepted, m.JoinAccepted)
    assert accepted.is_over
    assert isinstance(append, m.AppendRecord)
    assert append.record.end is not None
    assert append.record.end.result == "succeeded"
    assert isinstance(decided, m.RecordDecided)
    assert decided.number == append.record.number
    bench.accept(3)
    bench.give(v.PeerLost(connection=3, reason="closed"))
    assert not [c for c in bench.commands if isinstance(c, v.Finished | v.Ask)]
    assert bench.machine.wake_at() is None


@pytest.mark.parametrize("knows", [True, False])
def test_who_comes_after_the_end_is_waited_for_until_it_knows(knows: bool) -> None:  # noqa: FBT001
    """Its connection may have ended before it could read what it was told."""
    bench = running(1, 2, 3)
    _ended(bench, 1, 2, 3)
    bench.give(v.PeerLost(connection=3, reason="closed"))
    bench.accept(1, 2)
    assert bench.sent(m.RecordDecided) == [1, 2]
    bench.join(3)
    if knows:
        bench.accept(3)
    bench.give(v.PeerLost(connection=3, reason="closed"))
    has_finished = any(isinstance(command, v.Finished) for command in bench.commands)
    assert has_finished is knows


def test_an_end_that_too_few_have_accepted_is_none() -> None:
    """A successor may decide otherwise: the leader waits for a lease, and leads no more."""
    bench = running(1, 2, 3, low=2, quorum="majority")
    _ended(bench, 1, 2, 3)
    bench.accept(1)
    bench.now += bench.settings.lease_s + 0.1
    bench.give(v.TimePassed())
    assert not bench.sent(m.RecordDecided)
    bench.expect(LeaderPhase.DEPOSED)


def test_a_leader_whose_node_has_left_names_who_follows() -> None:
    """And tells whom it leads."""
    bench = running(1, 2, 3, low=2, quorum="majority")
    bench.give(v.HandOver(reason="left before taking part: SIGTERM"))
    orders = bench.messages(m.LeaderResigned)
    assert {(order.left, order.successor) for order in orders} == {(True, "i2")}
    bench.expect(LeaderPhase.DEPOSED)


def test_a_leader_that_says_how_the_job_ends_stays_for_that() -> None:
    """The node may go: it was told itself, and others may still ask."""
    bench = running(1, quorum="majority")
    _ended(bench, 1)
    bench.give(v.HandOver(reason="left: SIGTERM"))
    bench.expect(LeaderPhase.ENDING)


def test_a_leader_that_has_decided_something_gives_way_to_no_word() -> None:
    """A report that another node leads changes nothing: its lease and its voters decide."""
    bench = running(1, 2, 3, low=2, quorum="majority")
    for counter in (1, 7, 2**40):
        bench.give(v.LeaderHeard(leader=leader_address("evil", counter)))
    assert not bench.commands


@pytest.mark.parametrize(
    ("other", "gives_way"),
    [
        (leader_address("h", 1), True),
        (leader_address("h", 1, is_founding=True), False),
        (leader_address("j", 1, is_founding=True), True),
        (leader_address("a", 0), True),
    ],
    ids=["a job that runs", "a lower term", "a higher term", "a job of a lower term"],
)
def test_a_leader_that_has_decided_nothing_gives_way(
    *, other: m.LeaderAddress, gives_way: bool
) -> None:
    """To a job that runs, and to a higher term."""
    bench = Bench(2, 3, quorum="majority")
    bench.give(v.LeaderHeard(leader=other))
    bench.expect(LeaderPhase.DEPOSED if gives_way else LeaderPhase.GATHERING)


def test_who_has_promised_a_higher_term_makes_the_leader_stand_again() -> None:
    """No lower term binds that node; where nobody else can be elected, it changes nothing."""
    bench = running(1, 2, low=2, quorum="majority")
    bench.say(3, bench.request(3, term=Term(5, "i9")))
    assert {each.higher for each in bench.messages(m.LeaderResigned)} == {5}
    bench.expect(LeaderPhase.DEPOSED)
    alone = running(1, 2)
    alone.say(3, alone.request(3, term=Term(5, "i9")))
    alone.expect(LeaderPhase.RUNNING)


def test_what_was_promised_in_another_run_moves_no_leader() -> None:
    """The node is refused, with the reason."""
    bench = running(1, 2, low=2, quorum="majority")
    bench.say(3, bench.request(3, term=Term(5, "i9"), run_id="other"))
    bench.expect(LeaderPhase.RUNNING)
    assert "belongs to run 'other'" in bench.refusals[3]


def test_a_node_is_in_the_job_under_the_name_that_it_was_given() -> None:
    """Also where it asks again under its old one."""
    bench = Bench(2, 2)
    bench.join(1)
    bench.say(2, bench.request(2, node=node(1).named("n1")))
    assert not bench.refusals, "the first incarnation of n1 has the name"
    bench.say(3, bench.request(3, node=node(3).named("n1")))
    assert [each.name for each in bench.messages(m.JoinAccepted)][-1] == "n1-2"


@pytest.mark.parametrize("phase", LeaderPhase)
def test_only_listed_changes_of_the_phase_are_possible(phase: LeaderPhase) -> None:
    """Anything else is a bug, and leaves everything as it was."""
    for target in set(LeaderPhase) - LEADER_ALLOWED[phase]:
        machine = Bench(1, 1).machine
        machine.phase = phase
        with pytest.raises(AssertionError, match="cannot go"):
            machine._become(target)
        assert machine.phase is phase


def test_not_all_are_dialled_who_say_that_they_have_promised_more() -> None:
    """Anybody may say so without a token, under as many names and addresses as there are."""
    bench = Bench(2, 3, quorum="majority")
    bench.join(1)
    for number in range(10, 310):
        bench.say(number, bench.request(number, term=Term(7, f"i{number}"), meant_for="i1"))
    bench.now = 1.0
    bench.give(v.TimePassed())
    assert 0 < len([each for each in bench.commands if isinstance(each, v.Ask)]) <= 64
