"""When a person hears of a wait: soon, seldom, and never in a usual start."""

from __future__ import annotations

import contextlib

from pytest_elastic.events.model import StillWaiting
from pytest_elastic.loop import Loop
from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.driver.waiting import Awaited, Waiting, WaitTeller
from tests.unit.rendezvous.follower.bench import Bench


def told_at(waiting: Waiting, begin: float, end: float) -> list[float]:
    """Let time pass in a loop as a driver does, and return when a line was due."""
    told = []
    while (wake_at := waiting.wake_at()) is not None and wake_at <= end:
        begin = max(begin, wake_at)
        if waiting.is_to_be_told(begin):
            told.append(begin)
    return told


def test_a_wait_that_is_short_is_not_told_of() -> None:
    """Nodes that are started together come within two seconds of each other."""
    waiting = Waiting()
    waiting.wait_for(Awaited.JOB, 10.0)
    waiting.hear("connection refused")
    assert not waiting.is_to_be_told(11.9)
    waiting.wait_for(None, 11.9)
    assert waiting.wake_at() is None
    assert not waiting.is_to_be_told(99.0)


def test_ten_minutes_are_four_lines() -> None:
    """The default of join_timeout."""
    waiting = Waiting()
    waiting.wait_for(Awaited.NODES, 10.0)
    assert told_at(waiting, 10.0, 610.0) == [12.0, 40.0, 130.0, 310.0]
    assert told_at(waiting, 610.0, 2200.0) == [910.0, 1510.0, 2110.0]


def test_another_reason_is_told_as_it_comes_and_no_faster_than_a_person_reads() -> None:
    """First nobody is there; then somebody with another token."""
    waiting = Waiting()
    waiting.wait_for(Awaited.JOB, 0.0)
    waiting.hear("connection refused")
    assert told_at(waiting, 0.0, 10.0) == [2.0]
    waiting.hear("connection refused")
    waiting.hear("another token")
    assert told_at(waiting, 10.0, 20.0) == [10.0]
    waiting.hear("connection refused")
    assert told_at(waiting, 20.0, 29.0) == []
    assert waiting.reason == "connection refused"
    waiting.hear("yet another")
    assert told_at(waiting, 29.0, 29.0) == [29.0]
    waiting.hear("reset")
    assert told_at(waiting, 29.0, 60.0) == [31.0]  # and that of every 30 s with it


def test_reasons_that_keep_changing_do_not_fill_the_console() -> None:
    """A handful in the ten minutes, whatever comes."""
    waiting = Waiting()
    waiting.wait_for(Awaited.JOB, 0.0)
    told = []
    for second in range(600):
        waiting.hear(f"something new at {second}")
        told += told_at(waiting, second, second)
    assert len(told) <= 8


def test_another_wait_begins_anew() -> None:
    """It has its own two seconds, and its own reasons."""
    waiting = Waiting()
    waiting.wait_for(Awaited.JOB, 0.0)
    waiting.hear("connection refused")
    waiting.wait_for(Awaited.JOB, 1.5)
    assert told_at(waiting, 0.0, 2.0) == [2.0]
    waiting.wait_for(Awaited.ROUND, 5.0)
    waiting.hear("is no reason of a node that was taken in")
    assert waiting.reason == ""
    assert told_at(waiting, 5.0, 20.0) == [7.0]
    assert waiting.waited_s(20.0) == 15.0


def test_a_leader_whose_port_is_silent_may_be_behind_a_firewall() -> None:
    """The advice of who finds no endpoint would not help: it has answered."""
    told: list[StillWaiting] = []
    follower = Bench().follower
    follower.step(v.Start(), 0.0)
    with contextlib.closing(Loop()) as loop:
        teller = WaitTeller(loop, follower.settings, "n1:29400", told.append)
        teller.look_at(follower, None)
        teller.dialling(v.Dial(address="10.0.0.1", port=39883))
        teller.hear(v.DialFailed(reason="no answer within 5 s", outcome=v.Outcome.SILENT))
        teller.look_at(follower, None)
        while not told:
            loop.run_once(9.0)
        teller.stop()
    assert told[0].reason.startswith(
        "the leader, 10.0.0.1:39883: no answer within 5 s; does a fire"
    )
    assert "--rdzv-conf port_range=" in told[0].reason
