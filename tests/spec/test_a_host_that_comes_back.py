"""R12: the host of the only endpoint comes back, finds its mark, and begins no second job."""

from __future__ import annotations

import pytest
from elastic_simulation.checks import Violation, Watch
from elastic_simulation.marks import Marks
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import new_world

from pytest_elastic.events.model import (
    CoordinatorStarted,
    CoordinatorSteppedDown,
    FirstRoundDelayed,
)
from pytest_elastic.rendezvous.leases import announced_within_s
from tests.spec.test_r11_succession import led, succeeding
from tests.spec.test_the_end_of_successors import succeed

THREE = ("n1", "n2", "n3")
NEW = ("n1", "n4", "n5")


def running(*, quorum: str = "majority") -> World:
    """Return a job of three of at most five nodes; n1 hosts its endpoint."""
    world = new_world(settings("3:5", quorum=quorum, last_call_s=0.2))
    watch = Watch(world)
    watch.worker_failures = 1  # at most, in these tests
    world.start(*THREE)
    world.run_until(lambda: world.all_run(*THREE), within_s=3.0)
    world.run(1.0)
    return world


def come_back_to_new_nodes(world: World) -> None:
    """Let the host's processes die and start again, with enough new nodes for a job."""
    world.crash("n1")
    world.run(0.05)
    world.start(*NEW)


def jobs(world: World) -> int:
    """Return how many first rounds were sealed."""
    return sum(seal.round == 1 for seal in world.seals())


def test_r12_a_host_that_comes_back_at_once_joins_the_survivors() -> None:
    """They elect while it has enough new nodes for a job of its own."""
    world = running()
    world.isolate("n1", ["n2", "n3"])
    come_back_to_new_nodes(world)
    world.run(1.0)
    world.heal()
    world.run_until(lambda: world.all_run(*THREE, "n4", "n5"), within_s=5.0)
    assert jobs(world) == 1
    assert any(isinstance(e, CoordinatorSteppedDown) for _, name, e in world.events if name == "n1")


def test_r12_without_the_mark_the_judge_sees_a_second_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is what campaigns had found."""
    monkeypatch.setattr(Marks, "open", lambda *_: None)
    with pytest.raises(Violation, match="round 1 is not the same for all"):
        test_r12_a_host_that_comes_back_at_once_joins_the_survivors()


@pytest.mark.parametrize("refused_s", [0.0, 2.0])
def test_r12_a_spare_is_as_good_as_new_once_the_mark_names_no_node_that_is_left(
    refused_s: float,
) -> None:
    """The voters have ended: the host goes on with the nodes it has, and counts on.

    Storm 80085794: if the spare does not reach it at once, no node is left that would tell that it
    is well (R11.10).
    """
    world = new_world(settings("2:2", quorum="majority", last_call_s=0.2))
    Watch(world)
    world.start("n1", "n2")
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=3.0)
    world.start("n3")
    world.run(1.0)
    world.crash("n1")
    world.crash("n2")
    world.reject("n3", ["n1"])
    world.run(0.05)
    world.start("n1")
    world.run(refused_s)
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n3"), within_s=15.0)
    assert [seal.round for seal in world.seals()] == [1, 2]


def test_r12_who_is_silent_is_taken_for_lost_and_numbers_go_on() -> None:
    """No answer for three times as long as survivors need; some may come back all the same."""
    world = running()
    world.fail("n2")
    world.reform(*THREE)
    world.run(1.0)
    world.cut_power("n2")
    world.cut_power("n3")
    come_back_to_new_nodes(world)
    wait_s = announced_within_s(world.config)
    world.run(2 * wait_s)
    assert not world.all_run(*NEW)
    world.run_until(lambda: world.all_run(*NEW), within_s=1.5 * wait_s)
    assert world.round_of("n1") > 2
    assert world.restarts("n1") == 1


def test_r12_a_job_that_was_killed_hard_begins_anew_after_a_short_wait() -> None:
    """Their kernels refuse: no node is left that could know of it, so numbers begin again."""
    world = running()
    world.fail("n2")
    world.reform(*THREE)
    world.run(1.0)
    for name in THREE:
        world.crash(name)
    world.start(*THREE)
    wait_s = announced_within_s(world.config)
    took_s = world.run_until(lambda: world.all_run(*THREE), within_s=wait_s + 1.0)
    assert took_s >= wait_s - world.config.beat_interval_s
    assert (world.round_of("n1"), world.restarts("n1")) == (1, 0)


def test_r12_a_mark_that_is_old_costs_little() -> None:
    """A leader elected long ago looks at the endpoint once a beat, and is heard of soon."""
    world = running()
    for name in THREE:
        world.crash(name)
    world.run(60.0)
    world.start(*THREE)
    took_s = world.run_until(lambda: world.all_run(*THREE), within_s=3.0)
    assert took_s < announced_within_s(world.config)


def test_r12_a_host_that_was_gone_for_long_finds_the_job_that_went_on() -> None:
    """New nodes that have waited at the endpoint are there before it is announced."""
    world = running()
    world.crash("n1")
    world.run(10.0)
    world.start(*NEW)
    world.run_until(lambda: world.all_run(*THREE, "n4", "n5"), within_s=5.0)
    assert jobs(world) == 1


def left_of_a_later_round() -> World:
    """Return a job that went on without its host, of whose last round one node is left.

    None of those that the host's mark names is.
    """
    world = new_world(settings("2:3", quorum="majority", last_call_s=0.2))
    Watch(world)
    world.start(*THREE)
    world.run_until(lambda: world.all_run(*THREE), within_s=3.0)
    world.start("n4")
    world.run(1.0)
    world.crash("n1")
    world.run_until(lambda: world.all_run("n2", "n3", "n4"), within_s=5.0)
    world.crash("n3")
    world.run_until(lambda: world.all_run("n2", "n4"), within_s=5.0)
    world.crash("n2")
    return world


def test_r12_numbers_go_on_where_only_a_node_that_came_later_knows_of_them() -> None:
    """It says what it has promised, is waited for, and is taken in under the term that follows."""
    world = left_of_a_later_round()
    newest = world.round_of("n4")
    world.start("n1", "n5")
    world.run(announced_within_s(world.config))
    assert not world.round_of("n1")
    world.run_until(lambda: world.all_run("n1", "n5"), within_s=15.0)
    assert world.round_of("n1") > newest > 1
    world.run_until(lambda: world.all_run("n1", "n4", "n5"), within_s=10.0)
    delays = [e for e in world.of(FirstRoundDelayed) if isinstance(e, FirstRoundDelayed)]
    assert delays[-1].reason == "n4 live"


def test_r12_a_node_that_came_later_and_has_ended_is_waited_for_no_longer() -> None:
    """It has said what it knows, and its kernel refuses: no node is left that could go on."""
    world = left_of_a_later_round()
    world.start("n1", "n5")
    world.run(announced_within_s(world.config))
    world.crash("n4")
    world.run_until(lambda: world.all_run("n1", "n5"), within_s=2 * world.config.lease_s)


def test_r12_nothing_is_left_behind_when_the_job_has_ended() -> None:
    """A host that is started again waits for no other node."""
    world = running()
    assert world.marks.is_at("n1")
    for name in THREE:
        world.agent(name).succeed()
    world.run(8.0)
    assert not world.marks.is_at("n1")


def test_r12_nothing_is_left_behind_where_the_job_ends_with_its_host() -> None:
    """Without succession there are no survivors."""
    assert not running(quorum="coordinator").marks.is_at("n1")


@pytest.mark.parametrize("nodes", ["2:3", "3:4"])
def test_r12_a_host_that_is_back_gives_way_once_to_the_leader_it_finds(nodes: str) -> None:
    """It stands no second time as what it led ends, and what it led keeps no node at the end."""
    names = ("n1", "n2", "n3", "n4")[: int(nodes[-1])]
    world = led(*names, config=succeeding(nodes))
    world.kill_agent("n1")
    world.run_until(lambda: world.all_run(*names[1:]), within_s=5.0)
    world.start("n1")
    world.run_until(lambda: world.all_run(*names), within_s=8.0)
    began = [name for _, name, event in world.events if isinstance(event, CoordinatorStarted)]
    assert began == ["n1", "n2", "n1"]
    succeed(world, *names)
    world.run_until(lambda: not any(p.is_alive for p in world.every_process), within_s=8.0)
