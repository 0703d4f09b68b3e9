"""What a node promises and accepts, once, and how it answers who asks for its vote."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.consensus.records import End, Term
from pytest_elastic.rendezvous.consensus.voter import Voter
from tests.unit.rendezvous.samples import FOUNDING, decided, leader_address, record_of

FIRST = record_of(1, "n1", "n2", "n3")
LEADER = leader_address("n1", 1)


def running() -> Voter:
    """Return the voter of n2, which runs round 1 of n1 and has lost it."""
    voter = Voter("n2")
    voter.follow(FIRST.term)
    assert voter.accept(FIRST, FOUNDING)
    assert voter.learn_decided(decided(FIRST))
    voter.contact_at = 10.0
    return voter


def ask(
    voter: Voter,
    counter: int,
    candidate: str = "n3",
    *,
    now: float = 20.0,
    is_pre_vote: bool = False,
    leader: m.LeaderAddress | None = None,
    patience_s: float = 0.0,
) -> m.Answer:
    """Ask for a vote."""
    term = Term(counter, candidate)
    return voter.answer(term, now, is_pre_vote=is_pre_vote, leader=leader, patience_s=patience_s)


def test_of_two_terms_with_one_counter_the_lower_one_is_refused() -> None:
    """Terms are unique, so one has one leader; whose answer got lost may ask again."""
    voter = running()
    assert ask(voter, 2, "n4").is_granted
    refused = ask(voter, 2, "n3")
    assert not refused.is_granted
    assert refused.term == Term(2, "n4")
    assert ask(voter, 2, "n4").is_granted
    assert ask(voter, 3, "n3").is_granted


def test_who_has_voted_obeys_no_lower_term() -> None:
    """Neither a leader of before, nor one that was elected under less without this vote."""
    voter = running()
    ask(voter, 5, "n3")
    assert not voter.may_follow(Term(1, "n1"))
    assert not voter.may_follow(Term(5, "n1"))
    assert voter.may_follow(Term(5, "n4")), "it has won without this vote, under a higher term"
    assert not voter.accept(record_of(2, "n1", "n2"), FIRST)
    with pytest.raises(AssertionError, match="was promised"):
        voter.follow(Term(1, "n1"))


def test_a_pre_vote_promises_nothing() -> None:
    """A candidate that cannot win disturbs nobody."""
    voter = running()
    assert ask(voter, 9, is_pre_vote=True).is_granted
    assert voter.term == FIRST.term
    assert ask(voter, 2, "n4").is_granted


@pytest.mark.parametrize("is_pre_vote", [True, False])
def test_who_is_in_contact_or_may_still_be_votes_for_nobody(is_pre_vote: bool) -> None:  # noqa: FBT001
    """It says who leads, or after how long asking again makes sense."""
    voter = running()
    refused = ask(voter, 2, is_pre_vote=is_pre_vote, leader=LEADER)
    assert not refused.is_granted
    assert refused.leader == LEADER
    later = ask(voter, 2, is_pre_vote=is_pre_vote, patience_s=0.5)
    assert not later.is_granted
    assert later.patience_s == 0.5
    assert voter.term == FIRST.term


def test_nobody_votes_once_the_job_has_ended() -> None:
    """Every candidate is told the end."""
    voter = running()
    end = replace(record_of(2, "n1", "n2", "n3"), end=End(result="failed", reason="x"))
    assert voter.accept(end, FIRST)
    assert ask(voter, 2, is_pre_vote=True).is_granted, "it is not decided"
    voter.learn_decided(decided(end, is_started=False))
    answer = ask(voter, 2)
    assert (answer.is_granted, answer.base) == (False, end)


def test_a_voter_tells_when_it_was_last_in_contact_a_vote_for_another_included() -> None:
    """The node that it elected may have led since; a candidate knows that of itself."""
    voter = running()
    assert ask(voter, 2, "n3", now=20.0).contact_age_s == 10.0
    assert ask(voter, 3, "n3", now=21.0).contact_age_s == 11.0
    assert ask(voter, 4, "n4", now=23.0).contact_age_s == 2.0
    assert ask(voter, 5, "n3", now=26.0).contact_age_s == 3.0


def test_the_highest_accepted_record_is_kept_with_its_base() -> None:
    """A word that an earlier one is decided says nothing of it."""
    voter = running()
    second = record_of(2, "n1", "n2")
    assert voter.accept(second, FIRST)
    assert not voter.learn_decided(decided(FIRST))
    assert not voter.accept(FIRST, FOUNDING), "it was withdrawn, or is older"
    answer = ask(voter, 2)
    assert (answer.record, answer.base, answer.started, answer.number) == (second, FIRST, None, 2)
    assert voter.learn_decided(decided(second, is_started=False))
    answer = ask(voter, 3)
    assert (answer.base, answer.started) == (second, None)


def test_a_decided_round_that_a_successor_proposes_again_stays_decided_and_started() -> None:
    """It is the same record under another term."""
    voter = running()
    again = FIRST.under(Term(2, "n3"))
    assert voter.accept(again, FIRST)
    assert voter.base == again
    assert voter.started is not None
    assert voter.term == Term(2, "n3")


def test_who_has_accepted_nothing_and_voted_for_nobody_is_bound_by_nothing() -> None:
    """The first leader died before it proposed a round: its endpoint's next host will do."""
    voter = Voter("n2")
    voter.follow(Term(4, "n1"))
    assert voter.may_follow(Term(1, "n9"))
    voter.follow(Term(1, "n9"))
    first = record_of(1, "n9", "n2", node="n9")
    assert voter.accept(first, FOUNDING)
    assert not voter.may_follow(Term(1, "n1"))


def test_a_host_gives_its_vote_on_a_new_job_up_for_a_job_that_runs_and_nothing_else() -> None:
    """What was accepted binds it."""
    host = Voter("n2")
    host.base = FOUNDING
    ask(host, 7)
    assert not host.may_follow(Term(2, "n1"))
    host.give_way()
    assert host.may_follow(Term(2, "n1"))
    voter = running()
    ask(voter, 7)
    voter.give_way()
    assert voter.term == Term(7, "n3")


def test_a_restart_is_used_when_the_round_that_it_starts_is_started() -> None:
    """One that is withdrawn has cost nothing; who is elected must not go on with its price."""
    voter = running()
    charged = replace(record_of(2, "n1", "n2", "n3"), restart_count=1)
    assert voter.accept(charged, FIRST)
    assert voter.restarts_used == 0
    assert voter.learn_decided(decided(charged, is_started=False))
    assert voter.restarts_used == 0
    assert voter.learn_decided(decided(charged))
    assert voter.restarts_used == 1
