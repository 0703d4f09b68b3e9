"""What is written down for whoever follows: read back as it was, or not at all."""

from __future__ import annotations

import json

import pytest

from pytest_elastic.backends.written_round import WrittenRound, end_as_text, read_end, read_round
from pytest_elastic.credentials import Credentials
from pytest_elastic.rendezvous.messages import Commit, JobEnding, Seal
from pytest_elastic.rendezvous.model import RosterEntry

ROSTER = (RosterEntry(name="n1", incarnation="a", address="10.0.0.1", slots=2, port=5),)
WRITTEN = WrittenRound(
    coordinator="n1",
    seal=Seal(term=3, round=7, roster=ROSTER, spares=(), restart_count=2, max_restarts=5),
    commit=Commit(term=3, round=7, store_address="10.0.0.1", store_port=6),
)
ENDING = JobEnding(term=4, result="failed", reason="rank 1 on n2 failed", first_failure=None)
OURS = Credentials.of_job(b"a token of this job", "job")


@pytest.mark.parametrize("credentials", [None, OURS], ids=["plain", "signed"])
def test_a_round_is_read_as_it_was_written(credentials: Credentials | None) -> None:
    """With its roster, its numbers, and who decided it."""
    assert read_round(WRITTEN.as_text("job", credentials), "job", credentials) == WRITTEN


def test_what_nobody_of_the_job_has_signed_is_no_record() -> None:
    """Not without a token, with another, for another job, or with one number changed."""
    signed = WRITTEN.as_text("job", OURS)
    forged = json.loads(signed)
    forged["seal"]["restart_count"] = 0
    for text, run_id in (
        (WRITTEN.as_text("job", None), "job"),
        (WRITTEN.as_text("job", Credentials.of_job(b"another token of it", "job")), "job"),
        (signed, "other"),
        (json.dumps(forged), "job"),
    ):
        assert read_round(text, run_id, OURS) is None
    assert read_round(signed, "job", None) == WRITTEN, "who has no token looks at no signature"


@pytest.mark.parametrize("text", ["", "{}", "7", "[" * 9000, '{"seal": {}, "commit": {}}'])
def test_what_is_no_record_is_none(text: str) -> None:
    """Whatever it is: somebody else can write there."""
    assert read_round(text, "job", None) is None
    seal_twice = json.loads(WRITTEN.as_text("job", None))
    seal_twice["commit"] = seal_twice["seal"]
    assert read_round(json.dumps(seal_twice), "job", None) is None


@pytest.mark.parametrize("credentials", [None, OURS], ids=["plain", "signed"])
def test_an_end_is_read_as_it_was_written(credentials: Credentials | None) -> None:
    """With its term, which says for whom it is one."""
    assert read_end(end_as_text(ENDING, "job", credentials), "job", credentials) == ENDING


def test_what_nobody_of_the_job_has_signed_is_no_end() -> None:
    """Nor is what was signed as something else, nor a round, nor nothing."""
    signed = end_as_text(ENDING, "job", OURS)
    forged = json.loads(signed)
    forged["ending"]["result"] = "succeeded"
    as_a_round = {**json.loads(WRITTEN.as_text("job", OURS)), "ending": forged["ending"]}
    for text, run_id in (
        (end_as_text(ENDING, "job", None), "job"),
        (signed, "other"),
        (json.dumps(forged), "job"),
        (json.dumps(as_a_round), "job"),
        (WRITTEN.as_text("job", OURS), "job"),
        ("", "job"),
        ("7", "job"),
        ("[" * 9000, "job"),
    ):
        assert read_end(text, run_id, OURS) is None
    assert read_end(signed, "job", None) == ENDING, "who has no token looks at no signature"
