"""What goes over a connection comes out the same, and nothing else comes in."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.consensus.records import KnownJob
from pytest_elastic.rendezvous.driver.questions import outcome_of
from pytest_elastic.rendezvous.messages import BadMessage, LeaderAddress, decode, encode
from pytest_elastic.rendezvous.vocabulary import Outcome, WriteRecord
from pytest_elastic.wire import Message, Value
from tests.unit.rendezvous.message_samples import ANSWER, MESSAGES, REQUEST, STORE, VOTE

BEAT = m.Heartbeat(count=1, echo=0)
REQUEST_NODE = encode(REQUEST)["node"]
PRE_VOTE = m.Question(run_id="r", term=STORE.term, is_pre_vote=True)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_is_sent_is_what_arrives(message: Message) -> None:
    """Encoding, JSON and decoding change nothing."""
    assert decode(json.loads(json.dumps(encode(message)))) == message


def test_there_is_a_sample_of_every_kind() -> None:
    """No message can be added without going through the test above."""
    assert {type(message) for message in MESSAGES} == set(m._CLASS_OF.values())


@pytest.mark.parametrize("kind", [*m._CLASS_OF.values(), KnownJob, WriteRecord, LeaderAddress])
def test_no_number_is_larger_than_can_be_written_and_counted(kind: type[Value]) -> None:
    """Every number that another process may say has bounds."""
    assert "ge=None" not in repr(msgspec.inspect.type_info(kind))


def changed(message: Message, **fields: object) -> dict[str, Any]:
    """Return an encoded message with some fields replaced."""
    return {**encode(message), **fields}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "format None"),
        (changed(BEAT, format=1), "format 1: this node speaks format 4. All nodes of a job need"),
        (changed(BEAT, format=99), "format 99: this node speaks format 4"),
        ({"format": 4}, "unknown kind None"),
        ({"format": 4, "kind": ["heartbeat"]}, "unknown kind ['heartbeat']"),
        ({"format": 4, "kind": "hello"}, "unknown kind 'hello'"),
        ({"format": 4, "kind": "heartbeat", "count": 1}, "missing required field `echo`"),
        (changed(BEAT, more=1), "cannot read a heartbeat: Object contains unknown field `more`"),
        (changed(BEAT, count=True), "Expected `int`, got `bool` - at `$.count`"),
        (changed(BEAT, count=2**63), "Expected `int` <= 9223372036854775807 - at `$.count`"),
        (changed(BEAT, lease_s=float("nan")), "at `$.lease_s`"),
        (changed(BEAT, lease_s=10**400), "at `$.lease_s`"),
        (changed(PRE_VOTE, term=[3]), "`array` of length 2, got 1 - at `$.term`"),
        (changed(PRE_VOTE, term=["3", "i"]), "Expected `int`, got `str` - at `$.term[0]`"),
        (changed(REQUEST, node={"name": "n"}), "`incarnation` - at `$.node`"),
        (changed(REQUEST, node={**REQUEST_NODE, "x": 1}), "unknown field `x` - at `$.node`"),
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
        decode({"format": m.FORMAT, "kind": "x" * 10_000})
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
