"""The judge once all is healed: what it exempts, and that it exempts no more than the rules say."""

from __future__ import annotations

from unittest import mock

import pytest
from elastic_simulation.random_faults.health import Exemption, health_of
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import formed

from pytest_elastic.rendezvous.consensus.candidate import Candidate
from pytest_elastic.rendezvous.leader.gathering import Gathering

NAMES = ("n1", "n2", "n3", "n4", "n5")


def five(nodes: str = "2:5") -> World:
    """Return a job of five nodes in which a majority goes on."""
    config = settings(nodes, quorum="majority", join_timeout_s=60.0)
    return formed(*NAMES, config=config)


def two_leave_and_one_is_lost(world: World) -> World:
    """Two leave in order while a third one is slow to stop, which is lost then (R4, R11.9)."""
    world.agent("n5").stop_s = 60.0
    world.agent("n3").drain(grace_s=2.0)
    world.agent("n4").drain(grace_s=2.0)
    world.run(1.0)
    world.cut_power("n5")
    world.run(10.0)
    return world


def test_a_job_that_runs_is_well() -> None:
    """Nothing is wrong, and nothing had to be exempt."""
    health = health_of(five())
    assert (health.problem, health.exemption) == (None, None)


def test_a_minority_need_not_go_on() -> None:
    """Two of five that were lost none in order (R11.10)."""
    world = five()
    for name in ("n1", "n2", "n3"):
        world.crash(name)
    world.run(10.0)
    assert health_of(world).exemption is Exemption.MINORITY


def test_fewer_than_the_fewest_need_not_go_on() -> None:
    """They wait for the join timeout (R2)."""
    world = five("3:5")
    for name in ("n3", "n4", "n5"):
        world.crash(name)
    world.run(10.0)
    assert health_of(world).exemption is Exemption.TOO_FEW


def test_two_of_five_go_on_where_two_have_left_in_order() -> None:
    """Their voices do not count (R11.9)."""
    world = two_leave_and_one_is_lost(five())
    assert world.all_run("n1", "n2")
    assert health_of(world).problem is None


def test_it_is_a_stall_if_they_do_not_go_on() -> None:
    """Planted: no round is proposed any more. Two of five need not go on if none left in order."""
    world = five()
    with mock.patch.object(Gathering, "look", return_value=None):
        two_leave_and_one_is_lost(world)
    assert health_of(world).problem == "[] of ['n1', 'n2'] go on, 2 nodes should"


def test_it_is_a_stall_if_a_majority_elects_no_leader() -> None:
    """Planted: no node ever stands."""
    world = five()
    with mock.patch.object(Candidate, "stand", return_value=None):
        world.crash("n1")
        world.run(10.0)
    assert health_of(world).problem == "[] of ['n2', 'n3', 'n4', 'n5'] go on, 4 nodes should"


@pytest.mark.parametrize("exemption", Exemption)
def test_each_exemption_says_its_rule(exemption: Exemption) -> None:
    """By its number in docs/rendezvous.md."""
    assert exemption.value.startswith("R")
