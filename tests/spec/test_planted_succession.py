"""R11, looked at from the other side: a fault planted in its machines breaks one of its tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from pytest_elastic.rendezvous import ballot, candidate, coordinator, following, objection
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous.ballot import Ballot, electorate_of
from pytest_elastic.rendezvous.coordinator_phases import Phase
from pytest_elastic.rendezvous.desk import Desk
from pytest_elastic.rendezvous.heritage import Heritage
from pytest_elastic.rendezvous.link import CoordinatorLink
from pytest_elastic.rendezvous.mandate import MembersMandate
from pytest_elastic.rendezvous.member import MemberMachine
from pytest_elastic.rendezvous.model import Electorate
from tests.spec import test_r11_succession as rules
from tests.spec import test_seals_never_committed as never
from tests.spec import test_succession_midway as midway

_follow = following.follow


def _follow_without_a_gate(heritage: Heritage, desk: Desk, now: float, **parts: object) -> Phase:
    heritage = dataclasses.replace(heritage, contact_at=now - 100.0)
    return _follow(heritage, desk, now, **parts)  # type: ignore[arg-type]  # what it was called with


def _follow_no_restarts(heritage: Heritage, desk: Desk, now: float, **parts: object) -> Phase:
    seal = dataclasses.replace(heritage.seal, restart_count=0)
    heritage = dataclasses.replace(heritage, seal=seal, restarts_used=0)
    return _follow(heritage, desk, now, **parts)  # type: ignore[arg-type]  # what it was called with


def _own_roster_only(seal: m.Seal, **_: object) -> tuple[Electorate, ...]:
    return (electorate_of(seal),)


def _deaf_or_mute() -> None:
    rules.test_r11_a_coordinator_that_is_deaf_or_mute_steps_down(True)


PLANTED: dict[str, tuple[list[tuple[object, str, object]], Callable[[], None]]] = {
    "a successor does not wait for the workers of the coordinator before it": (
        [(coordinator, "follow", _follow_without_a_gate)],
        _deaf_or_mute,
    ),
    "a successor forgets the restarts that were used": (
        [(coordinator, "follow", _follow_no_restarts)],
        rules.test_r11_it_costs_no_restart_and_numbers_go_on,
    ),
    "a node forgets for whom it has voted, and in which term": (
        [(Ballot, "vote", lambda *_: None)],
        rules.test_r11_the_successor_is_lost_before_it_has_decided_anything,
    ),
    "where a commit is not known, those who had a say before are not asked": (
        [(ballot, "voters_of", _own_roster_only), (candidate, "voters_of", _own_roster_only)],
        midway.test_r11_a_round_of_which_nobody_knows_whether_it_stands_makes_no_majority_alone,
    ),
    "a seal whose commit nobody saw is taken for given up": (
        [(ballot, "_is_disproved", lambda *_: True)],
        never.test_r11_a_seal_that_all_who_are_left_have_acknowledged_may_have_been_committed,
    ),
    "who follows a first seal believes that there was no other": (
        [(objection, "rank_of", lambda _: (9, 9))],
        midway.test_r11_who_follows_a_first_seal_gives_way_to_whoever_was_told_of_a_later_one,
    ),
    "a coordinator decides on, whoever has stopped answering": (
        [(MembersMandate, "until", lambda *_: float("inf"))],
        _deaf_or_mute,
    ),
    "any one node may elect itself": (
        [(candidate, "has_quorum", lambda *_: True)],
        rules.test_r11_a_minority_stops_says_so_and_keeps_looking,
    ),
    "a node does not say that it has promised a higher term": (
        [
            (MemberMachine, "_on_announced", lambda *_: None),
            (CoordinatorLink, "_must_tell", lambda *_: False),
        ],
        rules.test_r11_a_node_that_has_promised_more_is_taken_in_under_a_new_term,
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_fault_breaks_a_rule(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not noticed by any test might as well not be there."""
    patches, rule = PLANTED[what]
    for owner, name, value in patches:
        monkeypatch.setattr(owner, name, value)
    with pytest.raises(AssertionError):
        rule()
