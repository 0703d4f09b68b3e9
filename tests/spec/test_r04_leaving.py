"""R4: a node that leaves says so first, costs nothing, and has the time that it asked for."""

from __future__ import annotations

import pytest
from elastic_simulation.checks import Watch
from elastic_simulation.world import settings
from elastic_simulation.worlds import formed, new_world

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import ports


def test_r04_a_draining_node_stays_a_member_until_its_workers_have_exited() -> None:
    """The round goes on while it drains, then ends at once; the others re-form without it."""
    world = formed("n1", "n2", "n3", nodes="2:3")
    world.agent("n3").drain(grace_s=5.0, takes_s=2.0)
    world.run(1.9)
    assert world.round_of("n1") == 1
    took_s = world.run_until(lambda: world.all_run("n1", "n2"), within_s=1.0)
    assert took_s < 0.3
    over = world.over("n3")
    assert over is not None
    assert over.result == "drained"


def test_r04_leaving_costs_nothing() -> None:
    """With no restart allowed, a node may leave."""
    world = formed("n1", "n2", "n3", config=settings("2:3", max_restarts=0))
    world.agent("n3").drain(grace_s=5.0)
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=1.0)
    assert world.restarts("n1") == 0
    assert [event.charged for event in world.ended()] == [False]
    assert world.of(events.MemberLeft) == [events.MemberLeft(member="n3", reason="SIGTERM")]


def test_r04_all_members_learn_of_a_drain() -> None:
    """Every other agent is told who leaves and how long it may take."""
    world = formed("n1", "n2", "n3", nodes="2:3")
    world.agent("n3").drain(grace_s=5.0, takes_s=2.0)
    world.run(0.1)
    expected = [ports.PeerDraining(node="n3", grace_s=5.0)]
    assert world.notices("n1", ports.PeerDraining) == expected
    assert world.notices("n2", ports.PeerDraining) == expected
    assert world.notices("n3", ports.PeerDraining) == []


def test_r04_a_round_does_not_outlast_the_grace_of_a_draining_node() -> None:
    """When its grace is over, the round ends whether its workers have exited or not."""
    world = formed("n1", "n2", "n3", nodes="2:3")
    world.agent("n3").drain(grace_s=1.0, takes_s=2.5)
    world.run(0.99)
    assert world.round_of("n1") == 1
    assert world.run_until(lambda: world.all_run("n1", "n2"), within_s=2.0) < 0.1
    assert world.lost() == []


def test_r04_a_waiting_node_leaves_at_once_and_no_other_stops() -> None:
    """A spare has nothing to drain: it goes, the round goes on."""
    world = formed("n1", "n2", nodes="2:2")
    world.start("n3")
    world.run(0.5)
    world.agent("n3").drain(grace_s=5.0)
    world.run(0.1)
    over = world.over("n3")
    assert over is not None
    assert over.result == "drained"
    assert world.round_of("n1") == 1


def test_r04_a_node_may_leave_before_it_has_found_a_leader() -> None:
    """A drain during the search ends it."""
    world = new_world(settings("2:2"))
    world.start("n1")
    world.isolate("n2", ["n1"])
    world.start("n2")
    world.run(3.0)
    world.agent("n2").drain(grace_s=5.0)
    over = world.over("n2")
    assert over is not None
    assert over.result == "drained"


def test_r04_a_drain_that_meets_a_sealed_round_starts_no_worker() -> None:
    """The start may be under way: a node that leaves answers it with 'my workers are gone'."""
    world = new_world(settings("1:2", last_call_s=0.5))
    world.latency_s = 0.05
    world.start("n1", "n2")
    world.run_until(lambda: len(world.seals()) == 1, within_s=2.0)
    world.run(0.12)  # acknowledged; the commit is on its way
    world.agent("n2").drain(grace_s=5.0)
    world.run_until(lambda: world.all_run("n1"), within_s=2.0)
    world.run(0.1)
    assert world.notices("n2", ports.StartWorkers) == []
    over = world.over("n2")
    assert over is not None
    assert over.result == "drained"


def test_r04_a_leaving_coordinator_ends_the_job_and_says_so() -> None:
    """Without succession no node could go on: all are told why, once its workers have ended."""
    world = formed("n1", "n2", "n3", nodes="1:3")
    world.agent("n1").drain(grace_s=5.0, takes_s=1.0)
    world.run(0.9)
    assert world.round_of("n2") == 1
    world.run(0.5)
    own = world.over("n1")
    assert own is not None
    assert own.result == "drained"
    for name in ("n2", "n3"):
        over = world.over(name)
        assert over is not None
        assert over.result == "lost"
        assert "n1 leaves (SIGTERM)" in over.reason
        assert "no succession" in over.reason


def test_r04_who_follows_a_coordinator_that_left_does_not_call_it_lost() -> None:
    """It has heard why no leader decides, and says the same when it begins to."""
    world = formed("n1", "n2", "n3", config=settings("2:3", quorum="majority"))
    world.agent("n1").drain(grace_s=5.0, takes_s=1.0)
    world.run_until(lambda: world.round_of("n2") == world.round_of("n3") == 2, within_s=5.0)
    started = world.of(events.CoordinatorStarted)[-1]
    assert isinstance(started, events.CoordinatorStarted)
    assert started.reason.startswith("n1 left")
    assert world.lost() == []


def test_r04_a_drain_is_not_forgotten_when_the_connection_is_lost_with_it() -> None:
    """What was said into a broken connection is said again on the next one."""
    world = formed("n1", "n2", "n3", nodes="2:3")
    world.cut("n3", "n1")
    world.agent("n3").drain(grace_s=5.0, takes_s=0.5)
    world.run(0.1)
    world.break_connection("n3")
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=1.0)
    assert world.of(events.MemberLeft) == [events.MemberLeft(member="n3", reason="SIGTERM")]


def test_r04_where_an_etcd_says_who_decides_those_who_wait_go_on() -> None:
    """Storm 82104396: no node of the last round is left, but others have come."""
    world = new_world(settings("2:2", quorum="granted"))
    Watch(world)
    world.start("n1", "n2")
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=5.0)
    world.start("n3", "n4")
    world.run(1.0)
    for one in ("n1", "n2"):
        world.agent(one).drain(grace_s=1.0, takes_s=0.2)
    world.run_until(lambda: world.all_run("n3", "n4"), within_s=8.0)
    assert world.round_of("n3") == 2


def test_r04_where_an_etcd_says_who_decides_it_may_leave_before_the_first_round() -> None:
    """Those who have come are not told that the job is lost."""
    world = new_world(settings("3:3", quorum="granted"))
    Watch(world)
    world.start("n1", "n2")
    world.run(1.0)
    world.agent("n1").drain(grace_s=1.0)
    world.start("n3", "n4")
    world.run_until(lambda: world.all_run("n2", "n3", "n4"), within_s=8.0)


@pytest.mark.parametrize("quorum", ["granted", "majority"])
def test_r04_who_decides_and_leaves_once_the_end_is_decided_tells_it_first(quorum: str) -> None:
    """Storm 82235668: it goes with the job, and no other has to find out in another way."""
    config = settings("3:3", quorum=quorum)
    world = new_world(config)
    Watch(world)
    names = ("n1", "n2", "n3")
    world.start(*names)
    world.run_until(lambda: world.all_run(*names), within_s=5.0)
    for name in names:
        world.agent(name).succeed()
    world.run_until(lambda: bool(world.of(events.JobEnding)), within_s=3.0)
    world.agent("n1").drain(grace_s=1.0)
    world.run_until(lambda: all(world.over(name) is not None for name in names), within_s=0.5)
    overs = [world.over(name) for name in names]
    assert [over.result for over in overs if over] == ["drained", "succeeded", "succeeded"]
