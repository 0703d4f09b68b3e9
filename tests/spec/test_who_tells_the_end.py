"""R10: who knows how the job has ended tells those who may not, and does not wait to be asked."""

from __future__ import annotations

from elastic_simulation.world import World

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from pytest_elastic.rendezvous.coordinator import Phase
from pytest_elastic.rendezvous.member_phases import Link
from tests.spec.test_r11_succession import led, succeeding
from tests.spec.test_the_end_of_successors import result, succeed


def told(world: World, name: str) -> set[str]:
    """Return who has dialled a node to tell it how the job has ended."""
    return {
        source
        for _, source, target, message in world.sent
        if isinstance(message, m.ProbeRequest) and message.ended is not None and target == name
    }


def with_a_spare(**changes: float) -> World:
    """Return a world of two members and a spare, n3, of a job that outlives its coordinator."""
    world = led("n1", "n2", config=succeeding("2:2", join_timeout_s=60.0, **changes))
    world.start("n3")
    world.run(1.0)
    assert world.notices("n3", ports.Spared)
    return world


def test_r10_a_member_whose_whole_roster_is_lost_is_told_by_a_spare() -> None:
    """The coordinator decided the end alone, as it may, and has told only the spare."""
    world = with_a_spare(linger_s=20.0)
    coordinator = world.processes["n1"].coordinator
    assert coordinator is not None
    succeed(world, "n1", "n2")
    world.run_until(lambda: coordinator.phase is Phase.ENDING, within_s=1.0)
    world.isolate("n2", ("n1", "n3"))
    world.run_until(lambda: result(world, "n3") != "", within_s=5.0)
    world.cut_power("n1")
    world.run(1.0)
    assert not result(world, "n2")
    world.heal()
    world.run_until(lambda: result(world, "n2") == "succeeded", within_s=3.0)
    assert told(world, "n2") >= {"n3"}


def test_r10_who_is_known_to_have_heard_is_told_no_more() -> None:
    """Whoever may not know is dialled until it does, however long others stay."""
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
    assert not any(isinstance(message, m.ProbeRequest) for message in since)
    assert told(world, "n3") <= {"n1", "n2"}


def lost_while_ending(world: World) -> None:
    """Let the end be announced, and its coordinator be lost before that is known to hold."""
    coordinator = world.processes["n1"].coordinator
    assert coordinator is not None
    succeed(world, "n1", "n2")
    world.run_until(lambda: coordinator.phase is Phase.ENDING, within_s=1.0)
    world.run_until(lambda: world.processes["n2"].member.ending is not None, within_s=0.1)


def test_r10_a_successor_has_those_told_whom_only_the_one_before_it_knew() -> None:
    """A node that waited with it came after the last round, and knows no member."""
    world = led("n1", "n2", "n3", config=succeeding("2:4", min_round_s=60.0, linger_s=20.0))
    world.start("n4")
    world.run_until(lambda: world.processes["n4"].member.link is Link.JOINED, within_s=1.0)
    world.isolate("n4", ("n1", "n2", "n3"))
    succeed(world, "n1", "n2", "n3")
    world.run_until(lambda: world.processes["n3"].member.ending is not None, within_s=1.0)
    world.cut_power("n1")
    world.run_until(lambda: result(world, "n3") == "succeeded", within_s=10.0)
    assert world.processes["n2"].coordinator is not None
    world.heal()
    world.run_until(lambda: result(world, "n4") == "succeeded", within_s=3.0)
    assert told(world, "n4") <= {"n2", "n3"}


def test_r10_a_spare_that_holds_an_announcement_begins_nothing_with_a_host_that_is_back() -> None:
    """Everybody else has gone; the host comes back, and begins another job."""
    world = with_a_spare(linger_s=1.0)
    lost_while_ending(world)
    world.run_until(lambda: world.processes["n3"].member.ending is not None, within_s=0.1)
    world.suspend("n3", 3.0)
    world.run(2.0)
    world.crash("n1")
    world.start("n1")
    world.run_until(lambda: result(world, "n3") == "succeeded", within_s=12.0)
    new = world.processes["n1"].node.incarnation
    assert not any(
        isinstance(message, m.Welcome) and message.incarnation == new and target == "n3"
        for _, _, target, message in world.sent
    )


def test_r10_a_spare_that_has_come_to_a_host_that_is_back_is_told_there() -> None:
    """It was away as the end was announced, and the host is the first that it finds again."""
    world = with_a_spare(linger_s=20.0)
    world.isolate("n3", ("n1", "n2"))
    lost_while_ending(world)
    world.cut_power("n1")  # and with it goes the mark
    world.start("n1")
    world.heal([("n3", "n1"), ("n1", "n3")])
    world.run_until(lambda: world.processes["n3"].member.link is Link.JOINED, within_s=5.0)
    world.run(7.0)  # until what it has asked before is too old to be answered
    assert result(world, "n2") == "succeeded"
    assert not result(world, "n3")
    world.heal()
    world.run_until(lambda: result(world, "n3") == "succeeded", within_s=3.0)
    assert told(world, "n3") == {"n2"}
