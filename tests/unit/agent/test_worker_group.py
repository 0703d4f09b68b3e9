"""The ending of one round's workers: when which step is due."""

from __future__ import annotations

import pytest

from pytest_elastic.agent.worker_group import GROUP_GRACE_S, LEFTOVER_GRACE_S, WorkerGroup
from tests.unit.agent.machine_bench import assignment


def steps(group: WorkerGroup) -> list[tuple[float, str]]:
    """Take every step as it falls due, and return when each was."""
    taken: list[tuple[float, str]] = []
    for _ in range(5):
        at = group.wake_at()
        if at is None:
            break
        if group.is_kill_due(at):
            group.was_killed(at, within_s=60)
            taken.append((at, "all are killed"))
        elif group.are_groups_due(at):
            group.groups_were_told()
            taken.append((at, "groups are told"))
    return taken


def test_nothing_is_due_before_an_ending_begins() -> None:
    """Workers that run are left alone."""
    group = WorkerGroup(assignment())
    assert group.wake_at() is None
    assert not group.is_kill_due(1e9)
    assert not group.are_groups_due(1e9)


@pytest.mark.parametrize(("grace_s", "groups_s"), [(30.0, GROUP_GRACE_S), (1.0, 0.2), (0.0, 0.0)])
def test_groups_are_told_shortly_before_the_grace_is_over(grace_s: float, groups_s: float) -> None:
    """A second before, or a fifth of what is less than five; without a grace there is no step."""
    group = WorkerGroup(assignment())
    assert group.end_within(grace_s, now=100.0)
    told = [(100.0 + grace_s - groups_s, "groups are told")] if grace_s else []
    assert steps(group) == [*told, (100.0 + grace_s, "all are killed")]


def test_an_ending_can_be_hurried_and_never_put_off() -> None:
    """Who orders the end a second time begins nothing; the shorter grace holds."""
    group = WorkerGroup(assignment())
    assert group.end_within(30.0, now=100.0)
    assert not group.end_within(5.0, now=101.0)
    assert not group.end_within(60.0, now=102.0)
    assert steps(group)[-1] == (106.0, "all are killed")
    assert not group.end_within(5.0, now=107.0)
    assert steps(group) == [], "what was killed is killed again"


@pytest.mark.parametrize(
    ("grace_s", "told_at", "killed_at"),
    [
        (None, 110.0 + LEFTOVER_GRACE_S, 110.0 + LEFTOVER_GRACE_S + GROUP_GRACE_S),
        (30.0, 110.0, 111.0),
        (10.5, 110.0, 110.5),
    ],
)
def test_leftovers_get_a_moment_and_no_more_than_the_grace(
    grace_s: float | None, told_at: float, killed_at: float
) -> None:
    """They are told at once, or half a second after workers that ended by themselves."""
    group = WorkerGroup(assignment())
    if grace_s is not None:
        group.end_within(grace_s, now=100.0)
    group.end_leftovers(now=110.0)
    assert group.is_ending
    assert steps(group) == [(told_at, "groups are told"), (killed_at, "all are killed")]


def test_an_ending_takes_as_long_as_it_was_asked_for() -> None:
    """From the first order on, although leaders ended later; none was asked for takes no time."""
    group = WorkerGroup(assignment())
    assert group.ended_for_s(100.0) == 0.0
    group.end_within(30.0, now=100.0)
    group.end_leftovers(now=103.0)
    assert group.ended_for_s(104.0) == 4.0


def test_what_is_gone_waits_for_nothing() -> None:
    """No step is due for processes that do not exist."""
    group = WorkerGroup(assignment())
    group.end_within(30.0, now=100.0)
    group.is_gone = True
    assert group.wake_at() is None
