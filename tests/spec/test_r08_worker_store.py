"""R8: every round has a fresh worker store, opened by the agent of group rank 0."""

from __future__ import annotations

from elastic_simulation.world import settings
from elastic_simulation.worlds import formed, new_world

from pytest_elastic.rendezvous import ports


def test_r08_group_rank_0_opens_a_store_for_each_round() -> None:
    """One order per round, to one node, before anything starts."""
    world = formed("n1", "n2", "n3")
    world.fail("n2")
    world.reform("n1", "n2", "n3")
    opened = world.notices("n1", ports.OpenStore)
    assert opened == [
        ports.OpenStore(round=1, world_size=6),
        ports.OpenStore(round=2, world_size=6),
    ]
    assert world.notices("n2", ports.OpenStore) == []


def test_r08_its_address_is_part_of_the_commit() -> None:
    """All members start with the same store, which is not the one before."""
    world = formed("n1", "n2")
    first = world.agent("n2").assignment
    world.fail("n2")
    world.reform("n1", "n2")
    stores = {
        (each.store_address, each.store_port)
        for each in (world.agent("n1").assignment, world.agent("n2").assignment)
        if each is not None
    }
    assert len(stores) == 1
    assert first is not None
    assert (first.store_address, first.store_port) not in stores


def test_r08_without_an_address_in_time_the_round_is_sealed_without_that_node() -> None:
    """A node that cannot host a store is no rank 0: the others go on, it may come back later."""
    world = new_world(settings("2:3", last_call_s=0.5))
    world.start("n1", "n2", "n3")
    world.agent("n2").opens_stores = True
    world.agent("n1").opens_stores = False
    world.run_until(lambda: world.all_run("n2", "n3"), within_s=3.0)
    assert world.seals()[0].roster == ("n1", "n2", "n3")
    assert world.seals()[1].roster == ("n2", "n3")
    assert "no worker store within 1 s" in world.ended()[0].reason
    world.run_until(lambda: world.all_run("n2", "n3", "n1"), within_s=3.0)
    assert world.ranks("n1")[0] == "n2"


def test_r08_a_store_that_cannot_be_opened_is_not_waited_for() -> None:
    """The agent's own word is enough."""
    world = new_world(settings("2:3", last_call_s=0.5))
    world.start("n1", "n2", "n3")
    world.agent("n1").store_problem = "no free port"
    took_s = world.run_until(lambda: world.all_run("n2", "n3"), within_s=3.0)
    assert took_s < 0.6
    assert "no free port" in world.ended()[0].reason


def test_r08_a_job_in_which_no_node_can_open_a_store_ends() -> None:
    """Rounds that cannot be committed make no progress either, and are counted with them."""
    world = new_world(settings("1:2", max_restarts=0, last_call_s=0.2))
    world.start("n1", "n2")
    for name in ("n1", "n2"):
        world.agent(name).store_problem = "no free port"
    world.run(20.0)
    over = world.over("n1")
    assert over is not None
    assert over.result == "failed"
    assert "without progress" in over.reason
