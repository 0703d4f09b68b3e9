"""What goes over a connection comes out the same, and nothing else comes in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports, wire
from pytest_elastic.rendezvous.model import Electorate, Failure, Node, RosterEntry
from pytest_elastic.rendezvous.wire import BadMessage, decode, encode

NODE = Node(name="n1", incarnation="i1", address="::1", port=7, slots=2, pinned=3)
ENTRY = RosterEntry(name="n1", incarnation="i1", address="::1", slots=2)
FAILURE = Failure(node="n1", rank=0, local_rank=0, pid=9, exit_code=-9, timestamp=1795000000)
SEAL = m.Seal(
    term=2,
    round=4,
    roster=(ENTRY,),
    spares=("n9",),
    restart_count=1,
    max_restarts=3,
    sealed_by="i1",
    electorates=(Electorate(term=1, round=3, coordinator="i1", members=(ENTRY,)),),
    idle_rounds=1,
)
COMMIT = m.Commit(term=2, round=4, store_address="n1", store_port=5)
PLACE = m.Place(term=2, name="n1", incarnation="i1", address="::1", port=7)

SAMPLES: list[m.Message] = [
    m.Beat(count=3, echo=2),
    m.Commit(term=1, round=2, store_address="n1", store_port=5),
    m.EndAcknowledged(term=1),
    m.Evicted(term=1, round=2, reason="silent"),
    m.Hello(run_id="r", node=NODE, settings={"max_nodes": 3, "lease_s": 1.5, "quorum": "x"}),
    m.JobEnded(term=1),
    m.JobEnding(term=1, result="failed", reason="ü", first_failure=FAILURE),
    m.JobEnding(term=1, result="succeeded", reason=""),
    m.LeaveGranted(term=1, reason="SIGTERM"),
    m.ProbeAnswer(incarnation="i1", is_tombstone=True),
    m.ProbeRequest(run_id="r", incarnation="i1"),
    m.Refusal(term=1, reason="no", is_final=True),
    m.Seal(term=1, round=2, roster=(ENTRY,), spares=("n9",), restart_count=0, max_restarts=3),
    m.SealAcknowledged(term=1, round=2),
    m.SpareNotice(term=1, round=2, reason="full", restarts_used=1, roster=(ENTRY,)),
    m.StopOrder(term=1, round=2, grace_s=3, reason="n2 came"),
    m.Welcome(
        term=1, name="n1-2", coordinator="n1", incarnation="i1", resumed=True, newest_round=4
    ),
    ports.DrainRequested(reason="SIGTERM", grace_s=30.0),
    ports.GroupFailed(round=2, failures=(FAILURE, FAILURE)),
    ports.GroupSucceeded(round=2),
    ports.PeerDraining(node="n2", grace_s=1.0),
    ports.StoreFailed(round=2, reason="no port"),
    ports.StoreOpened(round=2, address="n1", port=5),
    ports.WorkersGone(round=2),
    SEAL,
    m.CheckPeers(term=1, number=7, peers=(ENTRY,), answer_within_s=5.0),
    m.PeersChecked(term=1, number=7, unreached={"i2": "silent"}),
    m.Announcement(run_id="r", place=PLACE),
    m.Beat(count=3, echo=2, grant_s=0.5),
    m.PlaceAnswer(place=None),
    m.PlaceAnswer(place=PLACE),
    m.PlaceAnswer(place=None, ending=m.JobEnding(term=1, result="failed", reason="x")),
    m.PlaceRequest(run_id="r"),
    m.StepDown(term=1, reason="SIGTERM", left="i1", successor="i2"),
    m.VoteAnswer(term=1, voter="i1", is_granted=False, reason="n1 decides", place=PLACE),
    m.VoteAnswer(
        term=2,
        voter="i1",
        is_granted=True,
        reason="",
        seal=SEAL,
        commit=COMMIT,
        newest_round=4,
        restarts_used=1,
        contact_age_s=0.5,
        ending=m.JobEnding(term=1, result="lost", reason="x"),
    ),
    m.VoteRequest(run_id="r", term=2, candidate="i1", is_trial=True),
    m.JobEnding(term=1, result="succeeded", reason="", members=(ENTRY,)),
    m.ProbeRequest(
        run_id="r", incarnation="i1", ended=m.JobEnding(term=1, result="lost", reason="x")
    ),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_what_is_sent_is_what_arrives(message: m.Message) -> None:
    """Encoding, JSON and decoding change nothing."""
    assert decode(json.loads(json.dumps(encode(message)))) == message


def test_there_is_a_sample_of_every_kind() -> None:
    """No message can be added without going through the test above."""
    assert {type(message) for message in SAMPLES} == set(wire._TYPE_OF.values())


def changed(message: m.Message, **fields: object) -> dict[str, Any]:
    """Return an encoded message with some fields replaced."""
    return {**encode(message), **fields}


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "format None"),
        ({"format": 99, "kind": "beat"}, "format 99: this node speaks format 1"),
        ({"format": 1}, "unknown kind None"),
        ({"format": 1, "kind": ["beat"]}, "unknown kind ['beat']"),
        ({"format": 1, "kind": "assignment"}, "unknown kind 'assignment'"),
        ({"format": 1, "kind": "beat", "count": 1}, "echo"),
        (changed(m.Beat(count=1, echo=0), more=1), "beat: unknown field 'more'"),
        (changed(m.Beat(count=1, echo=0), count=True), "beat.count: int is expected, found True"),
        (changed(m.Beat(count=1, echo=0), count="1"), "beat.count: int is expected, found '1'"),
        (changed(m.Beat(count=1, echo=0), count=1.0), "beat.count: int is expected, found 1.0"),
        (changed(m.JobEnded(term=1), term=None), "job_ended.term: int is expected"),
        (
            changed(ports.PeerDraining(node="n", grace_s=1.0), grace_s=float("nan")),
            "peer_draining.grace_s: a finite number is expected",
        ),
        (
            changed(ports.PeerDraining(node="n", grace_s=1.0), grace_s=10**400),
            "peer_draining.grace_s: a number of 64 bits is expected, found 1000",
        ),
        (
            changed(m.JobEnded(term=1), term=-(2**63)),
            "job_ended.term: a number of 64 bits is expected, found -9223372036854775808",
        ),
        (changed(SAMPLES[12], roster=[[1]]), "seal.roster[0]: an object is expected"),
        (changed(SAMPLES[12], spares="n9"), "seal.spares: a list is expected"),
        (changed(SAMPLES[6], first_failure={"node": 1}), "job_ending.first_failure.node: str"),
        (changed(SAMPLES[4], settings={"x": None}), "hello.settings.x"),
    ],
)
def test_what_is_not_exactly_a_message_is_refused_with_the_reason(
    fields: dict[str, Any], complaint: str
) -> None:
    """The complaint names the field and what was found."""
    with pytest.raises(BadMessage) as refused:
        decode(fields)
    assert complaint in refused.value.message


def test_a_hostile_text_does_not_fill_the_log() -> None:
    """What is quoted is cut."""
    with pytest.raises(BadMessage) as refused:
        decode({"format": 1, "kind": "x" * 10_000})
    assert len(refused.value.message) < 200
