"""R11.5: seals that somebody proves never to have been committed, and those that may have been."""

from __future__ import annotations

from elastic_simulation.world import World

from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import ports
from tests.spec.test_r11_succession import elections, led, succeeding
from tests.spec.test_succession_midway import _endorsed, _has


def _acknowledge(world: World, round_: int, *names: str) -> None:
    for one in names:
        world.run_until(lambda one=one: _has(world, one, m.SealAcknowledged, round_), within_s=6.0)  # type: ignore[misc]


def _join(world: World, *names: str) -> None:
    """Heal what is between these; what a dead node had sent to others stays lost."""
    world.heal([(a, b) for a in names for b in names])


def _half_of_a_seal(*, is_acknowledged: bool) -> World:
    """Let n1 and n6 be lost, half of round 2, when all of n1, n2, n3, n6 but n2 have that seal.

    n4 and n5, who were out of reach, are back: with n2 and n3 a quorum of round 1.
    """
    world = led("n1", "n2", "n3", "n4", "n5", config=succeeding("2:5"))
    world.agent("n1").opens_stores = False
    for one in ("n4", "n5"):
        world.isolate(one, ["n1", "n2", "n3", "n6"])
    world.start("n6")
    world.run_until(lambda: world.seals()[-1].round == 2, within_s=4.0)
    if not is_acknowledged:
        world.cut("n1", "n2")
    _acknowledge(world, 2, *("n3", "n6", "n2")[: 2 + is_acknowledged])
    for one in ("n1", "n6"):
        world.crash(one)
    _join(world, "n3", "n4", "n5")
    _join(world, "n2", "n4", "n5")
    return world


def test_r11_a_seal_that_one_of_its_roster_has_not_acknowledged_binds_nobody() -> None:
    """Storm 124051488: n2 proves that it was never committed, so those before it decide alone."""
    world = _half_of_a_seal(is_acknowledged=False)
    world.run_until(lambda: world.all_run("n2", "n3", "n4", "n5"), within_s=8.0)
    assert world.round_of("n2") > 2


def test_r11_a_seal_that_all_who_are_left_have_acknowledged_may_have_been_committed() -> None:
    """The same nodes are left, and nobody of them can tell; n6, say, may run with n1."""
    world = _half_of_a_seal(is_acknowledged=True)
    world.run(8.0)
    assert elections(world) == 0
    assert not any(world.agent(one).is_running for one in ("n2", "n3", "n4", "n5"))


def test_r11_a_seal_binds_nobody_through_one_that_followed_it() -> None:
    """n3 proves it of round 2 and n5 of round 3; three of five of round 1 are left."""
    world = led("n1", "n2", "n3", "n4", "n5", config=succeeding("2:5"))
    world.agent("n1").opens_stores = world.agent("n2").opens_stores = False
    for one in ("n4", "n5"):
        world.isolate(one, ["n1", "n2", "n3", "n6", "n7"])
    world.start("n6", "n7")
    world.run_until(lambda: world.seals()[-1].round == 2, within_s=4.0)
    world.isolate("n3", ["n1", "n2", "n4", "n5", "n6", "n7"])
    _acknowledge(world, 2, "n2", "n6", "n7")
    world.crash("n1")
    _join(world, "n2", "n4", "n5", "n6", "n7")
    world.run_until(lambda: world.seals()[-1].round == 3, within_s=8.0)
    world.cut("n2", "n5")
    _acknowledge(world, 3, "n4")
    for one in ("n2", "n6", "n7"):
        world.crash(one)
    _join(world, "n3", "n4", "n5")
    world.run_until(lambda: world.all_run("n3", "n4", "n5"), within_s=12.0)


def test_r11_who_has_not_endorsed_a_seal_proves_as_much_as_one_of_its_roster() -> None:
    """Three of four of round 1 are left, three of four of round 2; n4 never endorsed round 3."""
    names = ["n1", "n2", "n3", "n4", "n5", "n6"]
    world = led(*names[:4], config=succeeding("3:4"))
    world.start("n5", "n6")
    world.run_until(lambda: world.notices("n6", ports.Spared) != [], within_s=3.0)
    world.agent("n1").opens_stores = False
    for one in ("n3", "n4"):
        world.isolate(one, ["n1", "n2", "n5", "n6"])
    _acknowledge(world, 2, "n2", "n5", "n6")
    world.isolate("n1", names)
    world.run(3.0)
    _join(world, *names[1:])
    world.run_until(lambda: _endorsed(world) is not None, within_s=8.0)
    world.isolate("n4", names)
    seal = _endorsed(world)
    assert seal is not None
    assert seal.endorsers == (world.processes["n4"].node.incarnation,)
    assert seal.sealed_by == world.processes["n3"].node.incarnation
    _acknowledge(world, seal.round, *(entry.name for entry in seal.roster))
    for one in ("n3", "n5"):
        world.crash(one)
    _join(world, "n1", "n2", "n4", "n6")
    world.run_until(lambda: world.all_run("n1", "n2", "n4", "n6"), within_s=12.0)
