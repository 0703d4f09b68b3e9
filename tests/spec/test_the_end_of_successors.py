"""R11 at the end of a job: whoever comes back hears of it, whoever is left to tell it."""

from __future__ import annotations

from elastic_harness.simulation.world import World

from pytest_elastic.rendezvous import messages as m
from tests.spec.test_r11_succession import led, newest_term, succeeding


def succeed(world: World, *names: str) -> None:
    """Let the groups of some nodes end well."""
    for name in names:
        world.agent(name).succeed()


def result(world: World, name: str) -> str:
    """Return how the job ended for a node, "" if it has not heard."""
    over = world.over(name)
    return over.result if over is not None else ""


def test_r11_who_comes_back_after_the_end_is_told_although_nobody_grants_anything() -> None:
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
    """It has renounced its voice, and nothing runs on it: nobody waits for it, nor it for them."""
    world = led("n1", "n2", "n3", "n4", config=succeeding("3:4"))
    world.isolate("n4", ("n1", "n2", "n3"))
    succeed(world, "n4")
    world.agent("n4").drain(2.0)
    world.run_until(lambda: result(world, "n4") == "drained", within_s=3.0)


def test_r11_whoever_is_at_the_address_of_the_coordinator_is_not_taken_for_it() -> None:
    """A host that comes back begins anew, in the same term, which members have promised to another.

    They dial it while their lease holds, are welcomed, and hang up: a term has one coordinator.
    """
    world = led("n1", "n2", "n3")
    world.crash("n1")
    world.start("n1")
    new = world.processes["n1"].node.incarnation
    world.run_until(lambda: newest_term(world) == 2, within_s=5.0)
    said = [(source, message) for _, source, _, message in world.sent]
    assert any(isinstance(each, m.Welcome) and each.incarnation == new for _, each in said)
    assert not any(
        isinstance(each, m.SealAcknowledged) and each.term == 1 and each.round > 1
        for source, each in said
        if source != "n1"
    )
