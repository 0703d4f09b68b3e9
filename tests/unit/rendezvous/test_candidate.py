"""A candidate, one answer at a time: whom it asks, what it goes on with, when it gives up."""

from __future__ import annotations

import pytest

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.ballot import Ballot
from pytest_elastic.rendezvous.candidate import CANDIDATE_ALLOWED, Candidate, Standing
from pytest_elastic.rendezvous.model import Settings
from tests.unit.rendezvous.test_ballot import PLACE, SETTINGS, commit, seal


class Bench:
    """The candidate of n2 in a round of n1, n2 and n3, and whom it has asked."""

    def __init__(self, *names: str, is_committed: bool = True, config: Settings = SETTINGS) -> None:
        self.ballot = Ballot(config, "n2")
        self.ballot.join(1, "n1")
        self.ballot.acknowledge(seal(1, 1, *(names or ("n1", "n2", "n3"))))
        if is_committed:
            self.ballot.see_commit(commit(1, 1))
        self.ballot.contact_at = 99.0
        self.candidate = Candidate(config, self.ballot)
        self.now = 100.0
        self.asked: dict[str, v.AskVote] = {}

    def stand(self, *, is_named: bool = False) -> None:
        """Begin, and let its turn come."""
        self.candidate.stand(self.now, "n1", is_named=is_named)
        self.go_on()

    def go_on(self, after_s: float = 0.0) -> None:
        """Let time pass; remember who is asked now."""
        self.now += after_s
        for asked in self.candidate.advance(self.now):
            self.asked[asked.incarnation] = asked

    def answer(self, voter: str, **fields: object) -> None:
        """Let a voter answer what it was asked last."""
        answer = m.VoteAnswer(
            **{"term": 1, "voter": voter, "is_granted": True, "reason": "", **fields}  # type: ignore[arg-type]  # by name
        )
        self.tell(voter, answer)

    def does(self, standing: Standing) -> bool:
        """Tell whether this is what the candidate is doing."""
        return self.candidate.standing is standing

    def tell(self, voter: str, answer: m.VoteAnswer | None) -> None:
        """Hand in an answer, or that there is none."""
        answered = v.VoteAnswered(
            incarnation=voter,
            request=self.asked[voter].request,
            answer=answer,
            outcome=v.Outcome.ALIVE if answer else v.Outcome.SILENT,
        )
        self.candidate.take_answer(answered, self.now)
        self.go_on()


def test_it_asks_what_it_would_get_and_then_in_earnest() -> None:
    """With the answers of a majority it is elected, under a higher term than any it heard of."""
    bench = Bench()
    bench.stand()
    assert bench.does(Standing.TRYING)
    assert set(bench.asked) == {"n1", "n3"}
    assert bench.ballot.promised == 1
    bench.answer("n3", term=7)
    assert bench.does(Standing.ASKING)
    assert bench.asked["n3"].request.term == 8
    assert bench.ballot.promised == 8
    bench.now += 0.5
    bench.answer("n3", term=8, contact_age_s=0.25, restarts_used=2, newest_round=4)
    heritage = bench.candidate.elected
    assert heritage is not None
    assert heritage.term == 8
    assert heritage.contact_at == 100.25
    assert (heritage.restarts_used, heritage.newest_round) == (2, 4)
    assert set(heritage.heard_at) == {"n2", "n3"}


def test_it_waits_for_its_turn_in_the_order_of_the_roster() -> None:
    """The second candidate leaves the first one time for an election."""
    bench = Bench("n1", "n3", "n2")
    bench.candidate.stand(bench.now, "n1")
    assert bench.does(Standing.WAITING)
    wake_at = bench.candidate.wake_at
    assert wake_at is not None
    assert 0.5 <= wake_at - bench.now <= 1.0
    bench.go_on(0.25)
    assert bench.asked == {}


def test_where_elections_follow_each_other_candidates_leave_more_time() -> None:
    """The second one waits longer each time, up to a limit, and not so long after a quiet while."""
    bench = Bench("n1", "n3", "n2")
    waits: list[float] = []
    for pause_s in (0.0, 0.5, 0.5, 0.5, 0.5, 0.5, 60.0):
        bench.now += pause_s
        bench.candidate.stand(bench.now, "n1")
        wake_at = bench.candidate.wake_at
        assert wake_at is not None
        waits.append(wake_at - bench.now)
        bench.candidate.withdraw()
    assert waits[0] == waits[6]
    assert waits[:5] == sorted(waits[:5])
    assert waits[4] >= waits[0] + 4 * bench.candidate.stagger_s
    assert waits[5] == waits[4]


def test_it_asks_for_more_than_somebody_has_promised() -> None:
    """The coordinator before it was refused for that, and says so when it goes."""
    bench = Bench()
    bench.candidate.hear_of_term(5)
    bench.stand(is_named=True)
    assert bench.asked["n3"].request.term == 6


def test_one_that_was_named_asks_at_once() -> None:
    """The coordinator itself has handed over."""
    bench = Bench()
    bench.candidate.excuse("n1", 1)
    bench.stand(is_named=True)
    assert bench.does(Standing.ASKING)
    assert set(bench.asked) == {"n3"}


@pytest.mark.parametrize("since_round", [1, 2])
def test_who_has_left_counts_in_the_rounds_before_that_which_it_left(since_round: int) -> None:
    """Storm 90342579: it may have agreed alone to what followed, as half with who decides."""
    bench = Bench("n1", "n2")
    bench.candidate.excuse("n1", since_round)
    bench.candidate.stand(bench.now, "n1", is_named=True)
    bench.go_on()
    assert (bench.candidate.elected is not None) is (since_round == 1)


def test_a_higher_seal_of_a_voter_brings_in_all_who_have_a_say_in_it() -> None:
    """n3 has acknowledged a round with n4 and n5 of which nobody knows whether it was committed."""
    bench = Bench()
    bench.stand()
    undecided = seal(1, 2, "n3", "n4", "n5", follows="n1 n2 n3")
    bench.answer("n3", seal=undecided, newest_round=2)
    assert bench.does(Standing.TRYING)
    assert set(bench.asked) == {"n1", "n3", "n4", "n5"}
    bench.answer("n4", newest_round=2)
    assert bench.does(Standing.ASKING)
    bench.answer("n3", seal=undecided, newest_round=2)
    assert bench.does(Standing.ASKING)
    bench.answer("n5", newest_round=2)
    heritage = bench.candidate.elected
    assert heritage is not None
    assert heritage.seal == undecided
    assert heritage.commit is None
    assert [each.round for each in heritage.electorates] == [1, 2]


@pytest.mark.parametrize("is_by_voter", [True, False])
def test_who_is_told_in_an_election_that_one_has_left_waits_for_what_it_granted(
    *, is_by_voter: bool
) -> None:
    """By one that does not agree, or by that one itself: it had decided until then."""
    bench = Bench()
    bench.stand()
    bench.answer("n3", term=1)
    assert bench.does(Standing.ASKING)
    bench.now += 0.5
    if is_by_voter:
        bench.answer("n1", is_granted=False, left={"n9": 1}, contact_age_s=0.25)
    else:
        bench.ballot.contact_at = 100.25
        bench.candidate.excuse("n9", 1)
    bench.answer("n3", contact_age_s=5.0)
    heritage = bench.candidate.elected
    assert heritage is not None
    assert heritage.contact_at == 100.25


def test_a_commit_that_any_voter_saw_settles_it() -> None:
    """Only the newer roster has a say then."""
    bench = Bench()
    bench.stand()
    newer = seal(1, 2, "n2", "n3", "n4", follows="n1 n2 n3")
    bench.answer("n3", seal=newer, commit=commit(1, 2))
    bench.answer("n3", seal=newer, commit=commit(1, 2))
    heritage = bench.candidate.elected
    assert heritage is not None
    assert [each.round for each in heritage.electorates] == [2]


def test_a_vote_of_an_earlier_try_does_not_count() -> None:
    """Its answer comes late, under a term that has been given up."""
    bench = Bench()
    bench.stand()
    bench.answer("n3")
    old = bench.asked["n3"]
    bench.go_on(3.0)
    assert bench.does(Standing.WAITING)
    late = v.VoteAnswered(
        incarnation="n3",
        request=old.request,
        answer=m.VoteAnswer(term=2, voter="n3", is_granted=True, reason=""),
        outcome=v.Outcome.ALIVE,
    )
    bench.candidate.take_answer(late, bench.now)
    assert bench.candidate.elected is None


def test_a_minority_tries_again_and_raises_no_term() -> None:
    """However long it is cut off, it will not depose anybody when it is back."""
    bench = Bench()
    bench.stand()
    for _ in range(20):
        bench.go_on(3.0)
    assert bench.ballot.promised == 1
    assert bench.candidate.reached == (1, 3)


def test_it_asks_again_when_the_voters_say_that_it_makes_sense() -> None:
    """Their own lease holds a little longer."""
    bench = Bench()
    bench.stand()
    bench.answer("n3", is_granted=False, patience_s=2.5)
    bench.tell("n1", None)
    wake_at = bench.candidate.wake_at
    assert wake_at is not None
    assert wake_at == bench.now + 2.5


def test_it_learns_who_decides_and_how_the_job_ends() -> None:
    """From whoever knows, granted or not."""
    bench = Bench()
    bench.stand()
    ending = m.JobEnding(term=1, result="failed", reason="x")
    bench.answer("n3", is_granted=False, place=PLACE, ending=ending)
    assert bench.candidate.place == PLACE
    assert bench.candidate.ending == ending


def test_one_that_votes_for_another_gives_its_own_try_up() -> None:
    """Its own vote was one of those it counted on."""
    bench = Bench()
    bench.stand()
    bench.answer("n3")
    assert bench.does(Standing.ASKING)
    bench.candidate.yield_to_another(bench.now)
    assert bench.does(Standing.WAITING)
    bench.answer("n3")
    assert bench.candidate.elected is None


@pytest.mark.parametrize("is_trying", [True, False])
def test_it_leaves_one_that_comes_earlier_time_to_ask(is_trying: bool) -> None:  # noqa: FBT001
    """Once, so that one which tries in vain again and again keeps nobody from it."""
    bench = Bench("n1", "n3", "n2")
    bench.candidate.stand(bench.now, "n1")
    if is_trying:
        bench.go_on(1.0)
        assert bench.does(Standing.TRYING)
    bench.candidate.defer_to("n3", bench.now)
    assert bench.does(Standing.WAITING)
    assert bench.candidate.reached is None
    wake_at = bench.candidate.wake_at
    assert wake_at is not None
    assert wake_at >= bench.now + bench.candidate.stagger_s
    bench.candidate.defer_to("n3", bench.now + 0.25)
    assert bench.candidate.wake_at == wake_at


def test_after_a_try_of_its_own_it_leaves_that_one_time_again() -> None:
    """Storm 80021517: else two that stand for long are elected and left in turn, for ever."""
    bench = Bench("n1", "n3", "n2")
    bench.candidate.stand(bench.now, "n1")
    bench.candidate.defer_to("n3", bench.now)
    bench.go_on(2.0)
    assert bench.does(Standing.TRYING)
    bench.tell("n1", None)
    bench.tell("n3", None)
    assert bench.does(Standing.WAITING)
    wake_at = bench.candidate.wake_at
    assert wake_at is not None
    bench.candidate.defer_to("n3", wake_at)
    assert bench.candidate.wake_at is not None
    assert bench.candidate.wake_at >= wake_at + bench.candidate.stagger_s


@pytest.mark.parametrize("standing", [Standing.ASKING, Standing.TRYING])
def test_it_leaves_no_time_to_one_that_comes_later_or_comes_too_late(standing: Standing) -> None:
    """Its own turn was before that, or its term is raised already."""
    bench = Bench("n2", "n3", "n1") if standing is Standing.TRYING else Bench("n3", "n2", "n1")
    bench.stand()
    bench.go_on(1.0)
    if standing is Standing.ASKING:
        bench.answer("n3")
    assert bench.does(standing)
    bench.candidate.defer_to("n3", bench.now)
    assert bench.does(standing)


def test_one_that_leaves_does_not_stand() -> None:
    """It has renounced its voice."""
    bench = Bench()
    bench.ballot.renounce()
    bench.stand()
    assert bench.does(Standing.IDLE)


@pytest.mark.parametrize("standing", Standing)
def test_only_listed_changes_are_possible(standing: Standing) -> None:
    """A forbidden one changes nothing."""
    for target in set(Standing) - CANDIDATE_ALLOWED[standing]:
        candidate = Bench().candidate
        candidate.standing = standing
        with pytest.raises(AssertionError, match="cannot go from"):
            candidate._become(target)
        assert candidate.standing is standing


def test_what_a_voter_was_told_of_who_has_left_counts_with_its_contact() -> None:
    """Storm 114024727: one knew of n1, the other of n4, and alone nobody had a quorum.

    Of n2 and n3 both are needed, where n1 and n4 are counted; n2 is half of those who are left with
    n3, and had no contact itself.
    """
    bench = Bench("n1", "n2", "n3", "n4")
    bench.ballot.contact_at = None
    bench.stand()
    bench.answer("n3", contact_age_s=0.5, left={"n1": 1, "n4": 1})
    assert bench.does(Standing.ASKING)
    bench.answer("n3", term=2, contact_age_s=None)
    heritage = bench.candidate.elected
    assert heritage is not None
    assert heritage.left == {"n1": 1, "n4": 1}
    assert heritage.contact_at == 99.5
