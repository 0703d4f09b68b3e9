"""Whatever others say, in any order, is refused or believed, and never a failure of ours (R15)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.records import NO_TERM, Configuration, End, Record, Term
from pytest_elastic.rendezvous.model import Failure
from tests.unit.rendezvous.follower.bench import FOUND, SETTINGS
from tests.unit.rendezvous.follower.bench import Bench as FollowerBench
from tests.unit.rendezvous.leader.bench import Bench as LeaderBench
from tests.unit.rendezvous.leader.bench import running
from tests.unit.rendezvous.samples import entries, leader_address

QUORUMS = pytest.mark.parametrize("quorum", ["coordinator", "majority", "granted"])
NAMES = ("n1", "n2", "n3")
TERMS = st.sampled_from([NO_TERM, Term(4, "n1"), Term(4, "n3"), Term(5, "n1")])
NUMBERS = st.integers(-1, 3)
NODES = st.lists(st.sampled_from(NAMES), max_size=4)
FLAGS = st.booleans()
FAILURE = Failure(node="n1", rank=0, local_rank=0, pid=1, exit_code=1)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Return a record with anything in it."""
    return Record(
        term=draw(TERMS),
        origin=draw(TERMS),
        number=draw(NUMBERS),
        round=draw(NUMBERS),
        roster=entries(*draw(NODES)),
        configuration=Configuration(
            voters=tuple(draw(NODES)), tie_breaker=draw(st.sampled_from(NAMES))
        ),
        restart_count=draw(NUMBERS),
        end=draw(st.sampled_from([None, None, End(result="failed", reason="x")])),
    )


@st.composite
def decided(draw: st.DrawFn) -> m.RecordDecided:
    """Return the word that something is decided."""
    return m.RecordDecided(
        term=draw(TERMS),
        number=draw(NUMBERS),
        store_address="x",
        store_port=draw(st.integers(0, 1)),
    )


@st.composite
def orders(draw: st.DrawFn) -> object:
    """Return what somebody at the leader's address may say."""
    term, number = draw(TERMS), draw(NUMBERS)
    return draw(
        st.sampled_from(
            [
                m.JoinAccepted(
                    term=term,
                    name="n2",
                    leader="n1",
                    resumed=draw(FLAGS),
                    is_over=draw(FLAGS),
                    is_founding=draw(FLAGS),
                    number=number,
                    lease_s=draw(st.sampled_from([None, -1.0, 0.0, 1.0])),
                ),
                m.Dismissed(term=term, reason="x", is_final=False),
                m.Heartbeat(
                    count=number, echo=draw(NUMBERS), lease_s=draw(st.sampled_from([None, 0.0]))
                ),
                m.DialPeers(term=term, number=number, peers=entries(*draw(NODES))),
                m.AppendRecord(term=term, record=draw(records()), base=draw(records())),
                draw(decided()),
                m.StopRound(term=term, round=number, grace_s=0.0, reason="x"),
                m.Standby(
                    term=term,
                    number=number,
                    round=number,
                    reason="x",
                    restarts_used=0,
                    roster=entries(*draw(NODES)),
                ),
                ports.PeerDraining(node="n1", grace_s=0.0),
                m.Dismissed(term=term, reason="x", is_final=False),
                m.LeaderResigned(
                    term=term,
                    reason="x",
                    left=draw(FLAGS),
                    successor=draw(st.sampled_from(["", *NAMES])),
                    higher=number,
                ),
            ]
        )
    )


@st.composite
def words_at_the_door(draw: st.DrawFn) -> v.FollowerInput:
    """Return what comes to a follower from others than its leader."""
    term = draw(TERMS)
    leader = leader_address(draw(st.sampled_from(NAMES)), 5, is_founding=draw(FLAGS))
    request = m.Question(run_id="r", term=term, is_pre_vote=draw(FLAGS))
    record, base = draw(st.none() | records()), draw(st.none() | records())
    vote = m.Answer(
        term=term,
        incarnation="n3",
        is_granted=draw(FLAGS),
        reason="",
        record=record,
        base=base,
        started=draw(st.none() | decided()),
        number=draw(NUMBERS),
        restarts_used=0,
        contact_age_s=draw(st.sampled_from([None, -1.0, 0.0])),
        patience_s=0.0,
        leader=draw(st.sampled_from([None, leader])),
    )
    said: list[v.FollowerInput] = [
        v.LeaderHeard(leader=leader),
        v.EndHeard(record=draw(records())),
        v.Asked(connection=1, question=m.Question(run_id="r")),
        v.Asked(connection=1, question=request),
        v.Answered(incarnation="n3", outcome=v.Outcome.ALIVE, answer=vote, term=term),
    ]
    return draw(st.sampled_from(said))


@st.composite
def turns(draw: st.DrawFn) -> str:
    """Return what the driver, or the agent, says next."""
    return draw(st.sampled_from(["order", "order", "order", "door", "answer", "time", "lost"]))


@QUORUMS
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_word_of_others_is_a_failure_of_a_follower(quorum: str, data: st.DataObject) -> None:
    """From a process at its leader's address, or one that calls at its own port."""
    bench = FollowerBench(replace(SETTINGS, quorum=quorum))
    bench.give(v.Start(), FOUND, v.Connected())
    votes: list[v.Ask] = []
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(turns()):
            case "order":
                bench.give(v.MessageReceived(message=data.draw(orders())))  # type: ignore[arg-type]
            case "door":
                bench.give(data.draw(words_at_the_door()))
            case "time":
                bench.pass_time(bench.now + data.draw(st.sampled_from([0.2, 1.0, 6.0])))
            case "lost":
                bench.give(v.ConnectionLost(reason="x"))
            case _:
                _go_on(bench, votes, data)


def _go_on(bench: FollowerBench, votes: list[v.Ask], data: st.DataObject) -> None:
    """Answer what the follower has asked for, as the driver and the agent do."""
    for command in bench.taken():
        match command:
            case v.FindLeader():
                bench.give(FOUND)
            case v.Dial():
                bench.give(v.Connected())
            case v.Ask():
                votes.append(command)
            case v.Notify(notice=ports.Fence(round=round_) | ports.StopWorkers(round=round_)):
                bench.give(ports.WorkersGone(round=round_))
            case v.Notify(notice=ports.OpenStore(round=round_)):
                bench.give(ports.StoreOpened(round=round_, address="x", port=1))
            case _:
                pass
    while votes:
        asked = votes.pop()
        answered = data.draw(words_at_the_door())
        if isinstance(answered, v.Answered):
            answered = replace(answered, term=asked.term, is_pre_vote=asked.is_pre_vote)
            bench.give(replace(answered, incarnation=asked.node.incarnation))


@st.composite
def reports(draw: st.DrawFn) -> object:
    """Return what somebody who has joined may say, or not."""
    term, number = draw(st.sampled_from([Term(1, "i1"), NO_TERM])), draw(NUMBERS)
    said: list[Any] = [
        m.Heartbeat(count=number, echo=draw(NUMBERS)),
        m.RecordAccepted(term=term, number=number),
        m.PeersDialled(
            term=term, number=number, unreached={draw(st.sampled_from(["i1", "x"])): "y"}
        ),
        ports.StoreOpened(round=number, address="x", port=1),
        ports.StoreFailed(round=number, reason="x"),
        ports.GroupSucceeded(round=number),
        ports.GroupFailed(round=number, failures=draw(st.sampled_from([(), (FAILURE,)]))),
        ports.WorkersGone(round=number),
        ports.DrainRequested(reason="x", grace_s=draw(st.sampled_from([-1.0, 0.0, 5.0]))),
        draw(decided()),
        draw(orders()),
    ]
    return draw(st.sampled_from(said))


@QUORUMS
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_word_of_others_is_a_failure_of_a_leader(quorum: str, data: st.DataObject) -> None:
    """From a member, and from a peer that has just connected."""
    low = 2 if data.draw(FLAGS) else 1
    bench: LeaderBench = (
        running(1, 2, low=2, quorum=quorum)
        if quorum != "granted" and data.draw(FLAGS)
        else LeaderBench(low, 3, quorum=quorum)
    )
    if quorum == "granted":
        bench.give(v.LeaseExtended(until=1e9))
    for _ in range(data.draw(st.integers(1, 25))):
        connection = data.draw(st.integers(1, 5))
        match data.draw(st.sampled_from(["report", "report", "join", "lost", "time", "probe"])):
            case "report":
                bench.say(connection, data.draw(reports()))
            case "join":
                changed = {
                    "resumes_round": data.draw(NUMBERS),
                    "number": data.draw(NUMBERS),
                    "restarts_used": data.draw(NUMBERS),
                    "meant_for": data.draw(st.sampled_from(["", "i1", "x"])),
                }
                bench.say(connection, bench.request(data.draw(st.integers(1, 4)), **changed))
            case "lost":
                bench.give(v.PeerLost(connection=connection, reason="x"))
            case "time":
                bench.now += data.draw(st.sampled_from([0.1, 1.0, 6.0]))
                bench.give(v.TimePassed())
            case _:
                outcome = data.draw(st.sampled_from(v.Outcome))
                number = data.draw(st.integers(1, 4))
                probed = v.Answered(incarnation=f"i{number}", outcome=outcome)
                bench.give(probed)
