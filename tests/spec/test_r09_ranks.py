"""R9: ranks are contiguous, agreed by all, and as steady as they can be."""

from __future__ import annotations

from elastic_simulation.world import settings
from elastic_simulation.worlds import formed, new_world


def test_r09_names_are_sorted_as_people_do_at_first() -> None:
    """n2 comes before n10, in whatever order they arrive (torch #191190)."""
    world = new_world(settings("3:3"))
    world.start("n10", "n2", "n1")
    world.run_until(lambda: world.all_run("n1", "n2", "n10"), within_s=1.0)
    assert world.ranks("n10") == ("n1", "n2", "n10")


def test_r09_survivors_keep_their_order() -> None:
    """Ranks close up behind a node that went, and do not change otherwise."""
    world = formed("n1", "n2", "n3", "n4", nodes="2:4")
    world.kill_agent("n2")
    world.run_until(lambda: world.all_run("n1", "n3", "n4"), within_s=1.0)
    assert world.ranks("n4") == ("n1", "n3", "n4")


def test_r09_newcomers_go_last_whatever_their_names_are() -> None:
    """A node whose name sorts before rank 0 does not become rank 0."""
    world = formed("n5", "n6", nodes="2:4")
    world.start("n1")
    world.run_until(lambda: world.all_run("n1", "n5", "n6"), within_s=1.0)
    assert world.ranks("n1") == ("n5", "n6", "n1")


def test_r09_a_replacement_takes_its_predecessors_place() -> None:
    """The same name with a new incarnation has the old rank again."""
    world = formed("n1", "n2", "n3")
    world.kill_agent("n2")
    world.run(1.0)
    world.start("n2")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=1.0)
    assert world.ranks("n2") == ("n1", "n2", "n3")


def test_r09_node_rank_pins_the_order_and_not_the_numbers() -> None:
    """--node-rank 10, 20 and 5 give the ranks 1, 2 and 0."""
    world = new_world(settings("3:3"))
    world.start("a", pinned=10)
    world.start("b", pinned=20)
    world.start("c", pinned=5)
    world.run_until(lambda: world.all_run("a", "b", "c"), within_s=1.0)
    assert world.ranks("a") == ("c", "a", "b")


def test_r09_rank_0_is_a_survivor_whenever_there_is_one() -> None:
    """A newcomer has no state to broadcast: it is put behind those that have."""
    world = formed("n1", "n2", "n3", nodes="2:3")
    world.start("n0")
    world.run(1.0)
    world.kill_agent("n2")
    world.run_until(lambda: world.all_run("n1", "n3", "n0"), within_s=1.0)
    assert world.ranks("n0") == ("n1", "n3", "n0")
