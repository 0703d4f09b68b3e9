"""A claim that no job can reach is not believed, whichever node makes it (R15)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.consensus.records import Term
from pytest_elastic.rendezvous.messages import Known, is_believable, what_is_unbelievable
from pytest_elastic.wire import Message
from tests.unit.rendezvous.message_samples import ANSWER, LEADER, MESSAGES, RECORD, REQUEST, VOTE

KNOWN = Known(counter=3, round=2, max_restarts=3)
NOTHING = Known(counter=0, round=0, max_restarts=3)
FAR = 2**40
FAR_TERM = Term(FAR, "x")
APPEND = m.AppendRecord(term=RECORD.term, record=RECORD, base=RECORD)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (replace(REQUEST, term=FAR_TERM), "term"),
        (replace(REQUEST, number=FAR), "number"),
        (replace(REQUEST, resumes_round=FAR), "resumes_round"),
        (replace(REQUEST, restarts_used=4), "4 restarts, and 3 are allowed"),
        (replace(VOTE, term=FAR_TERM), "term"),
        (replace(VOTE, record=replace(RECORD, origin=FAR_TERM)), "term"),
        (replace(VOTE, record=replace(RECORD, term=FAR_TERM)), "term"),
        (replace(VOTE, record=replace(RECORD, number=FAR)), "number"),
        (replace(VOTE, base=replace(RECORD, round=FAR)), "round"),
        (replace(VOTE, record=replace(RECORD, restart_count=4)), "4 restarts"),
        (replace(VOTE, restarts_used=4), "4 restarts"),
        (replace(VOTE, number=FAR), "number"),
        (replace(ANSWER, leader=replace(LEADER, term=FAR_TERM)), "term"),
        (replace(ANSWER, base=replace(RECORD, number=FAR)), "number"),
        (replace(ANSWER, number=FAR), "number"),
        (replace(APPEND, base=replace(RECORD, round=FAR)), "round"),
        (m.LeaderResigned(term=Term(3, "i1"), reason="", higher=FAR), "term"),
        (m.Question(run_id="job", leader=replace(LEADER, term=FAR_TERM)), "term"),
        (m.Question(run_id="job", term=FAR_TERM, is_pre_vote=False), "term"),
    ],
)
def test_what_no_job_comes_to_is_not_believed(message: Message, says: str) -> None:
    """Wherever in a message it stands."""
    problem = what_is_unbelievable(message, KNOWN)
    assert problem is not None
    assert says in problem


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("known", [KNOWN, NOTHING], ids=["known", "nothing known"])
def test_what_a_job_comes_to_is_believed(message: Message, known: Known) -> None:
    """Also by a node that knows of no job."""
    assert what_is_unbelievable(message, known) is None


def test_who_knows_of_no_job_believes_more() -> None:
    """It may have come back to a job that has gone far, but not as far as numbers go."""
    assert what_is_unbelievable(replace(REQUEST, number=FAR), NOTHING) is None
    assert what_is_unbelievable(replace(REQUEST, number=2**63 - 1), NOTHING) is not None
    assert what_is_unbelievable(replace(REQUEST, term=Term(2**62, "x")), NOTHING) is not None


def test_how_far_a_job_may_have_come() -> None:
    """Far beyond what is known; and never so far that no number is left for what follows."""
    assert is_believable(3 + 2**32, known=3)
    assert not is_believable(4 + 2**32, known=3)
    assert is_believable(2**61, known=0)
    assert not is_believable(2**61 + 1, known=0)
