"""R11.2, R11.6, R11.9, R4: what a coordinator granted before it left, or was elected again."""

from __future__ import annotations

from elastic_simulation.checks import Watch
from elastic_simulation.granted import GrantedWorld
from elastic_simulation.world import World, settings

from pytest_elastic.events import model as events
from pytest_elastic.rendezvous import messages as m
from pytest_elastic.rendezvous import vocabulary as v
from tests.spec.test_r11_succession import led, succeeding
from tests.spec.test_succession_midway import _has


def _heal(world: World, *pairs: tuple[str, str]) -> None:
    world.heal([link for a, b in pairs for link in ((a, b), (b, a))])


def _hears(world: World, name: str, kind: type[m.Message], term: int = 0) -> bool:
    return any(
        isinstance(said, kind) and target == name and getattr(said, "term", 0) >= term
        for _, _, target, said in world.sent
    )


def test_f1_who_has_left_counts_in_a_round_to_whose_successor_it_had_agreed() -> None:
    """n3 acknowledged round 2, which n2 committed alone; then n3 followed n2, and left."""
    world = led("n1", "n2", "n3", config=succeeding("2:3", join_timeout_s=60.0))
    world.start("n4")
    world.run(0.5)
    world.isolate("n1", ["n2", "n3", "n4"])
    world.run_until(
        lambda: all(_has(world, one, m.SealAcknowledged, 2) for one in ("n3", "n4")), within_s=10.0
    )
    world.run(0.002)
    world.isolate("n2", ["n1", "n3", "n4", "n5"])
    world.run_until(lambda: world.round_of("n2") == 2, within_s=2.0)
    one, three = world.processes["n1"], world.processes["n3"]

    def is_n3s_turn() -> bool:
        first, third = one.member._succession.candidate, three.member._succession.candidate
        pause_s = 0.06 if first.standing.value == "trying" else 0.0
        is_first = first._wake_at - one.now() + pause_s > third._wake_at - three.now() + 0.02
        return third.standing.value == "waiting" and bool(is_first)

    world.run_until(is_n3s_turn, within_s=6.0)
    _heal(world, ("n1", "n3"))
    world.run_until(lambda: world.processes["n3"].coordinator is not None, within_s=3.0)
    world.run_until(lambda: _hears(world, "n1", m.Welcome, 3), within_s=3.0)
    world.isolate("n4", ["n1", "n3", "n5"])
    world.isolate("n5", ["n2"])
    _heal(world, ("n2", "n4"))
    world.start("n5")
    world.run(0.01)
    world.agent("n3").drain(grace_s=5.0, takes_s=0.01)
    world.run(12.0)  # the watch looks


def test_f2_who_was_elected_without_the_voice_of_one_that_left_may_decide_without_it() -> None:
    """n1 has committed round 2 alone, and left; n3, a spare, was told so."""
    world = led("n1", "n2", "n3", config=succeeding("2:4", join_timeout_s=10.0))
    world.isolate("n3", ["n1", "n2", "n4", "n5"])
    world.run(0.5)
    world.start("n4", "n5")
    others = ("n2", "n4", "n5")
    world.run_until(
        lambda: all(_has(world, one, m.SealAcknowledged, 2) for one in others), within_s=10.0
    )
    world.run(0.002)
    before = len(world.sent)
    for one in others:
        world.isolate(one, ["n1"])
    _heal(world, ("n1", "n3"))
    world.run_until(lambda: world.round_of("n1") == 2, within_s=2.0)
    world.run_until(
        lambda: any(t == "n3" and isinstance(x, m.Welcome) for *_, t, x in world.sent[before:]), 2.0
    )
    world.agent("n1").drain(grace_s=5.0, takes_s=0.01)
    world.run_until(lambda: _hears(world, "n3", m.StepDown), within_s=2.0)
    world.run(0.02)
    world.crash("n5")
    _heal(world, ("n2", "n3"), ("n3", "n4"))
    world.run_until(lambda: world.all_run("n2", "n3", "n4"), within_s=9.0)
    assert len(world.of(events.CoordinatorStarted)) == 2


def test_f3_what_a_coordinator_granted_until_it_left_is_waited_for() -> None:
    """Only n4 was still heard by n1, which needed no third voice besides its own."""
    world = led("n1", "n2", "n3", "n4", config=succeeding("2:4", lease_s=2.4), after_s=2.05)
    for one in ("n2", "n3"):
        world.cut(one, "n1")
    world.isolate("n4", ["n2", "n3"])
    world.run(1.5)
    world.agent("n1").drain(grace_s=5.0, takes_s=0.01)
    world.run(0.0098)
    world.isolate("n4", ["n1", "n2", "n3"])
    world.run(4.0)
    assert world.all_run("n2", "n3")


def test_f5_what_a_node_granted_when_it_was_elected_before_is_waited_for() -> None:
    """n2 is elected twice while its workers are being killed: its member never joined it."""
    world = led("n1", "n2", "n3", config=succeeding("2:3", lease_s=2.4))
    world.agent("n2").kill_s = 1.3

    def show(name: str, term: int) -> None:
        world.processes[name].feed("coordinator", v.Superseded(term=term))

    world.isolate("n1", ["n2"])
    world.run(0.6)
    world.cut("n3", "n1")
    world.run_until(lambda: world.processes["n2"].member.part.value == "fencing", within_s=3.0)
    show("n1", 2)
    world.run(0.002)
    world.cut("n1", "n3")
    _heal(world, ("n1", "n2"))
    world.run_until(lambda: world.processes["n2"].coordinator is not None, within_s=3.0)
    world.isolate("n3", ["n2"])
    n1 = world.agent("n1")
    world.run_until(lambda: n1.is_running and not n1.is_held, within_s=1.0)
    world.isolate("n1", ["n2", "n3"])
    show("n2", 8)
    world.run(1.6)
    _heal(world, ("n2", "n3"))
    world.run(6.0)


def test_f4_granted_a_node_that_leaves_ends_no_job_of_those_who_are_out_of_its_reach() -> None:
    """They reach each other, and etcd, which can name one of them."""
    config = settings("2:3", quorum="granted", linger_s=1.0, join_timeout_s=30.0)
    world = GrantedWorld(config)
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
