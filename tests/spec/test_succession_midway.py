"""R11, in the middle of something: a round on its way, a drain, the end."""

from __future__ import annotations

from elastic_simulation.world import World

from tests.spec.test_r11_succession import led, newest_term, succeeding


def _has(world: World, name: str, round_: int) -> bool:
    """Tell whether a node has accepted the record of a round."""
    record = world.processes[name].follower.voter.record
    return record is not None and record.round == round_


def test_r11_a_record_that_only_one_has_heard_of_is_not_forgotten() -> None:
    """It may have been decided; the next leader must hear of it, or know that it was not."""
    world = led("n1", "n2", "n3")
    world.cut("n1", "n2")
    world.fail("n3")
    world.run(0.1)
    assert not world.seals() or world.seals()[-1].round == 1  # n2 has not stopped
    world.heal()
    world.run_until(lambda: world.seals()[-1].round == 2, within_s=3.0)
    world.cut("n1", "n2")
    world.run_until(lambda: _has(world, "n3", 2), within_s=1.0)
    world.kill_agent("n1")
    world.reform("n2", "n3", within_s=5.0)
    assert world.round_of("n2") > 2


def test_r11_a_round_that_only_one_has_started_counts() -> None:
    """n3 starts its workers, n2 does not hear of it; then the leader is lost."""
    world = led("n1", "n2", "n3")
    world.fail("n3")
    world.run_until(lambda: _has(world, "n2", 2), within_s=2.0)
    world.cut("n1", "n2")
    world.run_until(lambda: world.round_of("n3") == 2, within_s=2.0)
    world.kill_agent("n1")
    world.reform("n2", "n3", within_s=5.0)
    assert world.round_of("n2") > 2
    assert world.restarts("n2") == 1


def test_r11_a_round_that_may_be_decided_makes_no_majority_alone() -> None:
    """A round of three out of five is accepted by all three; two of them are cut off.

    They are a majority of that round, and not of the one before it, from which the leader goes
    on with the two others.
    """
    world = led("n1", "n2", "n3", "n4", "n5", config=succeeding("2:5"))
    world.agent("n1").opens_stores = False
    for one in ("n4", "n5"):
        world.isolate(one, ["n1", "n2", "n3"])
    for one in ("n2", "n3"):
        world.run_until(lambda one=one: _has(world, one, 2), within_s=4.0)  # type: ignore[misc]
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
