"""What a stranger tells that no job comes to is not believed (R15)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.ballot import Ballot
from pytest_elastic.rendezvous.belief import is_believable
from pytest_elastic.rendezvous.coordinator_phases import Phase
from pytest_elastic.rendezvous.greeting import settings_as_values
from tests.unit.rendezvous.test_coordinator import Bench, node
from tests.unit.rendezvous.test_member import FOUND, SETTINGS
from tests.unit.rendezvous.test_member import Bench as MemberBench

_MOST = 2**63 - 1


def _running() -> Bench:
    bench = Bench(2, 3, quorum="majority")
    bench.greet(1, 2)
    bench.now = 2.0
    bench.give(v.TimePassed())
    bench.run_round(1, 2)
    assert bench.machine.phase is Phase.RUNNING
    return bench


def _stranger(bench: Bench, **fields: int) -> m.Hello:
    settings = settings_as_values(bench.settings)
    return m.Hello(run_id="r", node=node(3), settings=settings, **fields)  # type: ignore[arg-type]


def _refusals(bench: Bench) -> list[str]:
    sent = [c.message for c in bench.commands if isinstance(c, v.SendTo)]
    return [message.reason for message in sent if isinstance(message, m.Refusal)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"term": _MOST}, f"it tells of term {_MOST}, to which no job comes"),
        ({"term": 2**33}, f"it tells of term {2**33}, to which no job comes"),
        ({"sealed_term": _MOST, "sealed_round": 1}, f"of term {_MOST}"),
        ({"sealed_term": 1, "sealed_round": _MOST}, f"of round {_MOST}"),
        ({"newest_round": _MOST}, f"it tells of round {_MOST}, to which no job comes"),
        ({"resumes_round": 2**40}, f"it tells of round {2**40}"),
        ({"restarts_used": 2}, "it tells of 2 restarts, and 1 are allowed"),
    ],
)
def test_a_greeting_that_tells_of_what_no_job_comes_to_is_refused(
    fields: dict[str, int], said: str
) -> None:
    """Nothing else comes of it: the coordinator decides on, under its own term and numbers."""
    bench = _running()
    bench.say(3, _stranger(bench, **fields))
    (reason,) = _refusals(bench)
    assert reason.startswith("cannot join run 'r' as node 'n3': ")
    assert said in reason
    assert bench.machine.phase is Phase.RUNNING
    bench.now = 2.1
    bench.greet(3)
    assert bench.sent(m.Welcome) == [1, 2, 3]


def test_a_greeting_that_may_be_true_is_believed() -> None:
    """A node of another side of the job has promised more."""
    bench = _running()
    bench.say(3, _stranger(bench, term=5, newest_round=9, restarts_used=1))
    assert not _refusals(bench)
    assert bench.machine.phase is Phase.DEPOSED


def test_a_coordinator_that_knows_of_no_round_believes_more() -> None:
    """It may have come back to a job that has gone far, but not as far as numbers go."""
    bench = Bench(2, 3)
    bench.say(3, _stranger(bench, newest_round=2**40))
    bench.say(4, replace(_stranger(bench, newest_round=_MOST), node=node(4)))
    assert bench.sent(m.Welcome) == [3]
    assert bench.sent(m.Refusal) == [4]


def test_nobody_votes_under_a_term_that_no_election_gets_to() -> None:
    """Once it is promised, no higher one could be named."""
    bench = Bench(2, 3, quorum="majority")
    ballot = Ballot(bench.settings, "i1")
    ballot.join(3, "i2")

    def asked(term: int) -> m.VoteAnswer:
        question = m.VoteRequest(run_id="r", term=term, candidate="i3", is_trial=False)
        return ballot.answer(question, 1.0, place=None, patience_s=0.0, ending=None)

    answer = asked(_MOST)
    assert (answer.is_granted, answer.reason) == (False, f"no election gets to term {_MOST}")
    assert ballot.promised == 3
    assert asked(4).is_granted


def test_nobody_gives_way_to_an_announcement_of_a_term_that_no_election_gets_to() -> None:
    """Neither who decides, nor a member that is well where it is."""
    bench = _running()
    bench.give(v.JobFound(place=_place(term=_MOST - 1)))
    assert not bench.emitted(events.CoordinatorSteppedDown)
    bench.give(v.JobFound(place=_place(term=7)))
    assert bench.emitted(events.CoordinatorSteppedDown)
    member = MemberBench(replace(SETTINGS, quorum="majority"))
    member.give(v.Start(), FOUND, v.Connected())
    member.give(m.Welcome(term=4, name="n2", coordinator="n1", incarnation="i1"))
    member.taken()
    member.give(v.Announced(place=_place(term=_MOST - 1)), v.Announced(place=_place(term=7)))
    assert not member.taken(), "a member that is well where it is stays, whatever is announced"
    member.give(v.ConnectionLost(reason="reset"))
    member.taken()
    member.give(v.Announced(place=_place(term=_MOST - 1)))
    assert not member.taken()
    member.give(v.Announced(place=_place(term=7)))
    assert v.Hangup() in member.taken()


def test_an_end_that_was_never_announced_is_no_end() -> None:
    """Whoever serves at the coordinator's port may say anything, in any order."""
    member = MemberBench(replace(SETTINGS, quorum="majority"))
    member.give(v.Start(), FOUND, v.Connected())
    member.give(m.Welcome(term=4, name="n2", coordinator="n1", incarnation="i1"))
    member.taken()
    member.give(m.JobEnded(term=4))
    assert not member.taken()


def _place(*, term: int) -> m.Place:
    return m.Place(term=term, name="evil", incarnation="i9", address="127.0.0.1", port=9)


def test_how_far_a_job_may_have_come() -> None:
    """Far beyond what is known; and never so far that no number is left for what follows."""
    assert is_believable(3 + 2**32, known=3)
    assert not is_believable(4 + 2**32, known=3)
    assert is_believable(2**61, known=0)
    assert not is_believable(2**61 + 1, known=0)
