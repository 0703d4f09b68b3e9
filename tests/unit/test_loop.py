"""The event loop: what is ready is told to whom it belongs."""

from __future__ import annotations

import socket
from functools import partial

import pytest

from pytest_elastic.loop import Loop


def test_what_is_ready_is_not_told_to_who_got_a_closed_descriptors_number(loop: Loop) -> None:
    """Two are ready in one turn; the first closes the second, whose number another one gets."""
    one, one_end = socket.socketpair()
    two, two_end = socket.socketpair()
    told: list[str] = []
    others: list[socket.socket] = []

    def close_the_other() -> None:
        loop.unwatch(one.fileno())
        number = two.fileno()
        loop.unwatch(number)
        two.close()
        fresh, fresh_end = socket.socketpair()
        others.extend((fresh, fresh_end))
        assert fresh.fileno() == number, "the kernel gives the lowest number that is free"
        loop.watch(
            number,
            on_readable=lambda: told.append("the new one is readable"),
            on_writable=lambda: told.append("the new one is writable"),
        )

    loop.watch(one.fileno(), on_readable=close_the_other)
    loop.watch(two.fileno(), on_readable=lambda: told.append("the old one"))
    number = two.fileno()
    one_end.send(b"x")
    two_end.close()  # readable and hung up, in the same turn
    loop.run_once(5.0)
    assert told == []
    loop.run_once(5.0)
    assert told == ["the new one is writable"]
    loop.unwatch(number)
    for sock in (one, one_end, *others):
        sock.close()


def test_who_unwatches_itself_is_told_no_more(loop: Loop) -> None:
    """Readable and writable at once: the first callback ends both."""
    one, other = socket.socketpair()
    told: list[str] = []

    def end() -> None:
        told.append("readable")
        loop.unwatch(one.fileno())
        loop.unwatch(one.fileno())

    loop.watch(one.fileno(), on_readable=end, on_writable=lambda: told.append("writable"))
    other.send(b"x")
    loop.run_once(5.0)
    loop.run_once(0.0)
    assert told == ["readable"]
    one.close()
    other.close()


def test_watching_anew_replaces_what_was_watched(loop: Loop) -> None:
    """And nothing to be watched is the end of it."""
    one, other = socket.socketpair()
    told: list[str] = []
    loop.watch(one.fileno(), on_writable=lambda: told.append("writable"))
    loop.watch(one.fileno(), on_readable=lambda: told.append("readable"))
    other.send(b"x")
    loop.run_once(5.0)
    assert told == ["readable"]
    loop.watch(one.fileno())
    loop.run_once(0.0)
    assert told == ["readable"]
    one.close()
    other.close()


def test_low_priority_is_served_last_and_a_few_at_a_time(loop: Loop) -> None:
    """100 are ready and stay so: each turn serves the other one first, and all have their turn."""
    pairs = [socket.socketpair() for _ in range(101)]
    told: list[int] = []
    for number, (one, other) in enumerate(pairs):
        loop.watch(
            one.fileno(),
            on_readable=partial(told.append, number),
            low_priority=number < 100,
        )
        other.send(b"x")
    turns: list[list[int]] = []
    while len(set(told)) < 101 and len(turns) < 100:
        begin = len(told)
        loop.run_once(5.0)
        turns.append(told[begin:])
    assert set(told) == set(range(101))
    for turn in turns:
        assert turn[0] == 100
        assert 1 < len(turn) <= 40
    for one, other in pairs:
        loop.unwatch(one.fileno())
        one.close()
        other.close()


def test_cancelled_timers_are_forgotten_before_they_would_be_due(loop: Loop) -> None:
    """A visitor whose patience is an hour leaves nothing behind."""
    told: list[str] = []
    loop.call_at(loop.now(), lambda: told.append("kept"))
    for _ in range(10_000):
        loop.call_at(loop.now() + 3600, lambda: told.append("cancelled")).cancel()
    assert len(loop._timers) < 200
    loop.run_once(0.0)
    assert told == ["kept"]


def test_a_call_from_a_thread_that_comes_after_the_end_is_forgotten() -> None:
    """The descriptor that wakes the loop is somebody else's by then."""
    loop = Loop()
    loop.enable_thread_wakeup()
    loop.close()
    loop.call_from_thread(lambda: pytest.fail("the loop is closed"))
