"""What goes over a connection comes out the same, and nothing else comes in."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pytest_elastic.rendezvous import codec, ports
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.codec import BadMessage, decode, encode, outcome_of
from pytest_elastic.rendezvous.vocabulary import Outcome
from tests.unit.rendezvous.message_samples import ANSWER, MESSAGES, REQUEST, STORE, VOTE

BEAT = m.Heartbeat(count=1, echo=0)
PRE_VOTE = m.VoteRequest(run_id="r", term=STORE.term, is_pre_vote=True)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_sent_is_what_arrives(message: object) -> None:
    """Encoding, JSON and decoding change nothing."""
    assert decode(json.loads(json.dumps(encode(message)))) == message


def test_there_is_a_sample_of_every_kind() -> None:
    """No message can be added without going through the test above."""
    assert {type(message) for message in MESSAGES} == set(codec._TYPE_OF.values())


def changed(message: object, **fields: object) -> dict[str, Any]:
    """Return an encoded message with some fields replaced."""
    return {**encode(message), **fields}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "format None"),
        (changed(BEAT, format=1), "format 1: this node speaks format 3. All nodes of a job need"),
        (changed(BEAT, format=99), "format 99: this node speaks format 3"),
        ({"format": 3}, "unknown kind None"),
        ({"format": 3, "kind": ["heartbeat"]}, "unknown kind ['heartbeat']"),
        ({"format": 3, "kind": "hello"}, "unknown kind 'hello'"),
        ({"format": 3, "kind": "heartbeat", "count": 1}, "echo"),
        (changed(BEAT, more=1), "heartbeat: unknown field 'more'"),
        (changed(BEAT, count=True), "heartbeat.count: int is expected, found True"),
        (changed(BEAT, count="1"), "heartbeat.count: int is expected, found '1'"),
        (changed(BEAT, count=1.0), "heartbeat.count: int is expected, found 1.0"),
        (changed(BEAT, lease_s=float("nan")), "heartbeat.lease_s: a finite number is expected"),
        (changed(BEAT, count=-(2**63)), "heartbeat.count: a number of 64 bits is expected"),
        (
            changed(ports.PeerDraining(node="n", grace_s=1.0), grace_s=10**400),
            "peer_draining.grace_s: a number of 64 bits is expected, found 1000",
        ),
        (changed(PRE_VOTE, is_pre_vote=1), "vote_request.is_pre_vote: bool is expected, found 1"),
        (changed(PRE_VOTE, term=3), "vote_request.term: Term is expected, found 3"),
        (changed(PRE_VOTE, term=[3]), "vote_request.term: Term is expected, found [3]"),
        (changed(PRE_VOTE, term=["3", "i"]), "vote_request.term: int is expected, found '3'"),
        (changed(PRE_VOTE, term=[3, "i", 1]), "vote_request.term: Term is expected"),
        (changed(PRE_VOTE, term=[2**63, "i"]), "vote_request.term: a number of 64 bits"),
        (changed(REQUEST, settings={"x": None}), "join_request.settings.x"),
        (changed(REQUEST, node={"name": "n"}), "join_request.node: "),
        (changed(STORE, unaware="i2"), "record_decided.unaware: a list is expected"),
        (changed(ANSWER, ended={"term": [1, "i"]}), "status_answer.ended: "),
        (changed(ANSWER, leader=[1]), "status_answer.leader: an object is expected"),
    ],
)
def test_what_is_not_exactly_a_message_is_refused_with_the_reason(
    fields: dict[str, Any], message: str
) -> None:
    """The message names the field and what was found."""
    with pytest.raises(BadMessage) as refused:
        decode(fields)
    assert message in refused.value.message


def test_a_hostile_text_does_not_fill_the_log() -> None:
    """What is quoted is cut."""
    with pytest.raises(BadMessage) as refused:
        decode({"format": codec.FORMAT, "kind": "x" * 10_000})
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("answer", "asked", "shows"),
    [
        (ANSWER, "i1", Outcome.ALIVE),
        (ANSWER, "i2", Outcome.REFUSED),
        (replace(ANSWER, is_tombstone=True), "i1", Outcome.TOMBSTONE),
        (replace(ANSWER, is_tombstone=True), "i2", Outcome.REFUSED),
        (VOTE, "i1", Outcome.ALIVE),
        (VOTE, "i2", Outcome.REFUSED),
        (VOTE, "", Outcome.ALIVE),
        (STORE, "i1", Outcome.REFUSED),
        (None, "i1", Outcome.REFUSED),
    ],
)
def test_an_answer_counts_as_that_of_who_was_asked_only(
    answer: object, asked: str, shows: Outcome
) -> None:
    """Another agent behind the port of a lost one speaks for itself; hosts are asked as such."""
    assert outcome_of(answer, asked) is shows
