"""R13: a round is sealed of nodes that have reached each other."""

from __future__ import annotations

import pytest
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import formed, new_world

from pytest_elastic.events import model as events
from tests.spec.words import asks_who_is_reached


def parted(*pairs: str, nodes: str, start: str, quorum: str = "coordinator") -> World:
    """Return a world that has just begun, some of whose links carry nothing."""
    world = new_world(settings(nodes, quorum=quorum))
    for pair in pairs:
        one, other = pair.split("-")
        world.isolate(one, [other])
    world.start(*start.split())
    return world


def gaps(world: World) -> list[str]:
    """Return the pairs found not to reach each other, in order."""
    return [
        f"{event.member}>{name}"
        for event in world.of(events.PeersUnreached)
        if isinstance(event, events.PeersUnreached)
        for name in event.unreached
    ]


def test_r13_a_first_round_is_of_nodes_that_reach_each_other() -> None:
    """One that is apart from another waits, and both know why; the others begin."""
    world = parted("n2-n3", nodes="2:3", start="n1 n2 n3")
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=3.0)
    assert sorted(gaps(world)) == ["n2>n3", "n3>n2"]
    world.run(0.5)
    spared = world.of(events.NodeSpared)
    assert [("n2 cannot reach n3" in event.reason) for event in spared] == [True]  # type: ignore[attr-defined]


def test_r13_a_link_that_is_healed_is_noticed_within_two_leases() -> None:
    """Each link that failed is tried again once a lease, and who waits is taken in."""
    world = parted("n2-n3", nodes="2:3", start="n1 n2 n3")
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=3.0)
    world.run(2.0)
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=4.0)
    assert world.restarts("n1") == 0


def test_r13_a_link_that_is_cut_costs_no_restart_and_no_endless_one() -> None:
    """With no restart allowed the job goes on, without one of the two."""
    world = formed("n1", "n2", "n3", config=settings("2:3", max_restarts=0))
    world.isolate("n2", ["n3"])
    world.fail("n3")
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=3.0)
    assert not world.ended()[-1].charged
    world.run(10.0)
    assert world.all_run("n1", "n2")
    assert len(world.seals()) == 2


def test_r13_too_few_that_reach_each_other_wait_and_say_who_does_not() -> None:
    """No round is started only to fail; the end names the links."""
    world = parted("n2-n3", nodes="3:3", start="n1 n2 n3")
    world.run(20.0)
    assert not world.seals()
    world.run_until(lambda: world.over("n1") is not None, within_s=20.0)
    over = world.over("n1")
    assert over is not None
    assert "n2 cannot reach n3 at n3:1000 (silent)" in over.reason


def test_r13_too_few_that_reach_each_other_begin_when_the_link_is_healed() -> None:
    """They have waited; nothing has to be started anew."""
    world = parted("n2-n3", nodes="3:3", start="n1 n2 n3")
    world.run(5.0)
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=3.0)


def test_r13_of_two_parts_with_a_bridge_one_goes_on() -> None:
    """The majority with the coordinator, when two parts are of the same size."""
    world = parted(
        *("n2-n4", "n2-n5", "n3-n4", "n3-n5"),
        nodes="3:5",
        start="n1 n2 n3 n4 n5",
        quorum="majority",
    )
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=4.0)
    world.run(5.0)
    assert len(world.seals()) == 1


def test_r13_one_direction_is_enough_to_be_apart() -> None:
    """A connection needs both."""
    world = new_world(settings("2:3"))
    world.cut("n3", "n2")
    world.start("n1", "n2", "n3")
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=3.0)
    assert sorted(gaps(world)) == ["n2>n3", "n3>n2"]


def test_r13_a_newcomer_that_does_not_reach_all_disturbs_no_other() -> None:
    """The round goes on; when the newcomer reaches all others, it is taken in."""
    world = formed("n1", "n2", nodes="2:3")
    world.isolate("n3", ["n2"])
    world.start("n3")
    world.run(6.0)
    assert world.all_run("n1", "n2")
    assert len(world.seals()) == 1
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=4.0)


def test_r13_a_node_that_answers_nothing_delays_no_other_beyond_its_lease() -> None:
    """Those who dial a node that has lost power are not waited for once it is given up."""
    world = formed("n1", "n2", "n3", config=settings("2:3"))
    world.cut_power("n3")
    world.fail("n2")
    took_s = world.reform("n1", "n2", within_s=4.0)
    assert took_s < world.config.lease_s + world.config.drift_s + 0.5


@pytest.mark.parametrize("way", ["break_connection", "kill_agent", "crash"])
def test_r13_a_member_may_be_lost_while_it_dials(way: str) -> None:
    """It is asked again, or the others go on without it."""
    world = new_world(settings("2:3"))
    world.start("n1", "n2", "n3")
    world.run_until(
        lambda: any(asks_who_is_reached(message) for *_, message in world.sent), within_s=1.0
    )
    getattr(world, way)("n3")
    rest = ("n1", "n2", "n3") if way == "break_connection" else ("n1", "n2")
    world.run_until(lambda: world.all_run(*rest), within_s=4.0)


def test_r13_the_coordinator_may_be_lost_while_it_asks() -> None:
    """Who follows asks anew."""
    world = formed("n1", "n2", "n3", config=settings("2:3", quorum="majority"))
    world.fail("n2")
    world.run_until(lambda: asks_who_is_reached(world.sent[-1][3]), within_s=1.0)
    world.crash("n1")
    world.run_until(lambda: world.all_run("n2", "n3"), within_s=6.0)


def test_r13_a_spare_is_not_promoted_where_it_does_not_reach() -> None:
    """Of two that wait, the one that reaches all others comes in, though it came later."""
    world = formed("n1", "n2", "n3")
    world.isolate("n4", ["n2"])
    world.start("n4")
    world.run(0.5)
    world.start("n5")
    world.run(0.5)
    world.agent("n3").drain(grace_s=1.0)
    world.run_until(lambda: world.all_run("n1", "n2", "n5"), within_s=5.0)
