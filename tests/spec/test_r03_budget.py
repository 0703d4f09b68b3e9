"""R3: one global restart budget; what a round costs is known when the next one is sealed."""

from __future__ import annotations

from functools import partial

import pytest
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import formed


def restart(world: World, *names: str) -> None:
    """Let a worker of the first node fail, and wait for the next round on these nodes."""
    world.fail(names[0])
    world.reform(*names)


def test_r03_a_round_costs_one_restart_however_many_workers_fail() -> None:
    """All nodes report failures of the same round: one restart."""
    world = formed("n1", "n2", "n3")
    for name in ("n1", "n2", "n3"):
        world.fail(name)
    world.run_until(lambda: world.round_of("n1") == 2, within_s=1.0)
    assert world.restarts("n1") == 1
    assert [event.charged for event in world.ended()] == [True]


def test_r03_every_node_of_a_round_is_given_the_same_restart_count() -> None:
    """The count is the job's: a node that joins late has it too (torch #108158)."""
    world = formed("n1", "n2", nodes="2:3")
    restart(world, "n1", "n2")
    world.start("n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=5.0)
    assert [world.restarts(name) for name in ("n1", "n2", "n3")] == [1, 1, 1]


@pytest.mark.parametrize("way", ["crash", "kill_agent", "cut_power"])
def test_r03_losing_a_member_is_free_even_if_its_peers_fail_before_the_loss_is_known(
    way: str,
) -> None:
    """Workers beside a dying node raise first; with no restart allowed the job still goes on."""
    world = formed("n1", "n2", "n3", config=settings("2:3", max_restarts=0))
    getattr(world, way)("n3")
    world.fail("n2")
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=5.0)
    assert world.restarts("n1") == 0
    assert [event.charged for event in world.ended()] == [False]


def why_failed(world: World, *, within_s: float) -> str:
    """Wait until the job has failed; return why."""
    world.run_until(lambda: world.over("n1") is not None, within_s=within_s)
    over = world.over("n1")
    assert over is not None
    assert over.result == "failed"
    return over.reason


def has_begun_after(world: World, round_: int) -> bool:
    """Return whether both nodes run a later round."""
    return world.all_run("n1", "n2") and world.round_of("n1") > round_


def test_r03_a_member_that_is_slow_to_stop_does_not_make_a_failure_free() -> None:
    """It is evicted, alive, and comes back: the round is over because of the failure alone."""
    config = settings("2:2", shutdown_timeout_s=1.0, max_restarts=3)
    world = formed("n1", "n2", config=config)
    world.run(2.0)
    for used in (1, 2, 3):
        world.agent("n2").stop_s = world.agent("n2").kill_s = 8.0
        evictions = len(world.lost())
        round_ = world.round_of("n1")
        world.fail("n1")
        world.run_until(partial(has_begun_after, world, round_), within_s=30.0)
        assert len(world.lost()) == evictions + 1
        assert world.restarts("n1") == used
        world.run(2.0)
    world.fail("n1")
    assert "all 3 restarts are used up" in why_failed(world, within_s=30.0)


def test_r03_nodes_that_come_do_not_make_a_failure_free() -> None:
    """A worker failed, and while the other one ends a node comes: no restart was allowed."""
    config = settings("1:3", last_call_s=0.2, max_restarts=0)
    world = formed("n1", "n2", config=config)
    world.run(2.0)
    world.agent("n2").stop_s = 2.5
    world.fail("n1")
    world.run(0.5)
    world.start("n3")
    assert "rank 0 on n1 failed" in why_failed(world, within_s=5.0)


def test_r03_gaining_a_member_is_free() -> None:
    """A round that ended for a newcomer costs nothing."""
    world = formed("n1", "n2", config=settings("2:3", max_restarts=0))
    world.start("n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=5.0)
    assert world.restarts("n1") == 0


def test_r03_a_member_that_is_lost_and_back_in_the_next_round_has_changed_the_membership() -> None:
    """Same names before and after, but not without a loss in between: free."""
    world = formed("n1", "n2", config=settings("2:2", max_restarts=0))
    world.isolate("n2", ["n1"])
    world.run(1.6)
    world.heal()
    world.run_until(lambda: world.round_of("n2") == 2, within_s=5.0)
    assert world.restarts("n1") == 0


def test_r03_exits_after_the_stop_order_are_not_failures() -> None:
    """What ends because it was told to end is no failure: the round ended for a newcomer."""
    world = formed("n1", "n2", config=settings("2:3", max_restarts=0))
    world.agent("n1").stop_s = 0.5
    world.start("n3")
    world.run_until(lambda: bool(world.agent("n1").stop_orders), within_s=1.0)
    world.fail("n1", exit_code=-15)
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=5.0)
    assert world.restarts("n1") == 0


def test_r03_with_the_budget_used_up_the_job_fails_at_once() -> None:
    """One failure more than max_restarts ends the job, as soon as all workers are gone."""
    world = formed("n1", "n2", config=settings("2:2", max_restarts=1))
    restart(world, "n1", "n2")
    world.run(2.0)
    world.fail("n2", exit_code=3)
    took_s = world.run_until(lambda: world.over("n1") is not None, within_s=1.0)
    assert took_s < 0.1
    over = world.over("n1")
    assert over is not None
    assert over.result == "failed"
    assert "rank 2 on n2 failed (exit code 3), and the only restart is used up" in over.reason


def test_r03_rounds_without_progress_end_the_job_and_the_job_says_so() -> None:
    """max_restarts + 3 rounds in a row that end before min_round_s are too many (torch #147064)."""
    world = formed("n1", "n2", nodes="2:2", after_s=0.3)
    for _ in range(5):
        world.kill_agent("n2")
        world.start("n2")
        world.run_until(lambda: world.all_run("n1", "n2"), within_s=2.0)
        world.run(0.3)
    world.kill_agent("n2")
    world.start("n2")
    world.run(2.0)
    over = world.over("n1")
    assert over is not None
    assert over.result == "failed"
    assert "6 rounds in a row ended without progress" in over.reason


def test_r03_a_round_that_made_progress_begins_the_count_anew() -> None:
    """Rounds that ran min_round_s may end as often as they like for free reasons."""
    world = formed("n1", "n2", config=settings("1:2", max_restarts=0))
    for _ in range(8):
        world.kill_agent("n2")
        world.run_until(lambda: world.all_run("n1"), within_s=2.0)
        world.run(1.1)
        world.start("n2")
        world.run_until(lambda: world.all_run("n1", "n2"), within_s=2.0)
        world.run(1.1)
    assert world.over("n1") is None
    assert world.restarts("n1") == 0
