"""What a node promises and acknowledges, once, and how it answers who asks for its vote."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.ballot import Ballot, voters_of
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.model import Electorate, RosterEntry, Settings
from pytest_elastic.rendezvous.succession import Succession

SETTINGS = Settings(run_id="r", min_nodes=1, max_nodes=9, max_restarts=0, quorum="majority")
PLACE = m.Place(term=1, name="n1", incarnation="n1", address="n1", port=1)


def seal(term: int, round_: int, *names: str, follows: str = "") -> m.Seal:
    """Return a seal that `n1` made, and that follows a round of the nodes named in `follows`."""
    before = tuple(
        Electorate(term=1, round=round_ - 1, coordinator="n1", members=entries(*follows.split()))
        for _ in range(1 if follows else 0)
    )
    return m.Seal(
        term=term,
        round=round_,
        roster=entries(*names),
        spares=(),
        restart_count=0,
        max_restarts=3,
        sealed_by="n1",
        electorates=before,
    )


def entries(*names: str) -> tuple[RosterEntry, ...]:
    """Return roster lines."""
    return tuple(RosterEntry(name=n, incarnation=n, address=n, slots=1, port=1) for n in names)


def commit(term: int, round_: int) -> m.Commit:
    """Return the commit of a round."""
    return m.Commit(term=term, round=round_, store_address="n1", store_port=1)


def joined() -> Ballot:
    """Return the ballot of n2, which runs round 1 of n1 and has lost it."""
    ballot = Ballot(SETTINGS, "n2")
    ballot.join(1, "n1")
    ballot.acknowledge(seal(1, 1, "n1", "n2", "n3"))
    ballot.see_commit(commit(1, 1))
    ballot.contact_at = 10.0
    return ballot


def ask(
    ballot: Ballot,
    term: int,
    candidate: str = "n3",
    *,
    now: float = 20.0,
    is_trial: bool = False,
    place: m.Place | None = None,
    patience_s: float = 0.0,
) -> m.VoteAnswer:
    """Ask for a vote."""
    request = m.VoteRequest(run_id="r", term=term, candidate=candidate, is_trial=is_trial)
    return ballot.answer(request, now, place=place, patience_s=patience_s, ending=None)


def knows_commit(ballot: Ballot) -> bool:
    """Tell whether the commit of the highest acknowledged seal was seen."""
    return ballot.commit is not None


def test_a_node_votes_once_a_term() -> None:
    """For whoever asks first; and again for the same one, whose answer may have got lost."""
    ballot = joined()
    assert ask(ballot, 2, "n3").is_granted
    refused = ask(ballot, 2, "n4")
    assert not refused.is_granted
    assert refused.term == 2
    assert ask(ballot, 2, "n3").is_granted
    assert ask(ballot, 3, "n4").is_granted


def test_who_has_voted_obeys_no_lower_term() -> None:
    """And in that term whoever has won it, but one only."""
    ballot = joined()
    ask(ballot, 5, "n3")
    assert not ballot.may_obey(1, "n1")
    assert not ballot.may_obey(4, "n4")
    assert ballot.may_obey(5, "n4")  # it has won without us
    ballot.join(5, "n4")
    assert not ballot.may_obey(5, "n3")
    assert ballot.may_obey(6, "n3")


def test_a_trial_promises_nothing() -> None:
    """A candidate that cannot win disturbs nobody."""
    ballot = joined()
    assert ask(ballot, 9, is_trial=True).is_granted
    assert ballot.promised == 1
    assert ask(ballot, 2, "n4").is_granted


@pytest.mark.parametrize("is_trial", [True, False])
def test_who_is_in_contact_or_may_still_be_votes_for_nobody(is_trial: bool) -> None:  # noqa: FBT001
    """It says who decides, or after how long asking again makes sense."""
    refused = ask(joined(), 2, is_trial=is_trial, place=PLACE)
    assert not refused.is_granted
    assert refused.place == PLACE
    later = ask(joined(), 2, is_trial=is_trial, patience_s=0.5)
    assert not later.is_granted
    assert later.patience_s == 0.5


def test_who_leaves_has_no_vote() -> None:
    """It is not counted, so it must not be."""
    ballot = joined()
    ballot.renounce()
    assert not ask(ballot, 2).is_granted


def test_a_voter_tells_when_it_was_last_in_contact_a_vote_for_another_included() -> None:
    """Whoever was elected by it may have decided since; a candidate knows that of itself."""
    ballot = joined()
    assert ask(ballot, 2, "n3", now=20.0).contact_age_s == 10.0
    assert ask(ballot, 3, "n3", now=21.0).contact_age_s == 11.0
    assert ask(ballot, 4, "n4", now=23.0).contact_age_s == 2.0
    assert ask(ballot, 5, "n3", now=26.0).contact_age_s == 3.0


def test_the_highest_acknowledged_seal_is_remembered_with_its_commit() -> None:
    """By term, then by round; a later seal is not committed by an earlier commit."""
    ballot = joined()
    assert knows_commit(ballot)
    ballot.acknowledge(seal(1, 2, "n1", "n2"))
    assert not knows_commit(ballot)
    ballot.see_commit(commit(1, 1))
    assert not knows_commit(ballot)
    ballot.acknowledge(seal(1, 1, "n1", "n2", "n3"))
    answer = ask(ballot, 2)
    assert answer.seal is not None
    assert (answer.seal.round, answer.commit, answer.newest_round) == (2, None, 2)


def test_a_committed_round_that_a_successor_repeats_stays_committed() -> None:
    """It is the same round under another term."""
    ballot = joined()
    ballot.acknowledge(seal(2, 1, "n1", "n2", "n3"))
    assert ballot.commit is not None


def test_who_has_a_say_is_the_roster_and_where_its_commit_is_not_known_those_before_it() -> None:
    """Both may be the last committed one."""
    sealed = seal(1, 2, "n2", "n3", follows="n1 n2 n3")
    [own] = voters_of(sealed, is_committed=True)
    assert [entry.name for entry in own.members] == ["n2", "n3"]
    before, own = voters_of(sealed, is_committed=False)
    assert [entry.name for entry in before.members] == ["n1", "n2", "n3"]
    assert own.coordinator == "n1"


def test_who_has_acknowledged_nothing_and_voted_for_nobody_is_bound_by_nothing() -> None:
    """The first coordinator died before it sealed a round: its endpoint's next host will do."""
    ballot = Ballot(SETTINGS, "n2")
    ballot.join(4, "n1")
    assert ballot.may_obey(1, "n9")
    ballot.join(1, "n9")
    ballot.acknowledge(seal(1, 1, "n9", "n2"))
    assert not ballot.may_obey(1, "n1")


def test_a_restart_is_used_when_the_round_that_it_starts_is_committed() -> None:
    """A seal that is given up has cost nothing; who is elected must not go on with its price."""
    ballot = joined()
    ballot.acknowledge(dataclasses.replace(seal(1, 2, "n1", "n2", "n3"), restart_count=1))
    assert ballot.restarts_used == 0
    ballot.acknowledge(dataclasses.replace(seal(1, 3, "n1", "n2"), restart_count=0))
    ballot.see_commit(commit(1, 3))
    assert ballot.restarts_used == 0


@pytest.mark.parametrize(
    ("term", "incarnation", "told"),
    [(2, "n3", 3), (2, "n1", 2), (1, "n3", 2), (3, "n3", 2)],
)
def test_of_two_coordinators_of_one_term_both_are_to_go(
    term: int, incarnation: str, told: int
) -> None:
    """Where a node has obeyed one under term 2, it tells both that it has promised another."""
    succession = Succession(SETTINGS, "n2")
    succession.ballot.acknowledge(seal(2, 1, "n1", "n2", "n3"))
    succession.join(2, "n1", 10.0)
    succession.refuse_second(term, incarnation)
    assert succession.term_to_tell(2) == told
    assert succession.must_tell(2) is (told > 2)


def test_who_comes_back_at_a_founders_address_is_no_second_coordinator() -> None:
    """It begins anew under the first term, like the one that was lost: that is not an election."""
    succession = Succession(SETTINGS, "n2")
    succession.ballot.acknowledge(seal(1, 1, "n1", "n2", "n3"))
    succession.join(1, "n1", 10.0)
    succession.refuse_second(1, "n1 again")
    assert succession.term_to_tell(1) == 1


def test_a_round_without_this_node_is_one_after_its_own() -> None:
    """Its members are asked, too, who decides, and a candidate hears that there was one."""
    succession = Succession(SETTINGS, "n2")
    succession.ballot.acknowledge(seal(1, 1, "n1", "n2", "n3"))
    succession.know(2, entries("n1", "n4", "n5"))
    assert sorted(entry.name for entry in succession.peers) == ["n1", "n3", "n4", "n5"]
    answer = ask(succession.ballot, 2)
    assert (answer.seal, answer.newest_round) == (succession.ballot.seal, 2)
    succession.ballot.acknowledge(seal(1, 3, "n1", "n2", "n5"))
    assert sorted(entry.name for entry in succession.peers) == ["n1", "n5"]


def test_whoever_is_elected_knows_those_of_the_round_before() -> None:
    """Who was given up in between has perhaps nobody else to ask."""
    newest = seal(1, 2, "n1", "n4", follows="n1 n2 n3")
    heritage = Heritage(
        term=2,
        seal=newest,
        commit=None,
        electorates=voters_of(newest, is_committed=True),
        contact_at=0.0,
        lost="n1",
    )
    assert {entry.incarnation for entry in heritage.known} == {"n1", "n2", "n3", "n4"}
