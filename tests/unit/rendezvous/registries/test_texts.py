"""What is written down where others look is read as it was, or is nothing of ours (R15)."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec.structs import replace

from pytest_elastic.credentials import Credentials
from pytest_elastic.rendezvous.consensus.records import KnownJob
from pytest_elastic.rendezvous.messages import LeaderAddress
from pytest_elastic.rendezvous.model import Node
from pytest_elastic.rendezvous.registries.registry import as_text, read_text, why_unread
from pytest_elastic.rendezvous.vocabulary import WriteRecord
from tests.unit.rendezvous.message_samples import LEADER, RECORD, STORE

OURS = Credentials.of_job(b"the token of this job", "job")
THEIRS = Credentials.of_job(b"the token of another", "job")
HOST = Node(name="n1", incarnation="i1", address="10.0.0.1", port=4000, slots=2)
WRITTEN = WriteRecord(record=RECORD, decided=STORE)
SIGNED_OR_NOT = pytest.mark.parametrize("credentials", [None, OURS], ids=["unsigned", "signed"])


@SIGNED_OR_NOT
def test_what_was_written_down_is_read_as_it_was(credentials: Credentials | None) -> None:
    """Where somebody is, and records; each as what it is only."""
    for value in (HOST, LEADER, WRITTEN):
        text = as_text(value, "job", credentials)
        assert read_text(type(value), text, "job", credentials) == value
        assert read_text(KnownJob, text, "job", credentials) is None


@pytest.mark.parametrize("value", [HOST, LEADER, WRITTEN], ids=["host", "leader", "record"])
def test_what_nobody_of_the_job_has_signed_is_not_read(value: object) -> None:
    """Not without a token, with another, for another run, or with one number changed."""
    signed = as_text(value, "job", OURS)
    forged = json.loads(signed)
    if isinstance(value, WriteRecord):
        forged["record"]["restart_count"] = 1
    else:
        forged["port"] = 1
    for text, run_id in (
        (as_text(value, "job", None), "job"),
        (as_text(value, "job", THEIRS), "job"),
        (signed, "another"),
        (json.dumps(forged), "job"),
        (json.dumps(forged | {"signature": 7}), "job"),
    ):
        assert read_text(type(value), text, run_id, OURS) is None
    assert read_text(type(value), signed, "job", None) == value, "who has no token looks at none"


def test_what_was_signed_as_something_else_is_not_read() -> None:
    """The same fields, but another thing: a host is no leader."""
    fields = {
        **msgspec.to_builtins(LEADER),
        "signature": OURS.sign("host_address", "job", as_json(LEADER)),
    }
    assert read_text(LeaderAddress, json.dumps(fields), "job", OURS) is None
    fields["signature"] = OURS.sign("leader_address", "job", as_json(LEADER))
    assert read_text(LeaderAddress, json.dumps(fields), "job", OURS) == LEADER


def as_json(value: object) -> str:
    """Return what is signed of a value."""
    return json.dumps(msgspec.to_builtins(value), sort_keys=True)


@SIGNED_OR_NOT
@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("term", '[Infinity, "i1"]'),  # Python's JSON reads it, and no whole number is made of it
        ("term", '[1e999, "i1"]'),
        ("term", '[NaN, "i1"]'),
        ("term", f'[{"9" * 4300}, "i1"]'),  # one more has too many digits to be written
        ("term", '[9223372036854775808, "i1"]'),
        ("term", '[true, "i1"]'),
        ("term", "3"),
        ("port", "Infinity"),
        ("port", '"3"'),
        ("port", "null"),
        ("name", "null"),
        ("is_founding", "0"),
        ("more", "1"),
    ],
)
def test_what_is_nothing_of_ours_is_none(
    field: str, text: str, credentials: Credentials | None
) -> None:
    """Whatever a stranger has put there, nothing is raised."""
    published = json.loads(as_text(LEADER, "job", OURS))
    fields = {name: json.dumps(value) for name, value in published.items()}
    fields[field] = text
    said = ", ".join(f'"{name}": {value}' for name, value in fields.items())
    assert read_text(LeaderAddress, f"{{{said}}}", "job", credentials) is None


@SIGNED_OR_NOT
@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[1]", "7", "{}", "x", "[" * 100_000, '{"port": 1}', "\0"]
)
def test_what_is_no_object_is_none(text: str, credentials: Credentials | None) -> None:
    """Deep as it may be."""
    assert read_text(LeaderAddress, text, "job", credentials) is None
    assert read_text(WriteRecord, text, "job", credentials) is None


def test_a_record_that_another_token_has_signed_says_so() -> None:
    """The option is named, and what to try; a forged record looks the same."""
    assert why_unread(as_text(LEADER, "job", THEIRS), "at a:1", OURS) == (
        "the record of node 'n1' at a:1 is signed with another token than the one that this node "
        "was given (--rdzv-token-file), or is forged. Give all nodes of the job the same "
        "token"
    )


def test_a_record_that_nobody_has_signed_says_so() -> None:
    """Only this side has a token, as far as can be known."""
    assert why_unread(as_text(LEADER, "job", None), "there", OURS) == (
        "the record of node 'n1' there is not signed, and this node was given a token "
        "(--rdzv-token-file): the job has none, or the record is not the job's. Give all nodes of "
        "the job the same token, or none"
    )


@SIGNED_OR_NOT
@pytest.mark.parametrize("text", ["", "{}", "7\x1b[2J", "x" * 60, "x" * 61, "[" * 100_000])
def test_what_is_no_record_is_shown_and_is_harmless(
    text: str, credentials: Credentials | None
) -> None:
    """Its quotes are closed, it moves no cursor, and it is cut where it is long."""
    said = why_unread(text, "at a:1", credentials)
    assert said == (
        f"what stands at a:1 names no leader of a job, it is {text[:60]!r}"
        f"{' and more' if len(text) > 60 else ''}. Give the job a --rdzv-endpoint of its own"
    )
    assert said.isprintable()


def test_a_name_in_a_record_is_harmless() -> None:
    """A stranger may have written it."""
    leader = replace(LEADER, name="\x1b[2J" + "n" * 10_000)
    said = why_unread(as_text(leader, "job", None), "at a:1", OURS)
    assert said.isprintable()
    assert len(said) < 400
