"""R4, R11.9: a node that leaves keeps its vote until there is a leader to be told."""

from __future__ import annotations

import pytest
from elastic_simulation.machine_agent import MachineAgent
from elastic_simulation.world import World
from elastic_simulation.worlds import new_world

from tests.spec.test_r11_succession import led, newest_term, succeeding
from tests.spec.words import lets_go


def _left_in_order(world: World, name: str) -> bool:
    return any(lets_go(said) and to == name for _, _, to, said in world.sent)


@pytest.mark.parametrize("lose", ["cut_power", "freeze"])
def test_r11_who_leaves_as_the_coordinator_is_lost_votes_before_it_goes(lose: str) -> None:
    """Of four, two are left, without the one that decided: half would be no quorum."""
    world = led("n1", "n2", "n3", "n4", config=succeeding("2:4"))
    if lose == "freeze":
        world.freeze("n1", 60.0)
    else:
        world.cut_power("n1")
    world.run(0.05)
    world.agent("n3").drain(grace_s=30.0, takes_s=0.6)
    world.run_until(lambda: world.round_of("n2") == world.round_of("n4") == 2, within_s=5.0)
    assert _left_in_order(world, "n3")


def test_r11_its_agent_waits_for_that_where_a_lease_is_long() -> None:
    """The lease of production: longer than a node waits to be let go where no vote is needed."""
    config = succeeding("2:4", lease_s=5.0, shutdown_timeout_s=30.0)
    world = new_world(config, agent_class=MachineAgent)
    names = ("n1", "n2", "n3", "n4")
    world.start(*names)
    world.run_until(lambda: world.all_run(*names), within_s=15.0)  # a first round waits (R12)
    world.cut_power("n1")
    world.agent("n3").drain(grace_s=30.0, takes_s=0.6)
    world.run_until(lambda: world.round_of("n2") == world.round_of("n4") == 2, within_s=9.0)
    assert _left_in_order(world, "n3")


def test_r11_two_leave_as_the_coordinator_is_lost_and_the_elected_one_keeps_its_mandate() -> None:
    """It was elected with their voices, and they are let go at once."""
    world = led("n1", "n2", "n3", "n4", "n5", config=succeeding("2:5"))
    world.freeze("n1", 60.0)
    world.run(0.05)
    for name in ("n4", "n5"):
        world.agent(name).drain(grace_s=30.0, takes_s=0.6)
    world.run_until(lambda: world.round_of("n2") == world.round_of("n3") == 2, within_s=5.0)
    assert newest_term(world) == 2  # elected once


def test_r11_who_leaves_stays_no_longer_than_an_election_takes() -> None:
    """No node can be elected, as too few are left."""
    world = led("n1", "n2", "n3", config=succeeding("2:3"))
    world.cut_power("n1")
    world.cut_power("n2")
    world.run(0.05)
    world.agent("n3").drain(grace_s=30.0, takes_s=0.6)
    world.run(4.0)
    assert world.over("n3") is None
    world.run_until(lambda: world.over("n3") is not None, within_s=2.0)


def test_r11_who_leaves_a_coordinator_that_answers_does_not_wait() -> None:
    """It takes one more round trip than the workers need to end."""
    world = led("n1", "n2", "n3", config=succeeding("2:3"))
    left_at = world.time + 0.1
    world.agent("n3").drain(grace_s=30.0, takes_s=0.1)
    world.run_until(lambda: world.over("n3") is not None, within_s=1.0)
    assert world.time < left_at + 4 * world.latency_s + 0.01
    assert _left_in_order(world, "n3")
