"""R7: newcomers are gathered, spaced, and let in up to max_nodes; the others are spares."""

from __future__ import annotations

import pytest
from elastic_simulation.world import settings
from elastic_simulation.worlds import formed, new_world

from pytest_elastic.rendezvous import ports


def test_r07_below_max_a_newcomer_causes_a_new_round_after_the_window() -> None:
    """The round ends one newcomer window after its arrival."""
    config = settings("1:4")
    world = formed("n1", "n2", config=config)
    world.start("n3")
    took_s = world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=2.0)
    assert config.newcomer_window_s <= took_s < config.newcomer_window_s + 0.1


def test_r07_all_who_arrive_within_the_window_come_in_together() -> None:
    """Two arrivals, one new round."""
    world = formed("n1", nodes="1:4")
    world.start("n2")
    world.run(0.15)
    world.start("n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=1.0)
    assert world.round_of("n1") == 2


def test_r07_the_window_is_counted_from_the_first_arrival_and_never_extended() -> None:
    """Nodes that drip in do not put the round off."""
    config = settings("1:9")
    world = formed("n1", config=config)
    for number in range(2, 6):
        world.start(f"n{number}")
        world.run(0.12)
    assert world.seals()[1].roster == ("n1", "n2", "n3")


def test_r07_rounds_made_for_newcomers_are_min_round_s_apart() -> None:
    """A round has its time before it is ended for a newcomer."""
    config = settings("1:4", min_round_s=3.0)
    world = formed("n1", config=config, after_s=0.0)
    began = world.time
    world.start("n2")
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=5.0)
    assert world.time - began >= 3.0


def test_r07_at_max_a_newcomer_is_a_spare_and_nothing_ends() -> None:
    """It is told that it is one, and listed with the next round."""
    world = formed("n1", "n2", nodes="1:2")
    world.start("n3")
    world.run(3.0)
    assert world.round_of("n1") == 1
    assert world.notices("n3", ports.Spared) == [ports.Spared(round=1)]
    world.fail("n1")
    world.run_until(lambda: world.round_of("n2") == 2, within_s=1.0)
    assert world.seals()[1].spares == ("n3",)


def test_r07_a_spare_is_promoted_when_a_member_goes() -> None:
    """The place of a lost member is filled in the round that follows."""
    world = formed("n1", "n2", nodes="2:2")
    world.start("n3")
    world.run(1.0)
    world.kill_agent("n2")
    world.run_until(lambda: world.all_run("n1", "n3"), within_s=0.2)


def test_r07_the_spare_that_waits_longest_comes_first() -> None:
    """Places go in the order of arrival."""
    world = formed("n1", "n2", nodes="2:2")
    world.start("n9")
    world.run(0.5)
    world.start("n3")
    world.run(0.5)
    world.kill_agent("n2")
    world.run_until(lambda: world.all_run("n1", "n9"), within_s=0.2)


def test_r07_a_spare_ends_well_when_the_job_does() -> None:
    """Its agent is told that the job succeeded."""
    world = formed("n1", "n2", nodes="2:2")
    world.start("n3")
    world.run(1.0)
    for name in ("n1", "n2"):
        world.agent(name).succeed()
    world.run(0.1)
    over = world.over("n3")
    assert over is not None
    assert over.result == "succeeded"


def test_r07_once_a_group_has_succeeded_newcomers_wait() -> None:
    """A job that is finishing is not begun again for a newcomer (torch #118891)."""
    world = formed("n1", "n2", nodes="1:4")
    world.agent("n1").succeed()
    world.start("n3")
    world.run(10.0)
    assert world.round_of("n2") == 1
    world.agent("n2").succeed()
    world.run(0.1)
    over = world.over("n3")
    assert over is not None
    assert over.result == "succeeded"


@pytest.mark.parametrize("arrivals", [3, 5])
def test_r07_more_than_max_at_once_leaves_the_latest_as_spares(arrivals: int) -> None:
    """The first round takes max_nodes; a node that came later waits."""
    world = new_world(settings("2:2"))
    names = [f"n{number + 1}" for number in range(arrivals)]
    for name in names:
        world.start(name)
        world.run(0.05)
    world.run(0.5)
    assert world.all_run("n1", "n2")
    for name in names[2:]:
        assert world.notices(name, ports.Spared) == [ports.Spared(round=1)]
