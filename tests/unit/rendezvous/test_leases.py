"""Leases, by numbers alone (R6)."""

from __future__ import annotations

import pytest

from pytest_elastic.rendezvous.leases import GrantedLease, HeldLease, kill_s
from pytest_elastic.rendezvous.settings import Settings


def settings(lease_s: float = 5.0, beat_interval_s: float = 1.0) -> Settings:
    """Return settings that differ in what matters here."""
    return Settings(
        run_id="r",
        min_nodes=1,
        max_nodes=2,
        max_restarts=0,
        lease_s=lease_s,
        beat_interval_s=beat_interval_s,
    )


def test_no_lease_is_held_before_the_greeting_is_answered() -> None:
    """Beat 0 is the greeting; its answer counts from when it was sent."""
    held = HeldLease(settings(), now=100.0)
    assert held.held_until is None
    assert held.fence_at is None
    assert held.take_echo(0)
    assert held.held_until == 105.0


def test_a_lease_runs_from_the_send_time_of_the_echoed_beat_not_from_the_echo() -> None:
    """However late the echo comes, it proves only what was true when the beat was sent."""
    held = HeldLease(settings(), now=100.0)
    count = held.next_beat(101.0)
    held.next_beat(102.0)
    assert held.take_echo(count)  # at whatever time
    assert held.held_until == 106.0


def test_an_echo_that_is_old_or_repeated_extends_nothing() -> None:
    """A frozen echo number is no new lease."""
    held = HeldLease(settings(), now=100.0)
    first, second = held.next_beat(101.0), held.next_beat(102.0)
    assert held.take_echo(second)
    assert not held.take_echo(first)
    assert not held.take_echo(second)
    assert held.held_until == 107.0


def test_an_echo_of_a_beat_that_was_never_sent_extends_nothing() -> None:
    """Numbers from nowhere are no contact."""
    held = HeldLease(settings(), now=100.0)
    assert not held.take_echo(17)
    assert held.held_until is None


def test_killing_begins_before_the_lease_ends() -> None:
    """By a quarter of a second, or an eighth of a short lease."""
    held = HeldLease(settings(), now=0.0)
    held.take_echo(0)
    assert held.fence_at == pytest.approx(4.75)
    assert kill_s(settings(lease_s=1.2, beat_interval_s=0.25)) == pytest.approx(0.15)


def test_unanswered_beats_are_remembered_up_to_a_limit() -> None:
    """A coordinator that is silent for long does not make a member grow."""
    held = HeldLease(settings(), now=0.0)
    for number in range(10_000):
        held.next_beat(float(number))
    assert len(held._unanswered) < 1_000


def test_what_is_granted_runs_from_the_arrival_of_the_beat_that_is_echoed() -> None:
    """A beat arrives after it was sent, so the grant ends after the lease it gives."""
    granted = GrantedLease(settings(), now=100.0)
    assert granted.granted_until == 105.0
    assert granted.take_beat(count=1, echo=0, now=101.5) == (1, 1)
    assert granted.granted_until == 106.5


def test_a_repeated_beat_grants_nothing() -> None:
    """Only a newer number is news."""
    granted = GrantedLease(settings(), now=100.0)
    granted.take_beat(count=1, echo=0, now=101.0)
    granted.take_beat(count=1, echo=1, now=102.0)
    assert granted.granted_until == 106.0


def test_a_member_that_does_not_hear_is_granted_no_more() -> None:
    """Its beats arrive, ours do not: after half a lease its echo and its grant stand still."""
    granted = GrantedLease(settings(), now=100.0)
    for second in range(1, 8):
        count, echo = granted.take_beat(count=second, echo=0, now=100.0 + second)
        assert count == second
    assert echo == 2
    assert granted.granted_until == 107.0


def test_a_member_that_hears_again_is_granted_again() -> None:
    """An answered beat ends the doubt."""
    granted = GrantedLease(settings(), now=100.0)
    for second in range(1, 6):
        granted.take_beat(count=second, echo=0, now=100.0 + second)
    assert granted.take_beat(count=6, echo=5, now=106.0) == (6, 6)
    assert granted.granted_until == 111.0


def test_the_shortest_allowed_lease_doubts_nobody_who_is_well() -> None:
    """With a lease of two beats, an answer that comes with the next beat is in time."""
    granted = GrantedLease(settings(lease_s=2.0), now=0.0)
    for beat in range(1, 20):
        assert granted.take_beat(count=beat, echo=beat - 1, now=float(beat)) == (beat, beat)


def test_a_coordinator_grants_no_more_than_it_has() -> None:
    """A grant shorter than a lease ends it sooner; what was granted once is not taken back."""
    held = HeldLease(settings(), now=100.0)
    held.take_echo(0, 2.0)
    assert held.held_until == 102.0
    held.next_beat(101.0)
    assert held.take_echo(1, 0.5) is False
    assert held.held_until == 102.0
    held.next_beat(101.5)
    assert held.take_echo(2, 60.0)
    assert held.held_until == 101.5 + settings().lease_s


def test_the_coordinator_counts_what_it_granted() -> None:
    """Not a whole lease where its own mandate ends before that."""
    granted = GrantedLease(settings(), now=100.0)
    granted.welcome(100.0, 3.0)
    assert granted.granted_until == 103.0
    granted.take_beat(count=1, echo=0, now=101.0, grant_s=2.5)
    assert granted.granted_until == 103.5
    assert granted.heard_from == 100.0  # the welcome
    granted.take_beat(count=2, echo=1, now=102.0, grant_s=1.0)
    assert granted.granted_until == 103.5
    assert granted.heard_from == 101.0


def answered(grant_beats: float, trip_beats: float) -> float:
    """Return when the next beat is due after one of 0.0 was answered; all in beats."""
    config = settings()
    beat_s = config.beat_interval_s
    held = HeldLease(config, 0.0)
    number = held.next_beat(0.0)
    held.take_echo(number, grant_beats * beat_s)
    held.hurry(trip_beats * beat_s, grant_beats * beat_s)
    return held.beat_at / beat_s


def test_a_member_that_is_granted_little_beats_again_soon() -> None:
    """A beat later might be too late: what is granted then depends on who has been heard."""
    assert answered(1.4, 0.1) == 1.0
    assert answered(1.3, 0.1) == pytest.approx(0.1 + 0.25)


def test_a_member_beats_early_enough_to_be_answered_before_its_lease_ends() -> None:
    """What comes after another round trip is too late; but nobody beats without a pause."""
    assert answered(1.0, 0.3) == pytest.approx(0.3 + (1.0 - 0.3 - 1.5 * 0.3) / 2)
    assert answered(0.5, 0.5) == pytest.approx(0.5 + 1 / 16)
