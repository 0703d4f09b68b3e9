"""R10 where an etcd names the leader: the end stands there before any node hears of it."""

from __future__ import annotations

from elastic_simulation.checks import Watch
from elastic_simulation.granted import ETCD, GrantedWorld
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import new_world

from tests.spec.test_the_end_of_successors import result, succeed

NAMES = ("n1", "n2", "n3")


def granted(join_timeout_s: float = 600.0) -> World:
    """Return a world with a first round of three nodes; n1 decides, and stays for a second."""
    config = settings("2:3", quorum="granted", linger_s=1.0, join_timeout_s=join_timeout_s)
    world = new_world(config)
    Watch(world)
    for name in NAMES:
        world.start(name)
    world.run_until(lambda: world.all_run(*NAMES), within_s=5.0)
    return world


def ended_without_n3(world: World) -> None:
    """Cut n3 off, let the others end well and go for good."""
    world.isolate("n3", ("n1", "n2", ETCD))
    world.reform("n1", "n2")
    succeed(world, "n1", "n2")
    world.run_until(lambda: not world.processes["n1"].is_alive, within_s=20.0)
    assert [result(world, name) for name in NAMES] == ["succeeded", "succeeded", ""]


def test_r10_who_looks_for_a_coordinator_after_the_end_is_told_by_etcd() -> None:
    """No node is left that knows; this one begins nothing, and its term is none."""
    world = granted()
    ended_without_n3(world)
    rounds = {assignment.round for _, assignment in world.starts}
    world.heal()
    world.run_until(lambda: result(world, "n3") == "succeeded", within_s=3.0)
    assert {assignment.round for _, assignment in world.starts} == rounds
    assert world.processes["n3"].leader is None


def test_r10_the_end_stands_for_longer_than_a_node_looks_for_its_coordinator() -> None:
    """By the node's own clock, which may lose as much as leases allow for."""
    world = granted(join_timeout_s=20.0)
    ended_without_n3(world)
    world.run_until(lambda: result(world, "n3") == "lost", within_s=30.0)
    wanted = world.config
    late_s = wanted.drift_s * (1 + wanted.join_timeout_s / wanted.lease_s)
    assert isinstance(world, GrantedWorld)
    assert world.etcd.ending_at(world.time + late_s)


def test_r10_who_is_new_begins_afresh_and_who_was_in_the_job_hears_of_its_end() -> None:
    """The same run id, at once: another job, which a node of the old one does not come into."""
    world = granted()
    ended_without_n3(world)
    for name in ("n1", "n2"):
        world.start(name)
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=5.0)
    assert not any(result(world, name) for name in ("n1", "n2"))
    world.heal()
    world.run_until(lambda: result(world, "n3") == "succeeded", within_s=3.0)
    world.run(3.0)
    assert world.all_run("n1", "n2")


def test_r10_an_end_that_is_not_written_down_is_told_to_no_node() -> None:
    """Its coordinator is cut off from etcd, and steps down; who follows decides it again."""
    world = granted()
    world.isolate("n1", (ETCD,))
    succeed(world, *NAMES)
    world.run(world.config.lease_s / 2)
    assert not any(result(world, name) for name in NAMES)
    world.heal()
    world.run_until(lambda: all(result(world, n) == "succeeded" for n in NAMES), within_s=10.0)
    assert {assignment.round for _, assignment in world.starts} == {1}
