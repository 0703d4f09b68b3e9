"""Storms from seeds: whatever happens, in whatever order, the promises hold.

To look for more: `weather(seed)` for as many seeds as there is time for; a seed that breaks a
promise goes into `FOUND` with a sentence, once its cause is known and mended.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from elastic_harness.simulation.machine_agent import MachineAgent
from elastic_harness.simulation.played_agent import PlayedAgent
from elastic_harness.simulation.storm import weather

from pytest_elastic.rendezvous import budget, coordinator
from pytest_elastic.rendezvous.budget import Budget, EndedRound, Verdict
from pytest_elastic.rendezvous.coordinator import CoordinatorMachine
from pytest_elastic.rendezvous.member import MemberMachine
from pytest_elastic.rendezvous.round import SealedRound

# What each of these seeds shows when its mending is taken back.
FOUND = {
    596: "a member refused with nothing to kill waits for the join timeout after the job's end",
    1341: "workers that are being stopped are not held when contact is lost",
}


@pytest.mark.parametrize("tens", range(10))
def test_the_promises_hold_in_every_storm(tens: int) -> None:
    """Safety at every moment; progress, or an end with a reason, once it is calm."""
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            weather(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("seed", FOUND)
def test_what_a_storm_once_broke_holds_now(seed: int) -> None:
    """Regressions: see `FOUND`."""
    weather(seed)


def breaks(seeds: range) -> bool:
    """Tell whether a promise is broken by one of these storms."""
    for seed in seeds:
        try:
            weather(seed)
        except AssertionError:
            return True
    return False


def _nothing(*_arguments: object) -> None:
    """Do nothing."""


def _charge_everything(
    what: Budget, ended: EndedRound | None, roster: tuple[str, ...]
) -> tuple[Verdict, str]:
    verdict, why = budget.judge(what, ended, roster)
    is_wrong = verdict is Verdict.FREE and ended is not None and what.used < what.max_restarts
    return (Verdict.CHARGED if is_wrong else verdict), why


def _reuse_numbers(abandon: Callable[..., None]) -> Callable[..., None]:
    def abandon_and_reuse(machine: CoordinatorMachine, seal: SealedRound, reason: str) -> None:
        abandon(machine, seal, reason)
        machine._round -= 1

    return abandon_and_reuse


def test_the_checks_notice_workers_that_are_never_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: neither member nor keeper looks at the lease."""
    monkeypatch.setattr(MemberMachine, "_watch_lease", _nothing)
    monkeypatch.setattr(PlayedAgent, "_look_at_lease", _nothing)
    assert breaks(range(100))


def test_the_checks_notice_a_charge_for_a_change_of_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planted fault: every round costs a restart."""
    monkeypatch.setattr(coordinator, "judge", _charge_everything)
    assert breaks(range(100))


def test_the_checks_notice_a_restart_that_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: every round is free."""
    monkeypatch.setattr(coordinator, "judge", lambda *_: (Verdict.FREE, "free"))
    assert breaks(range(100))


def test_the_checks_notice_a_round_number_that_is_used_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planted fault: the number of a round that was given up comes again."""
    planted = _reuse_numbers(CoordinatorMachine._abandon)
    monkeypatch.setattr(CoordinatorMachine, "_abandon", planted)
    assert breaks(range(85, 150))


@pytest.mark.parametrize("tens", range(4))
def test_the_promises_hold_around_the_real_agents_machine(tens: int) -> None:
    """What the played agent does is what the real one does, as far as promises go."""
    for seed in range(10 * tens, 10 * tens + 10):
        try:
            weather(seed, MachineAgent)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
