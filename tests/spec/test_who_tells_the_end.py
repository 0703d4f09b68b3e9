"""R10: who does not know how the job has ended hears it from those who do."""

from __future__ import annotations

from elastic_simulation.world import World

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.follower.connection import ConnectionPhase
from tests.spec.test_r11_succession import led, succeeding
from tests.spec.test_the_end_of_successors import result, succeed


def asked_by(world: World, name: str) -> set[str]:
    """Return the nodes that answered a node's question how the job has ended."""
    return {
        source
        for _, source, target, message in world.sent
        if isinstance(message, m.Answer) and message.base is not None and target == name
    }


def is_joined(world: World, name: str) -> bool:
    """Tell whether a node has been taken in by a leader."""
    return world.processes[name].follower.connection is ConnectionPhase.JOINED


def with_a_spare(**changes: float) -> World:
    """Return a world of two members and a spare, n3, of a job that outlives its coordinator."""
    world = led("n1", "n2", config=succeeding("2:2", join_timeout_s=60.0, **changes))
    world.start("n3")
    world.run(1.0)
    assert world.notices("n3", ports.Spared)
    return world


def test_r10_who_has_heard_the_end_asks_and_is_told_no_more() -> None:
    """A node that may not know asks until it does, however long others stay."""
    world = led("n1", "n2", "n3", config=succeeding("2:3", linger_s=20.0))
    world.isolate("n3", ("n1", "n2"))
    world.reform("n1", "n2", within_s=5.0)
    succeed(world, "n1", "n2")
    world.run(1.0)
    world.heal()
    world.run_until(lambda: result(world, "n3") == "succeeded", within_s=3.0)
    world.run(1.0)
    before = len(world.sent)
    world.run(10.0)
    since = [message for _, _, _, message in world.sent[before:]]
    assert not any(isinstance(message, m.Question) for message in since)


def lost_while_ending(world: World) -> None:
    """Let the end be announced, and its coordinator be lost before that is known to hold."""
    coordinator = world.processes["n1"].leader
    assert coordinator is not None
    succeed(world, "n1", "n2")
    world.run_until(lambda: coordinator.phase.name == "ENDING", within_s=1.0)
    world.run_until(lambda: world.processes["n2"].follower.ending is not None, within_s=0.1)


def test_r10_a_spare_that_has_accepted_the_end_begins_nothing_with_a_host_that_is_back() -> None:
    """All others have gone; the host comes back, and begins another job."""
    world = with_a_spare(linger_s=1.0)
    rounds = len(world.seals())
    lost_while_ending(world)
    world.run_until(lambda: world.processes["n3"].follower.ending is not None, within_s=0.1)
    world.suspend("n3", 3.0)
    world.run(2.0)
    world.crash("n1")
    world.start("n1")
    world.run_until(lambda: result(world, "n3") == "succeeded", within_s=12.0)
    assert len(world.seals()) == rounds


def test_r10_a_spare_that_has_come_to_a_host_that_is_back_is_told_there() -> None:
    """It was away as the end was announced, and the host is the first that it finds again."""
    world = with_a_spare(linger_s=20.0)
    world.isolate("n3", ("n1", "n2"))
    lost_while_ending(world)
    world.cut_power("n1")  # and with it goes the mark
    world.start("n1")
    world.heal([("n3", "n1"), ("n1", "n3")])
    world.run_until(lambda: is_joined(world, "n3"), within_s=5.0)
    world.run(7.0)  # until what it has asked before is too old to be answered
    assert result(world, "n2") == "succeeded"
    assert not result(world, "n3")
    world.heal()
    world.run_until(lambda: result(world, "n3") == "succeeded", within_s=3.0)
    assert asked_by(world, "n3")
