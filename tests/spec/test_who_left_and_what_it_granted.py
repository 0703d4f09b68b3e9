"""R11.2, R11.6, R11.9, R4: what a coordinator granted before it left, or was elected again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from elastic_simulation.checks import Watch
from elastic_simulation.world import World, settings
from elastic_simulation.worlds import new_world

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous.messages import AppendRecord
from tests.spec.test_r11_succession import led, succeeding


def test_f4_granted_a_node_that_leaves_ends_no_job_of_those_who_are_out_of_its_reach() -> None:
    """They reach each other, and etcd, which can name one of them."""
    config = settings("2:3", quorum="granted", linger_s=1.0, join_timeout_s=30.0)
    world = new_world(config)
    Watch(world)
    world.start("n1", "n2", "n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=5.0)
    world.run(2.0)
    world.isolate("n1", ("n2", "n3"))
    world.run(1.3)
    world.agent("n1").drain(grace_s=5.0, takes_s=0.05)
    world.run(6.0)
    assert not world.of(events.JobEnding)
    assert world.all_run("n2", "n3")


def test_r11_a_record_without_a_leaver_leaves_no_lost_member_out_whose_lease_still_runs() -> None:
    """A successor waits for the leases of those that the record names, and knows no others."""
    world = led("n1", "n2", "n3", "n4", "n5", config=succeeding("4:5", lease_s=2.4))
    world.agent("n5").stop_s = world.agent("n5").kill_s = 60.0
    world.fail("n2")
    world.run(7.9)
    world.cut("n1", "n5")  # it does not hear that it is given up
    world.run_until(lambda: world.lost() == [("n5", "evicted")], within_s=0.3)
    world.agent("n4").drain(grace_s=30.0)
    world.run(0.2)
    world.kill_agent("n1")
    world.run(0.05)
    world.start("n1", "n6")
    world.run_until(lambda: world.all_run("n2", "n3", "n1", "n6"), within_s=6.0)
    assert world.over("n4") is not None


@pytest.mark.parametrize("lose", ["kill_agent", "crash", "cut_power"])
def test_r04_a_job_goes_on_where_others_are_lost_as_one_of_them_leaves(lose: str) -> None:
    """The record without the leaver wants votes that are gone: another one does without them."""
    world = led("n1", "n2", "n3", "n4", config=succeeding("1:4"))
    world.agent("n4").drain(grace_s=30.0, takes_s=0.1)
    world.run_until(lambda: _has_proposed(world, 2), within_s=1.0)
    for name in ("n2", "n3"):
        getattr(world, lose)(name)
    world.run_until(lambda: world.round_of("n1") == 2, within_s=3.0)
    world.run_until(lambda: world.over("n4") is not None, within_s=1.0)


def _has_proposed(world: World, number: int) -> bool:
    messages: Iterator[object] = (message for _, _, _, message in world.sent)
    return any(isinstance(each, AppendRecord) and each.record.number == number for each in messages)
