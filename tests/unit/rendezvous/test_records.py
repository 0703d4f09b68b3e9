"""What stands at an endpoint is read, or is nothing of ours (R15)."""

from __future__ import annotations

import dataclasses
import json

import pytest

from pytest_elastic.credentials import Credentials
from pytest_elastic.rendezvous.founding_vocabulary import Claim
from pytest_elastic.rendezvous.messages import Place
from pytest_elastic.rendezvous.records import as_text, read_record, why_unread

PLACE = Place(term=3, name="n1", incarnation="i1", address="10.0.0.1", port=4000)
CLAIM = Claim(count=7, rank=1, is_final=True)
OURS = Credentials.of_job(b"a token of sixteen bytes", "r")


@pytest.mark.parametrize("credentials", [None, OURS])
@pytest.mark.parametrize("claim", [None, CLAIM])
def test_what_is_published_is_read(credentials: Credentials | None, claim: Claim | None) -> None:
    """A place, or a claim; signed or not."""
    record = read_record(as_text(PLACE, "r", credentials, claim=claim), "r", credentials)
    assert record is not None
    assert (record.place, record.claim) == (PLACE, claim)


@pytest.mark.parametrize("credentials", [None, OURS])
@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("term", "Infinity"),  # Python's JSON reads it, and no whole number is made of it
        ("term", "1e999"),
        ("term", "NaN"),
        ("term", "9" * 4300),  # one more has too many digits to be written
        ("term", "9223372036854775808"),
        ("term", "-1"),
        ("term", '"3"'),
        ("term", "true"),
        ("port", "Infinity"),
        ("port", "65536"),
        ("port", "-1"),
        ("name", "null"),
        ("claim", '{"count": Infinity, "rank": 0, "is_final": false}'),
        ("claim", '{"count": 1, "rank": 0}, "claim": []'),
        ("claim", "{}"),
    ],
)
def test_what_is_nothing_of_ours_is_none(
    field: str, text: str, credentials: Credentials | None
) -> None:
    """Whatever a stranger has put there, nothing is raised."""
    fields = {name: json.dumps(value) for name, value in json.loads(_published()).items()}
    fields[field] = text
    said = ", ".join(f'"{name}": {value}' for name, value in fields.items())
    assert read_record(f"{{{said}}}", "r", credentials) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "{}", "[" * 100_000, '{"claim": {}}', "\0"])
def test_what_is_no_object_is_none(text: str) -> None:
    """Deep as it may be."""
    assert read_record(text, "r", None) is None


def test_a_record_that_another_token_has_signed_says_so() -> None:
    """The option is named, and what to try; a forged record looks the same."""
    theirs = as_text(PLACE, "r", Credentials.of_job(b"another token of sixteen", "r"))
    assert read_record(theirs, "r", OURS) is None
    assert why_unread(theirs, "at a:1", OURS) == (
        "the record of node 'n1' at a:1 is signed with another token than the one that this node "
        "was given (--rdzv-token-file), or by somebody else. Give all nodes of the job the same "
        "token"
    )


@pytest.mark.parametrize("claim", [None, CLAIM])
def test_a_record_that_nobody_has_signed_says_so(claim: Claim | None) -> None:
    """Only this side has a token, as far as can be known."""
    assert why_unread(as_text(PLACE, "r", None, claim=claim), "there", OURS) == (
        "the record of node 'n1' there is not signed, and this node was given a token "
        "(--rdzv-token-file): the job has none, or somebody else wrote that. Give all nodes of the "
        "job the same token, or none"
    )


@pytest.mark.parametrize("credentials", [None, OURS])
@pytest.mark.parametrize("text", ["", "{}", "7\x1b[2J", "x" * 60, "x" * 61, "[" * 100_000])
def test_what_is_no_record_is_shown_and_is_harmless(
    text: str, credentials: Credentials | None
) -> None:
    """Its quotes are closed, it moves no cursor, and it is cut where it is long."""
    said = why_unread(text, "at a:1", credentials)
    assert said == (
        f"what stands at a:1 names no coordinator of a job, it is {text[:60]!r}"
        f"{' and more' if len(text) > 60 else ''}. Give the job a --rdzv-endpoint of its own"
    )
    assert said.isprintable()


def test_a_name_in_a_record_is_harmless() -> None:
    """A stranger may have written it."""
    place = dataclasses.replace(PLACE, name="\x1b[2J" + "n" * 10_000)
    said = why_unread(as_text(place, "r", None), "at a:1", OURS)
    assert said.isprintable()
    assert len(said) < 400


def _published() -> str:
    return as_text(PLACE, "r", OURS, claim=CLAIM)
