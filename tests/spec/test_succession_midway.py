"""R11, in the middle of something: a round on its way, a drain, the end."""

from __future__ import annotations

import pytest
from elastic_simulation.checks import Watch
from elastic_simulation.world import World, settings

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from tests.spec.test_r11_succession import coordinators, elections, led, newest_term, succeeding


def _has(world: World, name: str, kind: type[m.SealAcknowledged], round_: int) -> bool:
    """Tell whether a node has acknowledged the seal of a round."""
    return any(
        isinstance(message, kind) and message.round == round_ and source == name
        for _, source, _, message in world.sent
    )


def _said(world: World, name: str, kind: type[m.Report]) -> bool:
    """Tell whether a node has said something."""
    return any(isinstance(message, kind) and source == name for _, source, _, message in world.sent)


def test_r11_a_seal_that_only_one_has_heard_of_is_not_forgotten() -> None:
    """It may have been committed; whoever follows must hear of it, or know that it was not."""
    world = led("n1", "n2", "n3")
    world.cut("n1", "n2")
    world.fail("n3")
    world.run(0.1)
    assert not world.seals() or world.seals()[-1].round == 1  # n2 has not stopped
    world.heal()
    world.run_until(lambda: world.seals()[-1].round == 2, within_s=3.0)
    world.cut("n1", "n2")
    world.run_until(lambda: _has(world, "n3", m.SealAcknowledged, 2), within_s=1.0)
    world.kill_agent("n1")
    world.reform("n2", "n3", within_s=5.0)
    assert world.round_of("n2") > 2


def test_r11_a_commit_that_only_one_has_seen_is_taken_for_one() -> None:
    """n3 starts its workers, n2 does not hear of it; then the coordinator is lost."""
    world = led("n1", "n2", "n3")
    world.fail("n3")
    world.run_until(lambda: _has(world, "n2", m.SealAcknowledged, 2), within_s=2.0)
    world.cut("n1", "n2")
    world.run_until(lambda: world.round_of("n3") == 2, within_s=2.0)
    world.kill_agent("n1")
    world.reform("n2", "n3", within_s=5.0)
    assert world.round_of("n2") > 2
    assert world.restarts("n2") == 1


def test_r11_a_round_of_which_nobody_knows_whether_it_stands_makes_no_majority_alone() -> None:
    """A round of three out of five is acknowledged by all three; two of them are cut off.

    They are a majority of that round, and not of the one before it, from which the coordinator goes
    on with the two others.
    """
    world = led("n1", "n2", "n3", "n4", "n5", config=succeeding("2:5"))
    world.agent("n1").opens_stores = False
    for one in ("n4", "n5"):
        world.isolate(one, ["n1", "n2", "n3"])
    for one in ("n2", "n3"):
        world.run_until(lambda one=one: _has(world, one, m.SealAcknowledged, 2), within_s=4.0)  # type: ignore[misc]
    world.heal()
    for one in ("n2", "n3"):
        world.isolate(one, ["n1", "n4", "n5"])
    world.agent("n1").opens_stores = True
    world.run_until(lambda: world.all_run("n1", "n4", "n5"), within_s=8.0)
    world.run(5.0)
    assert newest_term(world) == 1
    assert not world.agent("n2").is_running
    world.heal()
    world.run_until(lambda: world.all_run("n1", "n4", "n5", "n2", "n3"), within_s=8.0)


def _two_electorates(*, heal_after_s: float = 0.0) -> World:
    """Let n1 be lost when round 2, of two old nodes and two new ones, may have been committed.

    A quorum of round 1 (n2, n3, n4) and one of round 2 (n2, n5, n6) are more than a round may have.
    """
    world = led("n1", "n2", "n3", "n4", config=succeeding("3:4"))
    world.start("n5", "n6")
    world.run_until(lambda: world.notices("n6", ports.Spared) != [], within_s=3.0)
    world.agent("n1").opens_stores = False
    for one in ("n3", "n4"):
        world.isolate(one, ["n1", "n2", "n5", "n6"])
    for one in ("n2", "n5", "n6"):
        world.run_until(lambda one=one: _has(world, one, m.SealAcknowledged, 2), within_s=6.0)  # type: ignore[misc]
    world.crash("n1")
    world.run(heal_after_s)
    world.heal()
    return world


def _endorsed(world: World) -> m.Seal | None:
    """Return the first seal that needs an acknowledgement of somebody who is not in it."""
    seals = [message for _, _, _, message in world.sent if isinstance(message, m.Seal)]
    return next((seal for seal in seals if seal.endorsers), None)


def test_r11_a_round_may_need_the_voice_of_nodes_for_which_it_has_no_room() -> None:
    """Storm 60083517: they acknowledge it, and wait as spares."""
    world = _two_electorates()
    world.run_until(lambda: world.all_run("n2", "n3", "n5", "n6"), within_s=8.0)
    seal = _endorsed(world)
    assert seal is not None
    assert [world.processes["n4"].node.incarnation] == list(seal.endorsers)
    assert seal.spares == ("n4",)
    assert _has(world, "n4", m.SealAcknowledged, seal.round)
    assert not world.agent("n4").is_running


def test_r11_what_has_to_be_endorsed_is_not_committed_before() -> None:
    """Who endorses is lost sight of. Nothing else is waited for: no worker of before can run."""
    world = _two_electorates(heal_after_s=3.0)
    world.run_until(lambda: _endorsed(world) is not None, within_s=8.0)
    world.isolate("n4", ["n2", "n3", "n5", "n6"])
    seal = _endorsed(world)
    assert seal is not None
    world.run(6.0)
    assert not _has(world, "n4", m.SealAcknowledged, seal.round)
    assert not any(world.agent(one).is_running for one in ("n2", "n3", "n5", "n6"))
    world.heal()
    world.run_until(lambda: world.all_run("n2", "n3", "n5", "n6"), within_s=8.0)


def test_r11_who_is_to_endorse_a_round_and_comes_back_is_asked_again() -> None:
    """The seal went with its connection; the round is not given up for that."""
    world = _two_electorates(heal_after_s=3.0)
    world.run_until(lambda: _endorsed(world) is not None, within_s=8.0)
    seal = _endorsed(world)
    assert seal is not None
    world.break_connection("n4")
    world.run_until(lambda: world.all_run("n2", "n3", "n5", "n6"), within_s=3.0)
    assert world.round_of("n2") == seal.round


def _first_sealed(nnodes: str) -> World:
    """Let n1, n4 and n5 have a first seal; nothing comes of it while n1 has no store."""
    world = World(settings(nnodes, quorum="majority", last_call_s=0.2))
    Watch(world)
    world.start("n1")
    world.agent("n1").opens_stores = False
    world.start("n4", "n5")
    world.run_until(lambda: _has(world, "n5", m.SealAcknowledged, 1), within_s=2.0)
    return world


def test_r11_who_follows_a_first_seal_gives_way_to_whoever_was_told_of_a_later_one() -> None:
    """The first round was another one than what the voters had acknowledged, and runs."""
    world = _first_sealed("3:4")
    for one in ("n4", "n5"):
        world.reject(one, ["n1", "n2", "n3"])
    world.agent("n1").opens_stores = True
    world.start("n2", "n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=3.0)
    assert any(world.processes[one].coordinator is not None for one in ("n4", "n5"))
    world.isolate("n2", ["n1", "n3", "n4", "n5"])
    world.heal([(one, two) for one in ("n4", "n5") for two in ("n1", "n3")])
    world.heal([(two, one) for one in ("n4", "n5") for two in ("n1", "n3")])
    world.run_until(lambda: world.all_run("n1", "n3", "n4", "n5"), within_s=15.0)
    assert newest_term(world) > 2


def test_r11_who_was_told_of_a_round_without_it_follows_no_first_seal_of_its_own() -> None:
    """Two that were given up, and are spares, could elect each other; they ask that round's."""
    world = _first_sealed("3:3")
    for one in ("n4", "n5"):
        world.reject(one, ["n1", "n2", "n3", "n4", "n5"])
    world.agent("n1").opens_stores = True
    world.start("n2", "n3")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=3.0)
    world.heal()
    world.run_until(lambda: world.notices("n5", ports.Spared) != [], within_s=10.0)
    world.run_until(lambda: world.notices("n4", ports.Spared) != [], within_s=10.0)
    world.crash("n1")
    world.run_until(lambda: world.all_run("n2", "n3", "n5"), within_s=10.0)
    assert coordinators(world)[-1] == (2, "n2")
    assert elections(world) == 2  # one candidate, who asked two


@pytest.mark.parametrize("moment", [m.StopOrder, m.Seal, m.SealAcknowledged, m.Commit])
def test_r11_the_coordinator_is_lost_in_every_moment_of_a_round(moment: type[m.Message]) -> None:
    """A worker fails, and the coordinator's node dies while the next round is made."""
    world = led("n1", "n2", "n3")
    before = len(world.sent)
    world.fail("n2")
    world.run_until(
        lambda: any(isinstance(said, moment) for _, _, _, said in world.sent[before:]), 3.0
    )
    world.crash("n1")
    world.run_until(lambda: world.all_run("n2", "n3"), within_s=5.0)
    assert world.restarts("n2") <= 1


def test_r11_the_coordinator_is_lost_while_a_member_leaves() -> None:
    """The one that leaves has its grace, and votes until its workers are gone."""
    world = led("n1", "n2", "n3", config=succeeding("1:3"))
    world.agent("n3").drain(grace_s=5.0, takes_s=1.0)
    world.run(0.2)
    world.kill_agent("n1")
    world.run_until(lambda: world.over("n3") is not None, within_s=3.0)
    over = world.over("n3")
    assert over is not None
    assert over.result == "drained"


def test_r11_an_end_that_a_majority_has_heard_of_is_that_end() -> None:
    """The coordinator is lost before it could say the last word."""
    world = led("n1", "n2", "n3")
    for name in ("n1", "n2", "n3"):
        world.agent(name).succeed()
    world.run_until(lambda: _said(world, "n3", m.EndAcknowledged), within_s=1.0)
    world.crash("n1")
    world.run(8.0)
    overs = [world.over(name) for name in ("n2", "n3")]
    assert [over.result for over in overs if over is not None] == ["succeeded"] * 2


def test_r11_groups_that_have_succeeded_are_not_run_again_for_a_lost_coordinator() -> None:
    """The members say again what they have reported; the one that is lost is the only one gone."""
    world = led("n1", "n2", "n3")
    world.agent("n2").succeed()
    world.agent("n3").succeed()
    world.run(0.5)
    world.kill_agent("n1")
    world.reform("n2", "n3")
    assert world.restarts("n2") == 0
