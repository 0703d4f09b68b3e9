"""R2: later rounds need no last call, because the survivors are known."""

from __future__ import annotations

from elastic_simulation.world import LATENCY_S, settings
from elastic_simulation.worlds import formed, new_world


def test_r02_a_later_round_needs_no_last_call() -> None:
    """As soon as every member has stopped, the next round is sealed, below max_nodes too."""
    world = formed("n1", "n2", config=settings("2:4", last_call_s=4.0))
    world.fail("n2")
    world.run(0.1)
    assert world.all_run("n1", "n2")
    assert world.round_of("n1") == 2


def test_r02_a_node_that_waits_is_in_the_next_round() -> None:
    """A node that arrives while the others stop is sealed together with them."""
    world = formed("n1", "n2", nodes="2:4")
    world.agent("n1").stop_s = 0.5
    world.fail("n2")
    world.run(0.1)
    world.start("n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=1.0)
    assert world.round_of("n3") == 2


def test_r02_the_slowest_member_is_waited_for() -> None:
    """No round is sealed while workers of a living member are still there."""
    world = formed("n1", "n2", "n3")
    world.agent("n3").stop_s = 2.5
    world.fail("n1")
    world.run(2.4)
    assert len(world.seals()) == 1
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=0.3)
    assert world.lost() == []


def test_r02_a_member_that_does_not_stop_is_evicted_and_kept_out_until_its_workers_are_gone() -> (
    None
):
    """Five seconds after its grace the others go on; it comes back when nothing is left there."""
    world = formed("n1", "n2", "n3", config=settings("2:3", shutdown_timeout_s=1.0))
    world.agent("n3").stop_s = 9.0
    world.agent("n3").kill_s = 9.0
    world.fail("n1")
    world.run(5.9)
    assert world.lost() == []
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=2.0)
    assert world.lost() == [("n3", "evicted")]
    joined_after_s = world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=12.0)
    assert joined_after_s > 1.0, "its old workers were still there"


def test_r02_a_member_that_is_slow_to_stop_is_waited_for_as_long_as_it_may_take_to_kill() -> None:
    """Memory of a GPU takes its time to be given back: the others do not go on without the node."""
    config = settings("2:3", shutdown_timeout_s=1.0, kill_timeout_s=30.0)
    world = formed("n1", "n2", "n3", config=config)
    world.agent("n3").stop_s = 25.0
    world.fail("n1")
    world.run_until(lambda: world.round_of("n3") == 2, within_s=26.0)
    assert world.lost() == []
    world.agent("n3").stop_s = world.agent("n3").kill_s = 40.0
    world.fail("n1")
    world.run_until(lambda: world.lost() == [("n3", "evicted")], within_s=33.0)


def test_r02_after_a_failure_or_a_loss_the_others_have_the_grace_of_a_failure() -> None:
    """They may be in a collective with who is gone; for a newcomer they have all of their grace."""
    config = settings("2:3", shutdown_timeout_s=20.0, failure_grace_s=2.0)
    world = formed("n1", "n2", config=config)
    world.fail("n1")
    world.reform("n1", "n2")
    world.run(2.0)
    world.start("n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=5.0)
    world.run(2.0)
    world.kill_agent("n3")
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=5.0)
    graces = [order.grace_s for order in world.agent("n2").stop_orders]
    assert graces == [2.0, 20.0, 2.0]


def test_r02_below_min_nodes_the_job_waits_and_then_ends_naming_who_is_missing() -> None:
    """Survivors wait for the join timeout; the end names those that were lost."""
    world = formed("n1", "n2", "n3", config=settings("3:3", join_timeout_s=10.0))
    world.kill_agent("n2")
    world.run(9.5)
    assert world.over("n1") is None
    world.run(1.0)
    for name in ("n1", "n3"):
        over = world.over(name)
        assert over is not None
        assert over.result == "lost"
        assert "missing since round 1: n2" in over.reason


def test_r02_a_node_that_returns_in_time_completes_the_round_again() -> None:
    """Below min_nodes is no end yet: a replacement within the join timeout is enough."""
    world = formed("n1", "n2", "n3")
    world.kill_agent("n2")
    world.run(3.0)
    world.start("n2")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=0.2)


def test_r02_two_round_trips_lie_between_the_last_worker_gone_and_the_next_start() -> None:
    """Gone, seal, acknowledgement, commit: each crosses the network once."""
    world = new_world(settings("3:3"))
    world.latency_s = 100 * LATENCY_S
    world.start("n1", "n2", "n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=5.0)
    world.run(2.0)
    world.agent("n3").stop_s = 0.5
    world.fail("n1")
    world.run_until(lambda: not world.agent("n3").is_running, within_s=1.0)
    took_s = world.run_until(lambda: world.round_of("n3") == 2, within_s=1.0)
    assert took_s <= 4 * world.latency_s + 0.01
