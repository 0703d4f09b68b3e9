"""R12: which host may begin a job, at one endpoint or at several, and that none begins a second."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from elastic_simulation.checks import Watch
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import new_world

from pytest_elastic.events.model import CoordinatorSteppedDown, FirstRoundDelayed
from pytest_elastic.rdzv_conf import RendezvousConf
from pytest_elastic.rendezvous.leases import announced_within_s
from pytest_elastic.rendezvous.settings import choose_quorum

THREE = ("n1", "n2", "n3")


def several(nodes: str, endpoints: Sequence[str] = THREE, *, last_call_s: float = 0.2) -> World:
    """Return a world with an endpoint on each of some nodes, judged at every moment."""
    config = settings(
        nodes, quorum="majority", last_call_s=last_call_s, endpoints=",".join(endpoints)
    )
    world = new_world(config)
    Watch(world)
    return world


def jobs(world: World) -> int:
    """Return how many times a first round was sealed."""
    return sum(seal.round == 1 for seal in world.seals())


# --- several endpoints ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoints", "quorum", "why"),
    [
        (1, "coordinator", "with 1 to 4 nodes and one endpoint, two groups could both be large"),
        (2, "majority", "nothing begins before both endpoints are reached"),
        (3, "majority", "nothing begins before 2 of 3 endpoints are reached"),
        (5, "majority", "nothing begins before 3 of 5 endpoints are reached"),
    ],
)
def test_r12_succession_is_on_with_several_endpoints(endpoints: int, quorum: str, why: str) -> None:
    """Whatever the numbers of nodes are; the first line of a node says so."""
    choice = choose_quorum(RendezvousConf(), min_nodes=1, max_nodes=4, endpoints=endpoints)
    assert choice.quorum == quorum
    assert why in choice.reason


def test_r12_a_cold_start_with_all_endpoints_waits_for_nothing() -> None:
    """All of them have just started, and none knows of a job: there is none."""
    world = several("3:3")
    world.start(*THREE)
    world.run_until(lambda: world.all_run(*THREE), within_s=0.5)
    assert jobs(world) == 1


def test_r12_the_job_begins_without_the_node_of_the_first_endpoint() -> None:
    """Two of three endpoints are a majority; what the third might know would be announced there."""
    world = several("2:4")
    world.start("n2", "n3")
    took_s = world.run_until(lambda: world.all_run("n2", "n3"), within_s=5.0)
    assert took_s >= announced_within_s(world.config)


def test_r12_a_minority_of_endpoints_begins_nothing() -> None:
    """However many nodes are there: what they cannot reach may be a job that runs."""
    world = several("2:4")
    world.start("n1", "n7", "n8", "n9")
    world.run(20.0)
    assert jobs(world) == 0
    world.start("n3")
    world.run_until(lambda: jobs(world) == 1, within_s=8.0)


def test_r12_the_founder_is_lost_before_it_has_founded_the_job() -> None:
    """Its claims lapse, the host of another endpoint begins the job, and takes its nodes in."""
    world = several("3:4", last_call_s=3.0)
    world.start(*THREE)
    world.run(0.5)
    assert world.host is not None
    founder = world.host.name
    world.crash(founder)
    world.start("n4")
    left = sorted({*THREE, "n4"} - {founder})
    world.run_until(lambda: world.all_run(*left), within_s=12.0)
    assert jobs(world) == 1


@pytest.mark.parametrize("seed", range(8))
def test_r12_all_hosts_that_are_left_can_elect_whichever_of_a_candidates_questions_comes_first(
    seed: int,
) -> None:
    """Each is asked twice, as a host and as a node of the first round, which may be decided.

    Three of five hosts are left, so that each vote is needed. They may elect once they have been
    up for long enough, and workers start when a lease and `drift` are over: one election is enough.
    """
    five = ("n1", "n2", "n3", "n4", "n5")
    world = several("2:5", five)
    world.latency_s = world.jitter_s = 0.005
    world.draw = random.Random(seed).random
    world.start(*five)
    world.run_until(lambda: jobs(world) == 1, within_s=5.0)
    world.run(1.5 * (world.latency_s + world.jitter_s))
    assert not world.starts, "the round is pending"
    lost = [process.name for process in world.every_process if process.leader is not None]
    lost += [name for name in five if name not in lost][:1]
    for name in lost:
        world.cut_power(name)
    config = world.config
    waits_s = config.lease_s + announced_within_s(config) + config.drift_s
    world.run_until(lambda: bool(world.starts), within_s=waits_s + 3 * config.beat_interval_s)


def test_r12_a_newcomer_finds_the_job_through_any_endpoint_that_is_left() -> None:
    """The first endpoint's node was lost, and another one decides."""
    world = several("2:4")
    world.start(*THREE)
    world.run_until(lambda: world.all_run(*THREE), within_s=3.0)
    world.cut_power("n1")
    world.reform("n2", "n3", within_s=5.0)
    world.isolate("n4", ["n2"])
    world.start("n4")
    world.run(0.5)
    world.heal()
    world.run_until(lambda: world.all_run("n2", "n3", "n4"), within_s=5.0)
    assert jobs(world) == 1


def test_r12_a_host_that_comes_back_with_a_crowd_of_new_nodes_joins_the_job() -> None:
    """Its own store is empty; a majority of endpoints has one among them that knows of the job."""
    world = several("2:5")
    world.start(*THREE)
    world.run_until(lambda: world.all_run(*THREE), within_s=3.0)
    world.run(1.0)
    world.crash("n1")
    world.start("n1", "n4", "n5", "n6")
    world.run(8.0)
    assert jobs(world) == 1
    assert world.round_of("n2") == world.round_of("n1") > 1


def test_r12_a_majority_of_hosts_comes_back_at_once_and_finds_the_survivors() -> None:
    """Only the third endpoint still knows of the job, and is out of reach: they wait, and hear."""
    world = several("2:5", ("n1", "n2", "n5"))
    names = (*THREE, "n4", "n5")
    world.start(*names)
    world.run_until(lambda: world.all_run(*names), within_s=3.0)
    world.run(1.0)
    world.cut_power("n1")
    world.cut_power("n2")
    new = ("n1", "n2", "n7", "n8", "n9")
    for name in new:
        world.isolate(name, ["n5"])
    world.start(*new)
    world.run(8.0)
    assert jobs(world) == 1
    assert world.round_of("n4") > 1


def test_r12_on_two_sides_of_a_split_at_most_one_job_begins() -> None:
    """Both sides have nodes enough; one of them has two of the three endpoints."""
    world = several("2:5")
    sides = (("n1", "n4", "n5"), ("n2", "n3", "n6"))
    for name in sides[0]:
        world.isolate(name, sides[1])
    world.start(*sides[0], *sides[1])
    world.run(10.0)
    assert jobs(world) == 1
    assert all(world.round_of(name) for name in sides[1])
    world.heal()
    world.run_until(lambda: sum(world.round_of(p) > 1 for p in world.processes) == 5, within_s=8.0)
    assert jobs(world) == 1


def test_r12_two_endpoints_are_enough_to_lose_either_after_the_beginning() -> None:
    """Both are needed to begin; the job goes on with one, and who was lost is taken in again."""
    world = several("2:4", ("n1", "n2"))
    world.start("n2", "n3", "n4")
    world.run(10.0)
    assert jobs(world) == 0
    world.start("n1")
    world.run_until(lambda: world.all_run("n1", "n2", "n3", "n4"), within_s=8.0)
    world.crash("n2")
    world.run(3.0)
    world.start("n2")
    world.run_until(lambda: world.all_run("n1", "n2", "n3", "n4"), within_s=8.0)
    assert jobs(world) == 1


def test_r12_nodes_that_were_given_other_endpoints_are_refused() -> None:
    """Two majorities of different lists need not have one in common."""
    world = several("2:4")
    world.start(*THREE)
    world.run(2.0)
    world.start("n4", config=settings("2:4", quorum="majority", last_call_s=0.2, endpoints="n1,n9"))
    world.run(1.0)
    over = world.over("n4")
    assert over is not None
    assert over.result == "refused"
    assert "--rdzv-endpoint is n1,n9 on n4 and n1,n2,n3 on n1" in over.reason


# --- one endpoint --------------------------------------------------------------------------------


def came_back_with_new_nodes(nodes: str) -> World:
    """Return what follows when the host is back, and meets new nodes before any survivor."""
    world = new_world(settings(nodes, quorum="majority", last_call_s=0.2))
    Watch(world)
    world.start(*THREE)
    world.run_until(lambda: world.all_run(*THREE), within_s=4.0)
    world.run(1.0)
    world.cut_power("n1")
    world.run(0.1)
    world.start("n1", "n4", "n5", "n6")
    world.run(8.0)
    return world


def test_r12_a_host_that_comes_back_waits_for_word_of_the_job_it_was_lost_from() -> None:
    """It meets enough new nodes for a second job before the others have noticed that it is gone."""
    world = came_back_with_new_nodes("2:4")
    assert jobs(world) == 1
    assert world.of(CoordinatorSteppedDown)
    assert world.of(FirstRoundDelayed)
    assert world.round_of("n2") == world.round_of("n3") > 1


def test_r12_no_node_waits_where_there_cannot_be_nodes_enough_for_two_jobs() -> None:
    """The default: fewer than twice MIN nodes at a time is what is assumed then."""
    world = new_world(settings("3:3", quorum="majority"))
    world.start(*THREE)
    world.run_until(lambda: world.all_run(*THREE), within_s=0.1)
    assert not world.of(FirstRoundDelayed)


def test_r12_a_first_round_that_waits_is_sealed_when_nothing_was_heard() -> None:
    """A cold start is later by that wait, and only where `quorum=majority` was asked for."""
    world = new_world(settings("2:4", quorum="majority", last_call_s=0.2))
    world.start("n1", "n2")
    took_s = world.run_until(lambda: world.all_run("n1", "n2"), within_s=5.0)
    assert took_s >= announced_within_s(world.config)


def came_back_to_spares() -> World:
    """Return what follows when the host is back, and meets spares, while survivors are frozen."""
    world = new_world(settings("3:3", quorum="majority", last_call_s=0.2))
    Watch(world)
    world.start(*THREE)
    world.run_until(lambda: world.all_run(*THREE), within_s=4.0)
    world.start("n4", "n5")
    world.run(1.0)
    world.freeze("n2", 6.0)
    world.cut_power("n1")
    world.start("n1")
    world.run(10.0)
    return world


def test_r12_who_was_told_of_a_round_is_none_of_those_who_begin_a_job() -> None:
    """However long the survivors need, the spares of their job make no second one."""
    world = came_back_to_spares()
    assert world.of(FirstRoundDelayed)
    assert [seal.term for seal in world.seals()][1:] == [2]
    assert world.round_of("n2") == world.round_of("n3") == 2


def left_with_a_spare() -> World:
    """Return what follows when all but a spare are lost, a restart used, and three nodes come."""
    world = new_world(settings("3:3", quorum="majority", last_call_s=0.2))
    Watch(world).worker_failures = 1
    world.start(*THREE)
    world.run_until(lambda: world.all_run(*THREE), within_s=4.0)
    world.start("n4")
    world.fail("n2")
    world.reform(*THREE)
    for name in THREE:
        world.crash(name)
    world.start("n1")
    world.run(0.7)
    world.start("n2", "n3")
    world.run(4.0)
    return world


def test_r12_a_job_of_which_only_spares_are_left_begins_with_enough_new_nodes() -> None:
    """It waits for word of survivors first; numbers and restarts go on, as the spare knows them."""
    world = left_with_a_spare()
    assert world.of(FirstRoundDelayed)
    assert world.round_of("n1") == 3
    assert world.restarts("n1") == 1


# --- planted -------------------------------------------------------------------------------------
