"""R11 at the end of a job: a node that comes back hears of it from any that is left."""

from __future__ import annotations

from elastic_simulation.world import World

from pytest_elastic.rendezvous import ports
from tests.spec.test_r11_succession import led, succeeding


def succeed(world: World, *names: str) -> None:
    """Let the groups of some nodes end well."""
    for name in names:
        world.agent(name).succeed()


def result(world: World, name: str) -> str:
    """Return how the job ended for a node, "" if it has not heard."""
    over = world.over(name)
    return over.result if over is not None else ""


def test_r11_a_node_that_comes_back_after_the_end_is_told_although_no_lease_is_granted() -> None:
    """The members have gone, and with them the coordinator's mandate; the end holds."""
    world = led("n1", "n2", "n3", "n4", config=succeeding("3:4", linger_s=20.0))
    world.isolate("n4", ("n1", "n2", "n3"))
    world.reform("n1", "n2", "n3")
    succeed(world, "n1", "n2", "n3")
    world.run(3.0 * world.config.lease_s)
    assert not result(world, "n4")
    world.heal()
    world.run_until(lambda: result(world, "n4") == "succeeded", within_s=3.0)


def test_r11_a_node_that_leaves_after_its_workers_succeeded_needs_no_coordinator() -> None:
    """It has given up its vote, and nothing runs on it: it is not waited for, nor waits itself."""
    world = led("n1", "n2", "n3", "n4", config=succeeding("3:4"))
    world.isolate("n4", ("n1", "n2", "n3"))
    succeed(world, "n4")
    world.agent("n4").drain(2.0)
    world.run_until(lambda: result(world, "n4") == "drained", within_s=3.0)


def test_r11_with_all_told_no_node_lingers() -> None:
    """An end that all have heard of costs no member a moment."""
    world = led("n1", "n2", "n3")
    succeed(world, "n1", "n2", "n3")
    world.run_until(lambda: not any(p.is_alive for p in world.every_process), within_s=1.0)


def test_r11_members_that_know_the_end_tell_who_cannot_reach_the_coordinator() -> None:
    """It was cut off when the end was decided, and never reaches the coordinator again."""
    world = led("n1", "n2", "n3", "n4", config=succeeding("3:4"))
    world.isolate("n4", ("n1", "n2", "n3"))
    world.reform("n1", "n2", "n3")
    succeed(world, "n1", "n2", "n3")
    world.run(1.0)
    assert [result(world, name) for name in ("n2", "n3", "n4")] == ["succeeded", "succeeded", ""]
    world.heal([("n4", "n2"), ("n2", "n4"), ("n4", "n3"), ("n3", "n4")])
    world.run_until(lambda: result(world, "n4") == "succeeded", within_s=3.0)


def test_r11_the_end_outlives_a_coordinator_that_is_killed_while_it_lingers() -> None:
    """So does a node that was away, and a spare that has no vote."""
    world = led("n1", "n2", "n3")
    world.start("n4")
    world.run(1.0)
    assert world.notices("n4", ports.Spared)
    world.isolate("n4", ("n1", "n2", "n3"))
    world.run(2.0 * world.config.lease_s)
    succeed(world, "n1", "n2", "n3")
    world.run(0.5)
    world.kill_agent("n1")
    world.heal()
    world.run_until(lambda: result(world, "n4") == "succeeded", within_s=3.0)


def ending_beside_a_spare(away: str) -> World:
    """Return a world of two members and a spare, one of which is away as the end is announced.

    The others hold the announcement; the coordinator, on n1, is lost before that is known to hold.
    """
    world = led("n1", "n2", config=succeeding("2:2", join_timeout_s=60.0, linger_s=20.0))
    world.start("n3")
    world.run(1.0)
    assert world.notices("n3", ports.Spared)
    coordinator = world.processes["n1"].leader
    assert coordinator is not None
    if away == "n3":
        world.isolate("n3", ("n1", "n2"))
    succeed(world, "n1", "n2")
    world.run_until(lambda: coordinator.phase.name == "ENDING", within_s=1.0)
    if away == "n2":
        world.isolate("n2", ("n1", "n3"))
    world.run(0.3)
    assert coordinator.phase.name == "ENDING"
    world.cut_power("n1")
    world.run(2.0 * world.config.lease_s)
    return world


def test_r11_a_spare_that_was_away_hears_of_an_announcement_from_a_member() -> None:
    """No node can be elected, and a spare has no vote by which it would be told."""
    world = ending_beside_a_spare("n3")
    world.heal()
    world.run_until(lambda: result(world, "n3") == "succeeded", within_s=12.0)
    assert result(world, "n2") == "succeeded"


def test_r11_members_linger_no_longer_than_that() -> None:
    """One that never comes back is waited for linger_s."""
    config = succeeding("3:4", linger_s=3.0)
    world = led("n1", "n2", "n3", "n4", config=config)
    world.cut_power("n4")
    world.reform("n1", "n2", "n3", within_s=5.0)
    succeed(world, "n1", "n2", "n3")
    world.run(0.5 * config.linger_s)
    assert all(world.processes[name].is_alive for name in ("n1", "n2", "n3"))
    world.run(0.6 * config.linger_s)
    assert not any(world.processes[name].is_alive for name in ("n1", "n2", "n3"))
