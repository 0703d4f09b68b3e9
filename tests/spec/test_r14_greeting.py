"""R14: who may take part: same job, same settings, a name of its own."""

from __future__ import annotations

from elastic_simulation.world import settings
from elastic_simulation.worlds import formed, new_world


def test_r14_different_settings_are_refused_one_by_one() -> None:
    """The refusal names each option that differs, and what it is on both nodes, by name."""
    world = new_world(settings("2:3", max_restarts=3))
    world.start("n1")
    world.start("n2", config=settings("2:4", max_restarts=5))
    world.run(0.5)
    over = world.over("n2")
    assert over is not None
    assert over.result == "refused"
    assert (
        "--max-restarts is 5 on n2 and 3 on n1; --nnodes is 2:4 on n2 and 2:3 on n1" in over.reason
    )


def test_r14_a_node_of_another_run_is_refused() -> None:
    """Two jobs at one endpoint do not mix (torch #126510)."""
    world = new_world(settings("1:3"))
    other = settings("1:3")
    world.start("n1")
    world.start("n2", config=type(other)(run_id="other", min_nodes=1, max_nodes=3, max_restarts=3))
    world.run(0.5)
    over = world.over("n2")
    assert over is not None
    assert over.result == "refused"
    assert "'other'" in over.reason


def test_r14_the_same_default_name_gets_a_suffix() -> None:
    """Several agents on one host are nodes of their own."""
    world = new_world(settings("3:3"))
    world.start("host", "host", "host", explicit=False)
    world.run(1.0)
    first = world.every_process[0].agent.assignment
    assert first is not None
    assert [entry.name for entry in first.roster] == ["host", "host-2", "host-3"]


def test_r14_the_same_explicit_name_is_refused_at_the_holders_next_beat() -> None:
    """Two living nodes cannot have one name; the one that has it is named."""
    world = formed("n1", "n2", nodes="2:3")
    world.start("n2", port=2000)
    newcomer = world.every_process[-1]
    took_s = world.run_until(lambda: newcomer.agent.over is not None, within_s=2.0)
    assert took_s <= world.config.beat_interval_s + 0.1
    assert newcomer.agent.over is not None
    assert newcomer.agent.over.result == "refused"
    assert "n2:1000 is alive" in newcomer.agent.over.reason
    assert [process.agent.is_running for process in world.every_process] == [True, True, False]


def test_r14_the_same_explicit_name_takes_the_place_of_a_silent_one() -> None:
    """A machine that lost power comes back under its name, and has its old rank."""
    world = formed("n1", "n2", "n3")
    world.cut_power("n2")
    world.run(0.3)
    world.start("n2")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=3.0)
    assert world.ranks("n2") == ("n1", "n2", "n3")
    assert world.lost() == [("n2", "silent")]


def test_r14_one_that_inherits_a_name_and_is_silent_itself_is_given_up_too() -> None:
    """Found by a storm: it inherited in the very moment in which silence was judged."""
    world = formed("n1", "n2")
    for _ in range(2):
        world.cut_power("n2")
        world.run(0.3)
        world.start("n2")
        world.run(0.1)
    world.run_until(lambda: world.all_run("n1", "n2"), within_s=5.0)
    assert world.lost() == [("n2", "silent"), ("n2", "silent")]


def test_r14_a_restarted_agent_takes_the_place_of_the_killed_one_at_once() -> None:
    """A supervisor restarts an agent: its tombstone clears the way."""
    world = formed("n1", "n2", "n3")
    world.kill_agent("n2")
    world.start("n2")
    world.run_until(lambda: world.all_run("n1", "n2", "n3"), within_s=0.3)
    assert world.lost() == [("n2", "tombstone")]


def test_r14_who_waits_for_a_name_learns_of_the_end_of_the_job() -> None:
    """A claimant is not left behind when the job ends."""
    world = formed("n1", "n2", nodes="2:3")
    world.freeze("n2", seconds=0.6)
    world.start("n2", port=2000)
    world.run(0.1)
    world.agent("n1").drain(grace_s=0.0, takes_s=0.0)
    world.run(3.0)
    newcomer = world.every_process[-1]
    assert newcomer.agent.over is not None
    assert newcomer.agent.over.result in {"lost", "refused"}
