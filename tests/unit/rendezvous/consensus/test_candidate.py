"""A candidate, one answer at a time: whom it asks, what it goes on with, when it gives up."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.consensus.candidate import (
    CANDIDATE_ALLOWED,
    Candidacy,
    Candidate,
)
from pytest_elastic.rendezvous.consensus.records import (
    NO_TERM,
    Record,
    Term,
    founding_record,
    seat_of,
)
from pytest_elastic.rendezvous.consensus.replication import Recovered
from pytest_elastic.rendezvous.consensus.voter import Voter
from pytest_elastic.rendezvous.leases import announced_within_s
from pytest_elastic.rendezvous.model import Node
from tests.unit.rendezvous.samples import (
    FOUNDING,
    SETTINGS,
    decided,
    leader_address,
    record_of,
)


def answer_of(voter: str, **fields: Any) -> m.Answer:  # noqa: ANN401 (fields by name)
    """Return what a voter says that grants its vote and knows nothing, but for these fields."""
    nothing: dict[str, Any] = {
        "term": Term(1, "n1"),
        "is_granted": True,
        "reason": "",
        "record": None,
        "base": None,
        "started": None,
        "number": 0,
        "restarts_used": 0,
        "contact_age_s": None,
        "patience_s": 0.0,
        "leader": None,
    }
    return m.Answer(**{**nothing, "incarnation": voter, **fields})


def answered(ask: v.Ask, answer: m.Answer | None) -> v.Answered:
    """Return what comes of asking a voter; None: it says nothing."""
    return v.Answered(
        incarnation=ask.node.incarnation,
        outcome=v.Outcome.SILENT if answer is None else v.Outcome.ALIVE,
        answer=answer,
        term=ask.term,
        is_pre_vote=ask.is_pre_vote,
    )


class Bench:
    """The candidate of n2 in round 1 of n1, n2 and n3, and whom it has asked."""

    def __init__(self, *names: str) -> None:
        self.voter = Voter("n2")
        self.first = record_of(1, *(names or ("n1", "n2", "n3")))
        self.voter.follow(self.first.term)
        self.voter.accept(self.first, FOUNDING)
        self.voter.learn_decided(decided(self.first))
        self.voter.contact_at = 99.0
        self.candidate = Candidate(SETTINGS, self.voter)
        self.now = 100.0
        self.asked: dict[str, v.Ask] = {}

    def stand(self, *, at_once: bool = False) -> None:
        """Begin, and let its turn come."""
        self.candidate.stand(self.now, "n1", at_once=at_once)
        self.go_on()

    def go_on(self, after_s: float = 0.0) -> None:
        """Let time pass; remember who is asked now."""
        self.now += after_s
        for asked in self.candidate.advance(self.now):
            self.asked[asked.node.incarnation] = asked

    def answer(self, voter: str, **fields: Any) -> None:  # noqa: ANN401 (fields by name)
        """Let a voter that has accepted round 1 answer what it was asked last."""
        known = {"record": self.first, "base": self.first, "number": 1}
        self.tell(voter, answer_of(voter, **{**known, **fields}))

    def does(self, phase: Candidacy) -> bool:
        """Tell whether this is what the candidate is doing."""
        return self.candidate.phase is phase

    def tell(self, voter: str, answer: m.Answer | None) -> None:
        """Hand in an answer, or that there is none."""
        self.candidate.take_answer(answered(self.asked[voter], answer), self.now)
        self.go_on()

    @property
    def elected(self) -> Recovered:
        """What it goes on with, as it is elected."""
        assert self.candidate.elected is not None
        return self.candidate.elected


def test_it_asks_what_it_would_get_and_then_in_earnest() -> None:
    """With the votes of a majority it is elected, under a higher term than any it heard of."""
    bench = Bench()
    bench.stand()
    assert bench.does(Candidacy.PRE_VOTE)
    assert set(bench.asked) == {"n1", "n3"}
    assert bench.voter.term == Term(1, "n1")
    bench.answer("n3", term=Term(7, "n9"))
    assert bench.does(Candidacy.VOTE)
    assert bench.asked["n3"].term == bench.voter.term == Term(8, "n2")
    bench.now += 0.5
    bench.answer("n3", term=Term(8, "n2"), contact_age_s=0.25, restarts_used=2, number=4)
    elected = bench.elected
    assert elected.term == Term(8, "n2")
    assert elected.contact_at == 100.25
    assert (elected.restarts_used, elected.number) == (2, 4)
    assert elected.heard_at == {"n2": 100.0, "n3": 100.0}, "a vote is as old as its question"


def test_its_own_vote_alone_elects_nobody() -> None:
    """Nor do the votes of those who have none in the record."""
    bench = Bench()
    bench.stand(at_once=True)
    bench.tell("n1", None)
    assert bench.candidate.elected is None
    bench.tell("n3", None)
    assert bench.candidate.elected is None
    assert bench.candidate.reached == (1, 3)


def test_it_waits_for_its_turn_in_the_order_of_the_roster() -> None:
    """The second candidate leaves the first one time for an election."""
    bench = Bench("n1", "n3", "n2")
    bench.candidate.stand(bench.now, "n1")
    assert bench.does(Candidacy.WAITING)
    wake_at = bench.candidate.wake_at
    assert wake_at is not None
    assert 0.5 <= wake_at - bench.now <= 1.0
    bench.go_on(0.25)
    assert bench.asked == {}


def test_it_asks_for_more_than_somebody_has_promised() -> None:
    """The leader before it was refused for that, and says so when it goes."""
    bench = Bench()
    bench.candidate.hear_of_term(5)
    bench.stand(at_once=True)
    assert bench.asked["n3"].term == Term(6, "n2")


def test_one_that_was_named_asks_at_once() -> None:
    """The leader itself has handed over."""
    bench = Bench("n1", "n3", "n2")
    bench.stand(at_once=True)
    assert bench.does(Candidacy.VOTE)
    assert set(bench.asked) == {"n1", "n3"}


def test_a_record_that_may_be_decided_brings_in_all_who_vote_on_it() -> None:
    """n3 has accepted a round with n4 and n5 of which nobody knows whether it was decided."""
    bench = Bench()
    bench.stand()
    pending = record_of(2, "n3", "n4", "n5")
    bench.answer("n3", record=pending, number=2)
    assert bench.does(Candidacy.PRE_VOTE)
    assert set(bench.asked) == {"n1", "n3", "n4", "n5"}
    bench.answer("n4", record=pending, base=bench.first, number=2)
    assert bench.does(Candidacy.VOTE)
    bench.answer("n3", record=pending, number=2)
    assert bench.does(Candidacy.VOTE)
    bench.answer("n5", record=None, base=None, number=0)
    elected = bench.elected
    assert (elected.base, elected.record, elected.started) == (bench.first, pending, None)
    assert elected.number == 2


def test_a_record_that_no_majority_can_have_accepted_is_dropped() -> None:
    """Two of three of the base have not accepted it, and obey a higher term now."""
    bench = Bench()
    bench.stand(at_once=True)
    pending = record_of(2, "n4", "n5", "n6")
    bench.answer("n3", record=pending, number=2)
    assert bench.candidate.elected is None, "n1 may have accepted it, and n4 to n6 too"
    bench.answer("n1")
    assert bench.elected.record == bench.first
    assert bench.elected.number == 2, "its number is used all the same"


def test_a_higher_base_that_any_voter_knows_settles_it() -> None:
    """Only the newer configuration votes then."""
    bench = Bench()
    bench.stand()
    newer = record_of(2, "n2", "n3", "n4")
    for _ in range(2):
        bench.answer("n3", record=newer, base=newer, started=decided(newer), number=2)
    elected = bench.elected
    assert (elected.base, elected.record) == (newer, newer)
    assert elected.started == decided(newer)
    assert "n4" in bench.asked


def test_of_two_pending_records_the_higher_one_counts() -> None:
    """Who proposed it would have found the other one, if that had been decided."""
    bench = Bench("n1", "n2", "n3", "n4", "n5")
    bench.stand(at_once=True)
    lower = record_of(2, "n1", "n2", "n3", "n4", "n5")
    higher = record_of(2, "n1", "n2", "n3", "n4", "n5", counter=2, node="n4")
    bench.answer("n3", record=higher, number=2)
    bench.answer("n5", record=lower, number=2)
    assert bench.elected.record == higher


def test_where_the_store_of_a_round_is_is_kept_for_that_round_only() -> None:
    """A newer record has not been started by what started the one before it."""
    bench = Bench()
    bench.stand(at_once=True)
    pending = record_of(2, "n1", "n2", "n3")
    bench.answer("n3", record=pending, number=2)
    assert (bench.elected.record, bench.elected.started) == (pending, None)


def test_a_vote_of_an_earlier_try_does_not_count() -> None:
    """Its answer comes late, under a term that has been given up."""
    bench = Bench()
    bench.stand()
    bench.answer("n3")
    old = bench.asked["n3"]
    assert not old.is_pre_vote
    bench.go_on(3.0)
    bench.go_on(3.0)
    bench.answer("n3")
    assert bench.does(Candidacy.VOTE)
    assert bench.asked["n3"].term != old.term
    bench.candidate.take_answer(answered(old, answer_of("n3")), bench.now)
    assert bench.candidate.elected is None


def test_a_minority_tries_again_and_raises_no_term() -> None:
    """However long it is cut off, it will not depose anybody when it is back."""
    bench = Bench()
    bench.stand()
    for _ in range(20):
        bench.go_on(3.0)
    assert bench.voter.term == Term(1, "n1")
    assert bench.candidate.reached == (1, 3)


def test_it_asks_again_when_the_voters_say_that_it_makes_sense() -> None:
    """Their own lease holds a little longer."""
    bench = Bench()
    bench.stand()
    bench.answer("n3", is_granted=False, patience_s=2.5)
    bench.tell("n1", None)
    assert bench.candidate.wake_at == bench.now + 2.5


def test_it_learns_who_leads() -> None:
    """From a voter that knows, though it grants nothing."""
    bench = Bench()
    bench.stand()
    leader = leader_address("n4", 3)
    bench.answer("n3", is_granted=False, leader=leader)
    assert bench.candidate.leader == leader


def test_one_that_votes_for_another_gives_its_own_try_up() -> None:
    """Its own vote was one of those it counted on."""
    bench = Bench()
    bench.stand()
    bench.answer("n3")
    assert bench.does(Candidacy.VOTE)
    bench.candidate.yield_to_another(bench.now)
    assert bench.does(Candidacy.WAITING)
    bench.answer("n3")
    assert bench.candidate.elected is None


@pytest.mark.parametrize("is_asking", [True, False])
def test_it_leaves_one_that_comes_earlier_time_to_ask(is_asking: bool) -> None:  # noqa: FBT001
    """Once, so that one which tries in vain again and again keeps nobody from it."""
    bench = Bench("n1", "n3", "n2")
    bench.candidate.stand(bench.now, "n1")
    if is_asking:
        bench.go_on(1.0)
        assert bench.does(Candidacy.PRE_VOTE)
    bench.candidate.defer_to("n3", bench.now)
    assert bench.does(Candidacy.WAITING)
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
    assert bench.does(Candidacy.PRE_VOTE)
    bench.tell("n1", None)
    bench.tell("n3", None)
    assert bench.does(Candidacy.WAITING)
    wake_at = bench.candidate.wake_at
    assert wake_at is not None
    bench.candidate.defer_to("n3", wake_at)
    assert bench.candidate.wake_at is not None
    assert bench.candidate.wake_at >= wake_at + bench.candidate.stagger_s


@pytest.mark.parametrize("phase", [Candidacy.VOTE, Candidacy.PRE_VOTE])
def test_it_leaves_no_time_to_one_that_comes_later_or_comes_too_late(phase: Candidacy) -> None:
    """Its own turn was before that, or its term is raised already."""
    bench = Bench("n2", "n3", "n1") if phase is Candidacy.PRE_VOTE else Bench("n3", "n2", "n1")
    bench.stand()
    bench.go_on(1.0)
    if phase is Candidacy.VOTE:
        bench.answer("n3")
    assert bench.does(phase)
    bench.candidate.defer_to("n3", bench.now)
    assert bench.does(phase)


class Hosts:
    """The candidate of the first of three hosts of endpoints, which has been up for `up_s`."""

    def __init__(self, up_s: float) -> None:
        names = ("a:1", "b:1", "c:1")
        seats = [seat_of(name) for name in names]
        self.settings = replace(SETTINGS, endpoints=",".join(names))
        hosts = [Node(name=seat, incarnation=seat, address="x", slots=1, port=1) for seat in seats]
        self.voter = Voter("i0")
        self.voter.base = founding_record(hosts)
        self.voter.seat, self.voter.up_since = seats[0], 100.0 - up_s
        self.candidate = Candidate(self.settings, self.voter)
        self.candidate.stand(100.0, "", at_once=True)
        self.asked = {each.node.incarnation: each for each in self.candidate.advance(100.0)}
        self.others = seats[1:]

    def answer(self, number: int, *, up_s: float, record: Record | None = None) -> None:
        """Let another host vote."""
        seat = self.others[number]
        answer = answer_of(
            f"i{number + 1}", term=NO_TERM, base=self.voter.base, up_s=up_s, record=record
        )
        self.candidate.take_answer(answered(self.asked[seat], answer), 100.0)


def test_two_hosts_of_three_that_have_just_started_found_nothing() -> None:
    """They may have voted before, and forgotten it; with the third one nobody knows more."""
    hosts = Hosts(0.0)
    hosts.answer(0, up_s=0.0)
    assert hosts.candidate.elected is None
    hosts.answer(1, up_s=0.0)
    assert hosts.candidate.elected is not None


def test_two_hosts_of_three_found_a_job_once_survivors_would_have_announced_themselves() -> None:
    """Both have been up for long enough; one of them is not enough."""
    long_s = announced_within_s(SETTINGS)
    for own_s, other_s, founds in ((long_s, long_s, True), (long_s, long_s - 1, False)):
        hosts = Hosts(own_s)
        hosts.answer(0, up_s=other_s)
        assert (hosts.candidate.elected is not None) is founds


@pytest.mark.parametrize("phase", Candidacy)
def test_only_listed_changes_are_possible(phase: Candidacy) -> None:
    """A forbidden one changes nothing."""
    for target in set(Candidacy) - CANDIDATE_ALLOWED[phase]:
        candidate = Bench().candidate
        candidate.phase = phase
        with pytest.raises(AssertionError, match="cannot go from"):
            candidate._become(target)
        assert candidate.phase is phase
