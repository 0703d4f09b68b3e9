"""R10: the end is a decision like a round: announced, acknowledged, the same for all nodes."""

from __future__ import annotations

import pytest
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import formed

from pytest_elastic.events import model as events
from tests.spec.words import has_accepted_the_end


def results(world: World, *names: str) -> list[str]:
    """Return how the job ended for these nodes."""
    overs = [world.over(name) for name in names]
    return [over.result if over is not None else "" for over in overs]


def test_r10_the_job_succeeds_when_all_groups_have() -> None:
    """Not before the last one; then within two round trips."""
    world = formed("n1", "n2", "n3")
    for name in ("n1", "n2"):
        world.agent(name).succeed()
    world.run(20.0)
    assert results(world, "n1", "n2", "n3") == ["", "", ""]
    world.agent("n3").succeed()
    world.run(0.01)
    assert results(world, "n1", "n2", "n3") == ["succeeded"] * 3


def test_r10_the_first_failure_of_the_job_is_named_on_every_node() -> None:
    """Whichever node failed, all logs name the same worker."""
    world = formed("n1", "n2", "n3", config=settings("3:3", max_restarts=0))
    world.fail("n3", exit_code=-9)
    world.run(1.0)
    for name in ("n1", "n2", "n3"):
        over = world.over(name)
        assert over is not None
        assert over.result == "failed"
        assert over.first_failure is not None
        assert (over.first_failure.node, over.first_failure.rank) == ("n3", 4)
    ended = [each for _, _, each in world.events if isinstance(each, events.JobEnded)]
    assert [each.first_failure["node"] for each in ended] == ["n3"] * 3


def test_r10_what_ends_after_the_stop_order_is_not_the_first_failure() -> None:
    """The round was over already: the failure that ended the job is another one."""
    world = formed("n1", "n2", "n3", config=settings("3:3", max_restarts=0))
    world.agent("n2").stop_s = 0.5
    world.fail("n3", exit_code=7)
    world.run_until(lambda: bool(world.agent("n2").stop_orders), within_s=1.0)
    world.fail("n2", exit_code=-15)
    world.run(2.0)
    over = world.over("n1")
    assert over is not None
    assert over.first_failure is not None
    assert over.first_failure.exit_code == 7


def test_r10_who_holds_the_announcement_takes_losing_the_coordinator_for_that_end() -> None:
    """The coordinator dies between its announcement and its last word: still a success."""
    world = formed("n1", "n2")
    for name in ("n1", "n2"):
        world.agent(name).succeed()
    world.run_until(lambda: has_accepted_the_end(world, "n2"), within_s=1.0)
    world.cut("n1", "n2")
    world.run(0.1)
    assert results(world, "n2") == [""]
    world.crash("n1")
    world.heal()
    world.run(0.1)
    assert results(world, "n2") == ["succeeded"]


def test_r10_silence_after_the_announcement_is_that_end_too() -> None:
    """The coordinator loses power between its announcement and its last word."""
    world = formed("n1", "n2")
    for name in ("n1", "n2"):
        world.agent(name).succeed()
    world.run_until(lambda: has_accepted_the_end(world, "n2"), within_s=1.0)
    world.cut_power("n1")
    world.run(2.0)
    assert results(world, "n2") == ["succeeded"]


def test_r10_a_member_that_reported_success_may_go_away() -> None:
    """One node finishes long before the others and is lost: no new round (torch #118891)."""
    world = formed("n1", "n2", "n3", nodes="2:3")
    world.agent("n3").succeed()
    world.run(1.0)
    world.kill_agent("n3")
    world.run(5.0)
    assert [world.round_of(name) for name in ("n1", "n2")] == [1, 1]
    for name in ("n1", "n2"):
        world.agent(name).succeed()
    world.run(0.1)
    assert results(world, "n1", "n2") == ["succeeded", "succeeded"]


def test_r10_with_all_told_the_coordinator_does_not_linger() -> None:
    """No answer is owed: its agent may go at once."""
    world = formed("n1", "n2")
    for name in ("n1", "n2"):
        world.agent(name).succeed()
    assert world.host is not None
    world.run(0.1)
    assert world.host.finished == "succeeded"


def test_r10_one_that_was_cut_off_is_answered_for_linger_s() -> None:
    """A member that comes back from a cut learns how the job ended."""
    world = formed("n1", "n2", "n3", config=settings("2:3", linger_s=5.0))
    world.isolate("n3", ["n1", "n2"])
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=3.0)
    for name in ("n1", "n2"):
        world.agent(name).succeed()
    world.run(2.0)
    assert world.host is not None
    assert world.host.finished is None
    world.heal()
    world.run(1.0)
    assert results(world, "n3") == ["succeeded"]
    assert world.host.finished == "succeeded"


def test_r10_lingering_has_an_end() -> None:
    """One that never comes back is waited for linger_s, no longer."""
    config = settings("2:3", linger_s=3.0)
    world = formed("n1", "n2", "n3", config=config)
    world.cut_power("n3")
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=3.0)
    for name in ("n1", "n2"):
        world.agent(name).succeed()
    host = world.host
    assert host is not None
    took_s = world.run_until(lambda: host.finished is not None, within_s=10.0)
    assert took_s <= config.linger_s + 0.1


@pytest.mark.parametrize("way", ["kill_agent", "crash", "cut_power"])
def test_r10_without_the_coordinator_every_member_fences_and_names_it(way: str) -> None:
    """Within lease + 5 s, whatever became of it, the others end as lost."""
    config = settings("1:3")
    world = formed("n1", "n2", "n3", config=config)
    getattr(world, way)("n1")
    world.run_until(
        lambda: results(world, "n2", "n3") == ["lost", "lost"], within_s=config.lease_s + 5.0
    )
    over = world.over("n2")
    assert over is not None
    assert "lost n1 (n1:1000)" in over.reason
    world.run(0.1)
    assert not world.agent("n2").is_running


def test_r10_a_tombstone_of_the_coordinator_ends_the_search_for_it() -> None:
    """Its keeper says that its agent has ended: no lease is waited for."""
    world = formed("n1", "n2")
    world.kill_agent("n1")
    assert world.run_until(lambda: results(world, "n2") == ["lost"], within_s=1.0) < 0.3


def test_r10_an_endpoint_that_is_served_again_in_time_takes_the_members_in() -> None:
    """A restarted host knows nothing; numbers go on and no worker of before is met."""
    config = settings("2:3", last_call_s=0.2)
    world = formed("n1", "n2", "n3", config=config)
    world.fail("n2")
    world.reform("n1", "n2", "n3")
    world.crash("n1")
    world.run(0.5)
    world.host = None
    world.start("n1")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=4.0)
    assert world.round_of("n2") > 2
    assert world.restarts("n2") == 1
