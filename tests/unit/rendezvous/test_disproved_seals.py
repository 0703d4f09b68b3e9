"""R11.5: who proves to a candidate that a seal was never committed, and who does not."""

from __future__ import annotations

import dataclasses

import pytest

from pytest_elastic.rendezvous.candidate import Standing
from tests.unit.rendezvous.test_ballot import SETTINGS, commit, seal
from tests.unit.rendezvous.test_candidate import Bench


def _undecided(
    *, prover: dict[str, object], term: int = 1, names: str = "n3 n4 n5 n6 n7", **told: object
) -> Bench:
    """Let n3 tell a seal of round 2 to n2, which asks in earnest, and n5 answer it."""
    bench = Bench()
    bench.stand()
    bench.answer("n3", term=2)
    assert bench.does(Standing.ASKING)
    undecided = seal(term, 2, *names.split(), follows="n1 n2 n3")
    bench.answer("n3", seal=undecided, newest_round=2, **told)
    assert bench.candidate.elected is None
    bench.answer("n5", **{"newest_round": 1, **prover})
    return bench


def test_one_of_a_seal_that_has_not_come_to_its_round_proves_that_it_was_given_up() -> None:
    """Storm 124051488: those whom it was to follow decide, whoever of its roster is there."""
    heritage = _undecided(prover={}).candidate.elected
    assert heritage is not None
    assert heritage.seal.round == 2
    assert heritage.commit is None
    assert [each.round for each in heritage.electorates] == [1]


@pytest.mark.parametrize(
    "prover",
    [
        {"newest_round": 2},  # it has acknowledged the round, be it under the term before
        {"newest_round": 5},
        {"is_granted": False},  # it may acknowledge the seal yet
    ],
)
def test_who_may_have_acknowledged_a_seal_or_may_yet_proves_nothing(
    prover: dict[str, object],
) -> None:
    """A quorum of its roster is needed, as it may have been committed."""
    assert _undecided(prover=prover).candidate.elected is None


def test_a_seal_of_the_term_that_is_asked_for_may_be_acknowledged_yet() -> None:
    """Who agrees to a term may be told of a seal of that term, or of a later one."""
    assert _undecided(prover={}, term=3).candidate.elected is None
    assert _undecided(prover={}, term=9).candidate.elected is None
    assert _undecided(prover={}, term=2).candidate.elected is not None


def test_a_seal_whose_commit_was_seen_is_not_disproved() -> None:
    """What a node says that has forgotten is no proof against what another has seen."""
    bench = _undecided(prover={}, commit=commit(1, 2))
    assert bench.candidate.elected is None


def test_what_a_node_outside_the_seal_has_come_to_proves_nothing() -> None:
    """It was never asked to acknowledge it."""
    bench = Bench()
    bench.stand()
    bench.answer("n3", seal=seal(1, 2, "n3", "n4", "n5", follows="n1 n2 n3"), newest_round=2)
    assert bench.does(Standing.TRYING)
    bench.answer("n1", newest_round=1)
    assert bench.does(Standing.TRYING)


def test_a_candidate_that_is_in_a_seal_may_prove_that_itself() -> None:
    """Nobody else of its roster need be there but the one that tells of it."""
    bench = Bench()
    bench.stand()
    told = seal(1, 2, "n2", "n3", "n4", "n5", "n6", follows="n1 n2 n3")
    for _ in ("as a trial", "in earnest"):
        bench.answer("n3", seal=told, newest_round=2)
    heritage = bench.candidate.elected
    assert heritage is not None
    assert [each.round for each in heritage.electorates] == [1]


def test_a_trial_takes_the_proof_whatever_the_term_of_the_seal() -> None:
    """It asks under the next term that this node knows of; in earnest it asks for more."""
    bench = Bench()
    bench.stand()
    told = seal(7, 2, "n2", "n3", "n4", "n5", "n6", follows="n1 n2 n3")
    bench.answer("n3", seal=told, newest_round=2, term=7)
    assert bench.does(Standing.ASKING)
    assert bench.asked["n3"].request.term == 8


def test_a_first_seal_is_given_up_by_no_proof_as_it_follows_nobody() -> None:
    """Nobody would be left to agree."""
    only_one = dataclasses.replace(SETTINGS, min_nodes=5)  # no two groups are large enough
    bench = Bench("n2", "n3", "n4", "n5", "n6", is_committed=False, config=only_one)
    bench.stand()
    bench.answer("n3", newest_round=0)
    assert bench.does(Standing.TRYING)
    bench.answer("n4", newest_round=0)
    assert bench.does(Standing.ASKING)
