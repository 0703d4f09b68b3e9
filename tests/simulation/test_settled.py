"""A machine that has taken an input in has nothing left to do before it wants to be woken.

Neither a leader nor a follower looks at what follows from every input. So what is let pass is
followed by a look at the same moment here: of a leader each input, of a follower that is joined
the answers of peers.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from elastic_simulation.random_faults.plan import QUORUMS, Options, draw_plan
from elastic_simulation.random_faults.plan_run import run_plan

from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.follower.connection import ConnectionPhase
from pytest_elastic.rendezvous.follower.follower import Follower
from pytest_elastic.rendezvous.leader.leader import Leader
from pytest_elastic.rendezvous.leader.members import Members
from tests.simulation.planting import after

SEEDS = range(20)
_step = Leader.step
_follower_step = Follower.step


def _step_twice(machine: Leader, input: v.LeaderInput, now: float) -> Sequence[v.LeaderCommand]:
    """Take an input in, and see that nothing happens when time passes at the same moment."""
    commands = _step(machine, input, now)
    wake_at = machine.wake_at()
    assert not _step(machine, v.TimePassed(), now), f"nothing was to be done after {input}"
    later = machine.wake_at()
    is_woken = later is None or (wake_at is not None and wake_at <= later + 1e-9)
    assert is_woken, f"after {input} it would be woken at {wake_at}, and not at {later}"
    return commands


def _follower_step_twice(
    follower: Follower, input: v.FollowerInput, now: float
) -> Sequence[v.FollowerCommand]:
    """Take an answer of a peer in, and see the same of a follower that has joined."""
    commands = _follower_step(follower, input, now)
    is_dialled = isinstance(input, v.Answered) and input.term is None
    if is_dialled and follower.connection is ConnectionPhase.JOINED:
        wake_at = follower.wake_at()
        left = _follower_step(follower, v.TimePassed(), now)
        assert not left, f"nothing was to be done after {input}, and not {left}"
        assert follower.wake_at() == wake_at, f"it would be woken at {wake_at}"
    return commands


def _run(quorum: str) -> None:
    for seed in SEEDS:
        for is_brisk in (False, True):
            run_plan(draw_plan(seed, Options(quorum=quorum, is_brisk=is_brisk)))


@pytest.mark.parametrize("quorum", QUORUMS)
def test_a_step_leaves_nothing_to_be_done_before_the_next_deadline(
    quorum: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is due is done at once, and the next deadline wakes it, without any message."""
    monkeypatch.setattr(Leader, "step", _step_twice)
    _run(quorum)


def test_a_deadline_without_a_wake_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it was after members had been judged: the next one was judged when another had a beat."""

    def forget(members: Members, *_: object) -> None:
        members._deadlines.clear()

    judge = after(Members.judge_silence, forget)
    monkeypatch.setattr(Members, "judge_silence", judge)
    monkeypatch.setattr(Leader, "step", _step_twice)
    with pytest.raises(AssertionError, match=r"nothing was to be done|it would be woken"):
        _run("coordinator")


@pytest.mark.parametrize("quorum", QUORUMS)
def test_no_deadline_of_a_follower_hangs_on_the_answer_of_a_peer(
    quorum: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such answers are many, before each round, and the follower looks at nothing then."""
    monkeypatch.setattr(Follower, "step", _follower_step_twice)
    _run(quorum)


def test_an_answer_that_a_deadline_hangs_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would be if a follower that answers were to send its next beat a little earlier."""

    def hurry(follower: Follower, *_: object) -> None:
        if follower._connection._lease is not None:
            follower._connection._lease.beat_at -= 0.01

    tell = after(Follower._tell_dialled, hurry)
    monkeypatch.setattr(Follower, "_tell_dialled", tell)
    monkeypatch.setattr(Follower, "step", _follower_step_twice)
    with pytest.raises(AssertionError, match="it would be woken"):
        _run("coordinator")
