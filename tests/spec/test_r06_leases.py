"""R6: leases run from the send time of the newest echoed beat; no worker runs beyond them."""

from __future__ import annotations

import pytest
from elastic_simulation.checks import Watch
from elastic_simulation.world import settings
from elastic_simulation.worlds import formed, new_world

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import ports


def test_r06_a_member_without_echoes_is_dead_before_its_lease_ends() -> None:
    """Killing begins early enough: by L after the newest echoed beat was sent, nothing runs."""
    config = settings("2:3")
    world = formed("n1", "n2", "n3", config=config)
    world.isolate("n3", ["n1", "n2"])
    took_s = world.run_until(lambda: not world.agent("n3").is_running, within_s=3.0)
    assert config.lease_s - config.beat_interval_s - 0.2 < took_s < config.lease_s
    assert len(world.notices("n3", ports.Fence)) == 1


def test_r06_others_start_no_earlier_than_lease_and_margin_after_the_last_contact() -> None:
    """Whatever has happened to the silent one, it is over by then."""
    config = settings("2:3")
    world = formed("n1", "n2", "n3", config=config)
    world.run_until(lambda: world.sent[-1][1:3] == ("n3", "n1"), within_s=1.0)
    world.cut_power("n3")  # its newest beat has just been sent and still arrives, or not at all
    took_s = world.run_until(lambda: world.all_run("n1", "n2"), within_s=3.0)
    assert took_s >= config.lease_s + config.drift_s - config.beat_interval_s


@pytest.mark.parametrize("deaf", ["member", "coordinator"])
def test_r06_one_way_silence_is_silence(deaf: str) -> None:
    """A member that talks and does not hear is fenced and given up like a silent one."""
    world = formed("n1", "n2", "n3", nodes="2:3")
    Watch(world)
    if deaf == "member":
        world.cut("n1", "n3")
    else:
        world.cut("n3", "n1")
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=4.0)
    assert world.lost() == [("n3", "silent")]


def test_r06_a_frozen_agent_cannot_leave_workers_running() -> None:
    """Its keeper holds the deadline and kills by itself; the others do not meet old workers."""
    world = formed("n1", "n2", "n3", nodes="2:3")
    Watch(world)
    world.freeze("n3", seconds=6.0)
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=3.0)
    assert not world.agent("n3").is_running
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=8.0)


@pytest.mark.parametrize("name", ["n1", "n3"])
def test_r06_an_agent_that_stood_still_for_half_a_lease_says_so(name: str) -> None:
    """The others cannot know, and would take it for a loss of the network."""
    config = settings("2:3")
    world = formed("n1", "n2", "n3", config=config)
    for seconds in (config.lease_s / 2, config.lease_s):
        world.freeze(name, seconds=seconds)
        world.run(10)
    ((_, told_by, told),) = [e for e in world.events if isinstance(e[2], events.AgentStalled)]
    assert told_by == name
    assert isinstance(told, events.AgentStalled)
    assert config.lease_s - config.beat_interval_s <= told.stalled_s <= config.lease_s


@pytest.mark.parametrize("rate", [0.9, 1.1])
def test_r06_clocks_of_different_speed_are_covered_by_the_margin(rate: float) -> None:
    """A member whose clock is slow or fast by a tenth is still dead in time."""
    world = new_world(settings("2:3"))
    Watch(world)
    world.start("n1", "n2")
    world.start("n3", clock_rate=rate)
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=3.0)
    world.run(2.0)
    world.isolate("n3", ["n1", "n2"])
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=3.0)


def test_r06_a_pause_shorter_than_the_lease_does_no_harm() -> None:
    """Beats that are late by less than a lease change nothing."""
    world = formed("n1", "n2", "n3")
    world.freeze("n3", seconds=0.7)
    world.run(5.0)
    assert world.round_of("n3") == 1
    assert world.lost() == []


def test_r06_a_coordinator_that_was_late_doubts_itself_first() -> None:
    """What it did not hear while it was away may be waiting to be read: no node is given up."""
    world = formed("n1", "n2", "n3", config=settings("2:3", lease_s=2.4))
    world.freeze("n2", seconds=0.2)  # its beat is a little late
    world.freeze("n1", seconds=2.0)
    world.run(6.0)
    assert world.lost() == []
    assert world.round_of("n1") == 1


def test_r06_a_link_shorter_than_the_lease_is_not_noticed() -> None:
    """What waited in the network arrives when it is healed."""
    world = formed("n1", "n2", "n3")
    world.isolate("n3", ["n1", "n2"])
    world.run(0.7)
    world.heal()
    world.run(3.0)
    assert [world.round_of(name) for name in ("n1", "n2", "n3")] == [1, 1, 1]
    assert world.lost() == []
