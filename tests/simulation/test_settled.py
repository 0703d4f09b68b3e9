"""A machine that has taken an input in has nothing left to do before it wants to be woken.

Neither a coordinator nor a member looks at what follows from every input. So what is let pass is
followed by a look at the same moment here: of a coordinator each input, of a member that is joined
the answers of peers.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from elastic_simulation.random_faults.plan import QUORUMS, Options, draw_plan
from elastic_simulation.random_faults.plan_run import run_plan

from pytest_elastic.rendezvous import vocabulary as v
from pytest_elastic.rendezvous.coordinator import CoordinatorMachine
from pytest_elastic.rendezvous.member import MemberMachine
from pytest_elastic.rendezvous.member_phases import Link
from tests.simulation.planting import after

SEEDS = range(20)
_step = CoordinatorMachine.step
_member_step = MemberMachine.step


def _step_twice(
    machine: CoordinatorMachine, input: v.CoordinatorInput, now: float
) -> Sequence[v.CoordinatorCommand]:
    """Take an input in, and see that nothing happens when time passes at the same moment."""
    commands = _step(machine, input, now)
    wake_at = machine.wake_at()
    assert not _step(machine, v.TimePassed(), now), f"nothing was to be done after {input}"
    later = machine.wake_at()
    is_woken = later is None or (wake_at is not None and wake_at <= later + 1e-9)
    assert is_woken, f"after {input} it would be woken at {wake_at}, and not at {later}"
    return commands


def _member_step_twice(
    member: MemberMachine, input: v.MemberInput, now: float
) -> Sequence[v.MemberCommand]:
    """Take an answer of a peer in, and see the same of a member that is joined."""
    commands = _member_step(member, input, now)
    if isinstance(input, v.ProbeAnswered) and member.link is Link.JOINED:
        wake_at = member.wake_at()
        left = _member_step(member, v.TimePassed(), now)
        assert not left, f"nothing was to be done after {input}, and not {left}"
        assert member.wake_at() == wake_at, f"it would be woken at {wake_at}"
    return commands


def _run(quorum: str) -> None:
    for seed in SEEDS:
        for is_brisk in (False, True):
            run_plan(draw_plan(seed, Options(quorum=quorum, is_brisk=is_brisk)))


@pytest.mark.parametrize("quorum", QUORUMS)
def test_a_step_leaves_nothing_to_be_done_before_the_next_deadline(
    quorum: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is due is done at once, and what comes next is woken for, whoever else says nothing."""
    monkeypatch.setattr(CoordinatorMachine, "step", _step_twice)
    _run(quorum)


def test_a_deadline_that_nobody_is_woken_for_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it was after members had been judged: the next one was judged when another had a beat."""

    def forget(machine: CoordinatorMachine, *_: object) -> None:
        machine._deadlines.clear()

    judge = after(CoordinatorMachine._judge_silence, forget)
    monkeypatch.setattr(CoordinatorMachine, "_judge_silence", judge)
    monkeypatch.setattr(CoordinatorMachine, "step", _step_twice)
    with pytest.raises(AssertionError, match=r"nothing was to be done|it would be woken"):
        _run("coordinator")


@pytest.mark.parametrize("quorum", QUORUMS)
def test_no_deadline_of_a_member_hangs_on_the_answer_of_a_peer(
    quorum: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such answers are many, before each round, and the member looks at nothing then."""
    monkeypatch.setattr(MemberMachine, "step", _member_step_twice)
    _run(quorum)


def test_an_answer_that_a_deadline_hangs_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would be if a member that answers were to send its next beat a little earlier."""

    def hurry(member: MemberMachine, *_: object) -> None:
        if member._link._lease is not None:
            member._link._lease.beat_at -= 0.01

    tell = after(MemberMachine._tell_checked, hurry)
    monkeypatch.setattr(MemberMachine, "_tell_checked", tell)
    monkeypatch.setattr(MemberMachine, "step", _member_step_twice)
    with pytest.raises(AssertionError, match="it would be woken"):
        _run("coordinator")
