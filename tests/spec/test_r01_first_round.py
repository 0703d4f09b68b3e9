"""R1: the first round seals at once when it is full, else after the last call."""

from __future__ import annotations

from elastic_simulation.world import settings
from elastic_simulation.worlds import new_world


def test_r01_a_full_first_round_is_sealed_at_once() -> None:
    """With max_nodes in, there is no node to wait for."""
    world = new_world(settings("2:3", last_call_s=30.0))
    world.start("n1", "n2", "n3")
    assert world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=1.0) < 0.1


def test_r01_between_min_and_max_the_last_call_is_waited_for() -> None:
    """With min_nodes in, those who come within the last call are in the first round."""
    world = new_world(settings("2:4", last_call_s=1.0))
    world.start("n1", "n2")
    world.run(0.9)
    assert world.round_of("n1") == 0
    world.start("n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=0.2)
    assert "last call" in world.seals()[0].reason


def test_r01_the_last_call_begins_when_enough_nodes_are_in() -> None:
    """Time below min_nodes does not count, and a node that goes starts it anew."""
    world = new_world(settings("2:4", last_call_s=1.0))
    world.start("n1")
    world.run(5.0)
    world.start("n2")
    world.run(0.9)
    world.kill_agent("n2")
    world.run(1.0)
    world.start("n3")
    assert world.run_until(lambda: world.all_run("n1", "n3"), within_s=2.0) > 0.95


def test_r01_a_job_that_never_has_enough_nodes_ends_and_names_those_that_came() -> None:
    """Below min_nodes for the join timeout, the job ends as lost."""
    world = new_world(settings("3:4", join_timeout_s=10.0))
    world.start("n1", "n2")
    world.run(9.9)
    assert world.over("n1") is None
    world.run(0.2)
    for name in ("n1", "n2"):
        over = world.over(name)
        assert over is not None
        assert over.result == "lost"
        assert "2 of at least 3 nodes" in over.reason
        assert "n1, n2" in over.reason
