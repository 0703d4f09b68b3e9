"""R11.9: nodes that are lost vote no more, also while too few are left for a round."""

from __future__ import annotations

from functools import partial

import pytest
from elastic_simulation.world import World

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from tests.spec.test_r11_succession import led, succeeding


@pytest.mark.parametrize("lose", ["crash", "cut_power"])
def test_r11_all_but_the_leader_are_replaced_one_by_one(lose: str) -> None:
    """Of three that are needed: the second is lost while the job waits for the first."""
    world = led("n1", "n2", "n3", config=succeeding("3:3"))
    for name in ("n3", "n2"):
        getattr(world, lose)(name)
        world.run(4.0)
    assert world.over("n1") is None
    world.start("n2", "n3")
    world.reform("n1", "n2", "n3", within_s=6.0)


def test_r11_the_leader_may_be_the_next_that_is_lost() -> None:
    """Of five, two are lost one by one while the job waits, and then the one that leads."""
    world = led("n1", "n2", "n3", "n4", "n5", config=succeeding("5:5"))
    for name in ("n5", "n4", "n1"):
        world.crash(name)
        world.run(4.0)
    assert [at for at, _, event in world.events if isinstance(event, events.CoordinatorStarted)][1:]
    world.start("n1", "n4", "n5")
    world.reform("n2", "n3", "n1", "n4", "n5", within_s=8.0)


def test_r11_a_lost_voter_is_left_out_once_its_workers_cannot_run_any_more() -> None:
    """A successor waits for the leases of those only whom the record names."""
    world = led("n1", "n2", "n3", config=succeeding("3:3"))
    world.isolate("n3", ["n1", "n2"])
    world.run(3.0)
    (lost_at,) = (at for at, _, event in world.events if isinstance(event, events.MemberLost))
    left_out = [
        at
        for at, _, _, said in world.sent
        if isinstance(said, m.AppendRecord) and len(said.record.configuration.voters) == 2
    ]
    assert min(left_out) >= lost_at + world.config.drift_s - 1e-6


@pytest.mark.parametrize("nodes", ["2:3", "3:3"])
@pytest.mark.parametrize("later_s", [0.3, 0.5, 0.7])
def test_r11_a_leader_that_hears_nobody_leaves_the_others_able_to_go_on(
    nodes: str, later_s: float
) -> None:
    """It loses one, and must not ask the other, which hears it, for what only itself can decide."""
    for phase in range(5):  # of the beats
        world = led("n1", "n2", "n3", config=succeeding(nodes), after_s=2.0 + 0.05 * phase)
        world.cut("n3", "n1")
        world.run(later_s)
        world.cut("n2", "n1")
        leads = partial(_leads_one_of, world, "n2", "n3")
        world.run_until(leads, within_s=6.0)


def test_r11_nor_does_it_ask_for_a_round_when_the_workers_of_that_one_were_gone_before() -> None:
    """Nothing has come from it since the loss: neither that its workers are gone nor a beat."""
    for phase in range(5):
        world = led("n1", "n2", "n3", after_s=2.0 + 0.05 * phase)
        world.agent("n3").stop_s = 2.9
        world.fail("n2")
        world.run(0.3)
        world.cut("n3", "n1")
        world.run(0.4)
        world.cut("n2", "n1")
        world.run_until(partial(_leads_one_of, world, "n2", "n3"), within_s=6.0)


def test_r11_nor_when_the_first_was_given_up_long_before_its_lease_was_over() -> None:
    """It did not answer the order to stop, and the lease is longer than stopping may take."""
    world = led("n1", "n2", "n3", config=succeeding(lease_s=12.0))
    world.fail("n2")
    world.cut("n3", "n1")
    world.run(2.0)
    world.cut("n2", "n1")
    world.run_until(lambda: world.lost() == [("n3", "silent")], within_s=9.0)
    world.run_until(partial(_leads_one_of, world, "n2", "n3"), within_s=20.0)


def _leads_one_of(world: World, *names: str) -> bool:
    return any(world.processes[name].leader is not None for name in names)
